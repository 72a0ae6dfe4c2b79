"""The global batch is ranks times batch: what became of the accuracy, by real ranks and a paired test."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from accelerando import stats
from accelerando.lessons import Budget
from accelerando.lessons.multi_cpu import task
from accelerando.lessons.multi_cpu.layouts import NOT_RUN

RANKS = 4
BATCH = 16
"""Images of one rank, and of the run with one rank."""
RATE = 0.01
MARGIN = 0.02
ALONE = f"1 rank, batch {BATCH}"
SAME_RATE = f"{RANKS} ranks, batch {BATCH} each, the same rate"
SCALED = f"{RANKS} ranks, batch {BATCH} each, {RANKS} times the rate"


@dataclass(frozen=True, eq=False)
class GlobalBatch:
    """Accuracy of one rank's recipe, and of what many ranks made of it.

    Args:
        epochs: Of each run.
        is_correct: Run -> bool, (seeds, images): which held-out images were classified correctly.
        steps: Run -> optimizer steps.
    """

    epochs: int
    is_correct: Mapping[str, npt.NDArray[np.bool_]] = field(default_factory=dict)
    steps: Mapping[str, int] = field(default_factory=dict)

    def verdict(self, name: str) -> stats.AccuracyVerdict:
        """The paired test against one rank."""
        return stats.paired_non_inferiority(self.is_correct[ALONE], self.is_correct[name], MARGIN)

    def accuracies(self) -> dict[str, tuple[float, float, float]]:
        """Run -> points of accuracy compared to one rank, with the interval of the paired test."""
        return {
            name: (100 * found.difference, *(100 * end for end in found.interval))  # type: ignore[misc]
            for name in (SAME_RATE, SCALED)
            if name in self.is_correct
            for found in [self.verdict(name)]
        }

    def sentence(self) -> str:
        """What this run showed."""
        if not self.is_correct:
            return NOT_RUN
        alone = float(self.is_correct[ALONE].mean())
        told = [
            f"All runs went through the same images {self.epochs} times, on the same {RANKS} ranks. One rank's recipe: "
            f"{self.steps[ALONE]:,} steps, **{alone:.1%}**."
        ]
        for name in (SAME_RATE, SCALED):
            found = self.verdict(name)
            low, high = (100 * end for end in found.interval)
            word = {
                "kept": "kept",
                "lost": f"lost (more than {100 * MARGIN:g} points)",
                "undecided": f"too close to call at a margin of {100 * MARGIN:g} points",
            }[found.verdict]
            told.append(
                f"{name}: {self.steps[name]:,} steps, {float(self.is_correct[name].mean()):.1%}, a difference of "
                f"**{100 * found.difference:+.1f} points** ({low:+.1f} to {high:+.1f}): {word}."
            )
        return " ".join(told)


def measure_global_batch(budget: Budget) -> GlobalBatch:
    """Train on four real ranks by one rank's recipe, by the recipe left alone, and with a scaled rate; not in smoke.

    One rank's recipe is trained by the four, too, with a quarter of its batch each: the same training, as lesson 7
    showed, and the same machine.
    """
    if budget.name == "smoke":
        return GlobalBatch(task.EPOCHS)
    orders = {ALONE: (BATCH // RANKS, RATE), SAME_RATE: (BATCH, RATE), SCALED: (BATCH, RANKS * RATE)}
    runs = 2 if budget.name == "quick" else 4
    found: dict[str, list[npt.NDArray[np.bool_]]] = {name: [] for name in orders}
    labels = task.data().test.labels
    with task.team(RANKS, 1, None, "gloo") as team:
        for seed in range(runs):
            for name, (batch, rate) in orders.items():
                predictions = task.train(team, batch=batch, learning_rate=rate, seed=seed)["predictions"]
                found[name].append(predictions == labels)
    return GlobalBatch(
        task.EPOCHS,
        {name: np.stack(rows) for name, rows in found.items()},
        {name: steps(batch * RANKS) for name, (batch, _) in orders.items()},
    )


def steps(global_batch: int) -> int:
    """Optimizer steps of a run; incomplete batches are left out."""
    return task.EPOCHS * (task.TRAIN_IMAGES // global_batch)
