"""Probes of lab 5: models are pruned and counted inside the learner's process, because they do not travel on a pipe."""

import copy
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.utils import prune as torch_prune

from accelerando.submission import Wrong, look_up_function

Keep = dict[str, list[int]]
Report = dict[str, Any]
LAYERS = (nn.Conv2d, nn.Linear, nn.BatchNorm2d)


def remove_channels(namespace: Mapping[str, Any], seed: int) -> list[Report]:
    """Give the learner's function every model of ``models`` and report what came back.

    Args:
        namespace: The learner's names.
        seed: Draws weights, channels and inputs.

    Returns:
        One `describe` per model, in order.
    """
    function = look_up_function(namespace, "remove_channels")
    found = []
    for model, keep, images in models(seed).values():
        small = function(model, copy.deepcopy(keep))
        if not isinstance(small, nn.Module):
            raise Wrong(f"`remove_channels` returned {type(small).__name__}. It should return the smaller model.")
        found.append(describe(small, images))
    return found


def describe(model: nn.Module, images: torch.Tensor) -> Report:
    """Shapes and outputs of a model.

    Args:
        model: Left as it was: a copy runs.
        images: float32, a batch of at least 2.

    Returns:
        ``shapes`` (of each layer's weight, in order), ``declared`` (the channels that the layers say they have),
        ``is_trainable``, ``error`` (what stopped the model, else empty), and the outputs "eval", "train" (batch
        statistics) and "later" (evaluation after the running statistics have moved), float32.
    """
    model = copy.deepcopy(model)
    layers = [layer for layer in model.modules() if isinstance(layer, LAYERS)]
    found: Report = {
        "shapes": [list(layer.weight.shape) for layer in layers],
        "declared": [_declared(layer) for layer in layers],
        "is_trainable": all(parameter.requires_grad for parameter in model.parameters()),
        "error": "",
    }
    try:
        with torch.no_grad():
            found["eval"] = model.eval()(images)
            found["train"] = model.train()(images)
            model(images * 0.5 + 1)
            found["later"] = model.eval()(images)
    except Exception as error:
        found["error"] = str(error).splitlines()[0][:160] if str(error) else type(error).__name__
    return found


def _declared(layer: nn.Module) -> list[int]:
    if isinstance(layer, nn.Conv2d):
        return [layer.out_channels, layer.in_channels]
    if isinstance(layer, nn.Linear):
        return [layer.out_features, layer.in_features]
    return [int(layer.num_features)]  # type: ignore[arg-type]


def models(seed: int) -> dict[str, tuple[nn.Sequential, Keep, torch.Tensor]]:
    """Draw the models of the question by what is special about them: model, channels to keep, inputs."""
    draw = np.random.default_rng(seed)
    a, b = (int(width) for width in draw.integers(5, 10, size=2))
    drawn: dict[str, tuple[nn.Sequential, tuple[str, ...]]] = {
        "Two convolutions with BatchNorm": (
            nn.Sequential(
                nn.Conv2d(2, a, 3, padding=1, bias=False), nn.BatchNorm2d(a), nn.ReLU(), nn.MaxPool2d(2),
                nn.Conv2d(a, b, 3, padding=1, bias=False), nn.BatchNorm2d(b), nn.ReLU(),
                nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(b, 4),
            ),
            ("0", "4"),
        ),
        "A linear layer behind nine pixels per channel": (
            nn.Sequential(
                nn.Conv2d(2, a, 3, stride=2), nn.BatchNorm2d(a), nn.ReLU(), nn.Flatten(), nn.Linear(a * 9, 5),
            ),
            ("0",),
        ),
        "Biases, and no BatchNorm": (
            nn.Sequential(
                nn.Conv2d(2, a, 3), nn.ReLU(), nn.Conv2d(a, b, 3), nn.ReLU(), nn.AvgPool2d(2, stride=1), nn.Flatten(),
                nn.Linear(b * 4, 3),
            ),
            ("0", "2"),
        ),
        "A convolution that keeps all its channels between two that do not": (
            nn.Sequential(
                nn.Conv2d(2, a, 3), nn.BatchNorm2d(a), nn.ReLU(), nn.Conv2d(a, 4, 1), nn.BatchNorm2d(4), nn.ReLU(),
                nn.Conv2d(4, b, 3), nn.BatchNorm2d(b), nn.ReLU(), nn.Flatten(), nn.Linear(b * 9, 6), nn.ReLU(),
                nn.Linear(6, 2),
            ),
            ("0", "6"),
        ),
    }  # fmt: skip
    found = {}
    for name, (model, pruned) in drawn.items():
        keep = {layer: _some(draw, len(model.get_parameter(f"{layer}.weight"))) for layer in pruned}
        found[name] = (_shaken(model, draw), keep, _normal(draw, (16, 2, 7, 7)))
    return found


