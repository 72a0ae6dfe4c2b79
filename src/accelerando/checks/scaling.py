"""The checks of lab 1. Each one starts from the mistakes that people make."""

import itertools
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from accelerando.checks import scaling_mistakes as mistakes
from accelerando.checks.quiz import judge_quiz
from accelerando.submission import SpeedTask, Submission, Wrong, grades, is_same

if TYPE_CHECKING:
    import torch
    from torch import nn

Offer = dict[str, Any]


def _number(value: Any, function: str) -> float:
    """The learner's result as a float; refuses what is none, NaN included."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Wrong(f"`{function}` returned {type(value).__name__}. It should return a number of seconds.")
    if not abs(value) < 1e100:  # NaN, too; a longer whole number does not even fit into a float
        raise Wrong(f"`{function}` returned {str(value)[:20]}. Can a run take that long?")
    return float(value)


@grades("scaling.predict_time", wrong=mistakes.TIMES)
def predict_time(sub: Submission, rng: np.random.Generator) -> None:
    """Amdahl through two measured points, with noise on both sides of what the law allows."""

    def ask(t1_s: float, tn_s: float, n: int, m: int) -> float:
        return _number(sub.predict_time(t1_s, tn_s, n, m), "predict_time")

    found = ask(8.0, 5.0, 2, 4)
    if not math.isclose(found, 3.5, rel_tol=1e-6):
        raise Wrong(
            f"Expected 3.50 s for the example (8 s on 1 core, 5 s on 2, asked: 4), found {found:.2f} s. Which part of "
            "the 8 s did the second core leave untouched? See *Twice the cores* in the lesson."
        )
    for _ in range(8):
        n, m = (int(cores) for cores in rng.integers(2, 65, size=2))
        t1_s = float(rng.uniform(0.5, 900.0))
        serial_s = t1_s * float(rng.uniform(0.02, 0.9))
        cases = (
            (serial_s + (t1_s - serial_s) / n, m, serial_s + (t1_s - serial_s) / m, "an ordinary run"),
            (serial_s + (t1_s - serial_s) / n, 1, t1_s, "a question about 1 core"),
            (t1_s / n * float(rng.uniform(0.6, 0.95)), m, t1_s / m, "a run that gained more than its cores allow"),
            (t1_s * float(rng.uniform(1.05, 1.8)), m, t1_s, "a run that became slower with more cores"),
        )
        for tn_s, asked, expected_s, kind in cases:
            found = ask(t1_s, tn_s, n, asked)
            if not math.isclose(found, expected_s, rel_tol=1e-6):
                direction = "more" if found > expected_s else "less"
                raise Wrong(
                    f"The example is right, but for {kind} your prediction is {abs(found / expected_s - 1):.0%} "
                    f"{direction} than it should be. What is the serial part there, and may it have that value? See "
                    "the odd cases in the question."
                )


@grades("scaling.share_cores", wrong=mistakes.SHARES)
def share_cores(sub: Submission, rng: np.random.Generator) -> None:
    """Disjoint, complete, even, in the ids that were given, with as many threads as cores."""
    _judge_shares(sub, 2, [4, 5, 6, 7])
    for processes in (1, 2, 3, int(rng.integers(4, 9))):
        count = processes * int(rng.integers(1, 5)) + (int(rng.integers(1, processes)) if processes > 1 else 0)
        _judge_shares(sub, processes, sorted(int(cpu) for cpu in rng.choice(256, size=count, replace=False)))
    few = [int(cpu) for cpu in rng.choice(np.arange(8, 64), size=3, replace=False)]
    _judge_shares(sub, 3 * len(few) - 1, few)


def _judge_shares(sub: Submission, processes: int, cpus: list[int]) -> None:
    where = "See *Threads, processes and who owns a core* in the lesson."
    shares: list[list[int]] = []
    for rank in range(processes):
        share = sub.share_cores(rank, processes, cpus)
        if not isinstance(share, dict) or set(share) != {"cpus", "OMP_NUM_THREADS"}:
            raise Wrong('`share_cores` should return {"cpus": [...], "OMP_NUM_THREADS": "..."}: found something else.')
        own, threads = share["cpus"], share["OMP_NUM_THREADS"]
        if not isinstance(own, list) or not all(isinstance(cpu, int) and not isinstance(cpu, bool) for cpu in own):
            raise Wrong('"cpus" should be a list of whole numbers.')
        if not isinstance(threads, str):
            kind = type(threads).__name__
            raise Wrong(f'"OMP_NUM_THREADS" is of type {kind}. What type do environment variables have?')
        if not set(own) <= set(cpus):
            raise Wrong(f"A process got a core that is not in the list it may use. Where do the ids come from? {where}")
        if not own:
            raise Wrong(f"{_kind(processes, cpus)}, a process got no core at all. Who is left out, and why?")
        if threads != str(len(own)):
            raise Wrong(
                f'A process with {len(own)} core(s) got OMP_NUM_THREADS="{threads[:20]}". '
                f"What do its threads do when their number and the cores differ? {where}"
            )
        shares.append(own)
    _judge_balance(shares, cpus)


def _kind(processes: int, cpus: list[int]) -> str:
    if processes > len(cpus):
        return "With more processes than cores"
    return "When the cores do not divide evenly" if len(cpus) % processes else "When the cores divide evenly"


def _judge_balance(shares: list[list[int]], cpus: list[int]) -> None:
    kind = _kind(len(shares), cpus)
    given = [cpu for share in shares for cpu in share]
    counts = [given.count(cpu) for cpu in cpus]
    sizes = [len(share) for share in shares]
    if len(shares) > len(cpus):
        if max(sizes) > 1 or max(counts) - min(counts) > 1:
            raise Wrong(
                f"{kind}, a process got {max(sizes)} core(s), and some core carries {max(counts)} processes while "
                f"another carries {min(counts)}. Can it be more even? See the odd cases in the question."
            )
        return
    if 0 in counts:
        raise Wrong(f"{kind}, some core belongs to nobody. Where do the cores go that are left over?")
    if max(counts) > 1:
        raise Wrong(f"{kind}, two processes share a core although there are enough. Where does each share end?")
    if max(sizes) - min(sizes) > 1:
        raise Wrong(
            f"{kind}, one share has {max(sizes) - min(sizes)} cores more than another. Everybody waits for the "
            "slowest: can they be more even?"
        )


@grades("scaling.cheapest_offer", wrong=mistakes.OFFERS)
def cheapest_offer(sub: Submission, rng: np.random.Generator) -> None:
    """Offers are drawn until the tempting shortcut points elsewhere than the right answer."""
    where = "See *The price of a thousand steps* in the lesson."
    example = [
        {"name": "small", "price_per_hour": 0.20, "cores": 4, "serial_s": 0.02, "parallel_s": 0.40, "startup_s": 60.0},
        {"name": "large", "price_per_hour": 0.80, "cores": 16, "serial_s": 0.02, "parallel_s": 0.40, "startup_s": 60.0},
    ]
    for deadline_s, expected in ((7200.0, "small"), (3600.0, "large"), (600.0, None)):
        found = sub.cheapest_offer(example, 50_000, deadline_s)
        if not is_same(found, expected):
            text = repr(found)[:40]
            raise Wrong(f"With the example and {deadline_s:.0f} s: expected {expected!r}, found {text}. {where}")
    failed, taken = [], set(_SHORTCUTS)  # the shortcuts that explain every answer
    for shortcut in _SHORTCUTS:
        offers, steps, deadline_s, expected = _draw_offers(rng, shortcut)
        found = sub.cheapest_offer(offers, steps, deadline_s)
        taken &= {name for name in _SHORTCUTS if is_same(found, _choose(offers, steps, deadline_s, name))}
        failed += [] if is_same(found, expected) else [shortcut]
    if failed:
        likeliest = next((name for name in _SHORTCUTS if name in taken), failed[0])
        raise Wrong(f"The example is right, another list of offers is not. {_SHORTCUTS[likeliest]} {where}")
    if sub.cheapest_offer([], 10, 1.0) is not None:
        raise Wrong("Without any offer there is none to take: expected None.")


_SHORTCUTS = {
    "price per hour": "Is the lowest price per hour the lowest bill?",
    "no deadline": "Does what you chose finish in time?",
    "all parallel": "Does the serial part of a step get shorter with more cores?",
    "no start-up": "Which seconds are paid before the first step is made?",
    "fastest": "Is the fastest offer the cheapest one?",
}


def _bill(offer: Offer, steps: int, *, serial_too: bool = False, startup: bool = True) -> tuple[float, float]:
    """(price, seconds) of an offer; the switches give what the shortcuts would compute."""
    serial_s = offer["serial_s"] / offer["cores"] if serial_too else offer["serial_s"]
    time_s = steps * (serial_s + offer["parallel_s"] / offer["cores"]) + startup * offer["startup_s"]
    return offer["price_per_hour"] * time_s / 3600, time_s


def _choose(offers: list[Offer], steps: int, deadline_s: float, shortcut: str = "") -> str | None:
    switches = {"serial_too": shortcut == "all parallel", "startup": shortcut != "no start-up"}
    bills = {offer["name"]: _bill(offer, steps, **switches) for offer in offers}
    in_time = [offer for offer in offers if shortcut == "no deadline" or bills[offer["name"]][1] <= deadline_s]
    keys = {"price per hour": lambda offer: offer["price_per_hour"], "fastest": lambda offer: bills[offer["name"]][1]}
    best = min(in_time, key=keys.get(shortcut, lambda offer: bills[offer["name"]][0]), default=None)
    return best["name"] if best else None


def _draw_offers(rng: np.random.Generator, shortcut: str) -> tuple[list[Offer], int, float, str | None]:
    """Offers for which the shortcut chooses wrongly and no two bills or deadlines are close to a tie."""
    for _ in range(10_000):
        serial_s, parallel_s = float(rng.uniform(0.001, 0.05)), float(rng.uniform(0.05, 1.0))
        offers = [
            {
                "name": f"offer {number}",
                "price_per_hour": round(float(rng.uniform(0.05, 4.0)), 3),
                "cores": int(2 ** rng.integers(0, 7)),
                "serial_s": serial_s * float(rng.uniform(0.5, 2.0)),
                "parallel_s": parallel_s * float(rng.uniform(0.5, 2.0)),
                "startup_s": float(rng.uniform(10.0, 900.0)),
            }
            for number in rng.permutation(6)
        ]
        steps = int(rng.integers(500, 50_000))
        bills = sorted(_bill(offer, steps) for offer in offers)
        deadline_s = float(rng.uniform(0.8, 1.6)) * float(np.median([time_s for _, time_s in bills]))
        expected = _choose(offers, steps, deadline_s)
        is_clear = all(b[0] > 1.01 * a[0] for a, b in itertools.pairwise(bills)) and all(
            abs(time_s / deadline_s - 1) > 0.01 for _, time_s in bills
        )
        if is_clear and expected is not None and _choose(offers, steps, deadline_s, shortcut) != expected:
            return offers, steps, deadline_s, expected
    raise AssertionError(f"no offers found that tell {shortcut!r} from the right answer")


@grades("scaling.drop_idle_biases", wrong=mistakes.BIASES)
def drop_idle_biases(sub: Submission, rng: np.random.Generator) -> None:
    """The values must stay, in evaluation, in training and after training; exactly the idle biases must go."""
    from accelerando.probes import scaling as probes

    seed = int(rng.integers(2**31))
    found = sub.probe("scaling.drop_idle_biases", seed=seed)
    originals = probes.models(seed)
    if not isinstance(found, list) or len(found) != len(originals):
        raise Wrong("`drop_idle_biases` did not give back every model it was asked for.")
    for (kind, (model, images)), report in zip(originals.items(), found, strict=True):
        if not isinstance(report, dict) or not isinstance(report.get("has_bias"), list):
            raise Wrong(f"{kind}: what came back could not be read.")
        _judge_model(kind, report, probes.outputs(model, images), keeps_bias(model))


def keeps_bias(model: "nn.Module") -> list[bool]:
    """Tell for each convolution and linear layer whether a bias should be there afterwards.

    It should when the layer has one now and no BatchNorm stands right behind it. Not in the probes: those lie in
    the open beside the learner's code.
    """
    from torch import nn

    chain = list(_in_order(model))
    followers = dict(zip(map(id, chain), [*chain[1:], None], strict=True))
    layers = [layer for layer in model.modules() if isinstance(layer, nn.Conv1d | nn.Conv2d | nn.Linear)]
    norms = (nn.BatchNorm1d, nn.BatchNorm2d)
    return [layer.bias is not None and not isinstance(followers[id(layer)], norms) for layer in layers]


def _in_order(model: "nn.Module") -> Iterator["nn.Module"]:
    """The layers of nested `nn.Sequential` in the order in which they run, repeated ones too."""
    from torch import nn

    for child in model if isinstance(model, nn.Sequential) else ():
        if isinstance(child, nn.Sequential):
            yield from _in_order(child)
        else:
            yield child


def _judge_model(kind: str, report: dict[str, Any], expected: dict[str, Any], keeps: list[bool]) -> None:
    where = "See *A bias that does nothing* in the lesson."
    if len(report["has_bias"]) != len(keeps):
        raise Wrong(f"{kind}: the model came back with another number of layers. Only biases should go. {where}")
    pairs = list(zip(keeps, report["has_bias"], strict=True))
    lost, left = sum(keep and not has for keep, has in pairs), sum(has and not keep for keep, has in pairs)
    if lost:
        went = "1 bias is gone that changes" if lost == 1 else f"{lost} biases are gone that change"
        raise Wrong(f"{kind}: {went} the output. What runs right behind such a layer? {where}")
    modes = {"eval": "evaluation", "train": "training", "later": "evaluation after some training"}
    for mode, words in modes.items():
        if not _is_close(report.get(mode), expected[mode]):
            raise Wrong(
                f"{kind}: the outputs in {words} are no longer the same. What does BatchNorm subtract in each mode, "
                f"and where does it keep that number? {where}"
            )
    if left:
        still = "1 idle bias is" if left == 1 else f"{left} idle biases are"
        raise Wrong(f"{kind}: {still} still there. Is every layer looked at? {where}")
    if report.get("is_trainable") is not True:
        raise Wrong(f"{kind}: a parameter can no longer be trained. Was `requires_grad` switched off?")


def _is_close(found: Any, expected: "torch.Tensor") -> bool:
    is_alike = getattr(found, "shape", None) == expected.shape and getattr(found, "dtype", None) == expected.dtype
    return is_alike and expected.allclose(found, rtol=1e-3, atol=1e-3)


@grades("scaling.faster_recipe", wrong=mistakes.RECIPES)
def faster_recipe(sub: Submission, rng: np.random.Generator) -> SpeedTask:
    """Equal images, only the listed switches; speed and accuracy are measured by the grader, from outside."""
    from accelerando.lessons import scaling as lesson
    from accelerando.recipes import Recipe
    from accelerando.workers import Experiment

    recipe = sub.faster_recipe(dict(lesson.SLOW_START))
    if not isinstance(recipe, dict):
        raise Wrong(f"`faster_recipe` returned {type(recipe).__name__}. It should return a recipe: a dictionary.")
    fixed = {"epochs": lesson.SLOW_START["epochs"]}
    for key, value in recipe.items():
        if key not in lesson.SLOW_START:
            raise Wrong(f"`{key[:40]}` is not one of this task's switches: {', '.join(lesson.SLOW_START)}.")
        if key in fixed and not is_same(value, fixed[key]):
            raise Wrong(f"`{key}` was changed: both sides go through the same images. What else makes a step cheaper?")
    try:
        Recipe.from_dict(recipe)
    except ValueError as error:
        raise Wrong(f"No such recipe: {error}.") from None
    changed = {key: value for key, value in recipe.items() if value != lesson.SLOW_START[key]}
    if not changed:
        raise Wrong("That is `start` itself, unchanged. Which of its settings did the lesson find to be slow here?")
    return SpeedTask(
        baseline=Experiment(lesson.TRAIN_RECIPE, {"recipe": lesson.SLOW_START}),
        candidate=Experiment(lesson.TRAIN_RECIPE, {"recipe": {**lesson.SLOW_START, **recipe}}),
        labels=lesson.task_data().test.labels,
        summary=", ".join(f"{key} {value}" for key, value in changed.items()),
    )


@grades("scaling.quiz", wrong=mistakes.QUIZ)
def quiz(sub: Submission, rng: np.random.Generator) -> None:
    """As in every lab."""
    judge_quiz(sub, "scaling")
