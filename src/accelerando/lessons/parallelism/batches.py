"""What a larger batch is worth: the noise of gradients, and accuracy at equal epochs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from torch import nn

from accelerando import datasets, models, seeds, training
from accelerando.lessons import Budget
from accelerando.recipes import Recipe

SIZES = models.CnnSizes(channels=(8, 16, 32), batch_norm=False, bias=True)
"""Without BatchNorm, which would make an image's gradient depend on the rest of its batch."""
BATCHES = (16, 64, 256, 1024)
RATE_AT_16, HIGHEST_RATE = 0.01, 0.16


def predict_worth(batch_size: float, noise_images: float) -> float:
    """Predict what an image of a large batch is worth, compared to one of a very small batch.

    A step of B images makes as much progress as one without any noise times ``1 / (1 + noise / B)``: so up to the
    noise scale a batch twice as large saves almost half of the steps, and far beyond it saves none.

    Args:
        batch_size: Images of a step.
        noise_images: The gradient noise scale, in images.

    Returns:
        0 to 1.

    Source:
        McCandlish, Kaplan, Amodei et al. (2018), An empirical model of large-batch training.
    """
    return 1 / (1 + batch_size / noise_images)


@dataclass(frozen=True)
class NoiseScale:
    """How noisy gradients are at one moment of training.

    Args:
        images: The noise scale: trace of the gradients' covariance over the squared length of their mean.
        interval: 90 %, from leaving out a tenth of the batches in turn (jackknife).
        steps: Optimizer steps that had been made.
        batch_size: Images of each batch that was looked at.
        batches: How many.
    """

    images: float
    interval: tuple[float, float]
    steps: int
    batch_size: int
    batches: int


def noise_of(gradients: np.ndarray, batch_size: int) -> float:
    """Estimate the noise scale from gradients of several batches, without bias in its two parts.

    Args:
        gradients: (batches, parameters): the mean gradient of each batch.
        batch_size: Images of each.

    Returns:
        Images; infinity where noise hides the mean.
    """
    count = len(gradients)
    small = float((gradients**2).sum(1).mean())  # expected: |G|^2 + trace / batch_size
    large = float((gradients.mean(0) ** 2).sum())  # expected: |G|^2 + trace / (count * batch_size)
    trace = (small - large) * batch_size * count / (count - 1)
    mean = large - trace / (count * batch_size)
    return trace / mean if mean > 0 else math.inf


def noise_at(model: nn.Module, data: datasets.Dataset, steps: int, *, batch_size: int = 32) -> NoiseScale:
    """Measure the noise scale of a model as it stands; its weights and gradients stay as they are."""
    images, labels = datasets.as_batch(data.train.images), torch.as_tensor(data.train.labels)
    order = torch.randperm(len(labels), generator=seeds.generator(1))
    rows = []
    for chosen in order.split(batch_size):
        if len(chosen) == batch_size:
            loss = nn.functional.cross_entropy(model(images[chosen]), labels[chosen])
            gradient = torch.autograd.grad(loss, list(model.parameters()))
            rows.append(torch.cat([part.flatten() for part in gradient]).numpy())
    gradients = np.stack(rows)
    found = noise_of(gradients, batch_size)
    return NoiseScale(found, _interval(gradients, batch_size, found), steps, batch_size, len(rows))


def _interval(gradients: np.ndarray, batch_size: int, found: float) -> tuple[float, float]:
    groups = np.arange(len(gradients)) % min(10, len(gradients))
    count = int(groups.max()) + 1
    without = np.array([noise_of(gradients[groups != group], batch_size) for group in range(count)])
    if count < 3 or not np.isfinite(without).all():
        return 0.0, math.inf
    error = math.sqrt((count - 1) * float(without.var()))
    return max(0.0, found - 1.83 * error), found + 1.83 * error  # Student's t with 9 degrees of freedom


@dataclass(frozen=True)
class NoiseStory:
    """The noise scale at the start of training and later."""

    early: NoiseScale
    late: NoiseScale

    def sentence(self) -> str:
        """What this run showed."""
        early, late = self.early, self.late
        grown = late.images / early.images
        trend = "grew" if grown > 1.3 else "shrank" if grown < 0.77 else "stayed about the same"
        return (
            f"After {early.steps} steps the noise scale is **{_images(early)}**, after {late.steps} steps "
            f"**{_images(late)}**: it {trend}. An image in a batch of 64 is now worth "
            f"{predict_worth(64, late.images):.0%} of one in a tiny batch, in a batch of 1,024 it is worth "
            f"{predict_worth(1024, late.images):.0%}."
        )


def _images(noise: NoiseScale) -> str:
    low, high = noise.interval
    if not math.isfinite(noise.images):
        return "too large to be seen"
    spread = f" ({low:,.0f} to {high:,.0f})" if math.isfinite(high) else ""
    return f"{noise.images:,.0f} images{spread}"


def measure_noise(budget: Budget) -> NoiseStory:
    """Measure the noise scale a few steps after the start, and after the images were gone through twice."""
    data = images(budget)
    found = []
    for recipe in (Recipe(batch_size=16, max_steps=20), Recipe(batch_size=16, epochs=2)):
        with seeds.preserved():
            seeds.seed(0)
            model = models.build(SIZES)
        recipe = recipe.changed(learning_rate=RATE_AT_16, schedule="constant", test_images=10)
        result = training.fit(recipe, data, model=model)
        found.append(noise_at(model, data, result.steps))
    return NoiseStory(*found)