def _some(draw: np.random.Generator, width: int) -> list[int]:
    """Fewer than all channels in rising order, and not simply the first ones."""
    return sorted(int(channel) for channel in draw.choice(np.arange(1, width), size=width // 2, replace=False))


def multiply_adds(namespace: Mapping[str, Any], seed: int) -> list[Report]:
    """Let the learner's function count every model of ``counted_models``, and look at the model afterwards.

    Args:
        namespace: The learner's names.
        seed: Draws widths, masks and inputs.

    Returns:
        For each model ``counts`` (what came back), ``hooks`` (left on it), ``is_unchanged`` (statistics and weights),
        and ``is_in_mode`` (training or evaluation, as before).
    """
    function = look_up_function(namespace, "multiply_adds")
    found = []
    for model, images in counted_models(seed).values():
        before = {name: value.clone() for name, value in model.state_dict().items()}
        hooks, modes = _hooks(model), [part.training for part in model.modules()]
        counts = function(model, images)
        after = model.state_dict()
        found.append(
            {
                "counts": counts,
                "hooks": _hooks(model) - hooks,
                "is_unchanged": list(before) == list(after) and all(after[k].equal(v) for k, v in before.items()),
                "is_in_mode": modes == [part.training for part in model.modules()],
            }
        )
    return found


def _hooks(model: nn.Module) -> int:
    return sum(len(part._forward_hooks) + len(part._forward_pre_hooks) for part in model.modules())


def counted_models(seed: int) -> dict[str, tuple[nn.Sequential, torch.Tensor]]:
    """Draw models by what was done to them, each with a batch: dense, masked, really smaller, partly frozen."""
    draw = np.random.default_rng(seed)
    a, b = 2 * int(draw.integers(2, 5)), 2 * int(draw.integers(3, 6))

    def net(first: int, second: int, groups: int = 1) -> nn.Sequential:
        model = nn.Sequential(
            nn.Conv2d(2, first, 3), nn.BatchNorm2d(first), nn.ReLU(), nn.Conv2d(first, second, 3, groups=groups),
            nn.BatchNorm2d(second), nn.ReLU(), nn.Flatten(), nn.Linear(second * 25, 5),
        )  # fmt: skip
        return _shaken(model, draw)

    masked, permanent, channels = net(a, b), net(a, b), net(a, b)
    for model in (masked, permanent):
        for layer in (model[0], model[3], model[7]):
            torch_prune.l1_unstructured(layer, "weight", amount=0.5)
    for layer in (permanent[0], permanent[3], permanent[7]):
        torch_prune.remove(layer, "weight")
    torch_prune.ln_structured(channels[0], "weight", amount=0.5, n=1, dim=0)
    drawn = {
        "The dense model": net(a, b),
        "Half of the weights masked": masked,
        "Half of the weights set to zero": permanent,
        "Half of the channels masked": channels,
        "Half of the channels removed": net(a // 2, b // 2),
        "A convolution in two groups": net(a, b, groups=2),
    }
    batch = int(draw.integers(2, 6))
    found = {}
    for number, (name, model) in enumerate(drawn.items()):
        found[name] = (model.train(number % 2 == 0), _normal(draw, (batch, 2, 9, 9)))
    frozen = net(a, b).train()
    frozen[1].eval()
    return found | {"A BatchNorm frozen in a model that trains": (frozen, _normal(draw, (batch, 2, 9, 9)))}


def _shaken(model: nn.Sequential, draw: np.random.Generator) -> nn.Sequential:
    """Give every parameter and statistic a value that shows when it is lost: fresh ones are 0, 1 or tiny."""
    with torch.no_grad():
        for name, value in (*model.named_parameters(), *model.named_buffers()):
            if value.is_floating_point():
                noise = _normal(draw, tuple(value.shape))
                value.copy_(noise.abs() + 0.5 if name.endswith("running_var") else noise)
    return model


def _normal(draw: np.random.Generator, shape: tuple[int, ...]) -> torch.Tensor:
    return torch.from_numpy(draw.standard_normal(shape).astype(np.float32))
