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
        points.append(WarmUpPoint(warm, seconds + found.seconds, change(f"after {warm}", dense, found)))
    return WarmUpReport(tuple(points), epochs, dense.seconds, dense.accuracy)
