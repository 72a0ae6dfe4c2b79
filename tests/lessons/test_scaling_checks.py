"""Lab 1's checks over many seeds: other right answers pass, mistakes never slip through, and no input is shown."""

import functools

import answers
import numpy as np  # noqa: F401 - odd values are made of it
import pytest
import torch
from torch import nn

from accelerando import quizzes
from accelerando.checks import scaling as checks
from accelerando.probes import scaling as probes
from accelerando.submission import LocalSubmission, SpeedTask, judge

ALTERNATIVES = {
    "scaling.predict_time": [
        """
def predict_time(t1_s, tn_s, n, m):
    fraction = (tn_s / t1_s - 1 / n) / (1 - 1 / n)
    fraction = 0 if fraction < 0 else 1 if fraction > 1 else fraction
    return t1_s * (fraction + (1 - fraction) / m)
""",
    ],
    "scaling.share_cores": [
        """
def share_cores(rank, processes, cpus):
    own = cpus[rank::processes] or [cpus[rank % len(cpus)]]
    return {"OMP_NUM_THREADS": f"{len(own)}", "cpus": own}
""",
        """
def share_cores(rank, processes, cpus):
    if processes >= len(cpus):
        return {"cpus": [cpus[-1 - rank % len(cpus)]], "OMP_NUM_THREADS": "1"}
    each, left = divmod(len(cpus), processes)
    start = rank * each + max(0, rank - (processes - left))
    own = cpus[start : start + each + (rank >= processes - left)]
    return {"cpus": own, "OMP_NUM_THREADS": str(len(own))}
""",
    ],
    "scaling.cheapest_offer": [
        """
def cheapest_offer(offers, steps, deadline_s):
    best = None
    for offer in offers:
        seconds = offer["startup_s"] + steps * offer["serial_s"] + steps * offer["parallel_s"] / offer["cores"]
        bill = seconds * offer["price_per_hour"]
        if seconds <= deadline_s and (best is None or bill < best[0]):
            best = (bill, offer["name"])
    return best and best[1]
""",
    ],
    "scaling.drop_idle_biases": [
        """
import copy

def drop_idle_biases(model):
    model = copy.deepcopy(model)
    last = None

    def visit(block):
        nonlocal last
        for name, layer in list(block._modules.items()):
            if isinstance(layer, nn.Sequential):
                visit(layer)
                continue
            if isinstance(layer, (nn.BatchNorm1d, nn.BatchNorm2d)) and getattr(last, "bias", None) is not None:
                if not isinstance(last, (nn.BatchNorm1d, nn.BatchNorm2d)):
                    layer.running_mean.sub_(last.bias.data)
                    last.register_parameter("bias", None)
            last = layer

    visit(model)
    return model
""",
    ],
}
UNTIMED = ("scaling.predict_time", "scaling.share_cores", "scaling.cheapest_offer", "scaling.drop_idle_biases")
submission = functools.partial(answers.submission, torch=torch, nn=nn)


@pytest.mark.parametrize("question", UNTIMED)
def test_other_right_answers_pass_for_every_seed(question: str) -> None:
    answers.assert_right(question, map(submission, ALTERNATIVES[question]), seeds=3 if "biases" in question else 25)


@pytest.mark.parametrize("question", UNTIMED)
def test_no_mistake_slips_through_for_any_seed(question: str) -> None:
    answers.assert_no_mistake_slips_through(question, submission, seeds=2 if "biases" in question else 25)


def test_a_learner_who_remembers_the_inputs_of_one_run_fails_the_next() -> None:
    seen: dict[str, float] = {}
    right = submission(ALTERNATIVES["scaling.predict_time"][0])

    class Remembering(LocalSubmission):
        def call(self, function, *arguments, **named):
            key = repr(arguments)
            if self._namespace["is_first"]:
                seen[key] = right.call(function, *arguments)
            return seen.get(key, 1.0)

    namespace: dict[str, object] = {"is_first": True}
    assert judge("scaling.predict_time", Remembering(namespace), 1).status == "passed"
    namespace["is_first"] = False
    assert judge("scaling.predict_time", Remembering(namespace), 1).status == "passed"
    assert judge("scaling.predict_time", Remembering(namespace), 2).status == "failed"


