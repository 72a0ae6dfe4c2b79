"""Lab 6's checks over many seeds: other right answers pass, mistakes never slip through, and no input is shown."""

import functools
import math
import re

import answers
import numpy as np
import pytest
import torch
from answers import judged
from torch import nn

from accelerando import machine, quizzes
from accelerando.checks import precision as checks
from accelerando.checks import precision_mistakes as mistakes
from accelerando.formats import FP16
from accelerando.lessons.precision import task
from accelerando.probes import precision as probes
from accelerando.submission import LocalSubmission, SpeedTask, judge

ALTERNATIVES = {
    "precision.round_to_format": [
        """
from fractions import Fraction

def round_to_format(x, exponent_bits, fraction_bits):
    if math.isinf(x):
        return x
    bias = (1 << exponent_bits - 1) - 1
    exact, exponent = abs(Fraction(x)), -bias + 1
    while exact >= Fraction(2) ** (exponent + 1):
        exponent += 1
    step = Fraction(2) ** (exponent - fraction_bits)
    down = exact // step
    rest = exact - down * step
    if 2 * rest > step or (2 * rest == step and down % 2):
        down += 1
    found = down * step
    if found >= Fraction(2) ** (bias + 1):
        return -math.inf if x < 0 else math.inf
    return math.copysign(float(found), x)
""",
    ],
    "precision.relu_saving_mask": [
        """
import numpy

class Packed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.shape = x.shape
        ctx.save_for_backward(torch.from_numpy(numpy.packbits((x > 0).numpy().reshape(-1))))
        return x.clamp(min=0)

    @staticmethod
    def backward(ctx, gradient):
        (packed,) = ctx.saved_tensors
        count = gradient.numel()
        mask = torch.from_numpy(numpy.unpackbits(packed.numpy(), count=count)).reshape(ctx.shape)
        return gradient * mask.bool()

def relu_saving_mask(x):
    return Packed.apply(x)
""",
        """
def relu_saving_mask(x):
    mask = x.detach() > 0
    result = x + (x.detach().clamp(min=0) - x.detach())
    result.register_hook(lambda gradient: gradient * mask)
    return result
""",
    ],
    "precision.careful_step": [
        """
def careful_step(model, optimizer, scaler, batches, clip_norm):
    count = sum(labels.numel() for _, labels in batches)
    model.zero_grad()
    for inputs, labels in batches:
        with torch.amp.autocast("cpu", dtype=torch.float16):
            logits = model(inputs)
        loss = nn.functional.cross_entropy(logits.float(), labels, reduction="sum") / count
        scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_([p for p in model.parameters() if p.grad is not None], max_norm=clip_norm)
    scaler.step(optimizer)
    scaler.update()
""",
    ],
    "precision.choose_precision": [
        """
def choose_precision(measured, margin):
    choice, least = "fp32", 1.0
    for name in sorted(measured):
        (slow, _), (worst, _) = measured[name]["speedup"], measured[name]["accuracy"]
        if worst > -margin and slow > least:
            choice, least = name, slow
    return choice
""",
    ],
}
SEEDS = {"precision.round_to_format": 25, "precision.choose_precision": 25}
submission = functools.partial(answers.submission, torch=torch, nn=nn, math=math)


@pytest.mark.parametrize("question", ALTERNATIVES)
def test_other_right_answers_pass_for_every_seed(question: str) -> None:
    answers.assert_right(question, map(submission, ALTERNATIVES[question]), seeds=SEEDS.get(question, 3))


@pytest.mark.parametrize("question", ALTERNATIVES)
def test_no_mistake_slips_through_for_any_seed(question: str) -> None:
    answers.assert_no_mistake_slips_through(question, submission, seeds=SEEDS.get(question, 2))


def test_a_wrong_number_is_shown_with_what_was_expected() -> None:
    sub = submission("def round_to_format(x, e, f):\n    return x if x != 0.1 else 0.10009765625")
    said = judged("precision.round_to_format", sub, 0).message
    value, expected = re.search(r"wrong: (\S+) should become (\S+), found", said).groups()  # type: ignore[union-attr]
    assert float(FP16.round(float(value))) == float(expected)
    assert f"found {value}"[:16] in said


def test_gradients_that_are_never_cleared_are_called_so() -> None:
    (wrong,) = (one for one in mistakes.STEPS if one.mistake == "gradients are never cleared")
    assert "who clears it" in judged("precision.careful_step", submission(wrong.code), 0).message


def test_the_right_step_is_far_inside_the_tolerance() -> None:
    namespace = {"torch": torch, "nn": nn}
    exec(mistakes._STEP, namespace)
    case = {"seed": 5, "sizes": [5, 30, 5], "steps": 5, "clip_norm": 0.05, "init_scale": 1024.0}
    (found,) = probes.careful_step(namespace, [case])
    expected, scales = checks._reference(case, is_overflow=False)
    wanted = expected[-1] - expected[0]
    assert float((found["weights"][-1] - expected[-1]).norm() / wanted.norm()) < checks._TOLERANCE / 5
    assert found["scales"] == scales == [1024.0, 1024.0, 2048.0, 2048.0, 2048.0]


