"""How much: accuracy over speed, as ever more channels are taken out."""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from accelerando import counts, datasets, rounds, training
from accelerando.lessons import Budget
from accelerando.lessons.pruning.accuracy import AccuracyChange, change
from accelerando.lessons.pruning.pruned import Pruned, prune
from accelerando.lessons.pruning.subject import STEP_RECIPE, Subject, batches, example, images, tune, work


@dataclass(frozen=True)
class TradeOff:
    """One point of the curve of accuracy over speed.

    Args:
        percent: Of the channels removed; 0 is the dense net.
        channels: Output channels of the layers in order.
        parameters: Trained numbers left.
        work: Multiplications left, as a share of the dense net's.
        change: Accuracy after one more epoch.
        step: Training step against the dense net's: times as fast.
        answer: The same for classifying a batch.
    """

    percent: int
    channels: tuple[int, ...]
    parameters: int
    work: float
    change: AccuracyChange
    step: rounds.RoundPoint
    answer: rounds.RoundPoint

    def as_row(self) -> dict[str, Any]:
        """Plain values, for a figure or a widget."""
        return {
            "percent": self.percent,
            "channels": self.channels,
            "parameters": self.parameters,
            "work": self.work,
            "accuracy": self.change.accuracy,
            "difference": self.change.difference,
            "interval": self.change.interval,
            "training step": (self.step.median_s, self.step.ratio, self.step.interval),
            "classifying": (self.answer.median_s, self.answer.ratio, self.answer.interval),
        }


@dataclass(frozen=True)
class TradeOffCurve:
    """Accuracy and speed over sparsity."""

    points: tuple[TradeOff, ...]

    def rows(self) -> list[dict[str, Any]]:
        """Plain values of every point, the dense net first."""
        return [point.as_row() for point in self.points]

    def choose(self, allowed: float) -> TradeOff:
        """The fastest training step whose accuracy is surely at most ``allowed`` (a fraction) below the dense net's."""
        kept = [point for point in self.points if point.percent == 0 or point.change.interval[0] >= -allowed]
        return max(kept, key=lambda point: point.step.ratio)

    def sentence(self) -> str:
        """What this run showed."""
        half = min(self.points[1:], key=lambda point: abs(point.percent - 50))
        last = self.points[-1]
        low, high = half.step.interval
        spread = "" if math.isinf(high) else f" ({low:.2f} to {high:.2f})"
        least, most = (100 * end for end in half.change.interval)
        return (
            f"Without {half.percent} % of the channels {half.work:.0%} of the multiplications are left, which promises "
            f"{1 / half.work:.1f} times the speed. The training step was **{half.step.ratio:.2f} times** as "
            f"fast{spread}, and accuracy changed by {100 * half.change.difference:+.1f} points ({least:+.1f} to "
            f"{most:+.1f}). Without {last.percent} %: {last.step.ratio:.2f} times, "
            f"{100 * last.change.difference:+.1f} points.{self._turn()}"
        )

    def _turn(self) -> str:
        """Name a net that is surely slower than the dense one, or else than a larger one, if there is one."""
        slow = [point for point in self.points[1:] if point.step.interval[1] < 1]
        if slow:
            worst = min(slow, key=lambda point: point.step.ratio)
            few, more = (", ".join(map(str, found.channels)) for found in (worst, self.points[0]))
            return (
                f" **The smaller net is the slower one**: without {worst.percent} % a step is slower than that of the "
                f"dense net, {worst.step.ratio:.2f} times as fast; {few} channels take longer than {more}."
            )
        for place, point in enumerate(self.points):
            faster = [other for other in self.points[:place] if other.step.interval[0] > point.step.interval[1]]
            if faster:
                best = max(faster, key=lambda other: other.step.ratio)
                few, more = (", ".join(map(str, found.channels)) for found in (point, best))
                return f" **The smaller net is the slower one**: {few} channels take longer than {more}."
        return ""


def measure_trade_off(
    subject: Subject,
    budget: Budget,
    *,
    percents: Sequence[int] = (25, 50, 63, 75, 88),
    method: str = "l1",
    multiple: int = 1,
) -> TradeOffCurve:
    """Prune ever more, train each result for one epoch, and time it.

    Args:
        subject: The trained net.
        budget: How many images and rounds.
        percents: Of the channels to remove, rising.
        method: Of `prune`.
        multiple: Of `prune`.
    """
    if budget.name == "smoke":
        percents = percents[1:2]
    data = images(budget)
    dense = copy.deepcopy(subject.model)
    pruned: dict[int, Pruned] = {
        percent: prune(dense, percent / 100, example(), method=method, multiple=multiple, batches=batches(budget))
        for percent in percents
    }
    nets: dict[int, nn.Module] = {0: dense, **{percent: found.model for percent, found in pruned.items()}}
    changes = {0: AccuracyChange("dense", subject.continued.accuracy, 0.0, (0.0, 0.0))}
    for percent in percents:
        changes[percent] = change(f"{percent} %", subject.continued, tune(nets[percent], budget))
    steps, answers = _times(nets, data, budget)
    costs = {percent: work(net) for percent, net in nets.items()}
    widths = {percent: tuple(new for _, new in found.channels.values()) for percent, found in pruned.items()}
    widths[0] = tuple(old for old, _ in next(iter(pruned.values())).channels.values())
    return TradeOffCurve(
        tuple(
            TradeOff(
                percent, widths[percent][:-1], counts.parameters(net), costs[percent] / costs[0], changes[percent],
                steps[percent], answers[percent],
            )
            for percent, net in nets.items()
        )
    )  # fmt: skip


def _times(
    nets: dict[int, nn.Module], data: datasets.Dataset, budget: Budget
) -> tuple[dict[int, rounds.RoundPoint], dict[int, rounds.RoundPoint]]:
    """Training steps and answers of all nets, in turns."""
    import torch

    sample_s = 0.12 if budget.rounds > 1 else 0.005
    batch = datasets.as_batch(data.test.images[:64]).to(memory_format=torch.channels_last)

    def answer(net: nn.Module) -> None:
        with torch.inference_mode():
            net.eval()(batch)

    answers = rounds.measure_rounds(
        {percent: functools.partial(answer, net) for percent, net in nets.items()}, budget.rounds, sample_s=sample_s
    )
    steps = rounds.measure_rounds(
        {percent: training.stepper(STEP_RECIPE, data, model=net) for percent, net in nets.items()},
        budget.rounds,
        sample_s=sample_s,
    )
    return {point.key: point for point in steps}, {point.key: point for point in answers}
