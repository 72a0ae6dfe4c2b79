"""How long a convolution takes by its number of channels: a staircase, not a straight line."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from accelerando import rounds, seeds, stats
from accelerando.lessons import Budget

COUNTS = (4, 8, 12, 16, 24, 31, 32, 33, 40, 47, 48, 49, 56, 63, 64, 65, 72, 80)
SMOKE_COUNTS = (63, 64, 65)


def predict_conv_s(channels: int, known_channels: int, known_s: float) -> float:
    """Predict a convolution's time from another width: work grows with inputs times outputs.

    Args:
        channels: Input and output channels asked for, at least 1.
        known_channels: Those of the one that was measured, at least 1.
        known_s: Its seconds.
    """
    if channels < 1 or known_channels < 1:
        raise ValueError(f"channels are {channels} and {known_channels}: at least 1 of each")
    return known_s * (channels / known_channels) ** 2


@dataclass(frozen=True)
class Staircase:
    """Seconds of a convolution over its number of channels.

    Args:
        points: In rising order of channels.
        reference: The width from which the others are predicted.
    """

    points: tuple[rounds.RoundPoint, ...]
    reference: int = 64

    def times_s(self, channels: int) -> np.ndarray:
        """Seconds of one width, one per round."""
        return np.array(next(point.samples_s for point in self.points if point.key == channels))

    def interval_s(self, channels: int) -> tuple[float, float, float]:
        """Median seconds of one width, with the ends of its 95 % interval."""
        return stats.median_interval(self.times_s(channels))

    def predicted_s(self, channels: int) -> float:
        """Seconds if time went with the multiplications alone."""
        known = self.reference if any(point.key == self.reference for point in self.points) else self.points[-1].key
        return predict_conv_s(channels, known, float(np.median(self.times_s(known))))

    def time_ratio(self, channels: int, other: int) -> float:
        """Time of one width divided by that of another, within rounds; NaN where one was not measured."""
        if not {channels, other} <= {point.key for point in self.points}:
            return math.nan
        center, _, _ = stats.hodges_lehmann(np.log(self.times_s(channels) / self.times_s(other)))
        return math.exp(center)

    @property
    def worse_than_larger(self) -> tuple[tuple[int, int, float], ...]:
        """(channels, a larger number that was surely faster, how many times), the best one for each."""
        found = []
        for place, point in enumerate(self.points):
            gains = []
            for larger in self.points[place + 1 :]:
                logs = np.log(self.times_s(point.key) / self.times_s(larger.key))
                center, low, _ = stats.hodges_lehmann(logs)
                if low > math.log(1.02):
                    gains.append((math.exp(center), larger.key))
            if gains:
                ratio, key = max(gains)
                found.append((point.key, key, ratio))
        return tuple(found)

    @property
    def jumps(self) -> tuple[tuple[int, int, float], ...]:
        """(channels, one more, how many times as long) where time surely rose by a tenth more than the work did."""
        found = []
        for few, more in itertools.pairwise(point.key for point in self.points):
            if more == few + 1:
                center, low, _ = stats.hodges_lehmann(np.log(self.times_s(more) / self.times_s(few)))
                if low > math.log(1.1 * predict_conv_s(more, few, 1.0)):
                    found.append((few, more, math.exp(center)))
        return tuple(found)

    def sentence(self) -> str:
        """What this run showed."""
        if len(self.points[0].samples_s) < 6:
            return "Too few rounds to compare widths: the smoke budget only looks whether it runs."
        told = []
        if worse := sorted(self.worse_than_larger, key=lambda found: -found[2])[:3]:
            cases = "; ".join(f"{few} channels took {ratio:.2f} times as long as {more}" for few, more, ratio in worse)
            told.append(f"**Fewer channels, more time**, round by round: {cases}.")
        if jumps := sorted(self.jumps, key=lambda found: -found[2])[:3]:
            cases = "; ".join(
                f"from {few} to {more} the time rose by {ratio - 1:.0%} and the work by "
                f"{predict_conv_s(more, few, 1.0) - 1:.0%}"
                for few, more, ratio in jumps
            )
            told.append(f"**One channel more, a step up**, round by round: {cases}.")
        if told:
            return " ".join(told)
        return (
            "Here the belief survives: no width took surely longer than a larger one, and no single channel made "
            "a step in time."
        )


def measure_staircase(budget: Budget, counts: Sequence[int] | None = None, *, batch: int = 64) -> Staircase:
    """Measure forward and backward of a 3x3 convolution on 14 x 14 pixels, with as many inputs as outputs.

    Args:
        budget: How many rounds.
        counts: Channels, rising.
        batch: Images.
    """
    if counts is None:
        counts = COUNTS if budget.rounds > 1 else SMOKE_COUNTS
    subjects = {count: _conv(count, batch if budget.rounds > 1 else 2) for count in counts}
    points = rounds.measure_rounds(subjects, max(budget.rounds, 1), sample_s=0.04 if budget.rounds > 1 else 0.002)
    return Staircase(points)


def _conv(channels: int, batch: int) -> Callable[[], object]:
    with seeds.preserved():
        seeds.seed(0)
        layer = nn.Conv2d(channels, channels, 3, padding=1, bias=False).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        images = torch.randn(batch, channels, 14, 14).to(memory_format=torch.channels_last).requires_grad_()
        upstream = torch.randn(batch, channels, 14, 14).to(memory_format=torch.channels_last)

    def run() -> None:
        torch.autograd.grad(layer(images), (images, layer.weight), upstream)

    return run
