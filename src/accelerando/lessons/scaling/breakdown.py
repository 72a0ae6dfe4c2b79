"""Where the time of a step goes."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from accelerando import measure, noise, stats, training
from accelerando.lessons import Budget
from accelerando.lessons.scaling import disturbance
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
        fastest_s: The fastest of these steps as a whole.
        faults: Part -> page faults per step.
        causes: What is known to have disturbed the machine meanwhile, each in a few words.
    """

    median_s: dict[str, float]
    interval_s: dict[str, tuple[float, float]]
    batch_size: int
    steps: int
    fastest_s: float
    faults: dict[str, float]
    causes: tuple[str, ...] = ()

    @property
    def step_s(self) -> float:
        """Seconds of a whole step, as the sum of its parts."""
        return sum(self.median_s.values())

    @property
    def is_disturbed(self) -> bool:
        """Whether the two large parts are known too badly, or the machine was mostly busy with something else."""
        wide = any(disturbance.is_wide(self.interval_s[part]) for part in ("forward", "backward"))
        return wide or self.step_s > disturbance.WIDE * self.fastest_s

    def share(self, part: str) -> float:
        """The part's share of the step, 0 to 1."""
        return self.median_s[part] / self.step_s

    def ceiling(self, part: str) -> float:
        """How many times as fast a step would be if the part cost nothing."""
        return 1 / (1 - self.share(part))

    def sentence(self) -> str:
        """What this run showed."""
        first, second, *_, last = sorted(self.median_s, key=self.share, reverse=True)
        whole = (
            f"A step of {self.batch_size} images takes {measure.duration(self.step_s)} (the fastest of {self.steps}: "
            f"{measure.duration(self.fastest_s)}). **{first}** has {self._told(first)} and **{second}** "
            f"{self._told(second)}"
        )
        if self.is_disturbed:
            return f"{whole}. {disturbance.advice(self.causes)}"
        return (
            f"{whole}; backward takes {self.median_s['backward'] / self.median_s['forward']:.1f} times as long as "
            f"forward, the optimizer {self.share('optimizer'):.1%} and fetching the data {self.share('data'):.1%}. "
            f"If *{last}* cost nothing at all, a step would still take {1 - self.share(last):.1%} of its time. "
            f"Page faults in each step: {self.faults['forward']:,.0f} in forward, {self.faults['backward']:,.0f} in "
            f"backward.{disturbance.note(self.causes)}"
        )

    def _told(self, part: str) -> str:
        low, high = self.interval_s[part]
        return f"{self.share(part):.0%} of it (95 % interval {measure.duration(low)} to {measure.duration(high)})"


def step_breakdown(budget: Budget, recipe: Recipe = STEP_RECIPE) -> StepBreakdown:
    """Measure what each part of a training step takes, over some dozens of steps.

    Args:
        budget: How many steps.
        recipe: How to train.
    """
    timer, faults = training.PhaseTimer(), dict.fromkeys(training.PHASES, 0)

    @contextmanager
    def phase(name: str) -> Iterator[None]:
        before = page_faults()
        with timer.phase(name):
            yield
        faults[name] += page_faults() - before

    step = training.stepper(recipe, images(budget), phases=phase)
    for _ in range(3):
        step()
    taken, warm = [], dict(faults)
    with noise.watch() as watched:
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
        min(map(sum, taken)),
        {part: (faults[part] - warm[part]) / len(taken) for part in training.PHASES},
        watched.state.disturbances,
    )


def page_faults() -> int:
    """Pages that the system has handed to this process so far, without reading them from a disk."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
