"""The checks of lab 6. Each one starts from the mistakes that people make."""

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from accelerando import machine
from accelerando.checks import precision_mistakes as mistakes
from accelerando.checks.quiz import judge_quiz
from accelerando.formats import BF16, E5M2, FP16, Format
from accelerando.submission import NotMeasurableHere, SpeedTask, Submission, Wrong, grades, is_same

if TYPE_CHECKING:
    import torch


# -- round to a format ------------------------------------------------------------------------------------------------


@grades("precision.round_to_format", wrong=mistakes.ROUNDING)
def round_to_format(sub: Submission, rng: np.random.Generator) -> None:
    """Numbers of every kind: in fp16 always the same ones, which are shown; then drawn ones, in other formats too."""

    def ask(value: float, form: Format) -> float:
        found = sub.round_to_format(value, form.exponent_bits, form.fraction_bits)
        if isinstance(found, bool) or not isinstance(found, int | float) or found != found:
            text = "NaN" if isinstance(found, float) else type(found).__name__
            raise Wrong(f"`round_to_format` returned {text}. It should return a number, or an infinite one.")
        return found

    where = "See *Spending sixteen bits* in the lesson."
    found = ask(0.1, BF16)
    if found != 0.10009765625:
        raise Wrong(
            f"Expected 0.10009765625 for the example (0.1 in bf16), found {str(found)[:24]}. Between which two powers "
            f"of two does 0.1 lie, and into how many steps does bf16 divide the way between them? {where}"
        )
    for kind, value, question in _numbers(FP16, np.random.default_rng(0)):
        found, expected = ask(value, FP16), float(FP16.round(value))
        if found != expected:
            raise Wrong(
                f"With 5 exponent and 10 fraction bits (fp16), {kind} comes out wrong: {value!r} should become "
                f"{expected!r}, found {str(found)[:24]}. {question} {where}"
            )
    drawn = [Format("a format of your own", int(rng.integers(3, 8)), int(rng.integers(2, 12))) for _ in range(4)]
    for form in (BF16, FP16, E5M2, *drawn):
        for kind, value, question in _numbers(form, rng):
            found, expected = ask(value, form), float(form.round(value))
            if found != expected:
                size = f"{form.exponent_bits} exponent and {form.fraction_bits} fraction bits"
                raise Wrong(f"In fp16 all is right, but with {size}, {kind} comes out wrong. {question} {where}")


