"""Is it the loader or the model? The stall fraction, and what workers do about it."""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from accelerando import measure, rounds, stats, timelines, training
from accelerando.lessons import Budget
from accelerando.lessons.pipelines import samples
from accelerando.lessons.pipelines.epochs import (
    BATCH,
    PER_SAMPLE,
    WHOLE_BATCH,
    batches_of,
    data_of,
    exhaust,
    per_batch,
    repeat,
    unwarned,
)


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
    step = training.stepper(PER_SAMPLE, data_of(budget), phases=timer.phase)
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
            slower = "; with every number it is even slower" if self._is_always_slower() else ""
            return (
                f"{start} No number of workers is clearly faster than none{slower}: the cores are busy already, and "
                f"{self.plan.cores} of them cannot do more because more processes ask."
            )
        gain = f"{start} The best is {best.key} with **{best.ratio:.2f} times** the speed of none"
        if best is last and last.ratio > 0.8 * last.key:
            return f"{gain}. There are cores enough here: the belief survives up to {last.key} workers."
        return (
            f"{gain}, and {last.key} give {last.ratio:.2f}: beyond what the {self.plan.cores} cores can hold, "
            "another worker only takes turns with the others and with the model."
        )

    def _is_always_slower(self) -> bool:
        return len(self.points) > 1 and all(point.interval[1] < 1 for point in self.points[1:])

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
            f"The prediction is furthest off with {worst} worker{'' if worst == 1 else 's'}: reality is {off:.0%} "
            f"{way}. The simulator knows nothing of what processes cost each other: "
            "passing batches between them, cold caches, threads that wait for one that has been put aside."
        )


def measure_workers(budget: Budget, cores: int, counts: Sequence[int] = (0, 1, 2, 4)) -> WorkerSweep:
    """Train with several numbers of workers, in turns, an epoch at a time.

    Args:
        budget: How many rounds and batches.
        cores: ``Machine.usable_cores``.
        counts: Numbers of workers, beginning with 0. The smoke budget starts no process and stays with 0.
    """
    counts = counts if budget.process_s else counts[:1]
    data, batches = data_of(budget), batches_of(budget)
    waits: dict[int, list[float]] = {count: [] for count in counts}
    epochs = {}
    try:
        with unwarned():
            for count in counts:
                recipe = PER_SAMPLE.changed(num_workers=count, persistent_workers=count > 0)
                timer = training.PhaseTimer()
                step = training.stepper(recipe, data, phases=timer.phase)
                epochs[count] = _watched(step, batches, timer, waits[count])
                del step  # ends its workers with the last reference to it
            found = rounds.measure_rounds(epochs, budget.rounds, sample_s=1e-6)
    finally:
        epochs.clear()
        gc.collect()  # ends the workers
    points = tuple(per_batch(point, batches) for point in found)
    stalls = {count: float(np.median(fractions)) for count, fractions in waits.items()}
    load_s, step_s = measure_halves(budget)
    threads = min(cores, torch.get_num_threads())
    return WorkerSweep(points, stalls, timelines.Plan(load_s, step_s, cores=cores, step_threads=threads), BATCH)


def measure_halves(budget: Budget) -> tuple[float, float]:
    """Seconds per batch of the loader alone and of the model alone, neither disturbed by the other."""
    data, batches = data_of(budget), batches_of(budget)
    loader = samples.make_loader("PIL, one image", data.train, BATCH)
    step = training.stepper(WHOLE_BATCH.changed(augmentation="none"), data)
    load, model = rounds.measure_rounds({0: exhaust(loader), 1: repeat(step, batches)}, budget.rounds, sample_s=1e-6)
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


@dataclass(frozen=True)
class Sharing:
    """One worker beside a model that uses every core, and beside one that leaves it a core.

    Args:
        points: Keys are the model's threads: 0 stands for all of them without a worker, then all and one less, each
            with one worker.
        cores: That there are.
    """

    points: tuple[rounds.RoundPoint, ...]
    cores: int

    def sentence(self) -> str:
        """What this run showed."""
        if len(self.points) < 3:
            return "Not measured: it takes a worker and two cores, and the smoke budget starts no processes."
        _, crowded, polite = self.points
        start = (
            f"Against no worker at all, one worker beside a model on {crowded.key} threads gives {crowded.ratio:.2f} "
            "times the "
            f"speed, and beside a model on {polite.key} it gives **{polite.ratio:.2f} times**."
        )
        if polite.interval[0] > crowded.ratio:
            return (
                f"{start} The threads of a step wait for each other at the end of every operator, so a step that "
                "loses one core to a "
                "worker is held up as a whole. Leave the worker its own core."
            )
        return f"{start} Here the model needs its threads more than the worker needs a core of its own."


def measure_sharing(budget: Budget, cores: int) -> Sharing:
    """Train without a worker, with one beside a model on all cores, and with one beside a model on one core less.

    Args:
        budget: How many rounds.
        cores: ``Machine.usable_cores``.
    """
    if not budget.process_s or cores < 2:
        return Sharing((), cores)
    data, batches = data_of(budget), batches_of(budget)
    one = PER_SAMPLE.changed(num_workers=1, persistent_workers=True)
    recipes = {0: PER_SAMPLE, cores: one.changed(threads=cores), cores - 1: one.changed(threads=cores - 1)}
    epochs = {key: repeat(training.stepper(recipe, data), batches) for key, recipe in recipes.items()}
    try:
        found = rounds.measure_rounds(epochs, budget.rounds, sample_s=1e-6)
    finally:
        epochs.clear()
        gc.collect()
    return Sharing(tuple(per_batch(point, batches) for point in found), cores)
