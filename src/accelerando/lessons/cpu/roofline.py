"""The roofline: the most that a kernel can reach, from what it computes and what it moves."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from accelerando import bandwidth, costs, rounds, seeds
from accelerando.lessons import Budget

_NEAR = 0.6  # of the roof
_ABOVE = 1.3  # less may be the memory of a busy moment


@dataclass(frozen=True)
class Kernel:
    """Something to be timed, with what it does.

    Args:
        name: A few words.
        run: The kernel.
        flops: Floating-point operations of one call.
        moved_bytes: Bytes of one call when every array is read or written once.
    """

    name: str
    run: Callable[[], object]
    flops: float
    moved_bytes: float

    @property
    def flops_per_byte(self) -> float:
        """Arithmetic intensity."""
        return self.flops / self.moved_bytes


@dataclass(frozen=True)
class RoofPoint:
    """A kernel's place under the roof."""

    name: str
    flops_per_byte: float
    flops_per_s: float
    predicted_flops_per_s: float

    @property
    def share(self) -> float:
        """Of the roof, 1 is all."""
        return self.flops_per_s / self.predicted_flops_per_s


@dataclass(frozen=True)
class Roofline:
    """Two roofs, both measured here, and kernels under them.

    Args:
        peak_flops_per_s: Of the fastest kernel.
        bandwidth_bytes_per_s: Of the triad, in memory.
        points: The kernels, in the order given.
        threads: All of it was measured with.
        fastest: The kernel that made the flat roof.
    """

    peak_flops_per_s: float
    bandwidth_bytes_per_s: float
    points: tuple[RoofPoint, ...]
    threads: int
    fastest: str = ""

    @property
    def ridge_flops_per_byte(self) -> float:
        """Where the roofs meet: below it a kernel waits for bytes, above it for arithmetic."""
        return self.peak_flops_per_s / self.bandwidth_bytes_per_s

    @property
    def rows(self) -> list[tuple[str, float, float]]:
        """The kernels as a figure takes them: name, operations per byte, operations per second."""
        return [(point.name, point.flops_per_byte, point.flops_per_s) for point in self.points]

    def sentence(self) -> str:
        """What this run showed."""
        waiting = [point for point in self.points if point.flops_per_byte < self.ridge_flops_per_byte]
        above = [point.name for point in self.points if point.share > _ABOVE]
        far = [point for point in self.points if point.share < _NEAR]
        parts = [
            f"On {self.threads} thread(s) the fastest kernel, {self.fastest}, makes the flat roof: "
            f"{self.peak_flops_per_s / 1e9:.0f} GFLOP/s. The roofs meet at {self.ridge_flops_per_byte:.0f} operations "
            f"per byte: {len(waiting)} of these {len(self.points)} kernels lie left of it and should wait for memory."
        ]
        if above:
            parts.append(f"Above the roof: {', '.join(above)}. Their bytes come from a cache and not from memory.")
        if far:
            told = ", ".join(
                f"{point.name} ({point.share:.0%})" for point in sorted(far, key=lambda point: point.share)
            )
            parts.append(f"Far below it: {told}. Something else than these two roofs holds them back.")
        return " ".join(parts)

    def table(self) -> str:
        """Prediction beside measurement, as a Markdown table."""
        columns = ("kernel", "operations per byte", "on paper it waits for", "roof, GFLOP/s", "measured", "share")
        head = f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}"
        rows = [
            f"| {point.name} | {point.flops_per_byte:.2g} | "
            f"{'memory' if point.flops_per_byte < self.ridge_flops_per_byte else 'arithmetic'} | "
            f"{point.predicted_flops_per_s / 1e9:.1f} | {point.flops_per_s / 1e9:.1f} | {point.share:.0%} |"
            for point in self.points
        ]
        return "\n".join([head, *rows])


