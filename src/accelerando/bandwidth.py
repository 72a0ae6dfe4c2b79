"""How fast memory is: the triad ``a = b + s * c`` over arrays of any size, on any number of threads.

Lessons 1 and 3 use it. A triad hardly computes, so its speed is that of the place where its arrays live: a
cache if they fit into one, memory if not.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from accelerando import measure, seeds

FLOAT_BYTES = 4


def triad(total_bytes: int, threads: int | None = None) -> Callable[[], None]:
    """Make a function that runs one triad over three float32 arrays of together ``total_bytes``.

    Args:
        total_bytes: At least 12; rounded down to whole elements.
        threads: torch's threads while it runs; None leaves them as they are.
    """
    import torch

    if total_bytes < 3 * FLOAT_BYTES:
        raise ValueError(f"total_bytes is {total_bytes}: three arrays of one float each need {3 * FLOAT_BYTES}")
    count = total_bytes // (3 * FLOAT_BYTES)
    generator = seeds.generator(0)
    b, c = torch.rand(count, generator=generator), torch.rand(count, generator=generator)
    a = torch.zeros(count)

    def run() -> None:
        before = torch.get_num_threads()
        if threads is not None:
            torch.set_num_threads(threads)
        torch.add(b, c, alpha=3.0, out=a)
        torch.set_num_threads(before)

    return run


def measure_triad(total_bytes: int, threads: int | None = None, *, budget_s: float = 0.3) -> float:
    """Measure the bandwidth of the triad.

    Two arrays are read and one is written. Most processors also read a line of memory before they write into it; those
    bytes are not counted, as is the custom.

    Args:
        total_bytes: As for `triad`. For memory rather than a cache: several times the largest cache.
        threads: As for `triad`.
        budget_s: Seconds to measure.

    Returns:
        Bytes per second at the median of the samples.

    Source:
        McCalpin (1995), Memory bandwidth and machine balance in current high performance computers (STREAM).
    """
    taken = measure.measure(triad(total_bytes, threads), label="triad", budget_s=budget_s, min_sample_s=0.005)
    return (total_bytes // (3 * FLOAT_BYTES)) * 3 * FLOAT_BYTES / taken.median_s


def beyond_caches_bytes(caches: dict[str, Any], memory_bytes: int | None) -> int:
    """Choose arrays that no cache holds: four times the largest level.

    Never less than 96 MiB, and never more than 768 MiB or an eighth of the memory.

    Args:
        caches: ``Machine.caches``; empty when unknown.
        memory_bytes: ``Machine.memory_bytes``; None when unknown.
    """
    largest = max((cache.each_bytes * cache.instances for cache in caches.values()), default=0)
    wanted = min(max(4 * largest, 96 * 2**20), 768 * 2**20)
    return wanted if memory_bytes is None else min(wanted, memory_bytes // 8)


def ladder(total_bytes: int, start_bytes: int = 12 * 2**10, factor: float = 2.0) -> Sequence[int]:
    """Sizes from ``start_bytes`` up to ``total_bytes``, each ``factor`` times the last."""
    if start_bytes < 3 * FLOAT_BYTES or factor <= 1:
        raise ValueError(f"start_bytes is {start_bytes} and factor {factor}: give at least 12 bytes and more than 1")
    sizes, size = [], float(start_bytes)
    while size <= total_bytes:
        sizes.append(int(size))
        size *= factor
    return sizes


@dataclass(frozen=True)
class Ladder:
    """Bandwidth of the triad over the size of its arrays, on one thread."""

    sizes_bytes: tuple[int, ...]
    bytes_per_s: tuple[float, ...]
    caches: dict[str, int]  # name -> bytes of one

    def sentence(self) -> str:
        """What this run showed."""
        top, floor = max(self.bytes_per_s), self.bytes_per_s[-1]
        if top < 1.3 * floor:
            return f"The bandwidth hardly changes ({floor / 1e9:.0f} GB/s): here, caches show little in a triad."
        size = self.sizes_bytes[self.bytes_per_s.index(top)]
        return (
            f"Arrays of {size / 2**20:.1f} MiB are read and written at {top / 1e9:.0f} GB/s, arrays that no cache "
            f"holds at {floor / 1e9:.0f} GB/s: one core gets {top / floor:.1f} times the bytes when a cache has them."
        )


def measure_ladder(sizes_bytes: Sequence[int], caches: dict[str, Any], *, budget_s: float = 0.15) -> Ladder:
    """Measure the triad on one thread, from arrays that fit into a cache to arrays that fit into none.

    Below about 100 KiB a triad is over sooner than torch has found out what to do: the smallest caches do not show.

    Args:
        sizes_bytes: As `ladder` gives them.
        caches: ``Machine.caches``.
        budget_s: Seconds for each size.
    """
    speeds = [measure_triad(size, 1, budget_s=budget_s) for size in sizes_bytes]
    sizes = {name: cache.each_bytes for name, cache in caches.items() if name != "L1i"}
    return Ladder(tuple(sizes_bytes), tuple(speeds), sizes)
