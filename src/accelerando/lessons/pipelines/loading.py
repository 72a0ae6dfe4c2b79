"""Is it the loader or the model? Stalls, workers, three ways to transform, and what waiting changes."""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader

from accelerando import datasets, measure, rounds, stats, timelines, training
from accelerando.lessons import Budget
from accelerando.lessons.pipelines import samples
from accelerando.lessons.pipelines.samples import WAYS
from accelerando.recipes import Recipe

BATCH = 64
PER_SAMPLE = Recipe(
    batch_size=BATCH, learning_rate=0.01, schedule="constant", test_images=10, loader="per_sample",
    augmentation="crop_flip", drop_last=True,
)  # fmt: skip
WHOLE_BATCH = PER_SAMPLE.changed(loader="resident")


def _batches(budget: Budget) -> int:
    return 2 if budget.name == "smoke" else 24


def _data(budget: Budget) -> datasets.Dataset:
    train = samples.fashion(BATCH * _batches(budget))
    return datasets.Dataset(train, train.subset(range(10)), "embedded", datasets.FASHION_CLASSES)


@dataclass(frozen=True)
class Stall:
    """How long the model waits for its data.

    Args:
        wait_s: Seconds per step in which the training process has no batch; median.
        wait_interval_s: 95 % interval for it.
        step_s: Seconds per step of everything else; median.
        batch_size: Images per step.
        steps: That were timed.
    """

    wait_s: float
    wait_interval_s: tuple[float, float]
    step_s: float
    batch_size: int
    steps: int

    @property
    def fraction(self) -> float:
        """The stall fraction: waiting, as a share of the time."""
        return self.wait_s / (self.wait_s + self.step_s)

    @property
    def ceiling(self) -> float:
        """How many times as fast training would be with a loader that costs nothing."""
        return 1 / (1 - self.fraction)

    def sentence(self) -> str:
        """What this run showed."""
        verdict = (
            "The loader is the larger part: start there."
            if self.fraction > 0.5
            else "The loader is worth a look, and the model is the larger part."
            if self.fraction > 0.1
            else "The loader hardly matters here: look at the model."
        )
        return (
            f"Of {measure.duration(self.wait_s + self.step_s)} per step of {self.batch_size} images the model waits "
            f"{measure.duration(self.wait_s)} for data: a **stall fraction of {self.fraction:.0%}**. A loader that "
            "costs "
            f"nothing could make training {self.ceiling:.2f} times as fast, and nothing that is done to the loader "
            f"can give more. {verdict}"
        )


def measure_stall(budget: Budget) -> Stall:
    """Measure the stall fraction of a training run that loads image by image in its own process."""
    timer = training.PhaseTimer()
    step = training.stepper(PER_SAMPLE, _data(budget), phases=timer.phase)
    for _ in range(2):
        step()
    waits, rests = [], []
    for _ in range(10 * budget.rounds):
        before = dict(timer.seconds)
        step()
        taken = {part: timer.seconds[part] - before[part] for part in timer.seconds}
        waits.append(taken.pop("data"))
        rests.append(sum(taken.values()))
    median, low, high = stats.median_interval(waits)
    return Stall(median, (low, high), float(np.median(rests)), BATCH, len(waits))


# -- more workers -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class WorkerSweep:
    """Training speed over the number of workers.

    Args:
        points: Per number of workers; the first one has none.
        stall_fractions: Workers -> share of the time in which the model waited; median over epochs.
        plan: The pipeline without workers, with the seconds that were measured for each half on its own.
        batch_size: Images per step.
    """

    points: tuple[rounds.RoundPoint, ...]
    stall_fractions: Mapping[int, float]
    plan: timelines.Plan
    batch_size: int

    def images_per_s(self, workers: int) -> float:
        """Measured speed with so many workers."""
        point = next(point for point in self.points if point.key == workers)
        return self.batch_size / point.median_s

    def predicted(self) -> dict[int, float]:
        """Workers -> images per second, as the simulator expects them."""
        return {
            point.key: timelines.predict_images_per_s(self.plan.changed(workers=point.key), self.batch_size)
            for point in self.points
        }

    def predicted_ratios(self) -> dict[int, float]:
        """Workers -> times as fast as without, as the simulator expects it."""
        told = self.predicted()
        return {count: speed / told[0] for count, speed in told.items()}

    @property
    def best(self) -> rounds.RoundPoint:
        """The point with the highest speed."""
        return max(self.points, key=lambda point: point.ratio)

    def sentence(self) -> str:
        """What this run showed."""
        last, best = self.points[-1], self.best
        speeds = ", ".join(f"{self.images_per_s(point.key):,.0f}" for point in self.points)
        counts = ", ".join(str(point.key) for point in self.points)
        start = f"{counts} workers: {speeds} images/s."
        if best.key == 0 or best.interval[0] <= 1:
            return (
                f"{start} No number of workers is clearly faster than none: the cores are busy already, and "
                f"{self.plan.cores} of them cannot do more because more processes ask."
            )
        gain = f"{start} The best is {best.key} with **{best.ratio:.2f} times** the speed of none"
        if best is last and last.ratio > 0.8 * last.key:
            return f"{gain}. There are cores enough here: the belief survives up to {last.key} workers."
        return (
            f"{gain}, and {last.key} give {last.ratio:.2f}: beyond what the {self.plan.cores} cores can hold, "
            "another worker only takes turns with the others and with the model."
        )

    def comparison(self) -> str:
        """Prediction and measurement as a Markdown table, with what binds each pipeline."""
        lines = [
            "| workers | predicted images/s | measured | measured / predicted | the model waits | bound by |",
            "|---|---|---|---|---|---|",
        ]
        for workers, told in self.predicted().items():
            found, binding = self.images_per_s(workers), timelines.bottleneck(self.plan.changed(workers=workers))
            waits = self.stall_fractions[workers]
            lines.append(f"| {workers} | {told:,.0f} | {found:,.0f} | {found / told:.2f} | {waits:.0%} | {binding} |")
        return "\n".join(lines)

    def reading(self) -> str:
        """How far the prediction was off, and which way."""
        ratios = {workers: self.images_per_s(workers) / told for workers, told in self.predicted().items()}
        worst = max(ratios, key=lambda workers: abs(math.log(ratios[workers])))
        off = abs(ratios[worst] - 1)
        if off < 0.1:
            return "Every prediction is within a tenth of what was measured."
        way = "slower" if ratios[worst] < 1 else "faster"
        return (
            f"The prediction is furthest off with {worst} workers: reality is {off:.0%} {way}. The simulator knows "
            "nothing of "
            "what processes cost each other: passing batches between them, cold caches, threads that wait for one "
            "that has been put aside."
        )


