"""What is pruned in this lesson: a trained net, and how it is trained further."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from functools import cache

import torch
from torch import nn

from accelerando import counts, datasets, models, seeds, training
from accelerando.lessons import Budget
from accelerando.lessons.pruning.nets import SMOKE_CNN, WIDE_CNN
from accelerando.lessons.pruning.removal import Batch
from accelerando.recipes import Recipe

TRAIN_RECIPE = Recipe(
    batch_size=64, epochs=2, optimizer="adam", learning_rate=0.005, schedule="one_cycle", layout="channels_last"
)
"""How the net is trained before anything is taken away."""
TUNE_RECIPE = TRAIN_RECIPE.changed(epochs=1, learning_rate=0.003)
"""How it is trained afterwards."""
STEP_RECIPE = TRAIN_RECIPE.changed(optimizer="sgd", learning_rate=0.0, schedule="constant", test_images=10)
"""A step to be timed: at rate 0 it does all its work and moves no weight, so zeros are still zeros after it."""


def images(budget: Budget) -> datasets.Dataset:
    """The images of this lesson's experiments: real ones from the package, the same on every machine."""
    return embedded(budget.train_images, budget.test_images)


@cache
def embedded(train_images: int, test_images: int) -> datasets.Dataset:
    """Fashion-MNIST's part inside the package, read once."""
    return datasets.fashion_mnist(embedded_only=True, train_images=train_images, test_images=test_images)


def new_model(budget: Budget, seed: int = 0) -> nn.Module:
    """The wide net with fresh weights; a small one in the smoke budget."""
    with seeds.preserved():
        seeds.seed(seed)
        return models.build(SMOKE_CNN if budget.name == "smoke" else WIDE_CNN)


def example(count: int = 2) -> torch.Tensor:
    """A batch of the right shape: all that a trace needs."""
    return torch.zeros(count, 1, datasets.PIXELS, datasets.PIXELS)


def batches(budget: Budget) -> list[Batch]:
    """A few training batches, for the method that looks at gradients."""
    return batches_of(images(budget))


def batches_of(data: datasets.Dataset, count: int = 4, size: int = 64) -> list[Batch]:
    """The first batches of a training set: float32 (B, 1, 28, 28) and int64 (B,)."""
    train = data.train
    return [
        (datasets.as_batch(train.images[start : start + size]), torch.from_numpy(train.labels[start : start + size]))
        for start in range(0, min(count * size, len(train)), size)
    ]


def work(model: nn.Module) -> int:
    """Operations of one image in forward and backward; on a copy, since BatchNorm learns from whatever runs."""
    return counts.flops(copy.deepcopy(model).eval(), example(1))


@dataclass(frozen=True, eq=False)
class Subject:
    """A trained net.

    Args:
        model: Do not change it: copy it.
        before: How its training went.
        continued: The same net trained as long as every pruned one will be: what pruning is compared with.
    """

    model: nn.Module
    before: training.FitResult
    continued: training.FitResult

    def sentence(self) -> str:
        """What this run showed."""
        return (
            f"The dense net has {self.before.parameters:,} parameters and reaches **{self.before.accuracy:.1%}** on "
            f"{len(self.before.predictions):,} test images; trained {self.continued.recipe['epochs']} epoch longer, "
            f"{self.continued.accuracy:.1%}. Whatever is pruned has to be set beside the second number."
        )


def train_subject(budget: Budget) -> Subject:
    """Train the wide net, and a copy of it one epoch longer."""
    model = new_model(budget)
    before = training.fit(TRAIN_RECIPE, images(budget), model=model)
    return Subject(model, before, tune(copy.deepcopy(model), budget))


def tune(model: nn.Module, budget: Budget, epochs: int = 1) -> training.FitResult:
    """Train a model further, in place."""
    return training.fit(TUNE_RECIPE.changed(epochs=epochs), images(budget), model=model)
