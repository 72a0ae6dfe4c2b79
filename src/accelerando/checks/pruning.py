"""The checks of lab 5. Each one starts from the mistakes that people make."""

import copy
import math
from typing import TYPE_CHECKING, Any

import numpy as np

from accelerando.checks import pruning_mistakes as mistakes
from accelerando.checks.quiz import judge_quiz
from accelerando.submission import SpeedTask, Submission, Wrong, grades, is_same

if TYPE_CHECKING:
    import torch
    from torch import nn

    from accelerando.probes.pruning import Keep, Report

Scores = dict[str, list[float]]


@grades("pruning.taylor_scores", wrong=mistakes.TAYLOR)
def taylor_scores(sub: Submission, rng: np.random.Generator) -> None:
    """Filters of convolutions and rows of linear layers; gradients whose signs cancel, so that shortcuts show."""
    import torch

    where = "See *Criterion, scope, method* in the lesson."
    shapes = [(2, 1, 1, 2), (5, 3, 3, 3), (4, 7), (3, 6, 1, 1), (6, 2, 5, 5)]
    for number, shape in enumerate(shapes):
        batches = 2 if number == 0 else int(rng.integers(3, 6))
        weight = _normal(rng, shape)
        gradients = _normal(rng, (batches, *shape))
        gradients[1] = -gradients[0]  # the loss pulls one way, then the other
        if number == 0:
            weight = torch.tensor([[[[1.0, 2.0]]], [[[3.0, 0.0]]]])
            gradients = torch.tensor([[[[[1.0, 1.0]]], [[[1.0, 5.0]]]], [[[[-1.0, -1.0]]], [[[1.0, 5.0]]]]])
        expected = (weight.double() * gradients.double()).square().flatten(2).sum(2).mean(0)
        found = sub.taylor_scores(weight, gradients)
        if not isinstance(found, torch.Tensor):
            raise Wrong(f"`taylor_scores` returned {type(found).__name__}. It should return a tensor of scores.")
        if found.shape != expected.shape:
            raise Wrong(
                f"For a weight of shape {tuple(shape)} the scores have the shape {tuple(found.shape)}. How many output "
                f"channels does that layer have, and which dimension are they? {where}"
            )
        if not found.is_floating_point() or not torch.allclose(found.double(), expected, rtol=1e-3, atol=1e-6):
            kind = "the example" if number == 0 else f"{batches} batches and a weight of {len(shape)} dimensions"
            raise Wrong(f"The scores for {kind} are not right. {_doubt(found, weight, gradients)} {where}")


def _doubt(found: "torch.Tensor", weight: "torch.Tensor", gradients: "torch.Tensor") -> str:
    """The question that fits the shortcut that was taken, as far as it can be recognised."""
    product = weight * gradients
    shortcuts = {
        "What becomes of two gradients that point in opposite directions when you average them first?": (
            product.mean(0).square().flatten(1).sum(1)
        ),
        "Two weights of a filter may pull the loss opposite ways. Is each effect squared before they are added?": (
            product.flatten(2).sum(2).square().mean(0)
        ),
        "Where do the weights come in: how far would each of them move if it were set to 0?": (
            gradients.square().flatten(2).sum(2).mean(0)
        ),
        "Is it the sum over a filter, and the mean over the batches?": product.square().flatten(2).sum(2).sum(0),
    }
    for question, scores in shortcuts.items():
        if found.is_floating_point() and scores.allclose(found.to(scores.dtype), rtol=1e-3, atol=1e-6):
            return question
    return "What is squared, over what is it summed, and over what is it averaged?"


@grades("pruning.choose_channels", wrong=mistakes.CHANNELS)
def choose_channels(sub: Submission, rng: np.random.Generator) -> None:
    """Counts first, then which ones; groups whose members would choose differently."""
    example: Scores = {"a": [0.9, 0.1, 0.5, 0.7], "b": [0.2, 0.8, 0.9, 0.1], "c": [0.3, 0.6, 0.1]}
    _judge_channels(sub, example, [["a", "b"]], 0.6, 1, "The example")
    for multiple in (1, 4, 8, 16):
        for _ in range(3):
            scores, groups, sparsity = _draw_scores(rng)
            _judge_channels(sub, scores, groups, sparsity, multiple, f"A net with multiple {multiple}")