def _numbers(form: Format, rng: np.random.Generator) -> Iterator[tuple[str, float, str]]:
    """(Kind, value, question) for everything that can happen to a number."""
    sign = float(rng.choice([-1.0, 1.0]))
    steps = 2**form.fraction_bits
    exponent = int(rng.integers(2 - form.bias, form.bias))
    spacing = math.ldexp(1.0, exponent - form.fraction_bits)
    between = "Which of its two neighbours is nearer?"
    for _ in range(4):
        yield "an ordinary number", sign * spacing * float(rng.uniform(steps, 2 * steps - 1)), between
    even = steps + 2 * int(rng.integers(0, steps // 2))
    tie = "It lies exactly halfway: which of the two neighbours ends in a 0 bit?"
    yield "a number halfway between two neighbours", sign * spacing * (even + 0.5), tie
    yield "a number halfway between two neighbours", sign * spacing * (even + 1.5), tie
    yield "a number just below a power of two", sign * spacing * (2 * steps - 0.25), between
    small = form.smallest
    few = "How far apart are neighbours once the exponent can fall no further?"
    yield "a number below the smallest normal one", sign * small * (int(rng.integers(1, steps)) + 0.3), few
    yield "a number below the smallest normal one", small * float(rng.uniform(0.6, 0.9)), few
    yield "a number below half the smallest", sign * small * float(rng.uniform(0.05, 0.45)), "What is nearest to it?"
    yield "half the smallest number", small * 0.5, tie
    last = float(form.spacing(form.largest))
    end = "What is the largest finite number, and from where on is there nothing nearer than infinity?"
    yield "the largest number", sign * form.largest, end
    yield "a number a little above the largest", sign * (form.largest + last * 0.3), end
    yield "a number half a step above the largest", sign * (form.largest + last * 0.5), end
    yield "a number far above the largest", sign * form.largest * 16.0, end
    yield "zero", 0.0, "Does it survive?"
    yield "infinity", sign * math.inf, "What can it become?"


# -- bytes kept for backward ------------------------------------------------------------------------------------------

_SLACK_BYTES = 16_384  # Python's own objects: a node of the graph, a closure


@grades("precision.relu_saving_mask", wrong=mistakes.RELU)
def relu_saving_mask(sub: Submission, rng: np.random.Generator) -> None:
    """Values first, then bytes: whatever only the learner's code still holds between forward and backward."""
    from accelerando.probes import precision as probes

    seed = int(rng.integers(2**31))
    found = sub.probe("precision.relu_saving_mask", seed=seed)
    given = probes.inputs(seed)
    if not isinstance(found, list) or len(found) != len(given):
        raise Wrong("`relu_saving_mask` did not give back every tensor it was asked for.")
    where = "See *Bytes kept for backward* in the lesson."
    for (kind, (values, gradient)), report in zip(given.items(), found, strict=True):
        if not isinstance(report, dict) or not isinstance(report.get("kept_bytes"), int):
            raise Wrong(f"{kind}: what came back could not be read.")
        if report.get("is_unchanged") is not True:
            raise Wrong(f"{kind}: the input was changed. Who else may still need it?")
        if not _is_close(report.get("output"), values.relu()):
            raise Wrong(f"{kind}: the output is not that of a ReLU. What becomes of what is below zero?")
        expected = gradient * (values > 0)
        if not _is_close(report.get("gradient"), expected):
            question = "Where does it let a gradient through?"
            if _differs_at_zero(report, values, expected):
                question = "It differs where the input is exactly 0: does a ReLU let a gradient through there?"
            raise Wrong(f"{kind}: the gradient is not that of a ReLU. {question} {where}")
        each = report["kept_bytes"] / values.numel()
        if report["kept_bytes"] > values.numel() + _SLACK_BYTES:
            raise Wrong(
                f"{kind}: expected at most 1 byte per element kept for backward, found {each:.1f}. What does the "
                f"backward of a ReLU need to know of each element, and is anything else still held? {where}"
            )


def _differs_at_zero(report: dict[str, Any], values: "torch.Tensor", expected: "torch.Tensor") -> bool:
    found = report.get("gradient")
    if found is None or getattr(found, "shape", None) != expected.shape:
        return False
    wrong = ~found.isclose(expected)
    return bool(wrong.any()) and bool((values[wrong] == 0).all())


def _is_close(found: Any, expected: "torch.Tensor") -> bool:
    is_alike = getattr(found, "shape", None) == expected.shape and getattr(found, "dtype", None) == expected.dtype
    return is_alike and expected.allclose(found, rtol=1e-5, atol=1e-6)


# -- the order of the calls -------------------------------------------------------------------------------------------

_TOLERANCE = 0.05  # of the update; fp16 rounding alone was seen at 0.1 to 0.4 %
_NO_CLIP = 1e6


@grades("precision.careful_step", wrong=mistakes.STEPS)
def careful_step(sub: Submission, rng: np.random.Generator) -> None:
    """Every case adds one thing that can go wrong; weights are compared with fp32's, scales with the rule's."""

    def case(sizes: list[int], steps: int, clip_norm: float, init_scale: float = 1024.0) -> dict[str, Any]:
        seed = int(rng.integers(2**31))
        return {"seed": seed, "sizes": sizes, "steps": steps, "clip_norm": clip_norm, "init_scale": init_scale}

    small, large = int(rng.integers(3, 7)), int(rng.integers(24, 40))
    cases = {
        "One batch, gradients too short to be clipped": (
            case([large], 1, _NO_CLIP),
            "What does each call do with the gradient?",
        ),
        "A second step after the first": (
            case(
                [large], 2, _NO_CLIP, 1.0
            ),  # at a high scale an old, unscaled gradient hardly shows beside a scaled one
            "What is left of the first step's gradient when the second begins, and who clears it?",
        ),
        "One batch, gradients clipped": (
            case([large], 2, 0.05),
            "By which factor are the gradients still multiplied when their length is measured?",
        ),
        "Three equal batches": (
            case([large] * 3, 2, _NO_CLIP),
            "Which images does the gradient remember, and is it their sum or their mean?",
        ),
        "Batches of different sizes": (
            case([large, small], 2, _NO_CLIP),
            "Does each image count the same, in a large batch and in a small one?",
        ),
        "Different batches, gradients clipped": (
            case([small, large, small], 5, 0.05),
            "How often, and on which sum, should the gradients be clipped?",
        ),
        "A scale so high that fp16 overflows": (
            case([large, small], 2, _NO_CLIP, 2.0**40),
            "Who looks for infinities, and what should become of such a step?",
        ),
    }
    found = sub.probe("precision.careful_step", cases=[given for given, _ in cases.values()])
    if not isinstance(found, list) or len(found) != len(cases):
        raise Wrong("`careful_step` did not run in every case.")
    for (name, (given, question)), report in zip(cases.items(), found, strict=True):
        is_overflow = given["init_scale"] > 1e6
        expected, scales = _reference(given, is_overflow)
        _judge_steps(name, report, (expected, scales), question, is_overflow)


def _reference(case: dict[str, Any], is_overflow: bool) -> tuple[list["torch.Tensor"], list[float]]:
    """Weights before and after every step in fp32 on all images at once, and the scales that the rule gives."""
    import torch

    from accelerando.probes import precision as probes

    model, steps = probes.start(case)
    optimizer = probes.make_optimizer(model)
    weights, scales, scale = [probes.flat_weights(model)], [], case["init_scale"]
    for number, batches in enumerate(steps, 1):
        optimizer.zero_grad()
        images, labels = (torch.cat(parts) for parts in zip(*batches, strict=True))
        torch.nn.functional.cross_entropy(model(images), labels).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), case["clip_norm"])
        if not is_overflow:
            optimizer.step()
        scale = scale / 2 if is_overflow else scale * (2 if number % 3 == 0 else 1)
        weights.append(probes.flat_weights(model))
        scales.append(scale)
    return weights, scales


