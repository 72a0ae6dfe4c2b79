"""Which channels: several ways to choose them, compared."""

from __future__ import annotations

from dataclasses import dataclass

from accelerando import training
from accelerando.lessons import Budget
from accelerando.lessons.pruning.accuracy import AccuracyChange, change
from accelerando.lessons.pruning.pruned import prune
from accelerando.lessons.pruning.removal import METHODS
from accelerando.lessons.pruning.subject import STEP_RECIPE, Subject, batches, example, images, tune


@dataclass(frozen=True)
class CriteriaReport:
    """Several ways to choose the same number of channels.

    Args:
        sparsity: Share of channels removed from every layer.
        before_tuning: Method -> accuracy right after the channels were taken out.
        tuned: After one more epoch.
        dense_accuracy: Of the dense net, trained as long.
        to_lot: Every other method against "random" after that epoch, on the same images.
    """

    sparsity: float
    before_tuning: dict[str, float]
    tuned: tuple[AccuracyChange, ...]
    dense_accuracy: float
    to_lot: tuple[AccuracyChange, ...]

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
        ahead = [change.label for change in self.to_lot if change.interval[0] > 0]
        if ahead:
            verdict = f"**{' and '.join(ahead)} {'is' if len(ahead) == 1 else 'are'} ahead of drawing channels by lot**"
        else:
            verdict = "**of no method can it be shown that it beats drawing channels by lot**"
        told = ", ".join(
            f"{change.label} {100 * change.difference:+.1f} ({100 * change.interval[0]:+.1f} to "
            f"{100 * change.interval[1]:+.1f})"
            for change in self.to_lot
        )
        return (
            f"{start} One epoch later all lie within {spread:.1f} points, and {verdict}. To the lot, on the same "
            f"images, in points: {told}. The luck of the seed is not in these intervals; and the best of "
            f"{len(self.to_lot)} methods stands against a single draw, so its lead is on the large side."
        )

    @property
    def lead_points(self) -> float:
        """Points of accuracy by which the best method is ahead of drawing by lot, after the further epoch."""
        return 100 * max(change.difference for change in self.to_lot)


def compare_criteria(subject: Subject, budget: Budget, *, sparsity: float = 0.5) -> CriteriaReport:
    """Prune the same trained net by every method, and train each result for one more epoch.

    Args:
        subject: The trained net.
        budget: How many images.
        sparsity: Share of channels to remove.
    """
    data = images(budget)
    before: dict[str, float] = {}
    found: dict[str, training.FitResult] = {}
    for method in METHODS if budget.name != "smoke" else ("l1", "taylor", "random"):
        small = prune(subject.model, sparsity, example(), method=method, batches=batches(budget)).model
        predictions = training.evaluate(small, data.test, layout=STEP_RECIPE.layout)
        before[method] = float((predictions == data.test.labels).mean())
        found[method] = tune(small, budget)
    tuned = tuple(change(method, subject.continued, result) for method, result in found.items())
    to_lot = tuple(change(method, found["random"], result) for method, result in found.items() if method != "random")
    return CriteriaReport(sparsity, before, tuned, subject.continued.accuracy, to_lot)
