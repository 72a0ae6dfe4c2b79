"""Whole runs in fp16, with and without a loss scale: what vanished gradients do to what a net learns."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from accelerando import datasets, models, seeds, stats, training
from accelerando.lessons import Budget
from accelerando.lessons.precision.gradients import images
from accelerando.lessons.precision.orders import SIZES

TERMS = 2**20
"""Of one image's loss, when it is a mean over pixels: those of a picture of 1024 x 1024."""
_RATE, _BATCH_SIZE = 0.1, 32
MARGIN = 0.05
"""Wide: the question is whether it learns at all, and fp16 without units is too slow for many runs."""


@dataclass(frozen=True)
class HalfRun:
    """One way to train in fp16, against fp32 with the same seeds and images.

    Args:
        terms: Numbers that the loss of one image is a mean over.
        has_scaler: Whether a `GradScaler` was used.
        accuracy: Mean over runs.
        verdict: Of the paired test against fp32.
    """

    terms: int
    has_scaler: bool
    accuracy: float
    verdict: stats.AccuracyVerdict

    @property
    def name(self) -> str:
        """In words."""
        scale = "with a scaler" if self.has_scaler else "without a loss scale"
        return f"{scale}, loss {'as it is' if self.terms == 1 else f'divided by 2^{np.log2(self.terms):.0f}'}"


@dataclass(frozen=True)
class HalfRuns:
    """Ways to train in fp16.

    Args:
        rows: One each.
        exact: Accuracy in fp32, mean over runs.
        runs: Seeds of each way.
    """

    rows: tuple[HalfRun, ...]
    exact: float
    runs: int

    def sentence(self) -> str:
        """What came of it, with a table."""
        lines = ["| in fp16 | accuracy | difference to fp32, points | so it is |", "|---|---|---|---|"]
        for row in self.rows:
            low, high = (100 * end for end in row.verdict.interval)
            lines.append(f"| {row.name} | {row.accuracy:.1%} | {low:+.1f} to {high:+.1f} | {row.verdict.verdict} |")
        table = "\n".join(lines)
        bare = [row for row in self.rows if not row.has_scaler]
        lost = [row.name for row in bare if row.verdict.verdict == "lost"]
        saved = [row.name for row in self.rows if row.has_scaler and row.verdict.verdict == "kept"]
        first = (
            f"In fp32 {self.exact:.1%} are right ({self.runs} run(s) of each, 95 % intervals; at most "
            f"{100 * MARGIN:g} points may go)."
        )
        if not lost:
            return f"{table}\n\n{first} Without a scale none of these runs is shown to have lost anything."
        told = "No error was raised where the accuracy was lost."
        if any(row.verdict.verdict == "kept" for row in bare):
            told += " Nor does every loss need a scale: with its own, whose gradients are larger, this net learned."
        cure = " The scaler brought it back." if saved else ""
        return f"{table}\n\n{first} {told}{cure}"


def train_in_half(budget: Budget, *, terms: int = TERMS) -> HalfRuns:
    """Train the small MLP in fp16: with its own loss, with one that is a mean over many more terms, and with a scaler.

    A mean over ``terms`` equal numbers divides every gradient by ``terms``; the learning rate is multiplied by it, so
    that the run in fp32 is the same one, bit by bit (``terms`` is a power of two).

    Args:
        budget: How many images, and how many seeds.
        terms: A power of two.
    """
    runs = {"smoke": 1, "quick": 2}.get(budget.name, 4)
    data = images(budget).limited(budget.train_images // 2, None)
    exact = np.stack([_train(data, seed, 1, None) for seed in range(runs)])
    rows = []
    for count, has_scaler in ((1, False), (terms, False), (terms, True)):
        found = np.stack([_train(data, seed, count, has_scaler) for seed in range(runs)])
        verdict = stats.paired_non_inferiority(exact, found, MARGIN)
        rows.append(HalfRun(count, has_scaler, float(found.mean()), verdict))
    return HalfRuns(tuple(rows), float(exact.mean()), runs)


def _train(data: datasets.Dataset, seed: int, terms: int, has_scaler: bool | None) -> np.ndarray:
    """One epoch in fp32 (``has_scaler`` is None) or fp16; whether each test image is right."""
    with seeds.preserved():
        seeds.seed(seed)
        module = models.build(SIZES)
    optimizer = torch.optim.SGD(module.parameters(), lr=_RATE * terms)
    scaler = torch.amp.GradScaler("cpu", enabled=bool(has_scaler))
    train = data.train
    order = np.random.default_rng(seed).permutation(len(train))
    for first in range(0, len(train), _BATCH_SIZE):
        rows = order[first : first + _BATCH_SIZE]
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16, enabled=has_scaler is not None):
            logits = module(datasets.as_batch(train.images[rows]))
        loss = nn.functional.cross_entropy(logits.float(), torch.from_numpy(train.labels[rows])) / terms
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    return training.evaluate(module, data.test) == data.test.labels