def measure_workers(budget: Budget, cores: int, counts: Sequence[int] = (0, 1, 2, 4)) -> WorkerSweep:
    """Train with several numbers of workers, in turns, an epoch at a time.

    Args:
        budget: How many rounds and batches.
        cores: ``Machine.usable_cores``.
        counts: Numbers of workers, beginning with 0. The smoke budget starts no process and stays with 0.
    """
    counts = counts if budget.process_s else counts[:1]
    data, batches = _data(budget), _batches(budget)
    waits: dict[int, list[float]] = {count: [] for count in counts}
    epochs = {}
    for count in counts:
        recipe, timer = PER_SAMPLE.changed(num_workers=count, persistent_workers=count > 0), training.PhaseTimer()
        epochs[count] = _watched(training.stepper(recipe, data, phases=timer.phase), batches, timer, waits[count])
    try:
        found = rounds.measure_rounds(epochs, budget.rounds, sample_s=1e-6)
    finally:
        epochs.clear()
        gc.collect()  # ends the workers
    points = tuple(_per_batch(point, batches) for point in found)
    stalls = {count: float(np.median(fractions)) for count, fractions in waits.items()}
    load_s, step_s = measure_halves(budget)
    threads = min(cores, torch.get_num_threads())
    return WorkerSweep(points, stalls, timelines.Plan(load_s, step_s, cores=cores, step_threads=threads), BATCH)


def measure_halves(budget: Budget) -> tuple[float, float]:
    """Seconds per batch of the loader alone and of the model alone, neither disturbed by the other."""
    data, batches = _data(budget), _batches(budget)
    loader = samples.make_loader("PIL, one image", data.train, BATCH)
    step = training.stepper(WHOLE_BATCH.changed(augmentation="none"), data)
    load, model = rounds.measure_rounds({0: _exhaust(loader), 1: _repeat(step, batches)}, budget.rounds, sample_s=1e-6)
    return load.median_s / batches, model.median_s / batches


def _watched(
    step: Callable[[], object], batches: int, timer: training.PhaseTimer, fractions: list[float]
) -> Callable[[], None]:
    """An epoch that adds the share of its time in which the model waited to ``fractions``."""

    def run() -> None:
        before = dict(timer.seconds)
        for _ in range(batches):
            step()
        taken = {part: timer.seconds[part] - before[part] for part in before}
        fractions.append(taken["data"] / sum(taken.values()))

    return run


def _repeat(step: Callable[[], object], times: int) -> Callable[[], None]:
    def run() -> None:
        for _ in range(times):
            step()

    return run


def _exhaust(loader: DataLoader[Any]) -> Callable[[], None]:
    def run() -> None:
        for _ in loader:
            pass

    return run


def _per_batch(point: rounds.RoundPoint, batches: int) -> rounds.RoundPoint:
    each = tuple(seconds / batches for seconds in point.samples_s)
    return rounds.RoundPoint(point.key, point.median_s / batches, point.ratio, point.interval, each)