def _draw_scores(rng: np.random.Generator) -> tuple[Scores, list[list[str]], float]:
    """Layers, of which some are added; the wanted number is never close to a whole one."""
    while True:
        sparsity = round(float(rng.uniform(0.15, 0.85)), 3)
        widths = [int(width) for width in rng.choice([12, 20, 24, 33, 48, 64], size=3)]
        left = [(1 - sparsity) * width for width in widths]
        if all(0.05 < count % 1 < 0.95 for count in left):
            break
    scores = {f"layer{place}": _scores(rng, width) for place, width in enumerate(widths)}
    scores |= {"skip": _scores(rng, widths[0]), "stem": _scores(rng, widths[0])}
    order = [str(name) for name in rng.permutation(["layer0", "skip", "stem"])]
    names = [str(name) for name in rng.permutation(list(scores))]
    return {name: scores[name] for name in names}, [order], sparsity


def _scores(rng: np.random.Generator, width: int) -> list[float]:
    return [float(score) for score in rng.permutation(width) + rng.uniform(0.1, 0.4, size=width)]


def _kept(width: int, sparsity: float, multiple: int) -> int:
    return min(width, math.ceil((1 - sparsity) * width / multiple) * multiple)


def _best(scores: list[float], count: int) -> list[int]:
    return sorted(sorted(range(len(scores)), key=lambda channel: -scores[channel])[:count])


def _judge_channels(
    sub: Submission, scores: Scores, groups: list[list[str]], sparsity: float, multiple: int, kind: str
) -> None:
    found = sub.choose_channels(scores, groups, sparsity, multiple)
    if not isinstance(found, dict) or set(found) != set(scores):
        raise Wrong("`choose_channels` should return a dictionary with every layer of `scores`: found something else.")
    for name, channels in found.items():
        width = len(scores[name])
        if not isinstance(channels, list) or not all(isinstance(c, int) and not isinstance(c, bool) for c in channels):
            raise Wrong("The channels of a layer should be a list of whole numbers.")
        if channels != sorted(set(channels)):
            raise Wrong(f"{kind}: a layer's channels are not in rising order, or one is there twice.")
        if any(not 0 <= channel < width for channel in channels):
            raise Wrong(f"{kind}: a channel is named that its layer does not have. How are channels counted?")
        _judge_count(len(channels), width, sparsity, multiple, kind)
    _judge_choice(found, scores, groups, kind)


def _judge_count(count: int, width: int, sparsity: float, multiple: int, kind: str) -> None:
    expected = _kept(width, sparsity, multiple)
    if count != expected:
        direction = "more" if count > expected else "fewer"
        where = "See *Odd numbers of channels* in the lesson."
        raise Wrong(
            f"{kind}: a layer of {width} channels keeps {direction} than it should. In which direction is a count "
            f"rounded, and what if the layer is narrower than the multiple? {where}"
        )


def _judge_choice(found: dict[str, list[int]], scores: Scores, groups: list[list[str]], kind: str) -> None:
    where = "See *Layers that are added* in the lesson."
    grouped = [name for group in groups for name in group]
    for name in scores:
        if name not in grouped and found[name] != _best(scores[name], len(found[name])):
            raise Wrong(
                f"{kind}: a layer that stands alone keeps others than its best channels. Which scores are high?"
            )
    for group in groups:
        if any(found[name] != found[group[0]] for name in group):
            raise Wrong(
                f"{kind}: two layers that are added keep different channels. What is added to what then? {where}"
            )
        means = [sum(values) / len(group) for values in zip(*(scores[name] for name in group), strict=True)]
        if found[group[0]] != _best(means, len(found[group[0]])):
            raise Wrong(
                f"{kind}: the layers of a group agree, but not on the channels with the best mean score. Does every "
                f"member have a say? {where}"
            )


@grades("pruning.remove_channels", wrong=mistakes.REMOVAL)
def remove_channels(sub: Submission, rng: np.random.Generator) -> None:
    """Every shape as it should be, and the values of the masked model: in evaluation, in training, and after it."""
    from accelerando.probes import pruning as probes

    seed = int(rng.integers(2**31))
    found = sub.probe("pruning.remove_channels", seed=seed)
    originals = probes.models(seed)
    if not isinstance(found, list) or len(found) != len(originals):
        raise Wrong("`remove_channels` did not give back every model it was asked for.")
    for (kind, (model, keep, images)), report in zip(originals.items(), found, strict=True):
        if not isinstance(report, dict) or not isinstance(report.get("shapes"), list):
            raise Wrong(f"{kind}: what came back could not be read.")
        _judge_removal(kind, report, probes.describe(masked(model, keep), images), shapes(model, keep))


