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
        tuned.append(change(method, subject.continued, tune(small, budget)))
    return CriteriaReport(sparsity, before, tuple(tuned), subject.continued.accuracy)
