"""What a bigger batch brings, and what it costs in accuracy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from accelerando import datasets, training
from accelerando.lessons import Budget
from accelerando.lessons.scaling.breakdown import page_faults
from accelerando.lessons.scaling.subject import images
from accelerando.recipes import Recipe

EPOCHS = 2


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
    faults_per_image: float  # page faults of the training steps, after the first

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

    def faults(self) -> str:
        """Where the memory came from."""
        counted = ", ".join(f"{point.faults_per_image:,.1f} at {point.batch_size}" for point in self.points)
        return f"Page faults for each image: {counted}."


def fastest_kept(points: Sequence[BatchPoint]) -> BatchPoint:
    """Choose the fastest of several runs whose accuracy cannot be told from that of the best one."""
    best = max(points, key=lambda point: point.accuracy)

    def is_kept(point: BatchPoint) -> bool:
        return best.accuracy - point.accuracy <= 2 * math.hypot(best.accuracy_error, point.accuracy_error)

    return max(filter(is_kept, points), key=lambda point: point.images_per_s)


def batch_sweep(budget: Budget, *, is_scaled: bool, sizes: Sequence[int] = (8, 32, 128, 512, 2048)) -> BatchSweep:
    """Train with several batch sizes through the same images, and judge speed and accuracy.

    Args:
        budget: How many images.
        is_scaled: Let the learning rate grow in proportion to the batch (up to 1.0); else keep that of batch 32.
        sizes: Batch sizes, rising.
    """
    data = images(budget)
    rates = {size: min(1.0, 0.05 * size / 32) if is_scaled else 0.05 for size in sizes}
    wanted = sizes if budget.name != "smoke" else sizes[1:3]
    return BatchSweep(tuple(_train(size, rates[size], data) for size in wanted), EPOCHS, is_scaled)


def _train(size: int, rate: float, data: datasets.Dataset) -> BatchPoint:
    seen: list[tuple[int, int]] = []  # images and page faults so far, after each step
    result = training.fit(
        Recipe(batch_size=size, learning_rate=rate, epochs=EPOCHS, schedule="one_cycle"),
        data,
        on_step=lambda report: seen.append((report.images, page_faults())),
    )
    (first_images, first_faults), (last_images, last_faults) = seen[0], seen[-1]
    each_images = result.images / len(result.epoch_seconds)
    return BatchPoint(
        size,
        rate,
        result.steps,
        result.images_per_s,
        result.accuracy,
        math.sqrt(max(result.accuracy * (1 - result.accuracy), 1e-9) / len(result.predictions)),
        tuple(each_images / seconds for seconds in result.epoch_seconds),
        (last_faults - first_faults) / (last_images - first_images),
    )