def masked(model: "nn.Sequential", keep: "Keep") -> "nn.Sequential":
    """The model with every dropped channel silent: its filter, its bias, and its BatchNorm's scale and shift are 0."""
    import torch
    from torch import nn

    model = copy.deepcopy(model)
    parts = dict(model.named_children())
    with torch.no_grad():
        for name, kept in keep.items():
            follower = parts.get(str(int(name) + 1))
            for layer in (parts[name], *([follower] if isinstance(follower, nn.BatchNorm2d) else [])):
                gone = [channel for channel in range(len(layer.get_parameter("weight"))) if channel not in kept]
                for parameter in layer.parameters():
                    parameter[gone] = 0
    return model


def shapes(model: "nn.Sequential", keep: "Keep") -> list[list[int]]:
    """The shapes of the weights that should be there afterwards; a channel may be many inputs of a linear layer."""
    from torch import nn

    found: list[list[int]] = []
    full, left = 0, 0  # of the convolution before
    for name, layer in model.named_children():
        if isinstance(layer, nn.Conv2d):
            kept = len(keep.get(name, range(layer.out_channels)))
            found.append([kept, left or layer.in_channels, *layer.kernel_size])
            full, left = layer.out_channels, kept
        elif isinstance(layer, nn.BatchNorm2d):
            found.append([left])
        elif isinstance(layer, nn.Linear):
            inputs = layer.in_features // full * left if full else layer.in_features
            found.append([layer.out_features, inputs])
            full = 0
    return found


def _judge_removal(kind: str, report: "Report", expected: "Report", wanted: list[list[int]]) -> None:
    where = "See *A channel is more than its filter* in the lesson."
    if len(report["shapes"]) != len(wanted):
        raise Wrong(f"{kind}: the model came back with another number of layers. Only channels should go. {where}")
    if report["shapes"] == expected["shapes"] != wanted:
        raise Wrong(f"{kind}: every weight has its old shape. Has anything been removed, or only set to zero? {where}")
    for number, (shape, right) in enumerate(zip(report["shapes"], wanted, strict=True), 1):
        if shape != right:
            raise Wrong(
                f"{kind}: expected {_shape(right)} for weight {number} of {len(wanted)}, found {_shape(shape)}. Which "
                f"channels come in, which go out, and how many inputs of a linear layer is one channel? {where}"
            )
    if report.get("error"):
        raise Wrong(f"{kind}: the smaller model does not run: {str(report['error'])[:120]}. Do neighbours fit? {where}")
    modes = {"eval": "evaluation", "train": "training", "later": "evaluation, once running statistics have moved,"}
    for mode, words in modes.items():
        if not _is_close(report.get(mode), expected[mode]):
            raise Wrong(
                f"{kind}: it has the right shapes, and in {words} another output than the masked model. Which numbers "
                f"belong to a channel besides its filter, and is every one the right channel's? {where}"
            )
    if not is_same(report.get("declared"), [shape[:2] for shape in wanted]):
        raise Wrong(
            f"{kind}: a layer still says that it has its old number of channels. What does `print(model)` show?"
        )
    if report.get("is_trainable") is not True:
        raise Wrong(f"{kind}: a parameter can no longer be trained. Is it an `nn.Parameter`?")


def _shape(sizes: list[int]) -> str:
    return " x ".join(map(str, sizes)) if len(sizes) > 1 else f"{sizes[0]} numbers"


def _is_close(found: Any, expected: "torch.Tensor") -> bool:
    is_alike = getattr(found, "shape", None) == expected.shape and getattr(found, "dtype", None) == expected.dtype
    return is_alike and expected.allclose(found, rtol=1e-3, atol=1e-3)


def _normal(rng: np.random.Generator, shape: tuple[int, ...]) -> "torch.Tensor":
    import torch

    return torch.from_numpy(rng.standard_normal(shape).astype(np.float32))


