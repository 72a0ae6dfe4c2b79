"""The lab's timed question: a badly configured recipe, to be made faster by switches alone."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from accelerando import datasets, stats, training
from accelerando.lessons import Budget
from accelerando.lessons.scaling.subject import images
from accelerando.recipes import Recipe

TRAIN_RECIPE = "accelerando.lessons.scaling.task:train_recipe"
SLOW_START: dict[str, Any] = {
    "epochs": 2,
    "batch_size": 16,
    "learning_rate": 0.02,
    "schedule": "constant",
    "optimizer": "sgd",
    "optimizer_kind": "for_loop",
    "layout": "contiguous",
    "threads": 1,
    "zero_grad_set_to_none": False,
}
"""The badly configured start of the lab's timed question."""


@cache
def task_data() -> datasets.Dataset:
    """The images of the timed question: 4,000 to train on, twice, and 2,000 to judge by, the same on every machine."""
    return datasets.fashion_mnist(embedded_only=True, train_images=4000, test_images=2000)


def train_recipe(recipe: dict[str, Any], seed: int = 0) -> dict[str, Any]:
    """Train by a recipe and judge the result: the trusted experiment of the lab's timed question.

    Args:
        recipe: Fields of `Recipe`; what is left out keeps its default.
        seed: Initial weights and order of the images.

    Returns:
        ``seconds`` of training alone (no start, no warm-up, no judging) and ``predictions``, int64 (2000,).
    """
    return _train(recipe, seed, task_data())


def _train(recipe: Mapping[str, Any], seed: int, data: datasets.Dataset) -> dict[str, Any]:
    result = training.fit(Recipe.from_dict({**recipe, "seed": seed}), data)
    return {"seconds": result.seconds, "predictions": result.predictions}


@dataclass(frozen=True)
class RecipeTrial:
    """Two recipes, trained in turn with the same seeds."""

    ratio: float
    accuracy_before: float
    accuracy_after: float
    accuracy: stats.AccuracyVerdict
    runs: int

    def sentence(self) -> str:
        """What this run showed."""
        return (
            f"**{self.ratio:.2f} times** the images per second; accuracy {self.accuracy_before:.1%} before, "
            f"{self.accuracy_after:.1%} after: {self.accuracy.verdict} (runs of each: {self.runs}; "
            "`./course check` measures longer, on a quiet machine)."
        )


def try_recipe(
    start: dict[str, Any], recipe: dict[str, Any], budget: Budget, *, runs: int = 1, margin: float = 0.02
) -> RecipeTrial:
    """Train by two recipes in turn, in this process, and compare speed and accuracy; for finding your way in the lab.

    Args:
        start: The recipe that is there.
        recipe: The one that is proposed.
        budget: How many images.
        runs: Of each, with seeds 0, 1, …
        margin: Accuracy that may be lost, as a fraction.
    """
    data = images(budget)
    labels = data.test.labels
    pairs = [(_train(start, seed, data), _train(recipe, seed, data)) for seed in range(runs)]
    ratio = math.exp(float(np.mean([math.log(before["seconds"] / after["seconds"]) for before, after in pairs])))
    before, after = (np.stack([pair[side]["predictions"] == labels for pair in pairs]) for side in (0, 1))
    kept = stats.paired_non_inferiority(before, after, margin)
    return RecipeTrial(ratio, float(before.mean()), float(after.mean()), kept, runs)
