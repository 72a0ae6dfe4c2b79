"""What the experiments train: the images, and the recipe of a step."""

from __future__ import annotations

from functools import cache

from accelerando import datasets
from accelerando.lessons import Budget
from accelerando.recipes import Recipe

STEP_RECIPE = Recipe(batch_size=64, learning_rate=0.01, schedule="constant", test_images=10)


@cache
def images(budget: Budget) -> datasets.Dataset:
    """The images of this lesson's experiments: real ones from the package, the same on every machine."""
    return datasets.fashion_mnist(embedded_only=True, train_images=budget.train_images, test_images=budget.test_images)