# -- one call for a whole batch ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Transforms:
    """Three ways to make the same tensors.

    Args:
        points: Keys 0, 1, 2 are `samples.WAYS`.
        images: Per call.
    """

    points: tuple[rounds.RoundPoint, ...]
    images: int

    def images_per_s(self) -> dict[str, float]:
        """Way -> images per second of the loader alone."""
        return {way: self.images / point.median_s for way, point in zip(WAYS, self.points, strict=True)}

    def sentence(self) -> str:
        """What this run showed."""
        speeds = self.images_per_s()
        told = ", ".join(f"*{way}* {speed:,.0f}" for way, speed in speeds.items())
        tensor, whole = self.points[1:]
        swap = "faster" if tensor.interval[0] > 1 else "no faster" if tensor.ratio > 0.95 else "slower"
        return (
            f"Images per second of the loader alone, in one process: {told}. Leaving PIL for tensors, one image at a "
            f"time, is {swap} ({tensor.ratio:.2f} times). Handling the batch in one go is **{whole.ratio:.0f} times** "
            "as fast."
        )


def measure_transforms(budget: Budget) -> Transforms:
    """Measure three loaders that crop, mirror and scale, without a model."""
    images = _data(budget).train
    loaders = {key: _exhaust(samples.make_loader(way, images, BATCH)) for key, way in enumerate(WAYS)}
    sample_s = 0.1 if budget.rounds > 1 else 1e-6
    return Transforms(rounds.measure_rounds(loaders, budget.rounds, sample_s=sample_s), len(images))


@dataclass(frozen=True)
class Cure:
    """Training with the batch transformed in one go, against the best that workers could do.

    Args:
        comparison: Baseline: image by image with ``workers``; candidate: whole batches, no worker.
        workers: Of the baseline.
    """

    comparison: measure.Comparison
    workers: int

    def sentence(self) -> str:
        """What this run showed."""
        found = self.comparison
        if not found.pairs:
            return f"Nothing was measured: {found.reason}."
        named = "no worker" if not self.workers else f"{self.workers} worker(s), the best number above,"
        low, high = found.interval
        spread = f" ({low:.2f} to {high:.2f})" if high < math.inf else ""
        verdict = {
            "faster": "",
            "not faster": " Here the loader was no longer what training waited for.",
            "undecided": " That is too close to call in this time.",
        }[found.verdict]
        return (
            f"Whole batches in the training process itself, against image by image with {named}: training is "
            f"**{found.ratio:.2f} times** as fast{spread}.{verdict}"
        )


def measure_cure(budget: Budget, workers: int) -> Cure:
    """Train with whole batches, and image by image with ``workers``, in turns.

    Args:
        budget: For the pairs.
        workers: The number that was best before.
    """
    data, batches = _data(budget), _batches(budget)
    slow = training.stepper(PER_SAMPLE.changed(num_workers=workers, persistent_workers=workers > 0), data)
    fast = training.stepper(WHOLE_BATCH, data)
    sides = [_repeat(slow, batches), _repeat(fast, batches)]
    try:
        # The shortest sample is below one epoch of either side, so that each sample is exactly one: a worker that
        # had batches ready from the turn before would get them for nothing.
        found = measure.compare(
            sides[0], sides[1], budget_s=2 * budget.pair_s, labels=("image by image", "whole batches"),
            min_sample_s=1e-4, warmup_calls=0,
        )  # fmt: skip
    finally:
        del slow
        sides.clear()
        gc.collect()
    return Cure(found, workers)


# -- waiting is not work ----------------------------------------------------------------------------------------------


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
        more = "as many workers as you like, however few the cores" if last.ratio > self.cores else "less than hoped"
        return (
            f"Each batch is {measure.duration(self.read_s)} of waiting for a storage that is far away. Against no "
            "worker: "
            f"{told}. {self.cores} cores carry {last.key} workers that wait: here the rule is *{more}*."
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
    loaders = {
        count: DataLoader(storage, batch_size=None, num_workers=count, persistent_workers=count > 0) for count in counts
    }
    with _closing(loaders):
        subjects = {count: _exhaust(loader) for count, loader in loaders.items()}
        found = rounds.measure_rounds(subjects, min(budget.rounds, 6), sample_s=1e-6)
        subjects.clear()
    return Waiting(tuple(_per_batch(point, batches) for point in found), read_s, cores)


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
    with _closing(loaders):
        subjects = {count: _sleepy(loader, plan.step_s) for count, loader in loaders.items()}
        found = rounds.measure_rounds(subjects, min(budget.rounds, 5), sample_s=1e-6)
        subjects.clear()
    return Bursts(tuple(_per_batch(point, batches) for point in found), plan)


def _sleepy(loader: DataLoader[Any], step_s: float) -> Callable[[], None]:
    """A model that needs no core: it waits, as a program waits for its GPU."""

    def run() -> None:
        for _ in loader:
            time.sleep(step_s)

    return run


# -- starting workers -------------------------------------------------------------------------------------------------


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
    with _closing(loaders):
        found = measure.compare(
            _exhaust(loaders[0]), _exhaust(loaders[1]), budget_s=budget.pair_s, labels=("new workers", "persistent"),
            min_sample_s=1e-3,
        )  # fmt: skip
    return Start(found, workers)


@contextmanager
def _closing(loaders: dict[int, DataLoader[Any]]) -> Iterator[None]:
    """End the workers of all loaders on leaving; torch does it when their iterators are collected."""
    try:
        yield
    finally:
        for loader in loaders.values():
            loader._iterator = None
        loaders.clear()
        gc.collect()