@dataclass(frozen=True)
class BatchPoint:
    """Training with one batch size."""

    batch_size: int
    learning_rate: float
    steps: int
    accuracy: float  # mean over seeds
    accuracy_error: float  # one standard error, from the test images and the seeds

    @property
    def asked_rate(self) -> float:
        """The rate that grows as the batch does."""
        return RATE_AT_16 * self.batch_size / 16

    @property
    def is_capped(self) -> bool:
        """The batch was trained with a lower rate than it asks for."""
        return self.learning_rate < 0.99 * self.asked_rate


@dataclass(frozen=True)
class BatchSweep:
    """Accuracy over batch size at equal epochs."""

    points: tuple[BatchPoint, ...]
    epochs: int
    noise_images: float

    @property
    def reference(self) -> BatchPoint:
        """The smallest batch."""
        return self.points[0]

    def table(self) -> str:
        """Markdown: what each batch size was trained with, and what it reached."""
        lines = [
            "| batch | learning rate | steps | accuracy | points lost (± two standard errors) |",
            "|---|---|---|---|---|",
        ]
        lines += [
            f"| {point.batch_size:,} | {point.learning_rate:g}{' (capped)' if point.is_capped else ''} | "
            f"{point.steps:,} | {point.accuracy:.1%} | {self._lost(point)} |"
            for point in self.points
        ]
        return "\n".join(lines)

    def _lost(self, point: BatchPoint) -> str:
        """Points lost, and how far they may be off."""
        lost = f"{100 * (self.reference.accuracy - point.accuracy):.1f}"
        return lost if point is self.reference else f"{lost} ± {200 * self._error(point):.1f}"

    def sentence(self) -> str:
        """What this run showed."""
        first, last = self.reference, self.points[-1]
        kept = [point for point in self.points if not self._is_lower(point)]
        lost = first.accuracy - last.accuracy
        if not self._is_lower(last):
            return (
                f"Even batch {last.batch_size:,} ends within chance of batch {first.batch_size} ({last.accuracy:.1%} "
                f"and {first.accuracy:.1%}): here the belief survives, on this easy task."
            )
        aside = "" if kept[-1] is first else f" ({self._lost(kept[-1])} points)"
        return (
            f"All went through the same images {self.epochs} times. Up to batch {kept[-1].batch_size:,} no loss can be "
            f"told from chance{aside}; batch {last.batch_size:,} made {last.steps} steps in place of {first.steps:,} "
            f"and lost **{100 * lost:.1f} points** ({last.accuracy:.1%} against {first.accuracy:.1%})."
            f"{self._at_the_scale()}{self._capped()}"
        )

    def _at_the_scale(self) -> str:
        if not math.isfinite(self.noise_images):
            return " The noise scale was beyond what could be seen."
        near = min(self.points, key=lambda point: abs(math.log(point.batch_size / self.noise_images)))
        if near in (self.reference, self.points[-1]) or not self._is_lower(near):
            return f" The noise scale measured above: {self.noise_images:,.0f} images."
        lost = self.reference.accuracy - near.accuracy
        return (
            f" The noise scale is no safe place either: it was {self.noise_images:,.0f} images, and batch "
            f"{near.batch_size:,}, the one next to it, lost {100 * lost:.1f} points. There an image is worth "
            f"{predict_worth(near.batch_size, self.noise_images):.0%}, and {near.steps} steps are few for weights that "
            "begin at random."
        )

    def _capped(self) -> str:
        capped = [point for point in self.points if point.is_capped]
        if not capped:
            return ""
        named = ", ".join(f"{point.batch_size:,} ({point.asked_rate:g})" for point in capped)
        return (
            f" The learning rate grew with the batch up to {HIGHEST_RATE:g}; what asked for more was held there: batch "
            f"{named}. So part of that loss may be the rate's."
        )

    def _is_lower(self, point: BatchPoint) -> bool:
        return self.reference.accuracy - point.accuracy > 2 * self._error(point)

    def _error(self, point: BatchPoint) -> float:
        """One standard error of the difference from the smallest batch."""
        return math.hypot(point.accuracy_error, self.reference.accuracy_error)


def sweep_batches(budget: Budget, noise_images: float, sizes: Sequence[int] = BATCHES) -> BatchSweep:
    """Train with several global batch sizes through the same images, the rate growing with the batch as far as it can.

    Args:
        budget: How many images.
        noise_images: Measured before, for the sentence.
        sizes: Batch sizes, rising.
    """
    data = images(budget)
    points = []
    runs = 1 if budget.name == "smoke" else 2
    for size in sizes if budget.name != "smoke" else sizes[1:3]:
        rate = min(HIGHEST_RATE, RATE_AT_16 * size / 16)
        size = min(size, budget.train_images)
        recipe = Recipe(batch_size=size, learning_rate=rate, epochs=3, schedule="one_cycle")
        results = [training.fit(recipe.changed(seed=seed), data, model=SIZES) for seed in range(runs)]
        accuracies = [result.accuracy for result in results]
        mean = float(np.mean(accuracies))
        spread = float(np.std(accuracies, ddof=1)) / math.sqrt(runs) if runs > 1 else 0.0
        error = math.hypot(math.sqrt(max(mean * (1 - mean), 1e-9) / len(data.test)), spread)
        points.append(BatchPoint(size, rate, results[0].steps, mean, error))
    return BatchSweep(tuple(points), 3, noise_images)


@cache
def _embedded(train_images: int, test_images: int) -> datasets.Dataset:
    return datasets.fashion_mnist(embedded_only=True, train_images=train_images, test_images=test_images)


def images(budget: Budget) -> datasets.Dataset:
    """The images of this lesson's experiments: real ones from the package, the same on every machine."""
    return _embedded(budget.train_images, budget.test_images)
