"""The lab's task: a recipe for many ranks, trained by the course's own code."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from accelerando import datasets, training
from accelerando.lessons.multi_gpu import layers, rules
from accelerando.recipes import Recipe

IMAGES, EPOCHS = 8000, 8
START: dict[str, Any] = {"global_batch": 32, "learning_rate": 0.02, "warmup_steps": 0, "optimizer": "sgd"}
"""One rank with 32 images: accurate, and an all-reduce for every 32 images as soon as there are more ranks."""
OPTIMIZERS = ("sgd", "lars", "lamb")


def steps_of(global_batch: int) -> int:
    """Optimizer steps, and so all-reduces of all gradients, of a whole run; incomplete batches are left out."""
    return EPOCHS * (IMAGES // global_batch)


def check_recipe(recipe: Any) -> dict[str, Any]:
    """Return a complete recipe, or say what is wrong with it.

    Args:
        recipe: The four keys of `START`.

    Raises:
        ValueError: In words: what was given, and what is allowed.
    """
    if not isinstance(recipe, Mapping) or set(recipe) != set(START):
        raise ValueError(f"a recipe is a dictionary with {', '.join(START)}")
    batch, rate, warmup = (recipe[name] for name in ("global_batch", "learning_rate", "warmup_steps"))
    if not _is_number(batch, int) or batch % rules.BATCH or not rules.BATCH <= batch <= IMAGES:
        raise ValueError(
            f"global_batch is {str(batch)[:20]}: each rank has {rules.BATCH} images, so it must be a multiple of that, "
            f"at most {IMAGES}"
        )
    if not _is_number(rate, int | float) or not 0 < rate <= 100:
        raise ValueError(f"learning_rate is {str(rate)[:20]}: it must be a number above 0, at most 100")
    if not _is_number(warmup, int) or not 0 <= warmup <= steps_of(batch) // 2:
        raise ValueError(
            f"warmup_steps is {str(warmup)[:20]}: it must be a whole number from 0 to half of the {steps_of(batch)} "
            "steps"
        )
    if recipe["optimizer"] not in OPTIMIZERS:
        raise ValueError(f"optimizer is {str(recipe['optimizer'])[:20]!r}: it must be one of {', '.join(OPTIMIZERS)}")
    return dict(recipe)


def _is_number(value: Any, kind: Any) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool) and abs(value) < 1e9


def accuracy_of(recipe: Mapping[str, Any], seed: int) -> np.ndarray:
    """Train a recipe and judge it on the held-out images.

    Args:
        recipe: As `check_recipe` returns it.
        seed: Chooses the training images, the first weights and the order.

    Returns:
        bool, (N_test,): which of the held-out images are right.
    """
    return _trained(tuple(sorted(recipe.items())), seed)


@lru_cache(maxsize=64)
def _trained(items: tuple[tuple[str, Any], ...], seed: int) -> np.ndarray:
    """The same recipe with the same seed is trained once: training takes a second, and nothing is drawn elsewhere."""
    recipe = dict(items)
    known = datasets.fashion_mnist(embedded_only=True)
    chosen = np.random.default_rng(seed).permutation(len(known.train))[:IMAGES]
    data = datasets.Dataset(known.train.subset(chosen), known.test, known.source, known.classes)
    batch = recipe["global_batch"]
    made = Recipe(
        batch_size=batch, epochs=EPOCHS, learning_rate=recipe["learning_rate"], schedule="cosine", drop_last=True,
        warmup_fraction=recipe["warmup_steps"] / steps_of(batch), threads=1, optimizer_kind="fused", seed=seed % 2**32,
    )  # fmt: skip
    result = training.fit(made, data, model=rules.SIZES, prepare=layers.optimizer(recipe["optimizer"]))
    return result.is_correct
