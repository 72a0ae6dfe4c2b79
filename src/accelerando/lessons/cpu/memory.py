"""Where numbers lie decides how fast they come: caches, and the memory that several threads share."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from accelerando import bandwidth, measure, rounds, seeds
from accelerando.lessons import Budget

if TYPE_CHECKING:
    from accelerando.machine import Cache

FLOAT_BYTES = 4
_FAR = 4.0  # times the largest cache: what lies nearer may still be answered by it in part
_LARGEST_BYTES = 2**30
_PASS_BYTES = 4 * 2**20  # what one call reads at least, so that starting it does not count


# -- the staircase ----------------------------------------------------------------------------------------------------


def reader(total_bytes: int) -> Callable[[], object]:
    """Make a function that reads one float32 array of ``total_bytes`` again and again, on one thread's instructions.

    All passes are one operator (a sum over an array that is repeated without a copy), so small arrays show their cache
    and not the cost of starting an operator.

    Args:
        total_bytes: At least 4.
    """
    import torch

    count = max(1, total_bytes // FLOAT_BYTES)
    numbers = torch.rand(count, generator=seeds.generator(0))
    repeated = numbers.expand(passes(total_bytes), count)
    return lambda: repeated.sum()


def passes(total_bytes: int) -> int:
    """How often one call of `reader` goes through its array."""
    return max(1, _PASS_BYTES // max(total_bytes, 1))


@dataclass(frozen=True)
class Staircase:
    """Bytes read per second over the size of the working set, one thread.

    Args:
        sizes_bytes: Rising.
        bytes_per_s: At each size.
        caches: Name -> bytes of one, smallest first; empty when unknown.
    """

    sizes_bytes: tuple[int, ...]
    bytes_per_s: tuple[float, ...]
    caches: Mapping[str, int]

    def steps(self) -> dict[str, float]:
        """Where the working set lies -> median bytes per second there; sizes near an edge count nowhere.

        Memory is what several times the largest cache shows, if the ladder goes so far.
        """
        found = {}
        lower = 0.0
        for name, size in (*self.caches.items(), ("memory", math.inf)):
            least = 1.5 * lower
            if name == "memory" and self.sizes_bytes[-1] > _FAR * lower:
                least = _FAR * lower
            inside = [
                speed
                for total, speed in zip(self.sizes_bytes, self.bytes_per_s, strict=True)
                if least < total <= 0.75 * size
            ]
            if inside:
                found[name] = sorted(inside)[len(inside) // 2]
            lower = size
        return found

    def at(self, total_bytes: float) -> float:
        """Bytes per second at the measured size that is nearest to ``total_bytes``."""
        distances = [abs(math.log(size / total_bytes)) for size in self.sizes_bytes]
        return self.bytes_per_s[distances.index(min(distances))]

    def sentence(self) -> str:
        """What this run showed."""
        found = self.steps()
        if len(found) < 2:
            return "The sizes of the caches are not known here: read the steps off the figure."
        listed = ", ".join(f"{name} {speed / 1e9:.0f} GB/s" for name, speed in found.items())
        top, bottom = max(found.values()), found[list(found)[-1]]
        flat = [
            f"{low} and {high}"
            for (low, fast), (high, slow) in zip(list(found.items())[:-1], list(found.items())[1:], strict=True)
            if fast < 1.15 * slow
        ]
        note = f" Between {' and between '.join(flat)} there is no step to be seen in this run." if flat else ""
        return f"One core reads: {listed}. From the nearest place it comes **{top / bottom:.0f} times** as fast.{note}"


def measure_staircase(budget: Budget, caches: Mapping[str, Cache], memory_bytes: int | None) -> Staircase:
    """Measure how fast one thread reads, from arrays that fit into the smallest cache to arrays that fit into none.

    The sizes are visited in random order, so that a slow moment of the machine does not look like a step.

    Args:
        budget: How long.
        caches: ``Machine.caches``.
        memory_bytes: ``Machine.memory_bytes``.
    """
    import torch

    top = beyond = bandwidth.beyond_caches_bytes(dict(caches), memory_bytes)
    if budget.name == "smoke":
        top = 2**20
    elif beyond < _LARGEST_BYTES:
        top = min(4 * beyond, _LARGEST_BYTES, (memory_bytes or 8 * beyond) // 8)
    sizes = bandwidth.ladder(top, 12 * 2**10, math.sqrt(2) if budget.name != "smoke" else 4.0)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        order = np.random.default_rng(0).permutation(len(sizes))
        speeds = {place: _read_bytes_per_s(sizes[place], budget.pair_s / 40) for place in order}
    finally:
        torch.set_num_threads(before)
    known = {name: cache.each_bytes for name, cache in caches.items() if name != "L1i"}
    return Staircase(
        tuple(sizes),
        tuple(speeds[place] for place in range(len(sizes))),
        dict(sorted(known.items(), key=lambda item: item[1])),
    )


def _read_bytes_per_s(size: int, budget_s: float) -> float:
    taken = measure.measure(reader(size), budget_s=budget_s, min_sample_s=0.002)
    return size // FLOAT_BYTES * FLOAT_BYTES * passes(size) / taken.median_s


# -- several threads, one memory --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TriadByThreads:
    """The triad over arrays that no cache holds, on more and more threads.

    Args:
        points: Keyed by threads; the first is 1.
        total_bytes: Of the three arrays.
    """

    points: tuple[rounds.RoundPoint, ...]
    total_bytes: int

    def bytes_per_s(self, threads: int) -> float:
        """Bandwidth on so many threads."""
        return self.total_bytes / next(point.median_s for point in self.points if point.key == threads)

    @property
    def best_bytes_per_s(self) -> float:
        """The highest bandwidth seen."""
        return max(self.total_bytes / point.median_s for point in self.points)

    def sentence(self) -> str:
        """What this run showed."""
        rates = ", ".join(f"{point.key}: {self.bytes_per_s(point.key) / 1e9:.0f} GB/s" for point in self.points)
        if len(self.points) == 1:
            return f"Triad on 1 thread: {rates}. There is one usable core here."
        last = self.points[-1]
        if last.ratio > 0.9 * last.key:
            end = f"{last.key} threads get {last.ratio:.1f} times the bytes of one: one cannot keep this memory busy."
        elif last.ratio > 1.15:
            end = f"{last.key} threads get only {last.ratio:.1f} times the bytes of one: they share the way to memory."
        else:
            end = f"{last.key} threads get no more than one ({last.ratio:.2f} times): one core keeps the memory busy."
        return f"Triad by threads: {rates}. {end}"


def measure_triad_by_threads(budget: Budget, thread_counts: Sequence[int], total_bytes: int) -> TriadByThreads:
    """Measure the triad on each number of threads, in turns.

    Args:
        budget: How many rounds.
        thread_counts: Rising, the first is 1.
        total_bytes: See `bandwidth.beyond_caches_bytes`.
    """
    size = total_bytes if budget.name != "smoke" else 2**20
    runs = {threads: bandwidth.triad(size, threads) for threads in thread_counts}
    return TriadByThreads(rounds.measure_rounds(runs, budget.rounds, sample_s=0.03), size)
