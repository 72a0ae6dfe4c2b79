"""What twice the cores bring: a step, and three kinds of work, on more and more threads."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from accelerando import bandwidth, costs, machine, noise, rounds, training
from accelerando.lessons import Budget
from accelerando.lessons.scaling import disturbance
from accelerando.lessons.scaling.subject import STEP_RECIPE, images


@dataclass(frozen=True)
class SpeedupCurve:
    """Speed-ups measured for several numbers of threads.

    Args:
        label: What was run.
        points: The first one is for 1 thread.
        usable_cores: More threads than this share cores.
        is_scaled: The work grew with the threads (Gustafson); else it stayed the same (Amdahl).
        causes: What is known to have disturbed the machine meanwhile, each in a few words.
    """

    label: str
    points: tuple[rounds.RoundPoint, ...]
    usable_cores: int
    is_scaled: bool = False
    causes: tuple[str, ...] = ()

    @property
    def serial_fraction(self) -> float:
        """Amdahl's serial fraction that fits the points up to one thread per core; NaN with one core only."""
        times = {point.key: 1 / point.ratio for point in self.points if point.key <= self.usable_cores}
        return costs.fit_serial_fraction(times) if len(times) > 1 else math.nan

    @property
    def last(self) -> rounds.RoundPoint:
        """The point with one thread per usable core, or the nearest below."""
        return max((point for point in self.points if point.key <= self.usable_cores), key=lambda point: point.key)

    @property
    def is_disturbed(self) -> bool:
        """Whether a point up to one thread per core is known too badly, or more threads on free cores were slower."""
        points = [point for point in self.points if point.key <= self.usable_cores]
        return self.last.ratio < 0.95 or any(disturbance.is_wide(point.interval) for point in points)

    def sentence(self) -> str:
        """What this run showed."""
        last = self.last
        if last.key == 1:
            return "There is one usable core here: nothing can be divided, and the curve has one point."
        low, high = last.interval
        spread = "" if high == math.inf else f" (95 % interval {low:.2f} to {high:.2f})"
        start = f"{self.label}: {last.key} threads gave **{last.ratio:.2f} times** the speed{spread}"
        if self.is_disturbed:
            again = " If they are slower again: is each one's piece of work very small?" if last.ratio < 1 else ""
            return f"{start}. {disturbance.advice(self.causes)}{again}"
        return f"{start}{self._conclusion()}{disturbance.note(self.causes)}"

    def _conclusion(self) -> str:
        last, serial = self.last, self.serial_fraction
        if last.interval[0] <= 1:
            return ": that they helped at all cannot be told."
        if self.is_scaled:
            return ", with the work grown in the same measure."
        if last.ratio > 0.95 * last.key:
            return ". That is all there was to gain: here the belief survives, up to the cores there are."
        ceiling = f"{1 / serial:.1f}" if serial > 0.001 else "no visible limit"
        return (
            f", not {last.key}. To Amdahl's law that looks like a serial share of {serial:.0%}, and the most that any "
            f"number of cores could give: {ceiling}."
        )


def thread_counts(usable_cores: int) -> tuple[int, ...]:
    """Numbers of threads worth trying: 1, 2, 4 … up to the cores, and twice the cores to see what too many do."""
    doubled = [2**power for power in range(12) if 2**power < usable_cores]
    return (*doubled, usable_cores, 2 * usable_cores)


def measure_threads(
    budget: Budget, usable_cores: int, *, batch_size: int = 64, is_scaled: bool = False
) -> SpeedupCurve:
    """Measure a training step on more and more threads.

    Args:
        budget: How many rounds.
        usable_cores: ``Machine.usable_cores``.
        batch_size: Images per step, on one thread.
        is_scaled: Let the batch grow with the threads, and count work per second.
    """
    data = images(budget)
    steps = {}
    for threads in thread_counts(usable_cores):
        size = batch_size * threads if is_scaled else batch_size
        steps[threads] = training.stepper(STEP_RECIPE.changed(batch_size=min(size, 1024)), data)
    sample_s = 0.15 if budget.rounds > 1 else 0.01
    with noise.watch() as watched:
        points = rounds.measure_rounds(steps, 2 * budget.rounds, sample_s=sample_s, around=_threads)
    label = f"A training step ({batch_size} images{' per thread' if is_scaled else ''})"
    if is_scaled:
        points = tuple(_scaled(point, min(batch_size * point.key, 1024) / batch_size) for point in points)
    return SpeedupCurve(label, points, usable_cores, is_scaled, watched.state.disturbances)


def _scaled(point: rounds.RoundPoint, work: float) -> rounds.RoundPoint:
    low, high = point.interval
    return rounds.RoundPoint(point.key, point.median_s, point.ratio * work, (low * work, high * work), point.samples_s)


def measure_kernels(budget: Budget, here: machine.Machine) -> tuple[SpeedupCurve, ...]:
    """Measure three kinds of work on one thread and on all cores: arithmetic, memory, and very small pieces."""
    import torch

    generator = torch.Generator().manual_seed(0)
    square, tiny = torch.rand(512, 512, generator=generator), torch.rand(256, generator=generator)
    out = torch.empty_like(square)

    def multiply() -> None:
        torch.mm(square, square, out=out)

    def many_small() -> None:
        for _ in range(50):
            tiny.add(1.0)

    large = bandwidth.beyond_caches_bytes(here.caches, here.memory_bytes)
    if budget.name == "smoke":
        large = 2**22
    kinds: dict[str, Callable[[], object]] = {
        "Arithmetic (a matrix product)": multiply,
        "Memory (triad)": bandwidth.triad(large),
        "Small pieces (256 numbers at a time)": many_small,
    }
    counts = (1, here.usable_cores) if here.usable_cores > 1 else (1,)
    return tuple(
        SpeedupCurve(
            label,
            rounds.measure_rounds(dict.fromkeys(counts, run), budget.rounds, sample_s=0.05, around=_threads),
            here.usable_cores,
        )
        for label, run in kinds.items()
    )


@contextmanager
def _threads(count: int) -> Iterator[None]:
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