@pytest.mark.parametrize("value", ["3.5", None, float("nan"), [3.5], True])
def test_what_is_no_number_of_seconds_is_refused_in_words(value: object) -> None:
    result = judge("scaling.predict_time", LocalSubmission({"predict_time": lambda *_: value}), 1)
    assert result.status == "failed"
    assert "predict_time" in result.message


@pytest.mark.parametrize(
    "value",
    [
        None,
        [0],
        {"cpus": [0]},
        {"cpus": 0, "OMP_NUM_THREADS": "1"},
        {"cpus": [4, 5], "OMP_NUM_THREADS": 2},
        {"cpus": [True], "OMP_NUM_THREADS": "1"},
    ],
)
def test_a_share_of_another_shape_is_refused_in_words(value: object) -> None:
    result = judge("scaling.share_cores", LocalSubmission({"share_cores": lambda *_: value}), 1)
    assert result.status == "failed"


def recipe(**changes: object) -> LocalSubmission:
    return LocalSubmission({"faster_recipe": lambda start: {**start, **changes}})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "`start` itself, unchanged"),
        ({"epochs": 1}, "same images"),
        ({"train_images": 100}, "not one of this task's switches"),
        ({"precision": "bf16"}, "not one of this task's switches"),
        ({"batch_size": 0}, "No such recipe"),
        ({"layout": "sideways"}, "No such recipe"),
    ],
)
def test_a_recipe_that_is_not_allowed_is_refused_before_it_is_timed(changes: dict, words: str) -> None:
    result = judge("scaling.faster_recipe", recipe(**changes), 1)
    assert not isinstance(result, SpeedTask)
    assert words in result.message


def test_the_start_is_timed_against_the_whole_recipe() -> None:
    sub = LocalSubmission({"faster_recipe": lambda start: {"batch_size": 64}})  # the rest left out: it stays as it was
    task = judge("scaling.faster_recipe", sub, 1)
    assert isinstance(task, SpeedTask)
    before, after = task.baseline.arguments["recipe"], task.candidate.arguments["recipe"]
    assert after == {**before, "batch_size": 64}
    assert task.labels is not None
    assert len(task.labels) == 2000


def test_the_models_of_the_question_show_every_kind_of_bias() -> None:
    kinds = [checks.keeps_bias(model) for model, _ in probes.models(3).values()]
    has = [
        [layer.bias is not None for layer in model.modules() if isinstance(layer, nn.Linear | nn.Conv1d | nn.Conv2d)]
        for model, _ in probes.models(3).values()
    ]
    lost = [sum(before) - sum(after) for before, after in zip(has, kinds, strict=True)]
    assert lost == [1, 2, 1, 1, 1, 0]


ODD_VALUES = [
    "None", "True", "10**400", "float('nan')", "'x' * 10**5", "[]", "{}", "[[1], {'a': None}]",
    "np.array([1, 2])", "np.zeros(0)", "torch.zeros(2, 2)", "torch.tensor(1 + 2j)", "(i for i in range(3))", "object()",
]  # fmt: skip


@pytest.mark.parametrize("value", ODD_VALUES)
def test_an_odd_value_is_a_wrong_answer_and_no_mistake_of_the_check(value: str) -> None:
    odd = eval(value)
    start = ("epochs", "batch_size", "learning_rate", "optimizer", "threads", "zero_grad_set_to_none", "else")
    answers = {
        "predict_time": [odd],
        "share_cores": [odd, {"cpus": odd, "OMP_NUM_THREADS": "1"}, {"cpus": [4, 5], "OMP_NUM_THREADS": odd}],
        "cheapest_offer": [odd],
        "drop_idle_biases": [odd],
        "faster_recipe": [odd, *({"epochs": 2, key: odd} for key in start if (key, value) not in VALID)],
        "quiz": [odd, {question.id: odd for question in quizzes.read("scaling")}],
    }
    for name, found in answers.items():
        for answer in found:
            namespace = {name: answer if name == "quiz" else lambda *_, answer=answer: answer}
            result = judge(f"scaling.{name}", LocalSubmission(namespace), 3)
            assert getattr(result, "status", "valid") == "failed", (name, answer)


VALID = {("threads", "None"), ("zero_grad_set_to_none", "True")}
