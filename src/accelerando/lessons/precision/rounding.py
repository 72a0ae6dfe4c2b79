"""What rounding does to a sum and to a weight: numbers that are added and change nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from accelerando import formats, models, seeds, stats, training
from accelerando.lessons import Budget
from accelerando.lessons.precision.gradients import images
from accelerando.lessons.precision.task import NETS
from accelerando.recipes import Recipe

DTYPES: dict[str, torch.dtype] = {
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    "fp8 e4m3": torch.float8_e4m3fn,
    "fp8 e5m2": torch.float8_e5m2,
}
"""torch's own types for the formats that a tensor can be stored in here; fp32 counts too far to be tried."""


def predict_stuck(form: formats.Format) -> int:
    """Predict where counting up by 1 ends: where neighbours are 2 apart, and adding 1 rounds back.

    Returns:
        The number that is never left; 0 if the format's largest number comes first.
    """
    found = int(2 ** (form.fraction_bits + 1))
    return found if found <= form.largest else 0


def measure_stuck(dtype: torch.dtype, limit: int = 4096) -> int:
    """Count up by 1 in a type until the sum no longer changes.

    Returns:
        Where it stopped; 0 if it had not after ``limit`` additions.
    """
    total = torch.zeros((), dtype=dtype)
    for _ in range(limit):
        after = (total.float() + 1.0).to(dtype)  # a sum in a narrow type is this: exact, then rounded
        if bool(after.float() == total.float()):
            return int(total)
        total = after
    return 0


def stuck_table() -> str:
    """Where counting ends in each format, predicted and measured, as a Markdown table."""
    lines = ["| format | counting by 1 should end at | it ended at |", "|---|---|---|"]
    for name, dtype in DTYPES.items():
        lines.append(f"| {name} | {predict_stuck(formats.find(name))} | {measure_stuck(dtype)} |")
    return "\n".join(lines)


# -- weights that do not move -----------------------------------------------------------------------------------------


class HalfWeights(nn.Module):
    """A network whose weights themselves are stored in a narrow type, as ``model.to(torch.bfloat16)`` makes it.

    Args:
        inside: The network; changed in place.
        dtype: Its type from now on.
    """

    def __init__(self, inside: nn.Module, dtype: torch.dtype) -> None:
        super().__init__()
        self.inside, self.dtype = inside.to(dtype), dtype

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Map float32 (N, …) to float32 logits."""
        out: torch.Tensor = self.inside(inputs.to(self.dtype)).float()
        return out


@dataclass(frozen=True)
class Swallowed:
    """Steps of a training run whose update is smaller than the weight's rounding.

    Args:
        shares: Format -> share of the updates that would leave a weight stored in it unchanged.
        updates: How many were looked at.
    """

    shares: dict[str, float]
    updates: int

    def sentence(self) -> str:
        """What this run showed."""
        bf16, fp32 = self.shares["bf16"], self.shares["fp32"]
        return (
            f"Of {self.updates:,} updates, **{bf16:.0%}** would vanish if the weights were stored in bf16, "
            f"{self.shares['fp16']:.0%} in fp16, and {fp32:.1%} vanish in fp32."
        )


def measure_swallowed(budget: Budget) -> Swallowed:
    """Train in fp32, and ask of every weight and step whether a narrow weight would have moved at all."""
    data = images(budget)
    recipe = Recipe(batch_size=128, learning_rate=0.1, epochs=2, test_images=10)
    with seeds.preserved():
        seeds.seed(recipe.seed)
        module = models.build(models.SLIM_CNN)
    names = ("fp32", "fp16", "bf16")
    still, looked = dict.fromkeys(names, 0), 0
    before = [entry.detach().clone() for entry in module.parameters()]

    def look(report: training.StepReport) -> None:
        nonlocal before, looked
        after = [entry.detach().clone() for entry in module.parameters()]
        if report.step % 4 == 0:
            old, new = (torch.cat([entry.reshape(-1) for entry in side]).double().numpy() for side in (before, after))
            looked += old.size
            for name in names:
                half = formats.find(name).spacing(old) / 2
                still[name] += int(np.sum(np.abs(new - old) < half))
        before = after

    training.fit(recipe, data, model=module, on_step=look)
    return Swallowed({name: count / max(1, looked) for name, count in still.items()}, looked)


# -- accuracy ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class AccuracyRow:
    """One way to train, against fp32 with the same seeds and images.

    Args:
        name: What was done.
        accuracy: Mean over runs.
        baseline: That of fp32.
        verdict: Of the paired test.
    """

    name: str
    accuracy: float
    baseline: float
    verdict: stats.AccuracyVerdict

    def __str__(self) -> str:
        low, high = (100 * end for end in self.verdict.interval)
        return (
            f"{self.name}: {self.accuracy:.1%} against {self.baseline:.1%} in fp32, difference {low:+.1f} to "
            f"{high:+.1f} points: **{self.verdict.verdict}**"
        )


@dataclass(frozen=True)
class AccuracyTable:
    """Several ways to train, compared with fp32.

    Args:
        rows: One each.
        runs: Seeds of each way.
        margin: Accuracy that may be lost, as a fraction.
        net: Which network.
    """

    rows: tuple[AccuracyRow, ...]
    runs: int
    margin: float
    net: str = "slim CNN"

    def sentence(self) -> str:
        """What this run showed."""
        lines = "\n".join(f"* {row}" for row in self.rows)
        allowed = f"at most {100 * self.margin:g} points may go"
        return f"{lines}\n\n(The {self.net}, {self.runs} run(s) of each on the same images; {allowed}; 95 % intervals.)"


AUTOCAST, NARROW = "autocast to bf16, weights in fp32", "all in bf16: weights, momentum, BatchNorm's statistics"


def compare_accuracy(
    budget: Budget,
    *,
    net: str = "slim CNN",
    ways: tuple[str, ...] = (AUTOCAST, NARROW),
    margin: float = 0.01,
    epochs: int = 2,
) -> AccuracyTable:
    """Train in fp32, under bf16 autocast, and with the weights themselves in bf16; judge on the same images.

    Args:
        budget: How many images, and how many seeds.
        net: One of ``NETS``.
        ways: What is set against fp32.
        margin: Accuracy that may be lost, as a fraction.
        epochs: Of each run.
    """
    data, runs = images(budget), {"smoke": 1, "quick": 3}.get(budget.name, 5)
    base = Recipe(batch_size=128, learning_rate=0.1, epochs=epochs)
    settings: dict[str, dict[str, Any]] = {AUTOCAST: {"precision": "bf16"}, NARROW: {"narrow": torch.bfloat16}}
    correct = {
        name: np.stack([_train(base, data, seed, NETS[net], **settings.get(name, {})) for seed in range(runs)])
        for name in ("fp32", *ways)
    }
    exact = correct.pop("fp32")
    rows = [
        AccuracyRow(name, float(found.mean()), float(exact.mean()), stats.paired_non_inferiority(exact, found, margin))
        for name, found in correct.items()
    ]
    return AccuracyTable(tuple(rows), runs, margin, net)


def _train(
    recipe: Recipe,
    data: Any,
    seed: int,
    sizes: models.Sizes,
    *,
    precision: str = "fp32",
    narrow: torch.dtype | None = None,
) -> np.ndarray:
    model: models.Sizes | nn.Module = sizes
    if narrow is not None:
        with seeds.preserved():
            seeds.seed(seed)
            model = HalfWeights(models.build(sizes), narrow)
    return training.fit(recipe.changed(seed=seed, precision=precision), data, model=model).is_correct