HIDING = {
    "in a closure": "def relu_saving_mask(x):\n    y = x.detach()\n    r = x + (y.clamp(min=0) - y)\n"
    "    r.register_hook(lambda g: g * (y > 0))\n    return r",
    "in a list of the notebook": "kept = []\ndef relu_saving_mask(x):\n    kept.append(x)\n    return Relu.apply(x)",
    "as an array": "def relu_saving_mask(x):\n    a = x.detach().float().numpy().copy()\n    r = Relu.apply(x)\n"
    "    r.register_hook(lambda g: g * float(a.shape[0] > 0))\n    return r",
    "as its output": "def relu_saving_mask(x):\n    r = Relu.apply(x)\n    kept.append(r)\n    return r",
}


@pytest.mark.parametrize("place", HIDING)
def test_what_is_put_aside_is_counted_wherever_it_is(place: str) -> None:
    relu = """
kept = []
class Relu(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        mask = x > 0
        ctx.save_for_backward(mask)
        return x * mask

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.saved_tensors[0]

"""
    result = judge("precision.relu_saving_mask", submission(relu + HIDING[place]), 1)
    assert not isinstance(result, SpeedTask)
    assert "1 byte per element" in result.message


def recipe(**changes: object) -> LocalSubmission:
    return LocalSubmission({"faster_recipe": lambda start: {**start, **changes}})


@pytest.fixture
def capable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "missing", lambda here, needs: ())


@pytest.mark.usefixtures("capable")
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "`start` itself, unchanged"),
        ({"epochs": 1}, "same steps"),
        ({"batch_size": 64}, "same steps"),
        ({"train_images": 100}, "not one of this task's switches"),
        ({"precision": "fp8"}, "No such recipe"),
        ({"learning_rate": -1.0}, "No such recipe"),
    ],
)
def test_a_recipe_that_is_not_allowed_is_refused_before_it_is_timed(changes: dict, words: str) -> None:
    result = judge("precision.faster_recipe", recipe(**changes), 1)
    assert not isinstance(result, SpeedTask)
    assert result.status == "failed"
    assert words in result.message


@pytest.mark.usefixtures("capable")
def test_the_start_is_timed_against_the_whole_recipe() -> None:
    sub = LocalSubmission({"faster_recipe": lambda start: {"precision": "bf16"}})  # the rest left out stays as it was
    found = judge("precision.faster_recipe", sub, 1)
    assert isinstance(found, SpeedTask)
    assert found.candidate.arguments["recipe"] == {**task.SLOW_START, "precision": "bf16"}
    assert found.labels is not None
    assert len(found.labels) == 2000


def test_without_units_the_question_costs_nothing_and_a_bad_answer_still_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    from dataclasses import replace

    plain = replace(machine.probe(), has_bf16=False)
    monkeypatch.setattr(machine, "probe", lambda: plain)
    result = judge("precision.faster_recipe", recipe(precision="bf16"), 1)
    assert not isinstance(result, SpeedTask)
    assert result.status == "not measurable here"
    assert "in software" in result.message
    worse = judge("precision.faster_recipe", recipe(epochs=1), 1)
    assert not isinstance(worse, SpeedTask)
    assert worse.status == "failed"


def test_every_drawn_number_of_a_format_is_exact() -> None:
    for kind, value, _ in checks._numbers(FP16, np.random.default_rng(0)):
        if "halfway" in kind:
            steps = abs(value) / float(FP16.spacing(value))
            assert steps % 1 == 0.5, kind


ODD_VALUES = [
    "None", "True", "10**400", "float('nan')", "'x' * 10**5", "[]", "{}", "[[1], {'a': None}]",
    "np.array([1, 2])", "np.zeros(0)", "torch.zeros(2, 2)", "torch.tensor(1 + 2j)", "(i for i in range(3))", "object()",
]  # fmt: skip


@pytest.mark.parametrize("value", ODD_VALUES)
def test_an_odd_value_is_a_wrong_answer_and_no_mistake_of_the_check(value: str) -> None:
    odd = eval(value)
    answers = {
        "round_to_format": [odd],
        "relu_saving_mask": [odd],
        "careful_step": [odd],
        "choose_precision": [odd],
        "faster_recipe": [odd, *({"precision": "bf16", key: odd} for key in (*task.SLOW_START, "else"))],
        "quiz": [odd, {question.id: odd for question in quizzes.read("precision")}],
    }
    for name, found in answers.items():
        for answer in found:
            namespace = {name: answer if name == "quiz" else lambda *_, answer=answer: answer}
            result = judge(f"precision.{name}", LocalSubmission(namespace), 3)
            assert getattr(result, "status", "valid") == "failed", (name, answer)
