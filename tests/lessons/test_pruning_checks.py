"""Lab 5's checks over many seeds: other right answers pass, mistakes never slip through, and no input is shown."""

import functools
import math

import answers
import numpy as np
import pytest
import torch
from torch import nn

from accelerando import quizzes
from accelerando.checks import pruning as checks
from accelerando.grading.labs import LabCell
from accelerando.grading.sandbox import Sandbox
from accelerando.lessons import pruning as lesson
from accelerando.probes import pruning as probes
from accelerando.submission import LocalSubmission, SpeedTask, find_check, judge

ALTERNATIVES = {
    "pruning.taylor_scores": [
        """
def taylor_scores(weight, gradients):
    scores = torch.zeros(len(weight))
    for gradient in gradients:
        for channel in range(len(weight)):
            scores[channel] += ((weight[channel] * gradient[channel]) ** 2).sum() / len(gradients)
    return scores
""",
        """
def taylor_scores(weight, gradients):
    return torch.einsum("oi,boi->o", weight.flatten(1) ** 2, gradients.flatten(2) ** 2) / gradients.shape[0]
""",
    ],
    "pruning.choose_channels": [
        """
def choose_channels(scores, groups, sparsity, multiple):
    scores = {name: list(values) for name, values in scores.items()}
    for group in groups:
        mean = np.mean([scores[name] for name in group], axis=0)
        for name in group:
            scores[name] = list(mean)
    kept = {}
    for name, values in scores.items():
        wanted = math.ceil((1 - sparsity) * len(values))
        while wanted % multiple:
            wanted += 1
        best = np.argsort(values)[::-1][: min(wanted, len(values))]
        kept[name] = [int(channel) for channel in np.sort(best)]
    return kept
""",
    ],
    "pruning.remove_channels": [
        """
import copy

def remove_channels(model, keep):
    layers, left, pixels, images = [], None, None, torch.zeros(1, 2, 7, 7)
    for name, layer in copy.deepcopy(model).eval().named_children():
        if isinstance(layer, nn.Flatten):
            pixels = images[0, 0].numel()
        images = layer(images)
    for name, layer in model.named_children():
        if isinstance(layer, nn.Conv2d):
            kept = keep.get(name, list(range(layer.out_channels)))
            ins = left if left is not None else list(range(layer.in_channels))
            small = nn.Conv2d(
                len(ins), len(kept), layer.kernel_size, stride=layer.stride, padding=layer.padding,
                bias=layer.bias is not None,
            )
            small.weight.data = layer.weight.data[kept][:, ins].clone()
            if layer.bias is not None:
                small.bias.data = layer.bias.data[kept].clone()
            left = kept
        elif isinstance(layer, nn.BatchNorm2d):
            small = nn.BatchNorm2d(len(left), eps=layer.eps, momentum=layer.momentum)
            small.load_state_dict({k: v[left] if v.ndim else v for k, v in layer.state_dict().items()})
        elif isinstance(layer, nn.Linear) and left is not None:
            columns = [channel * pixels + pixel for channel in left for pixel in range(pixels)]
            small = nn.Linear(len(columns), layer.out_features)
            small.weight.data, small.bias.data = layer.weight.data[:, columns].clone(), layer.bias.data.clone()
            left = None
        else:
            small = layer
        layers.append(small)
    return nn.Sequential(*layers)
""",
    ],
    "pruning.multiply_adds": [
        """
import copy

def multiply_adds(model, images):
    counts, hidden = {}, images[:1]
    modes = {name: part.training for name, part in model.named_modules()}
    with torch.no_grad():
        model.eval()
        for name, layer in model.named_children():
            hidden = layer(hidden)
            if isinstance(layer, nn.Linear):
                counts[name] = layer.in_features * layer.out_features
            if isinstance(layer, nn.Conv2d):
                height, width = layer.kernel_size
                each = layer.in_channels // layer.groups * height * width
                counts[name] = each * hidden.numel()
    for name, part in model.named_modules():
        part.training = modes[name]
    return counts
""",
    ],
}
UNTIMED = tuple(ALTERNATIVES)
submission = functools.partial(answers.submission, torch=torch, nn=nn, np=np, math=math)


@pytest.mark.parametrize("question", UNTIMED)
def test_other_right_answers_pass_for_every_seed(question: str) -> None:
    answers.assert_right(question, map(submission, ALTERNATIVES[question]), seeds=8)


@pytest.mark.parametrize("question", UNTIMED)
def test_no_mistake_slips_through_for_any_seed(question: str) -> None:
    answers.assert_no_mistake_slips_through(question, submission, seeds=6)


