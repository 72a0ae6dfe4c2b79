"""How many threads a training step wants, and when it is too late to say so."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from accelerando import datasets, rounds, training
from accelerando.lessons import Budget
from accelerando.recipes import Recipe

RECIPE = Recipe(batch_size=64, learning_rate=0.01, schedule="constant", layout="channels_last", test_images=10)


def thread_counts(usable_cores: int) -> tuple[int, ...]:
    """Numbers of threads worth trying: one, all cores, one too many, twice and four times too many."""
    return tuple(sorted({1, usable_cores, usable_cores + 1, 2 * usable_cores, 4 * usable_cores}))


@dataclass(frozen=True)
class Oversubscription:
    """A training step on more and more threads, beyond the cores there are.

    Args:
        points: Keyed by threads; ratios are to 1 thread.
        usable_cores: ``Machine.usable_cores``.
        batch_size: Images per step.
        sleeps: Threads -> how often one of them went to sleep in a step, to be woken again.
    """

    points: tuple[rounds.RoundPoint, ...]
    usable_cores: int
    batch_size: int
    sleeps: Mapping[int, float] = field(default_factory=dict)

    def at(self, threads: int) -> rounds.RoundPoint:
        """The point of one number of threads."""
        return next(point for point in self.points if point.key == threads)

    def cost(self, threads: int) -> float:
        """Time with so many threads / time with one for each core."""
        return self.at(threads).median_s / self.at(self.usable_cores).median_s

    def sentence(self) -> str:
        """What this run showed."""
        cores = self.usable_cores
        rates = ", ".join(f"{point.key}: {self.batch_size / point.median_s:,.0f}" for point in self.points)
        one_more, worst = self.cost(cores + 1), max(self.points, key=lambda point: point.median_s)
        start = f"Images per second by threads: {rates}. One thread more than cores"
        if one_more > 1.1:
            start += f" makes a step take **{one_more:.2f} times** as long"
        elif one_more < 0.9:
            start += f" makes it *faster* here ({1 / one_more:.2f} times): does something else keep the cores busy?"
        else:
            start += f" costs little here ({one_more:.2f} times the time)"
        end = f"{start}; the worst of these is {worst.key} threads, at {self.cost(worst.key):.1f} times the time."
        return f"{end}{self._paper()}{self._slept()}"

    def _paper(self) -> str:
        """What the pieces alone would cost."""
        cores = self.usable_cores
        paper = 2 * cores / (cores + 1)
        return (
            f" On paper {cores + 1} equal pieces on {cores} core(s) are two rounds instead of one, each a little "
            f"shorter: {paper:.2f} times."
        )

    def _slept(self) -> str:
        cores = self.usable_cores
        if not {cores, cores + 1} <= set(self.sleeps):
            return ""
        few, many = self.sleeps[cores], self.sleeps[cores + 1]
        return (
            f" In one step a thread goes to sleep {few:,.0f} times with {cores} of them, {many:,.0f} with {cores + 1}."
        )


def measure_oversubscription(budget: Budget, usable_cores: int) -> Oversubscription:
    """Measure a training step on each number of threads, in turns.

    Args:
        budget: How many rounds.
        usable_cores: ``Machine.usable_cores``.
    """
    data = datasets.synthetic(256, 10)
    counts = thread_counts(usable_cores) if budget.name != "smoke" else thread_counts(usable_cores)[:3]
    steps = {count: training.stepper(RECIPE.changed(threads=count), data) for count in counts}
    points = rounds.measure_rounds(steps, budget.rounds, sample_s=0.1 if budget.rounds > 1 else 0.01)
    sleeps = {count: _sleeps_per_step(steps[count]) for count in counts if count in (usable_cores, usable_cores + 1)}
    return Oversubscription(points, usable_cores, RECIPE.batch_size, sleeps)


def _sleeps_per_step(step: Callable[[], object], steps: int = 5) -> float:
    """How often a thread of this process gives its core up of its own will, per step."""
    step()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw
    for _ in range(steps):
        step()
    return (resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw - before) / steps


@dataclass(frozen=True)
class TooLate:
    """What a variable does that is set after torch was loaded.

    Args:
        before: torch's threads.
        asked: What the variable was set to.
        after_variable: torch's threads after the variable was set.
        after_call: torch's threads after ``torch.set_num_threads``.
    """

    before: int
    asked: int
    after_variable: int
    after_call: int

    def sentence(self) -> str:
        """What this run showed."""
        heard = "nothing happened" if self.after_variable == self.before else f"it has {self.after_variable}"
        return (
            f"torch has {self.before} thread(s). `OMP_NUM_THREADS={self.asked}` was set just now, and {heard}: the "
            f"runtime had read the variable when torch was imported. `torch.set_num_threads({self.asked})` works at "
            f"any time: {self.after_call} thread(s). For the other variables torch has no such call."
        )


def set_too_late() -> TooLate:
    """Set OMP_NUM_THREADS in this process, where torch is loaded already, and look; everything is put back."""
    import torch

    before, variable = torch.get_num_threads(), os.environ.get("OMP_NUM_THREADS")
    asked = before + 1
    try:
        os.environ["OMP_NUM_THREADS"] = str(asked)
        torch.ones(100_000).add_(1.0)
        after_variable = torch.get_num_threads()
        torch.set_num_threads(asked)
        return TooLate(before, asked, after_variable, torch.get_num_threads())
    finally:
        torch.set_num_threads(before)
        if variable is None:
            os.environ.pop("OMP_NUM_THREADS", None)
        else:
            os.environ["OMP_NUM_THREADS"] = variable
