"""Where the time of a step goes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from accelerando import measure, stats, training
from accelerando.lessons import Budget
from accelerando.lessons.scaling.subject import STEP_RECIPE, images
from accelerando.recipes import Recipe


@dataclass(frozen=True)
class StepBreakdown:
    """Seconds of each part of a training step.

    Args:
        median_s: Part -> seconds, in the order in which they run.
        interval_s: Part -> 95 % interval for the median.
        batch_size: Images per step.
        steps: Steps that were timed.
    """

    median_s: dict[str, float]
    interval_s: dict[str, tuple[float, float]]
    batch_size: int
    steps: int

    @property
    def step_s(self) -> float:
        """Seconds of a whole step, as the sum of its parts."""
        return sum(self.median_s.values())

    def share(self, part: str) -> float:
        """The part's share of the step, 0 to 1."""
        return self.median_s[part] / self.step_s

    def sentence(self) -> str:
        """What this run showed."""
        first, second, *_, last = sorted(self.median_s, key=self.share, reverse=True)
        return (
            f"A step of {self.batch_size} images takes {measure.duration(self.step_s)}. **{first}** has "
            f"{self.share(first):.0%} of it and **{second}** {self.share(second):.0%}; backward takes "
            f"{self.median_s['backward'] / self.median_s['forward']:.1f} times as long as forward, the optimizer "
            f"{self.share('optimizer'):.1%} and fetching the data {self.share('data'):.1%}. "
            f"If *{last}* cost nothing at all, a step would still take {1 - self.share(last):.1%} of its time."
        )


def step_breakdown(budget: Budget, recipe: Recipe = STEP_RECIPE) -> StepBreakdown:
    """Measure what each part of a training step takes, over a few dozen steps.

    Args:
        budget: How many steps.
        recipe: How to train.
    """
    timer = training.PhaseTimer()
    step = training.stepper(recipe, images(budget), phases=timer.phase)
    for _ in range(3):
        step()
    taken = []
    for _ in range(10 * budget.rounds):
        before = dict(timer.seconds)
        step()
        taken.append([timer.seconds[part] - before[part] for part in training.PHASES])
    columns = dict(zip(training.PHASES, np.array(taken).T, strict=True))
    found = {part: stats.median_interval(column) for part, column in columns.items()}
    return StepBreakdown(
        {part: median for part, (median, _, _) in found.items()},
        {part: (low, high) for part, (_, low, high) in found.items()},
        recipe.batch_size,
        len(taken),
    )
