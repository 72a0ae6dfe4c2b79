"""What a bigger batch brings, and what it costs in accuracy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from accelerando import training
from accelerando.lessons import Budget
from accelerando.lessons.scaling.subject import images
from accelerando.recipes import Recipe


@dataclass(frozen=True)
class BatchPoint:
    """One run of a sweep over batch sizes."""

    batch_size: int
    learning_rate: float
    steps: int
    images_per_s: float
    accuracy: float
    accuracy_error: float  # one standard error, from the number of test images alone
    epochs_images_per_s: tuple[float, ...]  # of each epoch: how far the speed can be trusted

    @property
    def speed_row(self) -> tuple[float, float, float]:
        """Images per second: of the whole run, of its slowest and of its fastest epoch."""
        return self.images_per_s, min(self.epochs_images_per_s), max(self.epochs_images_per_s)

    @property
    def accuracy_row(self) -> tuple[float, float, float]:
        """Accuracy in percent, and its 95 % interval."""
        middle, half = 100 * self.accuracy, 196 * self.accuracy_error
        return middle, middle - half, middle + half


@dataclass(frozen=True)
class BatchSweep:
    """Speed and accuracy over batch size, at equal epochs."""

    points: tuple[BatchPoint, ...]
    epochs: int
    is_scaled: bool  # the learning rate grew with the batch

    @property
    def fastest(self) -> BatchPoint:
        """The point with most images per second."""
        return max(self.points, key=lambda point: point.images_per_s)

    @property
    def best(self) -> BatchPoint:
        """The point with the highest accuracy."""
        return max(self.points, key=lambda point: point.accuracy)

    @property
    def knee(self) -> BatchPoint:
        """The smallest batch with nine tenths of the highest speed."""
        return next(point for point in self.points if point.images_per_s >= 0.9 * self.fastest.images_per_s)

    def sentence(self) -> str:
        """What this run showed."""
        smallest, largest, knee, best = self.points[0], self.points[-1], self.knee, self.best
        rule = "a learning rate that grows with the batch" if self.is_scaled else "the same learning rate for all"
        lost = best.accuracy - largest.accuracy
        clear = 2 * math.hypot(best.accuracy_error, largest.accuracy_error)
        learned = (
            f"accuracy is highest at batch {best.batch_size} ({best.accuracy:.1%}), and at {largest.batch_size} it is "
            f"{100 * lost:.1f} points lower, after {largest.steps} steps at a rate of {largest.learning_rate:g}"
            if lost > clear
            else f"no loss of accuracy can be told from chance, even at batch {largest.batch_size}"
        )
        if knee is smallest:
            speed = f"no larger batch is much faster than {smallest.batch_size} ({smallest.images_per_s:,.0f} images/s)"
        else:
            after = (
                f"beyond it the speed falls again, to {largest.images_per_s:,.0f} at {largest.batch_size}"
                if largest.images_per_s < 0.9 * knee.images_per_s
                else f"beyond it little is left to gain (at most {self.fastest.images_per_s:,.0f} images/s)"
            )
            speed = (
                f"from batch {smallest.batch_size} to {knee.batch_size} the speed rises "
                f"{knee.images_per_s / smallest.images_per_s:.1f} times, to {knee.images_per_s:,.0f} images/s; {after}"
            )
        return f"With {rule}: {speed}. And {learned}."


def batch_sweep(budget: Budget, *, is_scaled: bool, sizes: Sequence[int] = (8, 32, 128, 512, 2048)) -> BatchSweep:
    """Train with several batch sizes through the same images, and judge speed and accuracy.

    Args:
        budget: How many images.
        is_scaled: Let the learning rate grow in proportion to the batch (up to 1.0); else keep that of batch 32.
        sizes: Batch sizes, rising.
    """
    data = images(budget)
    points = []
    for size in sizes if budget.name != "smoke" else sizes[1:3]:
        rate = min(1.0, 0.05 * size / 32) if is_scaled else 0.05
        result = training.fit(Recipe(batch_size=size, learning_rate=rate, epochs=2, schedule="one_cycle"), data)
        error = math.sqrt(max(result.accuracy * (1 - result.accuracy), 1e-9) / len(result.predictions))
        each_images = result.images / len(result.epoch_seconds)
        speeds = tuple(each_images / seconds for seconds in result.epoch_seconds)
        points.append(BatchPoint(size, rate, result.steps, result.images_per_s, result.accuracy, error, speeds))
    return BatchSweep(tuple(points), 2, is_scaled)
