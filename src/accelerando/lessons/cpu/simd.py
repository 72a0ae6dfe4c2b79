"""The same kernels with the processor's wide instructions switched off: what SIMD is worth, and to whom."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from accelerando import bandwidth, seeds
from accelerando.lessons import Budget
from accelerando.lessons.cpu.onednn import name_kernels
from accelerando.lessons.cpu.turns import Reading, Turns, measure_in_turns, time_once
from accelerando.workers import Experiment

PREPARE = "accelerando.lessons.cpu.simd:prepare"
CONVOLUTION, GELU, MULTIPLY_ADD = "convolution", "GELU, in cache", "multiply-add, in cache"
TRIAD, PRODUCT = "triad, in memory", "matrix product"
KERNELS = (CONVOLUTION, GELU, MULTIPLY_ADD, TRIAD, PRODUCT)
HALF_KERNELS = ("fp32", "bf16", "fp16")
LOWEST = "lowest"
"""SSE4.1 for oneDNN's kernels, which know nothing below; what every x86-64 has for ATen's."""
_ENOUGH = 1.15  # a smaller gain is not worth a sentence


@dataclass(frozen=True)
class SimdLevel:
    """How far the libraries may go, and the variables that tell them; None removes one."""

    name: str
    environment: Mapping[str, str | None]


def levels(simd: str | None, architecture: str) -> tuple[SimdLevel, ...]:
    """The levels that can be tried on a processor, lowest first; the last one is whatever is best here.

    Args:
        simd: ``Machine.simd``.
        architecture: ``Machine.architecture``.
    """
    best = SimdLevel(f"best ({simd or 'unknown'})", {"ONEDNN_MAX_CPU_ISA": None, "ATEN_CPU_CAPABILITY": None})
    if architecture not in ("x86_64", "AMD64"):
        portable = SimdLevel("portable", {"ONEDNN_MAX_CPU_ISA": None, "ATEN_CPU_CAPABILITY": "default"})
        return (portable, best) if simd in ("SVE", "SVE2") else (best,)
    low = SimdLevel(LOWEST, {"ONEDNN_MAX_CPU_ISA": "SSE41", "ATEN_CPU_CAPABILITY": "default"})
    middle = SimdLevel("AVX2", {"ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2"})
    if simd is not None and simd.startswith("AVX512"):
        return low, middle, best
    return (low, best) if simd == "AVX2" else (best,)


def prepare(sample_s: float, triad_bytes: int) -> Callable[[], dict[str, Any]]:
    """Prepare the kernels in a child process, on one thread: SIMD is a matter of one core.

    Args:
        sample_s: Seconds for one sample of one kernel.
        triad_bytes: For arrays that no cache holds.
    """
    import torch

    torch.set_num_threads(1)
    generator = seeds.generator(0)
    images, filters = torch.rand(4, 64, 28, 28, generator=generator), torch.rand(64, 64, 3, 3, generator=generator)
    numbers = torch.rand(2**16, generator=generator)
    few = numbers[: 2**14]
    few_out = torch.empty_like(few)
    square = torch.rand(384, 384, generator=generator)
    square_out = torch.empty_like(square)
    kernels: dict[str, Callable[[], object]] = {
        CONVOLUTION: lambda: torch.conv2d(images, filters, padding=1),
        GELU: lambda: torch.nn.functional.gelu(numbers),  # in its exact form, which oneDNN computes
        MULTIPLY_ADD: lambda: torch.addcmul(few, few, few, out=few_out),
        TRIAD: bandwidth.triad(triad_bytes),
        PRODUCT: lambda: torch.mm(square, square, out=square_out),
    }
    small, narrow = torch.rand(2, 32, 14, 14, generator=generator), torch.rand(32, 32, 3, 3, generator=generator)
    for name, kind in zip(HALF_KERNELS, (torch.float32, torch.bfloat16, torch.float16), strict=True):
        kernels[name] = _convolution(small.to(kind), narrow.to(kind))
    facts = {
        "ATen": torch.backends.cpu.get_cpu_capability(),
        "oneDNN": {name: name_kernels(kernels[name], "convolution") for name in HALF_KERNELS},
    }
    return lambda: {"seconds": time_once(kernels, sample_s), "facts": facts}


def _convolution(images: Any, filters: Any) -> Callable[[], object]:
    import torch

    return lambda: torch.conv2d(images, filters, padding=1)


@dataclass(frozen=True)
class SimdTable:
    """The kernels at each level, one thread.

    Args:
        levels: Names, lowest first.
        turns: What was measured; empty when nothing was.
        why_not: Why nothing was measured, or an empty text.
    """

    levels: tuple[str, ...]
    turns: Turns
    why_not: str = ""

    @property
    def shown(self) -> dict[str, Mapping[str, Reading]]:
        """What a figure shows: every kernel at every level, without the half precisions."""
        return {kernel: self.turns.readings[kernel] for kernel in KERNELS}

    def gain(self, kernel: str) -> float:
        """How many times as fast the kernel is at the best level as at the lowest."""
        return self.turns.readings[kernel][self.levels[-1]].ratio

    @property
    def is_measured(self) -> bool:
        """Whether there are two levels to compare."""
        return len(self.levels) > 1 and not self.turns.is_empty

    def sentence(self) -> str:
        """What this run showed."""
        if not self.is_measured:
            return self.why_not
        lost, elementwise = self.gain(CONVOLUTION), (self.gain(GELU), self.gain(MULTIPLY_ADD))
        start = (
            f"One convolution, one core: at the best level it is **{lost:.1f} times** as fast as at the lowest."
            if lost >= _ENOUGH
            else f"The convolution gains nothing here ({lost:.2f} times): the belief survives on this machine."
        )
        cached = (
            f"On numbers in a cache, GELU gains {elementwise[0]:.1f} times, a plain multiply-add {elementwise[1]:.1f}."
        )
        waits = self.gain(TRIAD)
        memory = (
            f"The triad gains {waits:.2f} times: it waits for memory, and wider instructions only make it wait sooner."
            if waits < 0.6 * max(lost, *elementwise)
            else f"Even the triad gains {waits:.1f} times: here one core cannot keep the memory busy without them."
        )
        product = self.gain(PRODUCT)
        deaf = (
            f"The matrix product hears neither variable ({product:.2f} times): it comes from a third library, MKL."
            if product < _ENOUGH
            else f"The matrix product changes too ({product:.1f} times): here it comes from one of the two libraries."
        )
        return f"{start} {cached} {self._last_step()}{memory} {deaf}"

    def _last_step(self) -> str:
        """What the best level adds to the one below it, where there are three."""
        if len(self.levels) < 3:
            return ""
        before, best = self.levels[-2:]
        rows = {kernel: self.turns.readings[kernel] for kernel in (CONVOLUTION, GELU, MULTIPLY_ADD)}
        told = ", ".join(f"{name} {row[before].median_s / row[best].median_s:.2f}" for name, row in rows.items())
        return (
            f"The last step alone, from {before} on, gives: {told}. The registers became wider for all of them; what "
            "holds each of them back, this table does not tell. "
        )

    def table(self) -> str:
        """Microseconds per call, as a Markdown table."""
        if self.turns.is_empty:
            return ""
        head = f"| kernel | {' | '.join(self.levels)} |\n|---|{'---|' * len(self.levels)}"
        rows = [
            f"| {kernel} | " + " | ".join(f"{row[level].median_s * 1e6:,.0f} µs" for level in self.levels) + " |"
            for kernel in KERNELS
            if (row := self.turns.readings[kernel])
        ]
        return "\n".join([head, *rows])


def measure_simd(budget: Budget, simd: str | None, architecture: str, *, triad_bytes: int) -> SimdTable:
    """Measure the kernels at every level of SIMD that this processor has, each level in a process of its own.

    Args:
        budget: How many rounds; the smoke budget starts no process.
        simd: ``Machine.simd``.
        architecture: ``Machine.architecture``.
        triad_bytes: See `bandwidth.beyond_caches_bytes`.
    """
    wanted = levels(simd, architecture)
    if not budget.process_s:
        return SimdTable((), Turns(), "Nothing was measured: the smoke budget has no time for processes.")
    arguments = {"sample_s": 0.02 if budget.name == "quick" else 0.05, "triad_bytes": triad_bytes}
    experiments = {level.name: Experiment(PREPARE, arguments, level.environment, prepares=True) for level in wanted}
    turns = measure_in_turns(experiments, budget.rounds)
    names = tuple(level.name for level in wanted if level.name not in turns.failed)
    if len(names) < 2:
        why = "; ".join(turns.failed.values()) or f"{simd or 'this processor'} has one level that the libraries know"
        return SimdTable(names, turns, f"There is nothing to compare: {why}.")
    return SimdTable(names, turns)
