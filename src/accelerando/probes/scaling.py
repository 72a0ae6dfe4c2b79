"""Probes of lab 1: what must be looked at inside the learner's process, because models do not travel on a pipe."""

import copy
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

from accelerando.submission import Wrong, look_up_function

Outputs = dict[str, Any]


def drop_idle_biases(namespace: Mapping[str, Any], seed: int) -> list[Outputs]:
    """Give the learner's function every model of ``models`` and report what came back.

    Args:
        namespace: The learner's names.
        seed: Draws weights, biases, running means and inputs.

    Returns:
        One `outputs` per model, in order.
    """
    function = look_up_function(namespace, "drop_idle_biases")
    found = []
    for model, images in models(seed).values():
        lean = function(model)
        if not isinstance(lean, nn.Module):
            raise Wrong(f"`drop_idle_biases` returned {type(lean).__name__}. It should return the model.")
        found.append(outputs(lean, images))
    return found


def outputs(model: nn.Module, images: torch.Tensor) -> Outputs:
    """Run a model in evaluation, in training, and in evaluation again.

    Args:
        model: Left as it was: a copy runs.
        images: float32, a batch of at least 2.

    Returns:
        ``has_bias`` (a list of bool, one per convolution or linear layer), ``is_trainable``, and the outputs "eval",
        "train" (batch statistics) and "later" (evaluation after the running mean has moved), float32.
    """
    model = copy.deepcopy(model)
    layers = [layer for layer in model.modules() if isinstance(layer, nn.Conv1d | nn.Conv2d | nn.Linear)]
    found: Outputs = {
        "has_bias": [layer.bias is not None for layer in layers],
        "is_trainable": all(parameter.requires_grad for parameter in model.parameters()),
    }
    with torch.no_grad():
        found["eval"] = model.eval()(images)
        found["train"] = model.train()(images)
        model(images * 0.5 + 1)
        found["later"] = model.eval()(images)
    return found


def models(seed: int) -> dict[str, tuple[nn.Module, torch.Tensor]]:
    """Draw the models of the question, keyed by what is special about them, each with a batch of inputs."""
    draw = np.random.default_rng(seed)
    width = int(draw.integers(3, 9))
    activation = nn.ReLU()
    drawn: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
        "convolution, BatchNorm, ReLU": (
            nn.Sequential(
                nn.Conv2d(2, width, 3), nn.BatchNorm2d(width), nn.ReLU(), nn.Flatten(), nn.Linear(width * 16, 5)
            ),
            (2, 6, 6),
        ),
        "linear layers in blocks inside blocks": (
            nn.Sequential(
                nn.Sequential(nn.Linear(7, width), nn.BatchNorm1d(width), nn.Tanh()),
                nn.Sequential(nn.Sequential(nn.Linear(width, 6)), nn.BatchNorm1d(6)),
                nn.Linear(6, 3),
            ),
            (7,),
        ),
        "an activation between the layer and its BatchNorm": (
            nn.Sequential(
                nn.Conv1d(2, width, 3), nn.Tanh(), nn.BatchNorm1d(width), nn.Conv1d(width, 4, 1), nn.BatchNorm1d(4)
            ),
            (2, 8),
        ),
        "one ReLU object in several places": (
            nn.Sequential(
                nn.Linear(5, width),
                activation,
                nn.Linear(width, 4),
                activation,
                nn.BatchNorm1d(4),
                nn.Linear(4, 4),
                nn.BatchNorm1d(4),
                activation,
            ),
            (5,),
        ),
        "layers that have no bias already": (
            nn.Sequential(
                nn.Conv2d(1, 4, 3, bias=False), nn.BatchNorm2d(4), nn.Conv2d(4, width, 3), nn.BatchNorm2d(width)
            ),
            (1, 7, 7),
        ),
        "no BatchNorm at all": (nn.Sequential(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, 2)), (4,)),
    }
    return {name: (_shaken(model, draw), _normal(draw, (16, *shape))) for name, (model, shape) in drawn.items()}


def _shaken(model: nn.Module, draw: np.random.Generator) -> nn.Module:
    """Give every parameter and statistic a value that shows when it is lost: fresh ones are 0, 1 or tiny."""
    with torch.no_grad():
        for name, value in (*model.named_parameters(), *model.named_buffers()):
            if value.is_floating_point():
                noise = _normal(draw, tuple(value.shape))
                value.copy_(noise.abs() + 0.5 if name.endswith("running_var") else noise)
    return model


def _normal(draw: np.random.Generator, shape: tuple[int, ...]) -> torch.Tensor:
    return torch.from_numpy(draw.standard_normal(shape).astype(np.float32))
