"""Is it the loader or the model? The stall fraction, and what workers do about it."""

from __future__ import annotations

import gc
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

    def idle_share(self) -> float:
        """Share of the core time that nobody uses without workers, on paper: one core loads, then the step runs."""
        plan = self.plan
        busy_s = plan.load_s + plan.step_s * min(plan.step_threads, plan.cores)
        return 1 - busy_s / (plan.cores * (plan.load_s + plan.step_s))

    @property
    def best(self) -> rounds.RoundPoint:
        """The point with the highest speed."""
        return max(self.points, key=lambda point: point.ratio)

    def sentence(self) -> str:
        """What this run showed."""
        last, best = self.points[-1], self.best
        if last is self.points[0]:
            return "Measured with no worker only: the smoke budget starts no processes."
        speeds = ", ".join(f"{self.images_per_s(point.key):,.0f}" for point in self.points)
        counts = ", ".join(str(point.key) for point in self.points)
        start = f"{counts} workers: {speeds} images/s."
        if best.key == 0 or best.interval[0] <= 1:
            slower = "; with every number it is even slower" if self._is_always_slower() else ""
            return f"{start} No number of workers is clearly faster than none{slower}. {self._why_not_faster()}"
        gain = f"{start} The best is {best.key} with **{best.ratio:.2f} times** the speed of none"
        if best is last and last.ratio > 0.8 * last.key:
            return f"{gain}. There are cores enough here: the belief survives up to {last.key} workers."
        return (
            f"{gain}, and {last.key} give {last.ratio:.2f}: beyond what the {self.plan.cores} cores can hold, "
            "another worker only takes turns with the others and with the model."
        )

    def _why_not_faster(self) -> str:
        idle, promise = self.idle_share(), max(self.predicted_ratios().values())
        if promise < 1.05:
            return f"Nor could one be: on paper they make training {promise:.2f} times as fast at most."
        return (
            "Not for want of cores alone: without workers one process loads and trains in turn, which leaves "
            f"{idle:.0%} of the core time idle, and on paper they could make training up to {promise:.2f} times as "
            "fast. Where did that go? The next cells ask."
        )

    def _is_always_slower(self) -> bool:
        return len(self.points) > 1 and all(point.interval[1] < 1 for point in self.points[1:])

    def comparison(self) -> str:
        """What is possible on paper and what was measured as a Markdown table, with what binds each pipeline."""
        lines = [
            "| workers | at most, on paper: images/s | measured | share reached | the model waits | bound by |",
            "|---|---|---|---|---|---|",
        ]
        for workers, told in self.predicted().items():
            found, binding = self.images_per_s(workers), timelines.bottleneck(self.plan.changed(workers=workers))
            waits = self.stall_fractions[workers]
            lines.append(f"| {workers} | {told:,.0f} | {found:,.0f} | {found / told:.0%} | {waits:.0%} | {binding} |")
        return "\n".join(lines)

    def reading(self) -> str:
        """How much of what is possible on paper was reached, and whether at least the direction was right."""
        reached = {workers: self.images_per_s(workers) / told for workers, told in self.predicted().items()}
        least, most = (choose(reached, key=lambda workers: reached[workers]) for choose in (min, max))
        if reached[least] > 0.9 and reached[most] < 1.1:
            return "Each of them is within a tenth of what is possible on paper."
        if reached[least] > 0.9:
            return (
                f"With {_counted(most)} it is {reached[most] - 1:.0%} faster than what is possible on paper. The two "
                "halves were probably measured in a slower moment of this machine."
            )
        return (
            f"Least is reached with {_counted(least)}: {reached[least]:.0%} of what is possible on paper."
            f"{self._wrong_direction()} So read the formula as *at most*: it is true of processes that cost each other "
            "nothing. What they do cost was not taken apart here. Candidates are passing batches between them, cold "
            "caches, and threads that wait for one that has been put aside."
        )

    def _wrong_direction(self) -> str:
        told = self.predicted_ratios()
        wrong = [point for point in self.points[1:] if told[point.key] > 1.05 and point.interval[1] < 1]
        if not wrong:
            return ""
        counts = ", ".join(str(point.key) for point in wrong)
        return (
            f" With {counts} workers not even the direction is right: on paper training gets up to "
            f"{max(told[point.key] for point in wrong):.2f} times as fast, and in truth it gets slower "
            f"({max(point.ratio for point in wrong):.2f} times at best)."
        )


def _counted(workers: int) -> str:
    return "no worker" if workers == 0 else "1 worker" if workers == 1 else f"{workers} workers"


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
