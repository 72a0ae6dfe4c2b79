"""What removed channels give: training steps beside the dense net's, and what rounding does to them."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass

from torch import nn

from accelerando import measure, training
from accelerando.lessons import Budget
from accelerando.lessons.pruning.pruned import prune
from accelerando.lessons.pruning.removal import Masks, apply_masks, remove_channels
from accelerando.lessons.pruning.subject import STEP_RECIPE, Subject, example, images, work


def _compare(before: nn.Module, after: nn.Module, labels: tuple[str, str], budget: Budget) -> measure.Comparison:
    data = images(budget)
    sides = [training.stepper(STEP_RECIPE, data, model=copy.deepcopy(model)) for model in (before, after)]
    return measure.compare(sides[0], sides[1], budget_s=budget.pair_s, labels=labels)


@dataclass(frozen=True)
class RemovalReport:
    """The same channels masked and removed, each against the dense net.

    Args:
        comparisons: Masked, then removed.
        work: Share of the multiplications left after removal.
    """

    comparisons: tuple[measure.Comparison, measure.Comparison]
    work: float

    def sentence(self) -> str:
        """What this run showed."""
        masked, removed = self.comparisons
        if not removed.pairs or not masked.pairs:
            return "Not one pair fitted into the time: the smoke budget only looks whether it runs."
        start = (
            f"Masked, a step has {masked.ratio:.2f} times the speed ({masked.outcome}); removed, **{removed.ratio:.2f} "
            f"times** ({removed.outcome}). {self.work:.0%} of the multiplications are left, which promises "
            f"{1 / self.work:.1f} times"
        )
        if removed.ratio < 0.8 / self.work:
            return (
                f"{start}: what does not multiply (BatchNorm, ReLU, pooling, moving bytes) shrinks in proportion only."
            )
        return f"{start}: here the promise was kept, so multiplications were what the time went into."


def measure_removal(subject: Subject, masks: Masks, budget: Budget) -> RemovalReport:
    """Set the masked and the smaller net against the dense one: one training step each, in turn.

    Args:
        subject: The trained net.
        masks: Of `find_masks`.
        budget: How long.
    """
    dense = subject.model
    masked, small = apply_masks(dense, masks), remove_channels(dense, masks, example())
    found = [
        _compare(dense, model, ("dense", f"channels {label}"), budget)
        for label, model in (("masked", masked), ("removed", small))
    ]
    return RemovalReport((found[0], found[1]), work(small) / work(dense))


@dataclass(frozen=True)
class RoundingReport:
    """One sparsity, taken literally and rounded.

    Args:
        comparison: Baseline: literal; candidate: rounded up.
        literal: Output channels of the layers, as the sparsity gives them.
        rounded: The same, rounded up to a multiple.
        multiple: Of what.
        sparsity: Share of the channels that was to go.
        more_work: Multiplications of the rounded net / of the literal one.
    """

    comparison: measure.Comparison
    literal: tuple[int, ...]
    rounded: tuple[int, ...]
    multiple: int
    sparsity: float
    more_work: float

    def sentence(self) -> str:
        """What this run showed."""
        found = self.comparison
        if not found.pairs:
            return "Not one pair fitted into the time: the smoke budget only looks whether it runs."
        low, high = found.interval
        spread = f", {low:.2f} to {high:.2f}" if high < math.inf else ""
        start = (
            f"{self.sparsity:.0%} of the channels are to go. Taken literally: {_listed(self.literal)} stay. "
            f"Rounded up to multiples of {self.multiple}: "
            f"{_listed(self.rounded)}, with {self.more_work - 1:.0%} more multiplications. The rounded net "
            f"has **{found.ratio:.2f} times** the speed of the literal one ({found.outcome}{spread})"
        )
        if found.verdict == "faster":
            return f"{start}: more channels, and less time."
        if found.ratio * self.more_work > 1.02:
            return f"{start}: the added multiplications cost less than their share, so those channels are nearly free."
        return f"{start}: on this processor the belief survives for this net, and rounding only adds work."


def compare_rounding(subject: Subject, budget: Budget, *, sparsity: float = 0.53, multiple: int = 16) -> RoundingReport:
    """Prune the trained net twice, once with the channels rounded, and set one training step against the other.

    Args:
        subject: The trained net.
        budget: How long.
        sparsity: Share of channels to remove.
        multiple: Round the channels that stay up to a multiple of this.
    """
    literal = prune(subject.model, sparsity, example())
    rounded = prune(subject.model, sparsity, example(), multiple=multiple)
    found = _compare(literal.model, rounded.model, ("literal", "rounded"), budget)
    left = [tuple(new for _, new in list(net.channels.values())[:-1]) for net in (literal, rounded)]
    more = work(rounded.model) / work(literal.model)
    return RoundingReport(found, left[0], left[1], multiple, sparsity, more)


def _listed(channels: tuple[int, ...]) -> str:
    return ", ".join(map(str, channels))
