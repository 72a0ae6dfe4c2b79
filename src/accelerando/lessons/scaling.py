"""Lesson 1: where a training step spends its time, and what more cores, bigger batches and switches do about it."""

from __future__ import annotations

from functools import cache
from typing import Any

from accelerando import datasets, training
from accelerando.recipes import Recipe

TRAIN_RECIPE = "accelerando.lessons.scaling:train_recipe"
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
    result = training.fit(Recipe.from_dict({**recipe, "seed": seed}), task_data())
    return {"seconds": result.seconds, "predictions": result.predictions}