@grades("pruning.multiply_adds", wrong=mistakes.COUNTS)
def multiply_adds(sub: Submission, rng: np.random.Generator) -> None:
    """Counts for dense, masked and smaller models; and nothing may be left behind on the model."""
    from accelerando.probes import pruning as probes

    seed = int(rng.integers(2**31))
    found = sub.probe("pruning.multiply_adds", seed=seed)
    originals = probes.counted_models(seed)
    if not isinstance(found, list) or len(found) != len(originals):
        raise Wrong("`multiply_adds` did not count every model it was asked for.")
    for (kind, (model, images)), report in zip(originals.items(), found, strict=True):
        if not isinstance(report, dict):
            raise Wrong(f"{kind}: what came back could not be read.")
        _judge_counts(kind, report, work(model, images))


def work(model: "nn.Sequential", images: "torch.Tensor") -> dict[str, int]:
    """Multiply-adds per image of each convolution and linear layer: its weights, once for every place of its output."""
    import torch
    from torch import nn

    found, hidden = {}, images
    with torch.no_grad():
        for name, layer in model.eval().named_children():
            hidden = layer(hidden)
            if isinstance(layer, nn.Conv2d | nn.Linear):
                places = hidden[0, 0].numel()
                found[name] = layer.weight.numel() * places
    return found


def _judge_counts(kind: str, report: "Report", expected: dict[str, int]) -> None:
    counts = report.get("counts")
    where = "See *Half the weights* in the lesson."
    if not isinstance(counts, dict) or set(counts) != set(expected):
        raise Wrong(
            f"{kind}: `multiply_adds` should return a dictionary with every convolution and linear layer by its name."
        )
    for name, right in expected.items():
        number = counts[name]
        if isinstance(number, bool) or not isinstance(number, int):
            raise Wrong(f"{kind}: a count is of type {type(number).__name__}. Work comes in whole numbers.")
        if number != right:
            part = number / right if abs(number) < 1e100 else math.inf
            raise Wrong(
                f"{kind}: a layer is said to do {part:.2f} times the work that it does. Is a product with zero left "
                f"out by the processor, and how often is each weight used for one image? {where}"
            )
    if report.get("hooks") != 0:
        raise Wrong(f"{kind}: the counts are right, but hooks stay on the model. Who runs them from now on?")
    if report.get("is_unchanged") is not True:
        raise Wrong(
            f"{kind}: the counts are right, but the model is not as it was. What learns while a model only runs?"
        )
    if report.get("is_in_mode") is not True:
        raise Wrong(
            f"{kind}: the counts are right, but the model is no longer in the mode it was in. Has each of its modules "
            "the mode that it had?"
        )


@grades("pruning.pruning_plan", wrong=mistakes.PLANS)
def pruning_plan(sub: Submission, rng: np.random.Generator) -> SpeedTask:
    """Only the plan's switches; NNI carries it out, and speed and accuracy are measured from outside."""
    from accelerando.lessons import pruning as lesson
    from accelerando.workers import Experiment

    plan = sub.pruning_plan(copy.deepcopy(lesson.START))
    if not isinstance(plan, dict):
        raise Wrong(f"`pruning_plan` returned {type(plan).__name__}. It should return a plan: a dictionary.")
    try:
        shares = lesson.check_plan(plan)
    except ValueError as error:
        raise Wrong(f"No such plan: {error}.") from None
    plan = {**lesson.START, **plan}
    if is_same(plan, lesson.START):
        raise Wrong(
            "That is `start` itself, unchanged. What of it can make a step faster at all? See *Half the weights*."
        )
    chosen = ", ".join(f"{name}: {share:.0%}" for name, share in shares.items())
    done = "removed" if plan["remove"] else "masked"
    return SpeedTask(
        baseline=Experiment(lesson.TRAIN_PLAN, {"plan": lesson.START}),
        candidate=Experiment(lesson.TRAIN_PLAN, {"plan": plan}),
        labels=lesson.task_data().test.labels,
        summary=f"{done} by {plan['method']}: {chosen}; multiple {plan['multiple']}, rate {plan['learning_rate']:g}",
    )


@grades("pruning.quiz", wrong=mistakes.QUIZ)
def quiz(sub: Submission, rng: np.random.Generator) -> None:
    """As in every lab."""
    judge_quiz(sub, "pruning")
