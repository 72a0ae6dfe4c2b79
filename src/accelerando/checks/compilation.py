"""The checks of lab 2. Each one starts from the mistakes that people make."""

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from accelerando.checks import compilation_mistakes as mistakes
from accelerando.checks.quiz import judge_quiz
from accelerando.submission import (
    LearnerCall,
    NotMeasurableHere,
    SpeedTask,
    Submission,
    Wrong,
    grades,
    is_same,
)

if TYPE_CHECKING:
    import torch

PLAIN_RUN = "accelerando.probes.compilation:train_plainly"
ALIKE = 0.995
"""Of the held-out examples, how many a timed run must classify as the plain step's net does: compiled, all of them."""
_SURELY, _THEN = 2, 1 / 3


@grades("compilation.break_even_step", wrong=mistakes.BREAK_EVEN)
def break_even_step(sub: Submission, rng: np.random.Generator) -> None:
    """Runs of every kind: paid back, never paid back, too short, and caught up again after a later compilation."""
    where = "See *What it costs, and when it pays* in the lesson."

    def ask(compile_s: float, eager_s: float, compiled_s: float, compiles_at: list[int], steps: int) -> Any:
        found = sub.break_even_step(compile_s, eager_s, compiled_s, compiles_at, steps)
        if found is not None and (isinstance(found, bool) or not isinstance(found, int)):
            raise Wrong(f"`break_even_step` returned {type(found).__name__}. It should return a whole number, or None.")
        return found

    examples: tuple[tuple[Any, ...], ...] = (
        (10.0, 0.5, 0.25, [1], 100, "the first example"),
        (10.0, 0.5, 0.25, [1, 61], 100, "the second example, with a second compilation,"),
        (10.0, 0.5, 0.25, [1], 30, "the third example, which is too short,"),
    )
    for *given, kind in examples:
        expected, found = _first_ahead(*given), ask(*given)
        if found != expected:
            raise Wrong(
                f"For {kind} expected {expected}, found {_short(found)}. Write both runs' seconds down, step by "
                f"step: who is ahead after which one? {where}"
            )
    for kind, run in _draw_runs(rng):
        expected, found = _first_ahead(*run), ask(*run)
        if found != expected:
            raise Wrong(f"The examples are right, but not {kind}. {_KINDS[kind]} {where}")


_KINDS = {
    "an ordinary run": "How much does each step save, and how much has to be earned back?",
    "a run that never pays": "What does a compiled step save there?",
    "a run that ends too early": "Is there still a step after which it is ahead?",
    "a run that compiles again later": "Is the compiled run still ahead after *every* later step?",
    "a run that compiles again with a lead": "When was it ahead, and did the later compilation change that?",
    "a run whose last batch compiles again": "What is left of the lead at the very end?",
    "a tie": "Does a run count as ahead that has taken exactly as long?",
    "compiling that costs nothing": "After which step is a run ahead that had nothing to earn back?",
}


def _first_ahead(
    compile_s: float, eager_step_s: float, compiled_step_s: float, compiles_at: list[int], steps: int
) -> int | None:
    """The first step after which, and after all later ones, the compiled run has taken no longer."""
    answer = None
    for step in range(steps, 0, -1):
        compiles = sum(at <= step for at in compiles_at)
        if compiles * compile_s + step * compiled_step_s > step * eager_step_s:
            break
        answer = step
    return answer


