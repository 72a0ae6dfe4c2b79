"""What the experiments of this lesson share: the images of an epoch, the recipes, loaders that are tidied up."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch.utils.data import DataLoader

from accelerando import datasets, rounds
from accelerando.lessons import Budget
from accelerando.lessons.pipelines import samples
from accelerando.recipes import Recipe

BATCH = 64
PER_SAMPLE = Recipe(
    batch_size=BATCH, learning_rate=0.01, schedule="constant", test_images=10, loader="per_sample",
    augmentation="crop_flip", drop_last=True,
)  # fmt: skip
WHOLE_BATCH = PER_SAMPLE.changed(loader="resident")


def batches_of(budget: Budget) -> int:
    """How many batches an epoch has."""
    return 2 if budget.name == "smoke" else 24


def data_of(budget: Budget) -> datasets.Dataset:
    """The images of one epoch, a whole number of batches."""
    train = samples.fashion(BATCH * batches_of(budget))
    return datasets.Dataset(train, train.subset(range(10)), "embedded", datasets.FASHION_CLASSES)


def repeat(step: Callable[[], object], times: int) -> Callable[[], None]:
    """A function that calls ``step`` so many times."""

    def run() -> None:
        for _ in range(times):
            step()

    return run


def exhaust(loader: DataLoader[Any]) -> Callable[[], None]:
    """A function that takes every batch of an epoch and does nothing with it."""

    def run() -> None:
        for _ in loader:
            pass

    return run


def per_batch(point: rounds.RoundPoint, batches: int) -> rounds.RoundPoint:
    """The same point in seconds per batch, where it was measured per epoch."""
    each = tuple(seconds / batches for seconds in point.samples_s)
    return rounds.RoundPoint(point.key, point.median_s / batches, point.ratio, point.interval, each)


@contextmanager
def unwarned() -> Iterator[None]:
    """Without torch's warning of more workers than cores: a rule for workers that work, and it is being tested here."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="This DataLoader will create")
        yield


@contextmanager
def closing(loaders: dict[int, DataLoader[Any]]) -> Iterator[None]:
    """End the workers of all loaders on leaving; torch does it when their iterators are collected."""
    try:
        with unwarned():
            yield
    finally:
        for loader in loaders.values():
            loader._iterator = None
        loaders.clear()
        gc.collect()