def kernels(budget: Budget) -> tuple[Kernel, ...]:
    """Kernels that a network is made of, from those that hardly compute to those that hardly move."""
    import torch

    small = budget.name == "smoke"
    count, width, batch = (2**16, 256, 2) if small else (2**23, 4096, 16)
    draw = seeds.generator(0)
    a, b = torch.rand(count, generator=draw), torch.rand(count, generator=draw)
    out = torch.empty_like(a)
    matrix, vector = torch.rand(width, width, generator=draw), torch.rand(width, generator=draw)
    images = torch.rand(batch, 64, 56, 56, generator=draw).contiguous(memory_format=torch.channels_last)
    rows = torch.rand(batch * 256, 1024, generator=draw)
    pixels = images.numel() // 64
    filters = {name: torch.rand(*shape, generator=draw) for name, shape in _FILTERS.items()}
    return (
        Kernel("add", lambda: torch.add(a, b, out=out), count, 12 * count),
        Kernel("softmax of rows", lambda: torch.softmax(rows, 1), 5 * rows.numel(), 8 * rows.numel()),
        Kernel("matrix × vector", lambda: torch.mv(matrix, vector), 2 * width**2, 4 * width**2),
        Kernel(
            "convolution 3×3, each channel alone",
            lambda: torch.conv2d(images, filters["alone"], padding=1, groups=64),
            2 * 9 * 64 * pixels,
            2 * 4 * 64 * pixels,
        ),
        Kernel(
            "convolution 1×1, 64 channels",
            lambda: torch.conv2d(images, filters["1x1"]),
            2 * 64 * 64 * pixels,
            2 * 4 * 64 * pixels,
        ),
        Kernel(
            "convolution 3×3, 64 channels",
            lambda: torch.conv2d(images, filters["3x3"], padding=1),
            2 * 9 * 64 * 64 * pixels,
            2 * 4 * 64 * pixels,
        ),
        product(64, draw_seed=1),
        product(256 if small else 1024, draw_seed=2),
    )


_FILTERS = {"alone": (64, 1, 3, 3), "1x1": (64, 64, 1, 1), "3x3": (64, 64, 3, 3)}


def product(size: int, draw_seed: int = 0) -> Kernel:
    """A product of two square matrices."""
    import torch

    left = torch.rand(size, size, generator=seeds.generator(draw_seed))
    out = torch.empty_like(left)
    return Kernel(f"matrix product, {size}", lambda: torch.mm(left, left, out=out), 2 * size**3, 3 * 4 * size**2)


def measure_roofline(budget: Budget, own: Sequence[Kernel], total_bytes: int) -> Roofline:
    """Measure both roofs and place kernels under them, with the threads that torch has now.

    Args:
        budget: How many rounds.
        own: Kernels to be placed; the fastest one lifts the roof of arithmetic if it lies above it.
        total_bytes: Of the triad, see `bandwidth.beyond_caches_bytes`.
    """
    import torch

    size = total_bytes if budget.name != "smoke" else 2**20
    peak = product(256 if budget.name == "smoke" else 1536)
    with torch.no_grad():
        runs = [kernel.run for kernel in own]
        subjects = dict(enumerate([*runs, peak.run, bandwidth.triad(size)]))
        points = rounds.measure_rounds(subjects, min(budget.rounds, 7), sample_s=0.02)
    *own_s, peak_s, triad_s = (min(point.samples_s) for point in points)
    reached = [kernel.flops / seconds for kernel, seconds in zip(own, own_s, strict=True)]
    rates = {peak.name: peak.flops / peak_s}
    rates |= {kernel.name: rate for kernel, rate in zip(own, reached, strict=True) if math.isfinite(rate)}
    fastest = max(rates, key=rates.__getitem__)
    highest = rates[fastest]
    found = []
    for kernel, rate in zip(own, reached, strict=True):
        roof = costs.predict_roofline_flops_per_s(kernel.flops_per_byte, highest, size / triad_s)
        found.append(RoofPoint(kernel.name, kernel.flops_per_byte, rate, roof))
    return Roofline(highest, size / triad_s, tuple(found), torch.get_num_threads(), fastest)