def _draw_runs(rng: np.random.Generator) -> list[tuple[str, tuple[float, float, float, list[int], int]]]:
    """Runs in sixteenths of a second, which are exact in binary: a tie is a tie whichever way it is computed."""
    drawn = []
    for _ in range(4):
        save, eager = int(rng.integers(1, 9)), int(rng.integers(10, 60))
        need = int(rng.integers(20, 200))
        cost = need * save - int(rng.integers(1, save)) if save > 1 else need * save - 0.5
        even = math.ceil(cost / save)
        unit = 1 / 16
        times = (cost * unit, eager * unit, (eager - save) * unit)
        late = even + int(rng.integers(3, 30))
        drawn += [
            ("an ordinary run", (*times, [1], even + int(rng.integers(1, 500)))),
            ("a run that never pays", (times[0], times[2], times[1], [1], 400)),
            ("a run that ends too early", (*times, [1], even - 1)),
            ("a run that compiles again later", (*times, [1, late], 2 * even + late)),
            ("a run that compiles again with a lead", (*times, [1, 3 * even + 2], 4 * even)),
            ("a run whose last batch compiles again", (*times, [1, late], late)),
            ("a tie", (need * save * unit, times[1], times[2], [1], need + 40)),
            ("compiling that costs nothing", (0.0, times[1], times[2], [1], 50)),
        ]
    return drawn


@grades("compilation.mended_update", wrong=mistakes.UPDATES)
def mended_update(sub: Submission, rng: np.random.Generator) -> None:
    """One graph for every kind of input, and the same values and gradients as before, eager and captured."""
    from accelerando.probes import compilation as probes

    seed = int(rng.integers(2**31))
    found = sub.probe("compilation.mended_update", seed=seed)
    if not isinstance(found, dict) or not all(isinstance(found.get(name), list) for name in ("plain", "captured")):
        raise Wrong("What `mended_update` gave back could not be read.")
    cases = probes.update_cases(seed)
    expected = {kind: _update_reference(*inputs) for kind, inputs in cases.items()}
    where = "See *Graph breaks* in the lesson."
    for (kind, right), report in zip(expected.items(), found["plain"], strict=False):
        _judge_update(kind, "", report, right)
    if found.get("refused"):
        raise Wrong(
            f"The values are right so far, but Dynamo cannot capture it in one piece: “{found['refused']}”. Which line "
            f"needs a number *now* to know what comes next? {where}"
        )
    if len(found["plain"]) != len(cases) or len(found["captured"]) != len(cases):
        raise Wrong("`mended_update` did not give back every case it was asked for.")
    for (kind, right), report in zip(expected.items(), found["captured"], strict=True):
        _judge_update(kind, " in the captured graph", report, right)
    if found.get("graphs") != 1:
        raise Wrong(
            f"For inputs of one shape Dynamo made {_short(found.get('graphs'))} graphs; expected 1. Is something a "
            f"Python number that differs from call to call? {where}"
        )


def _update_reference(hidden: "torch.Tensor", update: "torch.Tensor") -> dict[str, Any]:
    """The lab's function, as it stands there, with its gradients."""
    import torch

    hidden, update = (tensor.clone().requires_grad_() for tensor in (hidden, update))
    longest = update.norm(dim=1).max()
    short = update / longest if longest > 1 else update
    active = hidden[hidden > 0]
    level = active.mean() if len(active) else torch.zeros(())
    result = hidden + short * level
    weights = torch.linspace(-1, 1, result.numel()).view_as(result)
    gradients = torch.autograd.grad((result * weights).sum(), (hidden, update), allow_unused=True)
    given = [torch.zeros_like(hidden) if gradient is None else gradient for gradient in gradients]
    return {
        "result": result.detach(),
        "level": level.detach(),
        "hidden_gradient": given[0],
        "update_gradient": given[1],
    }


