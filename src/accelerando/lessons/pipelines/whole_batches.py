"""One call for a whole batch instead of one for each image."""

from __future__ import annotations

import gc
import math
from dataclasses import dataclass

from accelerando import measure, rounds, stats, training
from accelerando.lessons import Budget
from accelerando.lessons.pipelines import samples
from accelerando.lessons.pipelines.epochs import BATCH, PER_SAMPLE, WHOLE_BATCH, batches_of, data_of, exhaust, repeat
from accelerando.lessons.pipelines.samples import WAYS


@dataclass(frozen=True)
class Transforms:
    """Three ways to make the same tensors.

    Args:
        points: Keys 0, 1, 2 are `samples.WAYS`.
        images: Per call.
    """

    points: tuple[rounds.RoundPoint, ...]
    images: int

    def images_per_s(self) -> dict[str, float]:
        """Way -> images per second of the loader alone."""
        return {way: self.images / point.median_s for way, point in zip(WAYS, self.points, strict=True)}

    def intervals(self) -> dict[str, tuple[float, float]]:
        """Way -> 95 % interval for its images per second."""
        ends_s = {way: stats.median_interval(p.samples_s)[1:] for way, p in zip(WAYS, self.points, strict=True)}
        return {way: (self.images / slow_s, self.images / fast_s) for way, (fast_s, slow_s) in ends_s.items()}

    def sentence(self) -> str:
        """What this run showed."""
        speeds = self.images_per_s()
        told = ", ".join(f"*{way}* {speed:,.0f}" for way, speed in speeds.items())
        tensor, whole = self.points[1:]
        swap = "faster" if tensor.interval[0] > 1 else "no faster" if tensor.ratio > 0.95 else "slower"
        return (
            f"Images per second of the loader alone, in one process: {told}. Leaving PIL for tensors, one image at a "
            f"time, is {swap} ({tensor.ratio:.2f} times). From there, handling the batch in one go is **"
            f"{tensor.median_s / whole.median_s:.1f} times** as fast; both together make {whole.ratio:.0f} times."
        )


def measure_transforms(budget: Budget) -> Transforms:
    """Measure three loaders that crop, mirror and scale, without a model."""
    images = data_of(budget).train
    loaders = {key: exhaust(samples.make_loader(way, images, BATCH)) for key, way in enumerate(WAYS)}
    sample_s = 0.1 if budget.rounds > 1 else 1e-6
    return Transforms(rounds.measure_rounds(loaders, budget.rounds, sample_s=sample_s), len(images))


@dataclass(frozen=True)
class Cure:
    """Training with the batch transformed in one go, against the best that workers could do.

    Args:
        comparison: Baseline: image by image with ``workers``; candidate: whole batches, no worker.
        workers: Of the baseline.
    """

    comparison: measure.Comparison
    workers: int

    def sentence(self, ceiling: float) -> str:
        """What this run showed.

        Args:
            ceiling: How many times as fast training would be with a loader that costs nothing, by the stall fraction.
        """
        found = self.comparison
        if not found.pairs:
            return f"Nothing was measured: {found.reason}."
        named = "no worker" if not self.workers else f"{self.workers} worker(s), the best number above,"
        low, high = found.interval
        spread = f" ({found.confidence:.0%} interval {low:.2f} to {high:.2f})" if high < math.inf else ""
        verdict = {
            "faster": "",
            "not faster": " Here the loader was no longer what training waited for.",
            "undecided": " That is too close to call in this time.",
        }[found.verdict]
        return (
            f"Whole batches in the training process itself, against image by image with {named}: training is "
            f"**{found.ratio:.2f} times** as fast{spread}.{verdict} {self._against(ceiling)}"
        )

    def _against(self, ceiling: float) -> str:
        low, high = self.comparison.interval
        start = f"By the stall fraction, a loader that costs nothing would give {ceiling:.2f} times"
        if high == math.inf:
            return f"{start}."
        if high < ceiling:
            return f"{start}: a part of what there is to gain is left."
        if low > ceiling:
            return f"{start}. This is more: that was another moment, and the steps themselves may have become faster."
        if self.comparison.ratio > 0.9 * ceiling:
            return f"{start}, which lies within the interval: as far as can be seen, what the loader took is gone."
        return f"{start}, which lies within the interval: how much is left cannot be told in this time."


def measure_cure(budget: Budget, workers: int) -> Cure:
    """Train with whole batches, and image by image with ``workers``, in turns.

    Args:
        budget: For the pairs.
        workers: The number that was best before.
    """
    data, batches = data_of(budget), batches_of(budget)
    slow = training.stepper(PER_SAMPLE.changed(num_workers=workers, persistent_workers=workers > 0), data)
    fast = training.stepper(WHOLE_BATCH, data)
    sides = [repeat(slow, batches), repeat(fast, batches)]
    try:
        # The shortest sample is below one epoch of either side, so that each sample is exactly one: a worker that
        # had batches ready from the turn before would get them for nothing.
        found = measure.compare(
            sides[0], sides[1], budget_s=2 * budget.pair_s, labels=("image by image", "whole batches"),
            min_sample_s=1e-4, warmup_calls=0,
        )  # fmt: skip
    finally:
        del slow
        sides.clear()
        gc.collect()
    return Cure(found, workers)