def _judge_steps(
    name: str,
    report: Any,
    reference: tuple[list["torch.Tensor"], list[float]],
    question: str,
    is_overflow: bool,
) -> None:
    where = "See *The order of the calls* in the lesson."
    question = f"{question} {where}"
    expected, scales = reference
    weights = report.get("weights") if isinstance(report, dict) else None
    if not isinstance(weights, list) or len(weights) != len(expected) - 1:
        raise Wrong(f"{name}: what came back could not be read.")
    if report.get("was_half") is not True:
        raise Wrong(f"{name}: the forward did not run in fp16. What has to stand around it?")
    if any(getattr(found, "shape", None) != expected[0].shape for found in weights):
        raise Wrong(f"{name}: the model came back with other parameters.")
    if is_overflow:
        if not all(bool((found == expected[0]).all()) for found in weights):
            raise Wrong(f"{name}: the weights were changed all the same. {question}")
    else:
        moved, wanted = weights[-1] - expected[0], expected[-1] - expected[0]
        error = float((moved - wanted).norm() / wanted.norm())
        if not error <= _TOLERANCE:
            length = float(moved.norm() / wanted.norm())
            raise Wrong(f"{name}: the weights moved {length:.3g} times as far as in fp32, {error:.0%} off. {question}")
    if report.get("scales") != scales:
        raise Wrong(f"{name}: the weights are right, the scaler's scale is not. When should it be updated? {where}")


# -- decide -----------------------------------------------------------------------------------------------------------


@grades("precision.choose_precision", wrong=mistakes.CHOICES)
def choose_precision(sub: Submission, rng: np.random.Generator) -> None:
    """Measurements are drawn until the tempting shortcut points elsewhere than the right answer."""
    where = "See *Decide* in the lesson."
    example = {
        "bf16": {"speedup": [1.21, 1.48], "accuracy": [-0.004, 0.006]},
        "fp16": {"speedup": [0.11, 0.13], "accuracy": [-0.005, 0.005]},
    }
    found = sub.choose_precision(example, 0.01)
    if not is_same(found, "bf16"):
        raise Wrong(f"For the example expected 'bf16', found {repr(found)[:40]}. Which interval lies where? {where}")
    for shortcut, question in _SHORTCUTS.items():
        measured, margin, expected = _draw_measured(rng, shortcut)
        if not is_same(sub.choose_precision(measured, margin), expected):
            raise Wrong(f"The example is right, another set of measurements is not. {question} {where}")
    if not is_same(sub.choose_precision({}, 0.01), "fp32"):
        raise Wrong("When nothing was measured there is nothing to change: expected 'fp32'.")


_SHORTCUTS = {
    "no accuracy": "What does it help to be faster, if the accuracy is not shown to be kept?",
    "middle of the speed": "Is a gain proven whose interval still contains 1?",
    "middle of the accuracy": "Is the accuracy kept if its interval reaches below the margin?",
    "best middle": "Among those that are proven, what is the least that each of them gives?",
    "always bf16": "Does the answer follow from the measurements, or from the name?",
}