@pytest.mark.parametrize(
    ("question", "place", "words"),
    [
        ("pruning.taylor_scores", 0, "opposite directions when you average"),
        ("pruning.taylor_scores", 1, "squared before they are added"),
        ("pruning.taylor_scores", 2, "Where do the weights come in"),
        ("pruning.taylor_scores", 3, "which dimension"),
        ("pruning.choose_channels", 0, "are added keep different channels"),
        ("pruning.choose_channels", 1, "fewer than it should"),
        ("pruning.choose_channels", 2, "Which scores are high"),
        ("pruning.choose_channels", 3, "Does every member have a say"),
        ("pruning.remove_channels", 0, "only set to zero"),
        ("pruning.remove_channels", 1, "besides its filter"),
        ("pruning.remove_channels", 2, "the right channel's"),
        ("pruning.remove_channels", 3, "how many inputs"),
        ("pruning.remove_channels", 4, "the right channel's"),
        ("pruning.multiply_adds", 0, "0.50 times the work"),
        ("pruning.multiply_adds", 1, "how often is each weight used"),
        ("pruning.multiply_adds", 2, "hooks stay"),
        ("pruning.multiply_adds", 3, "What learns while"),
    ],
)
def test_each_mistake_gets_the_sentence_that_fits_it(question: str, place: int, words: str) -> None:
    for seed in (1, 2):
        result = judge(question, submission(find_check(question).wrong[place].code), seed)
        assert not isinstance(result, SpeedTask)
        assert words in result.message


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "`start` itself, unchanged"),
        ({"epochs": 5}, "a plan has no 'epochs'"),
        ({"config_list": [{"op_types": ["Linear"], "sparse_ratio": 0.5}]}, "keep its ten classes"),
        ({"method": "best"}, "No such plan"),
    ],
)
def test_a_plan_that_is_not_allowed_is_refused_before_it_is_timed(changes: dict, words: str) -> None:
    sub = LocalSubmission({"pruning_plan": lambda start: {**start, **changes}})
    result = judge("pruning.pruning_plan", sub, 1)
    assert not isinstance(result, SpeedTask)
    assert words in result.message


def test_the_start_is_timed_against_the_whole_plan() -> None:
    sub = LocalSubmission({"pruning_plan": lambda start: {"remove": True}})  # the rest left out: it stays as it was
    found = judge("pruning.pruning_plan", sub, 1)
    assert isinstance(found, SpeedTask)
    assert found.baseline.arguments["plan"] == lesson.START
    assert found.candidate.arguments["plan"] == {**lesson.START, "remove": True}
    assert found.labels is not None
    assert len(found.labels) == 2000
    assert found.summary.startswith("removed by l1: 0: 20%, 4: 20%, 8: 20%")


def test_the_silent_channels_of_the_reference_say_nothing() -> None:
    for model, keep, images in probes.models(5).values():
        hidden = images
        with torch.no_grad():
            for name, layer in checks.masked(model, keep).eval().named_children():
                hidden = layer(hidden)
                if isinstance(layer, nn.ReLU) and hidden.ndim == 4:
                    conv = max((k for k in keep if int(k) < int(name)), key=int, default=None)
                    if conv is not None and int(name) - int(conv) <= 2:
                        gone = [c for c in range(hidden.shape[1]) if c not in keep[conv]]
                        assert hidden[:, gone].abs().max() == 0
                        assert hidden[:, keep[conv]].abs().max() > 0


ODD_VALUES = [
    "None", "True", "10**400", "float('nan')", "'x' * 10**5", "[]", "{}", "[[1], {'a': None}]",
    "np.array([1, 2])", "np.zeros(0)", "torch.zeros(2, 2)", "torch.tensor(1 + 2j)", "(i for i in range(3))", "object()",
    "nn.Identity()", "nn.Sequential()", "torch.full((2,), float('nan'))", "{'0': 10**400}",
    "{'a': [0], 'b': [0], 'c': [0]}",
]  # fmt: skip


@pytest.mark.parametrize("value", ODD_VALUES)
def test_an_odd_value_is_a_wrong_answer_and_no_mistake_of_the_check(value: str) -> None:
    odd = eval(value)
    entry = {"op_types": ["Conv2d"], "sparse_ratio": 0.5}
    answers = {
        "taylor_scores": [odd],
        "choose_channels": [odd, {"a": odd, "b": odd, "c": odd}],
        "remove_channels": [odd],
        "multiply_adds": [odd, dict.fromkeys(("0", "3", "7"), odd)],
        "pruning_plan": [odd, *({key: odd} for key in (*lesson.START, "else") if (key, value) not in VALID)],
        "quiz": [odd, {question.id: odd for question in quizzes.read("pruning")}],
    }
    answers["pruning_plan"] += [{"config_list": [{**entry, key: odd}]} for key in (*entry, "op_names")]
    for name, found in answers.items():
        for answer in found:
            namespace = {name: answer if name == "quiz" else lambda *_, answer=answer: answer}
            result = judge(f"pruning.{name}", LocalSubmission(namespace), 3)
            assert getattr(result, "status", "valid") == "failed", (name, answer)


VALID = {("remove", "True")}


def test_nni_works_in_the_sandbox_where_home_is_empty_and_no_network_is() -> None:
    program = """
import torch
from torch import nn

def smaller():
    from nni.compression.pruning import L1NormPruner
    from nni.compression.speedup import ModelSpeedup
    from nni.compression.utils import auto_set_denpendency_group_ids

    model = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 16, 2))
    example = torch.zeros(1, 1, 6, 6)
    config = auto_set_denpendency_group_ids(model, [{"op_types": ["Conv2d"], "sparse_ratio": 0.5}], example)
    pruner = L1NormPruner(model, config)
    masks = pruner.compress()[1]
    pruner.unwrap_model()
    ModelSpeedup(model, example, masks, graph_module=torch.fx.symbolic_trace(model)).speedup_model()
    return [model[0].out_channels, model[3].in_features]
"""
    cell = LabCell("plain", None, "nni", program, -1)
    with Sandbox([cell], masked=("accelerando.costs", "accelerando.lessons")) as sandbox:
        sandbox.begin(None, 60.0)
        assert sandbox.submission.call("smaller") == [4, 64]
