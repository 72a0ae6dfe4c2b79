"""Gradients of a real run: how large they are, and what a narrow format would leave of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from accelerando import datasets, formats, models, seeds, training
from accelerando.lessons import Budget
from accelerando.recipes import Recipe

RECIPE = Recipe(batch_size=128, learning_rate=0.1, epochs=1, test_images=10)
KINDS = ("activations", "weights")
_KEPT = 4000  # numbers kept of each tensor: enough for a histogram


@dataclass(frozen=True, eq=False)
class GradientSample:
    """Gradients of a run in fp32, drawn at random from its steps.

    Args:
        values: Kind ("activations": of the layers' outputs, "weights") -> float32 numbers, zeros included.
        steps: Steps that were looked at.
        batch_size: Images per step.
    """

    values: dict[str, npt.NDArray[np.float32]]
    steps: int
    batch_size: int

    def magnitudes(self, kind: str) -> npt.NDArray[np.float64]:
        """Absolute values without the zeros."""
        found = np.abs(self.values[kind].astype(np.float64))
        return found[found > 0]

    def fate(self, kind: str, form: formats.Format, scale: float = 1.0) -> formats.Fate:
        """What becomes of them in a format, after a multiplication by ``scale``."""
        return form.fate(self.values[kind].astype(np.float64) * scale)

    def sentence(self) -> str:
        """What this run showed."""
        found = self.magnitudes("activations")
        low, middle, high = np.quantile(found, [0.01, 0.5, 0.99])
        fp16, bf16 = (self.fate("activations", form) for form in (formats.FP16, formats.BF16))
        touched = fp16.lost + fp16.coarse
        verdict = (
            f"Stored in fp16, **{fp16.lost:.0%}** of them would be zero and another {fp16.coarse:.0%} lose bits"
            if touched > 0.01
            else "In this run hardly any of them is too small for fp16"
        )
        return (
            f"Half of the activations' gradients are below {middle:.1g}, and 98 % lie between {low:.1g} and "
            f"{high:.1g}, {np.log2(high / low):.0f} powers of two apart. {verdict}; bf16 would lose {bf16.lost:.1%}."
        )


def sample_gradients(
    budget: Budget, *, model: models.Sizes = models.SLIM_CNN, recipe: Recipe = RECIPE
) -> GradientSample:
    """Train in fp32 and look at the gradients of weights and of layers' outputs on the way.

    Args:
        budget: How many images.
        model: Sizes of the network.
        recipe: How to train.
    """
    data = images(budget)
    with seeds.preserved():
        seeds.seed(recipe.seed)
        module = models.build(model)
    with _watched(module) as seen:
        result = training.fit(recipe, data, model=module, on_step=lambda report: _keep_weights(module, seen))
    draw = np.random.default_rng(0)
    values = {kind: np.concatenate([_drawn(entry, draw) for entry in seen[kind]]) for kind in KINDS}
    return GradientSample(values, result.steps, recipe.batch_size)


def images(budget: Budget) -> datasets.Dataset:
    """The images of this lesson's experiments: real ones from the package, the same on every machine."""
    return datasets.fashion_mnist(embedded_only=True, train_images=budget.train_images, test_images=budget.test_images)


@contextmanager
def _watched(module: nn.Module) -> Iterator[dict[str, list[torch.Tensor]]]:
    """Keep the gradients that arrive at the outputs of layers with weights."""
    seen: dict[str, list[torch.Tensor]] = {kind: [] for kind in KINDS}

    def watch(layer: nn.Module, inputs: Any, output: torch.Tensor) -> None:
        if output.requires_grad:
            output.register_hook(lambda gradient: seen["activations"].append(_thin(gradient)))

    layers = [layer for layer in module.modules() if isinstance(layer, nn.Conv2d | nn.Linear)]
    handles = [layer.register_forward_hook(watch) for layer in layers]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


def _keep_weights(module: nn.Module, seen: dict[str, list[torch.Tensor]]) -> None:
    seen["weights"] += [_thin(entry.grad) for entry in module.parameters() if entry.grad is not None]


def _thin(gradient: torch.Tensor) -> torch.Tensor:
    """About ``_KEPT`` numbers of a tensor, evenly from all of it."""
    flat = gradient.detach().float().reshape(-1)
    return flat[:: max(1, flat.numel() // _KEPT)].clone()


def _drawn(entry: torch.Tensor, draw: np.random.Generator) -> npt.NDArray[np.float32]:
    found: npt.NDArray[np.float32] = entry.numpy()
    return found[draw.integers(0, found.size, min(found.size, 512))]


# -- underflow, predicted and measured --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Underflow:
    """Gradients that are zero in fp16 and are not in fp32, with several loss scales.

    Args:
        scales: Loss scales, powers of two, rising.
        predicted: Share that the histogram of the fp32 run says will be lost.
        measured: Share of zeros in a real backward under fp16 autocast, minus that in fp32.
        overflowed: Whether that backward held infinity or NaN, in a gradient of whatever kind.
        among: Kinds of gradients (``KINDS``) in which they were found, in the same order.
    """

    scales: tuple[float, ...]
    predicted: tuple[float, ...]
    measured: tuple[float, ...]
    overflowed: tuple[bool, ...]
    among: tuple[tuple[str, ...], ...] = ()

    @property
    def safe(self) -> tuple[int, ...]:
        """Places of the scales without overflow."""
        return tuple(place for place, is_over in enumerate(self.overflowed) if not is_over)

    def sentence(self) -> str:
        """What this run showed."""
        first = (
            f"With no loss scale fp16 lost **{self.measured[0]:.0%}** of the gradients "
            f"(predicted: {self.predicted[0]:.0%})"
        )
        if not self.safe:
            return f"{first}, and every scale that was tried overflowed."
        best = min(self.safe, key=lambda place: self.measured[place])
        pairs = zip(self.scales, self.overflowed, strict=True)
        end = [f"2^{np.log2(scale):.0f}" for scale, is_over in pairs if is_over]
        over = f" With {end[0]} {self._who()} became infinity." if end else " None of the scales tried overflowed."
        if self.measured[0] < 0.005:
            return f"{first}: nothing to mend in this net.{over}"
        return f"{first}; with a scale of 2^{np.log2(self.scales[best]):.0f} it lost {self.measured[best]:.1%}.{over}"

    def _who(self) -> str:
        """Which gradients overflowed first, as the scale rose."""
        first = next((kinds for kinds in self.among if kinds), ())
        if first == ("weights",):
            return (
                "some of the weights' gradients (sums over all images, and so the largest; the activations' still fit)"
            )
        return "the largest ones" if len(first) != 1 else f"the largest of the {first[0]}' gradients"


def measure_underflow(
    budget: Budget, *, exponents: tuple[int, ...] = (0, 4, 8, 12, 16, 20, 24), batch_size: int = 128
) -> Underflow:
    """Compare the prediction from a histogram with a real backward in fp16, over loss scales.

    The same network, trained for an epoch, and the same batch each time: only precision and scale differ.
    """
    data = images(budget)
    batch = datasets.as_batch(data.train.images[:batch_size])
    labels = torch.from_numpy(data.train.labels[:batch_size])
    with seeds.preserved():
        seeds.seed(RECIPE.seed)
        module = models.build(models.SLIM_CNN)
    training.fit(RECIPE, data, model=module)
    exact, _ = _backward(module, batch, labels, 1.0, None)
    share = _zeros(exact)
    scales = tuple(2.0**exponent for exponent in exponents)
    predicted = [formats.FP16.fate(exact.double().numpy() * scale).lost * (1 - share) for scale in scales]
    real = [_backward(module, batch, labels, scale, torch.float16) for scale in scales]
    measured = [max(0.0, _zeros(found) - share) for found, _ in real]
    among = tuple(kinds for _, kinds in real)
    return Underflow(scales, tuple(predicted), tuple(measured), tuple(bool(kinds) for kinds in among), among)


def _backward(
    module: nn.Module, batch: torch.Tensor, labels: torch.Tensor, scale: float, half: torch.dtype | None
) -> tuple[torch.Tensor, tuple[str, ...]]:
    """All gradients of layers' outputs, as one flat tensor; and the kinds of gradients that hold infinity or NaN."""
    with _watched(module) as seen:
        with torch.autocast("cpu", half or torch.bfloat16, enabled=half is not None):
            logits = module(batch)
        loss = nn.functional.cross_entropy(logits.float(), labels)
        (loss * scale).backward()
    seen["weights"] = [entry.grad for entry in module.parameters() if entry.grad is not None]
    bad = tuple(kind for kind in KINDS if not all(bool(torch.isfinite(found).all()) for found in seen[kind]))
    module.zero_grad(set_to_none=True)
    return torch.cat(seen["activations"]), bad


def _zeros(values: torch.Tensor) -> float:
    return float((values == 0).double().mean())