def _choose(measured: dict[str, Any], margin: float, shortcut: str = "") -> str:
    """The right choice, or what a shortcut would take."""
    if shortcut == "always bf16":
        return "bf16"
    middle = {key: {kind: sum(ends) / 2 for kind, ends in found.items()} for key, found in measured.items()}
    proven = []
    for name, found in measured.items():
        speed = middle[name]["speedup"] if shortcut == "middle of the speed" else found["speedup"][0]
        kept = middle[name]["accuracy"] if shortcut == "middle of the accuracy" else found["accuracy"][0]
        if speed > 1 and (kept > -margin or shortcut == "no accuracy"):
            proven.append(name)

    def least(name: str) -> float:
        return middle[name]["speedup"] if shortcut == "best middle" else float(measured[name]["speedup"][0])

    return max(proven, key=least, default="fp32")


def _draw_measured(rng: np.random.Generator, shortcut: str) -> tuple[dict[str, Any], float, str]:
    """Measurements for which the shortcut chooses wrongly, and no end is close to what it is compared with."""
    for _ in range(10_000):
        margin = float(rng.choice([0.005, 0.01, 0.02]))
        measured = {}
        for name in ("bf16", "fp16", "fp8"):
            middle, half = float(rng.uniform(0.7, 2.0)), float(rng.uniform(0.02, 0.5))
            loss, spread = float(rng.uniform(-0.03, 0.01)), float(rng.uniform(0.001, 0.02))
            measured[name] = {"speedup": [middle - half, middle + half], "accuracy": [loss - spread, loss + spread]}
        ends = [found["speedup"][0] for found in measured.values()]
        is_clear = (
            min(abs(end - 1) for end in ends) > 0.01
            and min(abs(found["accuracy"][0] + margin) for found in measured.values()) > 0.0005
        )
        expected = _choose(measured, margin)
        if is_clear and _choose(measured, margin, shortcut) != expected:
            return measured, margin, expected
    raise AssertionError(f"no measurements found that tell {shortcut!r} from the right answer")


# -- the timed question -----------------------------------------------------------------------------------------------


@grades("precision.faster_recipe", wrong=mistakes.RECIPES)
def faster_recipe(sub: Submission, rng: np.random.Generator) -> SpeedTask:
    """Only the listed switches; speed and accuracy are measured by the grader, where the processor has bf16 units."""
    from accelerando.lessons.precision import task
    from accelerando.recipes import Recipe
    from accelerando.workers import Experiment

    recipe = sub.faster_recipe(dict(task.SLOW_START))
    if not isinstance(recipe, dict):
        raise Wrong(f"`faster_recipe` returned {type(recipe).__name__}. It should return a recipe: a dictionary.")
    for key, value in recipe.items():
        if key not in task.SLOW_START:
            raise Wrong(f"`{str(key)[:40]}` is not one of this task's switches: {', '.join(task.SLOW_START)}.")
        if key in task.FIXED and not is_same(value, task.SLOW_START[key]):
            raise Wrong(f"`{key}` was changed: both sides make the same steps. What else makes a step cheaper?")
    try:
        Recipe.from_dict(recipe)
    except ValueError as error:
        raise Wrong(f"No such recipe: {error}.") from None
    changed = {key: value for key, value in recipe.items() if value != task.SLOW_START[key]}
    if not changed:
        raise Wrong("That is `start` itself, unchanged. Which of its settings did the lesson find to be slow here?")
    lacking = machine.missing(machine.probe(), ["bf16"])
    if lacking:
        raise NotMeasurableHere(f"{lacking[0].why}: nothing to gain. The decision of question 4 stands for it.")
    return SpeedTask(
        baseline=Experiment(task.TRAIN_RECIPE, {"recipe": task.SLOW_START}),
        candidate=Experiment(task.TRAIN_RECIPE, {"recipe": {**task.SLOW_START, **recipe}}),
        labels=task.task_data().test.labels,
        summary=", ".join(f"{key} {value}" for key, value in changed.items()),
    )


@grades("precision.quiz", wrong=mistakes.QUIZ)
def quiz(sub: Submission, rng: np.random.Generator) -> None:
    """Every answer right."""
    judge_quiz(sub, "precision")
