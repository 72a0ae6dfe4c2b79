"""Waiting is not work: loaders that wait, storages that are slow now and then, and workers that have to start."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch.utils.data import DataLoader

from accelerando import measure, rounds, timelines
from accelerando.lessons import Budget
from accelerando.lessons.pipelines import samples
from accelerando.lessons.pipelines.epochs import closing, exhaust, per_batch, unwarned


@dataclass(frozen=True)
class Waiting:
    """Loading that waits instead of computing, over the number of workers.

    Args:
        points: Per number of workers; seconds per batch.
        read_s: Seconds of waiting for one batch.
        cores: That there are.
    """

    points: tuple[rounds.RoundPoint, ...]
    read_s: float
    cores: int

    def sentence(self) -> str:
        """What this run showed."""
        first, last = self.points[0], self.points[-1]
        if first is last:
            return "Measured with no worker only: the smoke budget starts no processes."
        told = ", ".join(f"{point.ratio:.1f} times with {point.key}" for point in self.points[1:])
        rule = (
            "The cores set no limit here. The rule is *until the model no longer waits*; what comes next is memory, "
            "and how many requests the storage answers at once, which this stand-in, a sleep, does not show."
            if last.ratio > last.key / 2
            else "That is less than hoped."
        )
        return (
            f"Each batch is {measure.duration(self.read_s)} of waiting for a storage that is far away. Against no "
            f"worker: {told}. {self.cores} cores carry {last.key} workers that wait. {rule}"
        )


def measure_waiting(budget: Budget, cores: int, counts: Sequence[int] = (0, 1, 2, 4, 8)) -> Waiting:
    """Load from a storage that answers late, with several numbers of workers, in turns.

    Args:
        budget: How many rounds.
        cores: ``Machine.usable_cores``.
        counts: Numbers of workers, beginning with 0.
    """
    counts, batches, read_s = (counts, 48, 0.01) if budget.process_s else (counts[:1], 4, 0.001)
    storage = samples.SlowStorage(batches, read_s)
    with unwarned():
        loaders = {
            count: DataLoader(storage, batch_size=None, num_workers=count, persistent_workers=count > 0)
            for count in counts
        }
    with closing(loaders):
        subjects = {count: exhaust(loader) for count, loader in loaders.items()}
        found = rounds.measure_rounds(subjects, min(budget.rounds, 6), sample_s=1e-6)
        subjects.clear()
    return Waiting(tuple(per_batch(point, batches) for point in found), read_s, cores)


@dataclass(frozen=True)
class Bursts:
    """A storage that is slow now and then, with little and with much prefetching.

    Args:
        points: Per ``prefetch_factor``; seconds per batch.
        plan: With ``prefetch`` 1.
    """

    points: tuple[rounds.RoundPoint, ...]
    plan: timelines.Plan

    def predicted_ratio(self) -> float:
        """How many times as fast the simulator expects the last one to be."""
        first, last = (self.plan.changed(prefetch=point.key) for point in (self.points[0], self.points[-1]))
        return timelines.simulate(first).period_s / timelines.simulate(last).period_s

    def sentence(self) -> str:
        """What this run showed."""
        last = self.points[-1]
        if len(self.points) == 1:
            return "Nothing was measured: the smoke budget starts no processes."
        plan = self.plan
        usual_s = plan.read_s * (1 + (plan.slow_factor - 1) / plan.slow_every)
        told = (
            f"One worker; a batch takes {measure.duration(usual_s)} to read on average, a step "
            f"{measure.duration(plan.step_s)}, so the loader can keep up; but each {plan.slow_every}th batch takes "
            f"{measure.duration(plan.read_s * plan.slow_factor)}. Eight batches ahead instead of one: "
            f"**{last.ratio:.2f} times** the "
            f"speed (predicted {self.predicted_ratio():.2f})."
        )
        return (
            f"{told} Memory is the price: so many batches lie ready."
            if last.ratio > 1.05
            else f"{told} It changes little here."
        )


def measure_bursts(budget: Budget, ahead: Sequence[int] = (1, 8)) -> Bursts:
    """Load with one worker from a storage that is slow now and then, with several ``prefetch_factor``.

    Args:
        budget: How many rounds.
        ahead: Values of ``prefetch_factor``.
    """
    plan = timelines.Plan(0.0, 0.008, workers=1, prefetch=1, read_s=0.002, slow_every=8, slow_factor=18)
    if not budget.process_s:
        return Bursts((rounds.RoundPoint(1, math.nan, 1.0, (0.0, math.inf), ()),), plan)
    batches = 64
    storage = samples.SlowStorage(batches, plan.read_s, plan.slow_every, plan.slow_factor)
    loaders = {
        count: DataLoader(storage, batch_size=None, num_workers=1, persistent_workers=True, prefetch_factor=count)
        for count in ahead
    }
    with closing(loaders):
        subjects = {count: _sleepy(loader, plan.step_s) for count, loader in loaders.items()}
        found = rounds.measure_rounds(subjects, min(budget.rounds, 5), sample_s=1e-6)
        subjects.clear()
    return Bursts(tuple(per_batch(point, batches) for point in found), plan)


def _sleepy(loader: DataLoader[Any], step_s: float) -> Callable[[], None]:
    """A model that needs no core: it waits, as a program waits for its GPU."""

    def run() -> None:
        for _ in loader:
            time.sleep(step_s)

    return run


@dataclass(frozen=True)
class Start:
    """What it costs to start workers anew for every epoch.

    Args:
        comparison: Baseline: new workers each epoch; candidate: persistent ones. One epoch each.
        workers: In both.
    """

    comparison: measure.Comparison | None
    workers: int

    @property
    def extra_s(self) -> float:
        """Seconds per epoch that new workers cost."""
        assert self.comparison is not None
        return self.comparison.baseline.median_s - self.comparison.candidate.median_s

    def sentence(self) -> str:
        """What this run showed."""
        if self.comparison is None or not self.comparison.pairs:
            return "Nothing was measured: the smoke budget starts no processes."
        cost = measure.duration(max(self.extra_s, 0.0))
        if self.comparison.verdict != "faster":
            return f"Starting {self.workers} workers for every epoch costs {cost}, too little to be told from chance."
        return (
            f"Starting {self.workers} workers anew costs **{cost} per epoch** here. With `persistent_workers=True` it "
            "is paid once. "
            "For epochs of an hour that is nothing; for epochs of seconds, or a validation after every hundred steps, "
            "it is not."
        )


def measure_start(budget: Budget, workers: int = 2) -> Start:
    """Compare workers that are started for every epoch with persistent ones, over very short epochs.

    Args:
        budget: For the pairs.
        workers: How many.
    """
    if not budget.process_s:
        return Start(None, workers)
    storage = samples.SlowStorage(2 * workers, 0.0)
    loaders = {
        key: DataLoader(storage, batch_size=None, num_workers=workers, persistent_workers=bool(key)) for key in (0, 1)
    }
    with closing(loaders):
        found = measure.compare(
            exhaust(loaders[0]), exhaust(loaders[1]), budget_s=budget.pair_s, labels=("new workers", "persistent"),
            min_sample_s=1e-3,
        )  # fmt: skip
    return Start(found, workers)
