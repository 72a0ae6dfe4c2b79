"""BatchNorm where each rank sees few images: its own statistics, or those of all ranks."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from accelerando import seeds, training
from accelerando.lessons import Budget
from accelerando.lessons.multi_gpu.rules import images, standard_error
from accelerando.recipes import Recipe

GLOBAL_BATCH, RATE, WIDTHS = 128, 0.08, (128, 128, 128)
PER_RANK = (2, 4, 16, GLOBAL_BATCH)
"""Images whose statistics are taken together; the last one is what SyncBatchNorm does."""


class GhostBatchNorm(nn.BatchNorm1d):
    """What BatchNorm does on several ranks, in one process: every rank's part is normalised by itself.

    Args:
        width: Numbers per image.
        ranks: Parts into which a batch is cut; running statistics are those of the first, as DDP keeps rank 0's.
    """

    def __init__(self, width: int, ranks: int) -> None:
        super().__init__(width)
        self.ranks = ranks

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Normalise: float32 (B, width), B divisible by ``ranks`` in training."""
        if not self.training:
            return super().forward(x)
        parts = x.view(self.ranks, -1, x.shape[1])
        mean, variance = parts.mean(1, keepdim=True), parts.var(1, unbiased=False, keepdim=True)
        _keep(self, mean[0, 0], variance[0, 0], parts.shape[1])
        return ((parts - mean) * (variance + self.eps).rsqrt()).view_as(x) * self.weight + self.bias


class SyncedBatchNorm(nn.BatchNorm1d):
    """BatchNorm over the images of all ranks, by two all-reduces: `nn.SyncBatchNorm` for the CPU."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Normalise: float32 (B, width), the same B on every rank."""
        from torch.distributed.nn.functional import all_reduce  # its backward is an all-reduce as well

        if not self.training:
            return super().forward(x)
        count = len(x) * dist.get_world_size()
        mean = all_reduce(x.sum(0)) / count
        variance = all_reduce((x - mean).square().sum(0)) / count
        _keep(self, mean, variance, count)
        return (x - mean) * (variance + self.eps).rsqrt() * self.weight + self.bias


@torch.no_grad()
def _keep(norm: nn.BatchNorm1d, mean: torch.Tensor, variance: torch.Tensor, count: int) -> None:
    assert norm.running_mean is not None
    assert norm.running_var is not None
    assert norm.momentum is not None
    norm.running_mean.lerp_(mean, norm.momentum)
    norm.running_var.lerp_(variance * count / max(1, count - 1), norm.momentum)


def network(ranks: int) -> nn.Module:
    """An MLP with BatchNorm as that many ranks would compute it."""
    layers: list[nn.Module] = [nn.Flatten()]
    inputs = 784
    for width in WIDTHS:
        layers += [nn.Linear(inputs, width, bias=False), GhostBatchNorm(width, ranks), nn.ReLU()]
        inputs = width
    return nn.Sequential(*layers, nn.Linear(inputs, 10))


@dataclass(frozen=True)
class NormStory:
    """Accuracy by the number of images that are normalised together.

    Args:
        accuracy: Images of each rank -> accuracy, mean over seeds.
        error: Likewise -> one standard error.
    """

    accuracy: dict[int, float]
    error: dict[int, float]

    @property
    def lost(self) -> float:
        """Points lost with the fewest images on each rank, against the statistics of all."""
        return 100 * (self.accuracy[max(self.accuracy)] - self.accuracy[min(self.accuracy)])

    def points(self) -> dict[str, tuple[float, float]]:
        """Label -> accuracy and its standard error, the statistics of all first."""
        return {
            self._label(each): (self.accuracy[each], self.error[each]) for each in sorted(self.accuracy, reverse=True)
        }

    def sentence(self) -> str:
        """What this run showed."""
        few, synced = min(self.accuracy), max(self.accuracy)
        lost = self.accuracy[synced] - self.accuracy[few]
        told = (
            f"The same {GLOBAL_BATCH} images in every step. With {few} on each rank: {self.accuracy[few]:.1%}; with "
            f"the statistics of all ranks together: {self.accuracy[synced]:.1%}"
        )
        if lost <= 2 * math.hypot(self.error[few], self.error[synced]):
            return f"{told}: in this run the difference is within chance."
        enough = [
            each
            for each, value in self.accuracy.items()
            if self.accuracy[synced] - value <= 2 * math.hypot(self.error[each], self.error[synced])
        ]
        between = {
            each: 100 * (self.accuracy[synced] - value)
            for each, value in self.accuracy.items()
            if few < each < min(enough)
        }
        also = "".join(f" With {each} it is still {points:.1f} points." for each, points in between.items())
        return (
            f"{told}, **{100 * lost:.0f} points more**.{also} From {min(enough)} images on a rank the loss cannot be "
            "told from chance."
        )

    @staticmethod
    def _label(each: int) -> str:
        return f"all {each} together" if each == GLOBAL_BATCH else f"{GLOBAL_BATCH // each} ranks with {each} each"


def measure_norms(budget: Budget) -> NormStory:
    """Train with the same global batch, normalised over fewer or more images."""
    data = images(budget)
    is_smoke = budget.name == "smoke"
    accuracy, error = {}, {}
    for each in PER_RANK[::3] if is_smoke else PER_RANK:
        found = []
        for seed in range(1 if is_smoke else 2):
            with seeds.preserved():
                seeds.seed(seed)
                model = network(GLOBAL_BATCH // each)
            recipe = Recipe(
                batch_size=GLOBAL_BATCH, learning_rate=RATE, schedule="cosine", warmup_fraction=0.1, drop_last=True,
                epochs=1 if is_smoke else 4, threads=1, seed=seed,
            )  # fmt: skip
            found.append(training.fit(recipe, data, model=model).accuracy)
        accuracy[each] = float(np.mean(found))
        error[each] = standard_error(found, len(data.test))
    return NormStory(accuracy, error)
