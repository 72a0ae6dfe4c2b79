"""What zeros are worth: masks of ``torch.nn.utils.prune`` against the dense model, and a kernel made for zeros."""

from __future__ import annotations

import functools
import itertools
import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.utils import prune as torch_prune

from accelerando import measure, rounds, seeds, training
from accelerando.lessons import Budget
from accelerando.lessons.pruning.subject import STEP_RECIPE, images, new_model


@dataclass(frozen=True)
class MaskReport:
    """Training steps of masked models against the dense one.

    Args:
        comparisons: One per kind of mask.
        zero_shares: Label -> share of zeros among the convolutions' weights, after the last timed step.
    """

    comparisons: tuple[measure.Comparison, ...]
    zero_shares: dict[str, float]

    @property
    def permanent(self) -> measure.Comparison:
        """Zeros written into the weights, without any hook: the purest test of the belief."""
        return self.comparisons[1]

    def sentence(self) -> str:
        """What this run showed."""
        told = []
        for found in self.comparisons:
            label = found.candidate.label
            ratio = f"{found.ratio:.2f} times the speed, {found.outcome}" if found.pairs else "not measured"
            told.append(f"{label} ({self.zero_shares[label]:.0%} zeros after the last step): {ratio}")
        faster = [found for found in self.comparisons if found.verdict == "faster"]
        if faster:
            end = (
                "Something did get faster: does another setting differ, or is the machine busy? Zeros are computed too."
            )
        else:
            end = "**Of no mask could it be shown that it made the step faster.**"
        return f"{'; '.join(told)}. {end}"


def measure_masks(budget: Budget, share: float = 0.5) -> MaskReport:
    """Set three ways to make half of the weights zero against the dense model: one training step each, in turn.

    Args:
        budget: How long.
        share: Of the weights, or of the channels.
    """
    kinds: dict[str, Callable[[nn.Module], object]] = {
        "half of the weights, as prune leaves them": lambda model: mask_weights(model, share),
        "half of the weights, made permanent": lambda model: make_permanent(mask_weights(model, share)),
        "half of the channels, made permanent": lambda model: make_permanent(mask_channels(model, share)),
    }
    data = images(budget)
    found, zeros = [], {}
    for label, mask in kinds.items():
        model = new_model(budget)
        mask(model)
        dense = training.stepper(STEP_RECIPE, data, model=new_model(budget))
        masked = training.stepper(STEP_RECIPE, data, model=model)
        found.append(measure.compare(dense, masked, budget_s=budget.pair_s, labels=("dense", label)))
        zeros[label] = zero_share(model)  # afterwards: a step that moved the zeros would show here
    return MaskReport(tuple(found), zeros)


def mask_weights(model: nn.Module, share: float) -> nn.Module:
    """Mask the smallest weights of all convolutions together: unstructured, global, by size."""
    targets = [(layer, "weight") for layer in convolutions(model)]
    torch_prune.global_unstructured(targets, torch_prune.L1Unstructured, amount=share)
    return model


def mask_channels(model: nn.Module, share: float) -> nn.Module:
    """Mask the channels with the smallest filters of each convolution: structured, layer by layer, by L1 norm."""
    for layer in convolutions(model):
        torch_prune.ln_structured(layer, "weight", amount=share, n=1, dim=0)
    return model


def make_permanent(model: nn.Module) -> None:
    """Write the zeros into the weights and forget the masks."""
    for layer in convolutions(model):
        torch_prune.remove(layer, "weight")


def convolutions(model: nn.Module) -> list[nn.Conv2d]:
    """All convolutions of a model."""
    return [module for module in model.modules() if isinstance(module, nn.Conv2d)]


def zero_share(model: nn.Module) -> float:
    """Share of zeros among the weights of a model's convolutions, as they are used."""
    weights = [layer.weight for layer in convolutions(model)]
    return sum(int((weight == 0).sum()) for weight in weights) / sum(weight.numel() for weight in weights)


@dataclass(frozen=True)
class SparseCurve:
    """A product with a sparse matrix, stored as such, against the dense one.

    Args:
        points: Percent of zeros -> ratio to the dense product; the first point (0) is the dense one.
        layout: How the zeros were left out.
    """

    points: tuple[rounds.RoundPoint, ...]
    layout: str

    @property
    def crossing(self) -> int | None:
        """The smallest percentage of zeros at which the sparse kernel was surely faster."""
        return next((point.key for point in self.points[1:] if point.interval[0] > 1), None)

    @property
    def crosses_at(self) -> float:
        """Percent of zeros where the line through the sparse points, in the picture's scale, reaches the dense speed.

        The first share that was tried if it is faster already; infinite if none is.
        """
        sparse = self.points[1:]
        if sparse[0].ratio > 1:
            return float(sparse[0].key)
        for few, more in itertools.pairwise(sparse):
            if few.ratio <= 1 < more.ratio:
                part = math.log(1 / few.ratio) / math.log(more.ratio / few.ratio)
                return few.key + part * (more.key - few.key)
        return math.inf

    def sentence(self) -> str:
        """What this run showed."""
        half, last = self.points[1], self.points[-1]
        start = f"With {half.key} % zeros the sparse product ({self.layout}) had {half.ratio:.2f} times the dense speed"
        if math.isinf(last.interval[1]):
            return f"{start}; too few rounds to say more."
        crossing = self.crossing
        if crossing is None:
            return f"{start}, and even with {last.key} % zeros it was not surely faster ({last.ratio:.2f} times)."
        below = [point for point in self.points[1:] if point.key < crossing]
        if below:
            turn = (
                f"became surely faster **between {below[-1].key} and {crossing} % zeros** ({below[-1].ratio:.2f} times "
                f"at {below[-1].key} %)"
            )
        else:
            turn = "was faster at the smallest share that was tried"
        return (
            f"{start}; it {turn}, and with {last.key} % it was {last.ratio:.1f} "
            f"times as fast, where counting multiplications promises {predict_sparse_speedup(last.key / 100):.0f}."
        )


def predict_sparse_speedup(share: float) -> float:
    """Predict the speed-up if a zero cost nothing and everything else stayed the same: ``1 / (1 - share)``."""
    if not 0 <= share < 1:
        raise ValueError(f"share is {share}: it must be from 0 up to, not including, 1")
    return 1 / (1 - share)


def measure_sparse_product(budget: Budget, percents: tuple[int, ...] = (50, 80, 90, 95, 99)) -> SparseCurve:
    """Measure a product of 256 x 1152 weights, as a convolution has them, with 1152 x 784 inputs, dense and sparse.

    Args:
        budget: How many rounds.
        percents: Of zeros, rising, 1 to 99.
    """
    draw = seeds.generator(0)
    weights, inputs = torch.randn(256, 1152, generator=draw), torch.randn(1152, 784, generator=draw)
    order = torch.rand(weights.shape, generator=draw)
    is_csr = torch.backends.mkl.is_available()  # the compressed layout is multiplied by MKL only
    subjects: dict[int, Callable[[], object]] = {0: lambda: weights @ inputs}
    for percent in percents:
        kept = weights * (order >= percent / 100)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that the layout is in beta
            sparse = kept.to_sparse_csr() if is_csr else kept.to_sparse()
        subjects[percent] = functools.partial(torch.matmul, sparse, inputs)
    points = rounds.measure_rounds(subjects, budget.rounds, sample_s=0.03 if budget.rounds > 1 else 0.005)
    return SparseCurve(points, "compressed rows, CSR" if is_csr else "coordinates")
