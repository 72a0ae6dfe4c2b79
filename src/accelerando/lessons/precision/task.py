"""The lab's timed question: a network made of large matrix products, trained by a recipe that names its precision."""

from __future__ import annotations

from functools import cache
from typing import Any

from accelerando import datasets, models, training
from accelerando.recipes import Recipe

TRAIN_RECIPE = "accelerando.lessons.precision.task:train_recipe"
WIDE_MLP = models.MlpSizes(hidden=(2048, 2048))
"""5.8 million parameters, nearly all of the time in three matrix products and their backward."""
NETS: dict[str, models.Sizes] = {"wide MLP": WIDE_MLP, "slim CNN": models.SLIM_CNN}
"""The networks of the lesson."""
SLOW_START: dict[str, Any] = {
    "epochs": 4,
    "batch_size": 512,
    "learning_rate": 0.05,
    "precision": "fp32",
    "optimizer_kind": "default",
}
"""The start of the timed question: full precision."""
FIXED = ("epochs", "batch_size")
"""Both sides make the same steps on the same images."""


@cache
def task_data() -> datasets.Dataset:
    """The images of the timed question, the same on every machine: 4,096 to train on, 2,000 to judge by."""
    return datasets.fashion_mnist(embedded_only=True, train_images=4096, test_images=2000)


def train_recipe(recipe: dict[str, Any], seed: int = 0) -> dict[str, Any]:
    """Train the wide MLP by a recipe and judge the result: the trusted experiment of the lab's timed question.

    Args:
        recipe: Fields of `Recipe`; what is left out keeps its default.
        seed: Initial weights and order of the images.

    Returns:
        ``seconds`` of training alone (no start, no warm-up, no judging) and ``predictions``, int64 (2000,).
    """
    result = training.fit(Recipe.from_dict({**recipe, "seed": seed}), task_data(), model=WIDE_MLP)
    return {"seconds": result.seconds, "predictions": result.predictions}
