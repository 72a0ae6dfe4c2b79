"""When: the channels taken out sooner or later in a run of equal length."""

from __future__ import annotations

from dataclasses import dataclass

from accelerando import training
from accelerando.lessons import Budget
from accelerando.lessons.pruning.accuracy import AccuracyChange, change
from accelerando.lessons.pruning.pruned import prune
from accelerando.lessons.pruning.subject import TRAIN_RECIPE, TUNE_RECIPE, example, images, new_model


@dataclass(frozen=True)
class WarmUpPoint:
    """One run of equal length, pruned at some moment of it."""

    warm_epochs: int
    seconds: float  # of training, warm-up included
    change: AccuracyChange  # against the dense net
    to_first: AccuracyChange  # against the net that was pruned before the first epoch


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
            + (f" ({_points(point.to_first)} to pruning at once)" if point.warm_epochs else "")
            for point in self.points
        )
        later = self.points[1:]
        best = max(later, key=lambda point: point.change.accuracy)
        behind = [str(point.warm_epochs) for point in later if point.to_first.interval[1] < 0]
        if best.to_first.interval[0] > 0:
            verdict = f"Warming up for {best.warm_epochs} was clearly worth it in these runs."
        elif len(behind) == len(later):
            verdict = (
                "**Here the net that was small from the start is clearly ahead**: the dense epochs brought no gain."
            )
        else:
            lost = f" Pruned after {' and '.join(behind)}, it is clearly behind." if behind else ""
            verdict = (
                "The best of those that warmed up cannot be told from the net that was small from the start: in a run "
                f"this short, warming up did not pay.{lost}"
            )
        dense = f"dense: {self.dense_accuracy:.1%} in {self.dense_seconds:.1f} s"
        return f"{self.epochs} epochs each; {dense}; {told}. {verdict}"


def _points(change: AccuracyChange) -> str:
    low, high = change.interval
    return f"{100 * change.difference:+.1f} points, {100 * low:+.1f} to {100 * high:+.1f},"


def compare_warm_up(budget: Budget, *, sparsity: float = 0.5, epochs: int | None = None) -> WarmUpReport:
    """Prune before the first epoch, after one, and so on, with the same number of epochs in all.

    Args:
        budget: How many images.
        sparsity: Share of channels to remove.
        epochs: In all, at least 2; 3 when left out.
    """
    epochs = epochs or (2 if budget.name == "smoke" else 3)
    dense = training.fit(TRAIN_RECIPE.changed(epochs=epochs), images(budget), model=new_model(budget))
    points: list[WarmUpPoint] = []
    at_once = dense
    for warm in range(epochs):
        model, seconds = new_model(budget), 0.0
        if warm:
            seconds = training.fit(TRAIN_RECIPE.changed(epochs=warm), images(budget), model=model).seconds
        small = prune(model, sparsity, example()).model
        recipe = TRAIN_RECIPE if warm == 0 else TUNE_RECIPE
        found = training.fit(recipe.changed(epochs=epochs - warm), images(budget), model=small)
        at_once = at_once if warm else found
        label = f"after {warm}"
        points.append(
            WarmUpPoint(warm, seconds + found.seconds, change(label, dense, found), change(label, at_once, found))
        )
    return WarmUpReport(tuple(points), epochs, dense.seconds, dense.accuracy)