def _judge_update(kind: str, how: str, report: Any, right: dict[str, Any]) -> None:
    if not isinstance(report, dict):
        raise Wrong("What `mended_update` gave back could not be read.")
    words = {
        "result": "the result is",
        "level": "the level, the second result, is",
        "hidden_gradient": "the gradient for `hidden` is",
        "update_gradient": "the gradient for `update` is",
    }
    questions = {
        "no positive number": "What is the mean of no numbers, and what does the original make of it?",
        "short updates": "What happens to an update that is short enough?",
        "long updates": "By what is a long update divided?",
        "a single positive number": "By how many numbers is the sum divided?",
        "an update of zeros": "Both choices of a `torch.where` are computed. By what does the other one divide here?",
    }
    for name, said in words.items():
        found = report.get(name)
        if _is_close(found, right[name]):
            continue
        question = questions[kind]
        if name == "hidden_gradient" and _is_finite(found):
            question = "The values are right. On which two ways does `hidden` reach the result, and is one cut?"
        raise Wrong(f"With {kind}{how}, {said} not what the original gives. {question}")
    if report.get("has_gradient") is not False:
        raise Wrong("The level still leads back to the inputs. It is for looking at: what keeps a tensor from that?")


def _is_finite(found: Any) -> bool:
    isfinite = getattr(found, "isfinite", None)
    return isfinite is not None and bool(isfinite().all())


def _is_close(found: Any, expected: "torch.Tensor") -> bool:
    is_alike = getattr(found, "shape", None) == expected.shape and getattr(found, "dtype", None) == expected.dtype
    return is_alike and expected.allclose(found, rtol=1e-4, atol=1e-5)


