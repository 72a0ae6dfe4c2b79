"""LARS and LAMB: a learning rate for every layer, from how long its weights and its step are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from accelerando import datasets, models, seeds

Prepare = Callable[[nn.Module, torch.optim.Optimizer], tuple[nn.Module, torch.optim.Optimizer]]
TRUST = 0.02
"""LARS' trust coefficient: a step moves a layer by this share of its own length, times the learning rate."""


def optimizer(name: str) -> Prepare | None:
    """What `training.fit` takes as ``prepare``.

    Args:
        name: "sgd" (nothing to prepare), "lars" or "lamb". Both come from the package pytorch-optimizer.
    """
    if name == "sgd":
        return None
    if name not in ("lars", "lamb"):
        raise ValueError(f"optimizer is {name!r}: say sgd, lars or lamb")

    def prepare(model: nn.Module, _: torch.optim.Optimizer) -> tuple[nn.Module, torch.optim.Optimizer]:
        from pytorch_optimizer import LARS, Lamb

        if name == "lars":
            return model, LARS(model.parameters(), momentum=0.9, weight_decay=5e-4, trust_coefficient=TRUST)
        # The paper's: decay inside the trust ratio, and the first steps not made longer by Adam's correction.
        return model, Lamb(model.parameters(), weight_decay=0.01, weight_decouple=False, adam_debias=True)

    return prepare


@dataclass(frozen=True)
class Layer:
    """Weights and gradient of one layer: their lengths."""

    name: str
    weight_length: float
    gradient_length: float

    def moved(self, rate: float) -> float:
        """By what share of its own length one plain step moves the layer."""
        return rate * self.gradient_length / self.weight_length


@dataclass(frozen=True)
class LayerStory:
    """The layers at the start of training, and the rate that is asked of all of them."""

    layers: tuple[Layer, ...]
    rate: float

    def table(self) -> str:
        """Markdown: what one plain step would do to each layer."""
        lines = [
            f"| layer | its weights' length | its gradient's length | moved by SGD, rate {self.rate:g} |",
            "|---|---|---|---|",
        ]
        lines += [
            f"| {one.name} | {one.weight_length:.3g} | {one.gradient_length:.3g} | {one.moved(self.rate):.2%} |"
            for one in self.layers
        ]
        return "\n".join(lines)

    def sentence(self) -> str:
        """How different the layers are."""
        most, least = (pick(self.layers, key=lambda one: one.moved(1.0)) for pick in (max, min))
        times = most.moved(1.0) / least.moved(1.0)
        return (
            f"One rate for all moves {most.name} **{times:.1f} times as far** as {least.name}, measured in its own "
            "length. Whatever rate suits one of them, another gets too much or too little. By its rule, LARS below "
            f"moves every layer by about {TRUST:.0%} in its first step at rate 1. (That is the first step. Later ones "
            "that point the same way grow up to tenfold by momentum 0.9, SGD's as well as LARS's.)"
        )


def measure_layers(sizes: models.MlpSizes, data: datasets.Dataset, rate: float, batch: int) -> LayerStory:
    """Look at the gradient of one large batch before the first step.

    Args:
        sizes: Of the network.
        data: Images.
        rate: That SGD would use.
        batch: Images of the batch.
    """
    with seeds.preserved():
        seeds.seed(0)
        model = models.build(sizes)
    chosen = torch.arange(min(batch, len(data.train)))
    images, labels = datasets.as_batch(data.train.images[: len(chosen)]), torch.as_tensor(data.train.labels)[chosen]
    nn.functional.cross_entropy(model(images), labels).backward()
    matrices = [parameter for parameter in model.parameters() if parameter.ndim > 1]
    return LayerStory(
        tuple(
            Layer(f"layer {number}", float(weight.detach().norm()), float(weight.grad.norm()))  # type: ignore[union-attr]
            for number, weight in enumerate(matrices, 1)
        ),
        rate,
    )
