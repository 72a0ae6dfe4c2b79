"""What pruning costs and brings: criteria, the moment of pruning, and accuracy over speed."""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from accelerando import counts, datasets, rounds, stats, training
from accelerando.lessons import Budget
from accelerando.lessons.pruning.pruned import Pruned, prune
from accelerando.lessons.pruning.removal import METHODS
from accelerando.lessons.pruning.subject import (
    STEP_RECIPE,
    TRAIN_RECIPE,
    TUNE_RECIPE,
    Subject,
    batches,
    example,
    images,
    new_model,
    tune,
    work,
)


@dataclass(frozen=True)
class AccuracyChange:
    """Accuracy against the dense net that was trained as long, on the same images.

    Args:
        label: What was done.
        accuracy: Share of the test images classified correctly, 0 to 1.
        difference: To the dense net; below 0 is a loss.
        interval: 95 % interval for the difference.
    """

    label: str
    accuracy: float
    difference: float
    interval: tuple[float, float]


def _change(label: str, dense: training.FitResult, pruned: training.FitResult) -> AccuracyChange:
    found = stats.paired_non_inferiority(dense.is_correct, pruned.is_correct)
    return AccuracyChange(label, pruned.accuracy, found.difference, found.interval)


# -- which channels ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CriteriaReport:
    """Several ways to choose the same number of channels.

    Args:
        sparsity: Share of channels removed from every layer.
        before_tuning: Method -> accuracy right after the channels were taken out.
        tuned: After one more epoch.
        dense_accuracy: Of the dense net, trained as long.
    """

    sparsity: float
    before_tuning: dict[str, float]
    tuned: tuple[AccuracyChange, ...]
    dense_accuracy: float

    @property
    def best_before(self) -> str:
        """The method that did least harm at once."""
        return max(self.before_tuning, key=lambda method: self.before_tuning[method])

    def sentence(self) -> str:
        """What this run showed."""
        best, worst = self.best_before, min(self.before_tuning, key=lambda method: self.before_tuning[method])
        start = (
            f"Right after removing {self.sparsity:.0%} of the channels, {best} keeps {self.before_tuning[best]:.1%} "
            f"and {worst} {self.before_tuning[worst]:.1%}, of {self.dense_accuracy:.1%}."
        )
        spread = 100 * (max(c.accuracy for c in self.tuned) - min(c.accuracy for c in self.tuned))
        chance = self._by_lot
        ahead = [change.label for change in self.tuned if change.interval[0] > chance.interval[1]]
        if ahead:
            verdict = f"even then {' and '.join(ahead)} {'is' if len(ahead) == 1 else 'are'} ahead of drawing by lot"
        else:
            half = 50 * (chance.interval[1] - chance.interval[0])
            verdict = (
                "**and of no method can it be said that it beats drawing channels by lot**: each of these accuracies "
                f"is only known to about {half:.1f} points, with so many test images"
            )
        return f"{start} One epoch later all lie within {spread:.1f} points, {verdict}."

    @property
    def _by_lot(self) -> AccuracyChange:
        return next(change for change in self.tuned if change.label == "random")

    @property
    def lead_points(self) -> float:
        """Points of accuracy by which the best method is ahead of drawing by lot, after the further epoch."""
        best = max(change.accuracy for change in self.tuned if change.label != "random")
        return 100 * (best - self._by_lot.accuracy)


def compare_criteria(subject: Subject, budget: Budget, *, sparsity: float = 0.5) -> CriteriaReport:
    """Prune the same trained net by every method, and train each result for one more epoch.

    Args:
        subject: The trained net.
        budget: How many images.
        sparsity: Share of channels to remove.
    """
    data = images(budget)
    before, tuned = {}, []
    for method in METHODS if budget.name != "smoke" else ("l1", "taylor", "random"):
        small = prune(subject.model, sparsity, example(), method=method, batches=batches(budget)).model
        predictions = training.evaluate(small, data.test, layout=STEP_RECIPE.layout)
        before[method] = float((predictions == data.test.labels).mean())
        tuned.append(_change(method, subject.continued, tune(small, budget)))
    return CriteriaReport(sparsity, before, tuple(tuned), subject.continued.accuracy)


# -- when --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class WarmUpPoint:
    """One run of equal length, pruned at some moment of it."""

    warm_epochs: int
    seconds: float  # of training, warm-up included
    change: AccuracyChange


@dataclass(frozen=True)
class WarmUpReport:
    """The same number of epochs, the channels taken out sooner or later.

    Args:
        points: By rising number of epochs before pruning.
        epochs: In all.
        dense_seconds: Of training the dense net for all of them.
        dense_accuracy: Of the dense net after them.
    """

    points: tuple[WarmUpPoint, ...]
    epochs: int
    dense_seconds: float
    dense_accuracy: float

    def sentence(self) -> str:
        """What this run showed."""
        told = "; ".join(
            f"pruned after {point.warm_epochs}: {point.change.accuracy:.1%} in {point.seconds:.1f} s"
            for point in self.points
        )
        first, best = self.points[0], max(self.points[1:], key=lambda point: point.change.accuracy)
        if best.change.interval[0] > first.change.interval[1]:
            verdict = (
                f"Warming up for {best.warm_epochs} was clearly worth it: the weights say more once they have learned."
            )
        elif first.change.interval[0] > best.change.interval[1]:
            verdict = (
                "**Here the net that was small from the start is clearly ahead**: the dense epochs were lost time."
            )
        else:
            gap = 100 * abs(best.change.accuracy - first.change.accuracy)
            verdict = (
                f"Between the net that was small from the start and the best of the others lie {gap:.1f} points, fewer "
                "than so many test images can tell from chance: in a run this short, warming up did not pay."
            )
        dense = f"dense: {self.dense_accuracy:.1%} in {self.dense_seconds:.1f} s"
        return f"{self.epochs} epochs each; {dense}; {told}. {verdict}"


def compare_warm_up(budget: Budget, *, sparsity: float = 0.5, epochs: int | None = None) -> WarmUpReport:
    """Prune before the first epoch, after one, and so on, with the same number of epochs in all.

    Args:
        budget: How many images.
        sparsity: Share of channels to remove.
        epochs: In all, at least 2; 3 when left out.
    """
    epochs = epochs or (2 if budget.name == "smoke" else 3)
    dense = training.fit(TRAIN_RECIPE.changed(epochs=epochs), images(budget), model=new_model(budget))
    points = []
    for warm in range(epochs):
        model, seconds = new_model(budget), 0.0
        if warm:
            seconds = training.fit(TRAIN_RECIPE.changed(epochs=warm), images(budget), model=model).seconds
        small = prune(model, sparsity, example()).model
        recipe = TRAIN_RECIPE if warm == 0 else TUNE_RECIPE
        found = training.fit(recipe.changed(epochs=epochs - warm), images(budget), model=small)
        points.append(WarmUpPoint(warm, seconds + found.seconds, _change(f"after {warm}", dense, found)))
    return WarmUpReport(tuple(points), epochs, dense.seconds, dense.accuracy)


# -- how much ----------------------------------------------------------------------------------------------------------


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
        """Name a net that is surely slower than a larger one, if there is one."""
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
        changes[percent] = _change(f"{percent} %", subject.continued, tune(nets[percent], budget))
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