@grades("compilation.steady_batches", wrong=mistakes.BATCHES)
def steady_batches(sub: Submission, rng: np.random.Generator) -> None:
    """No translation after the first, nothing left out, and the gradient of exactly the examples that there are."""
    from accelerando.probes import compilation as probes

    seed = int(rng.integers(2**30))
    batch_size = int(rng.integers(4, 12))
    whole = batch_size * int(rng.integers(2, 5))
    rows = [whole + int(rng.integers(1, batch_size)), whole, whole + 1, int(rng.integers(1, batch_size)), 0]
    kinds = ("some rows left over", "batches that come out even", "one row left over", "less than one batch", "no rows")
    found = sub.probe("compilation.steady_batches", seed=seed, rows=rows, batch_size=batch_size)
    if not isinstance(found, list) or len(found) != len(rows):
        raise Wrong("What `steady_batches` gave back could not be read.")
    where = "See *The last batch* in the lesson."
    for number, (count, kind, report) in enumerate(zip(rows, kinds, found, strict=True)):
        if not isinstance(report, dict) or not isinstance(report.get("sizes"), list):
            raise Wrong("What `steady_batches` gave back could not be read.")
        sizes, amount = report["sizes"], report.get("amount")
        expected = -(-count // batch_size)
        if len(sizes) < expected and is_same(amount, float(sum(sizes))):
            raise Wrong(f"With {kind}, {count - sum(sizes)} examples are in no batch. Who trains on them? {where}")
        if any(size != batch_size for size in sizes):
            raise Wrong(
                f"With {kind}, there is a batch of another size than asked for. What does the compiled function do "
                f"with a shape that it has not seen? {where}"
            )
        if len(sizes) != expected:
            raise Wrong(f"With {kind}, there are {len(sizes)} batches; {expected} are enough.")
        loss, gradient = _loss_reference(*probes.examples(seed + number, count))
        if not isinstance(amount, float) or not math.isclose(amount, count, abs_tol=1e-3):
            raise Wrong(f"With {kind}, the weights add up to {_short(amount)}, for {count} examples. {where}")
        if not _is_close(report.get("gradient"), gradient) or not math.isclose(
            report.get("loss", math.nan), loss, rel_tol=1e-4, abs_tol=1e-4
        ):
            raise Wrong(
                f"With {kind}, loss or gradient is not that of the examples, each counted once. What does a row add "
                f"that was only filled in, and what is 0 times NaN? {where}"
            )
        if report.get("translations") not in (0, 1):
            raise Wrong(
                f"With {kind}, the loss had been translated {_short(report.get('translations'))} times. What differs "
                f"between the batches, beside their numbers: a type, a layout? {where}"
            )


def _loss_reference(inputs: "torch.Tensor", labels: "torch.Tensor") -> tuple[float, "torch.Tensor"]:
    import torch

    from accelerando.probes import compilation as probes

    weight = torch.linspace(-0.2, 0.2, probes.CLASSES * probes.FEATURES).view(probes.CLASSES, probes.FEATURES)
    weight.requires_grad_()
    total = torch.nn.functional.cross_entropy(inputs @ weight.t(), labels, reduction="sum")
    return float(total.detach()), torch.autograd.grad(total, weight)[0]


@grades("compilation.make_step", wrong=mistakes.STEPS)
def make_step(sub: Submission, rng: np.random.Generator) -> SpeedTask:
    """The same losses, and a graph that really reaches the code generator; how fast it is, the grader's clock says."""
    from accelerando import machine, needs
    from accelerando.probes import compilation as probes
    from accelerando.workers import Experiment

    seed, rows, batch_size, epochs = int(rng.integers(2**30)), 80, 32, 3
    found = sub.probe("compilation.count_step", seed=seed, rows=rows, batch_size=batch_size, epochs=epochs)
    where = "See *Backends and modes* in the lesson."
    if not isinstance(found, dict) or not isinstance(found.get("losses"), list):
        raise Wrong("What the step gave back could not be read.")
    expected = probes.reference_losses(seed, rows, batch_size, epochs)
    for number, (loss, right) in enumerate(zip(found["losses"], expected, strict=False), 1):
        if not isinstance(loss, float) or not math.isclose(loss, right, rel_tol=2e-3, abs_tol=2e-3):
            raise Wrong(
                f"The loss of step {number} should be {right:.3f}, and is {_short(loss)}. Does your step do all that "
                "the given one does, in the same order?"
            )
    translations = found.get("translations")
    if not isinstance(translations, list) or len(translations) != epochs or len(found["losses"]) != len(expected):
        raise Wrong("What the step gave back could not be read.")
    if not translations[-1]:
        raise Wrong(
            "The losses are right, but no graph reached the code generator in all these steps. What was compiled, is "
            f"it what runs, and by which backend? {where}"
        )
    if translations[-1] > translations[-2]:
        raise Wrong(
            "In the last epoch it was still being translated, although every shape had been seen. What is new in every "
            "step? See *Recompiles* in the lesson."
        )
    missing = needs.missing(machine.probe(), ("compiler",))
    if missing:
        raise NotMeasurableHere(f"The step is right. Its speed cannot be measured here: {missing[0].why}.")
    return SpeedTask(
        baseline=Experiment(PLAIN_RUN),
        candidate=LearnerCall("compilation.train", takes_seed=True, is_probe=True),
        labels=probes.held_out_labels().numpy(),
        summary=f"{translations[-1]} translations in {epochs} short epochs",
        examine=_Examiner(rng).examine,
    )


class _Examiner:
    """Trains some of the timed runs again with the plain step: the first two, and of the others one in three."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng, self.runs = rng, 0

    def examine(self, found: Any, seed: int) -> None:
        """Refuse a net that is not the one which the plain step trains, however many it classifies well."""
        from accelerando.probes import compilation as probes

        self.runs += 1
        if self.runs > _SURELY and self.rng.random() > _THEN:
            return
        if getattr(found, "shape", None) != (probes.TEST_ROWS,):
            raise Wrong("What a timed run gave back could not be read.")
        alike = float(np.mean(np.asarray(found) == np.asarray(probes.train_plainly(seed)["predictions"])))
        if alike < ALIKE:
            raise Wrong(
                f"In a timed run, the net that your step trained agrees with the plain step's on {alike:.1%} of the "
                "held-out examples; with the same steps it would be all of them. What does your step do differently "
                "with the large batches of the timed runs?"
            )


@grades("compilation.quiz", wrong=mistakes.QUIZ)
def quiz(sub: Submission, rng: np.random.Generator) -> None:
    """Every answer right; the message says how many are, and where to read again, never which choice it is."""
    judge_quiz(sub, "compilation")


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else repr(value)[:40]
