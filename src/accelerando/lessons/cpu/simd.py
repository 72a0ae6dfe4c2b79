"""The same kernels with the processor's wide instructions switched off: what SIMD is worth, and to whom."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from accelerando import bandwidth, seeds
from accelerando.lessons import Budget
from accelerando.lessons.cpu.turns import Turns, measure_in_turns, time_once
from accelerando.workers import Experiment

PREPARE = "accelerando.lessons.cpu.simd:prepare"
CONVOLUTION, ELEMENTWISE, TRIAD, PRODUCT = "convolution", "GELU, in cache", "triad, in memory", "matrix product"
KERNELS = (CONVOLUTION, ELEMENTWISE, TRIAD, PRODUCT)
HALF_KERNELS = ("fp32", "bf16", "fp16")
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
    low = SimdLevel("SSE4.1", {"ONEDNN_MAX_CPU_ISA": "SSE41", "ATEN_CPU_CAPABILITY": "default"})
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
    square = torch.rand(384, 384, generator=generator)
    square_out = torch.empty_like(square)
    kernels: dict[str, Callable[[], object]] = {
        CONVOLUTION: lambda: torch.conv2d(images, filters, padding=1),
        ELEMENTWISE: lambda: torch.nn.functional.gelu(numbers),  # not exp, which MKL would compute
        TRIAD: bandwidth.triad(triad_bytes),
        PRODUCT: lambda: torch.mm(square, square, out=square_out),
    }
    small, few = torch.rand(2, 32, 14, 14, generator=generator), torch.rand(32, 32, 3, 3, generator=generator)
    for name, kind in zip(HALF_KERNELS, (torch.float32, torch.bfloat16, torch.float16), strict=True):
        kernels[name] = _convolution(small.to(kind), few.to(kind))
    capability = torch.backends.cpu.get_cpu_capability()
    return lambda: {"seconds": time_once(kernels, sample_s), "facts": {"ATen": capability}}


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
    def kernels(self) -> tuple[str, ...]:
        """What was measured at every level, without the half precisions."""
        return KERNELS

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
        lost = self.gain(CONVOLUTION)
        start = (
            f"One convolution, one core, three switches: the best level is **{lost:.1f} times** as fast as "
            f"{self.levels[0]}."
            if lost >= _ENOUGH
            else f"The convolution gains nothing here ({lost:.2f} times): the belief survives on this machine."
        )
        waits = self.gain(TRIAD)
        memory = (
            f"The triad gains {waits:.2f} times: it waits for memory, and wider instructions only make it wait sooner."
            if waits < 0.6 * max(lost, self.gain(ELEMENTWISE))
            else f"Even the triad gains {waits:.1f} times: here one core cannot keep the memory busy without them."
        )
        product = self.gain(PRODUCT)
        deaf = (
            f"The matrix product does not hear either switch ({product:.2f} times): it comes from a third library, "
            "MKL, which has one of its own."
            if product < _ENOUGH
            else f"The matrix product changes too ({product:.1f} times): here it comes from one of the two libraries."
        )
        elementwise = f"GELU, elementwise and on numbers in a cache, gains {self.gain(ELEMENTWISE):.1f} times."
        return f"{start} {self._last_step()}{elementwise} {memory} {deaf}"

    def _last_step(self) -> str:
        """What the best level adds to the one below it, where there are three."""
        if len(self.levels) < 3:
            return ""
        row = self.turns.readings[CONVOLUTION]
        step = row[self.levels[-2]].median_s / row[self.levels[-1]].median_s
        note = (
            "some processors carry out one wide instruction as two halves, and then a wider one is hardly faster"
            if step < _ENOUGH
            else "here the widest instructions are worth having"
        )
        return f"Its last step, from {self.levels[-2]} on, gives {step:.2f} times: {note}. "

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


@dataclass(frozen=True)
class HalfPrecision:
    """What half precision costs or gives, per level of SIMD.

    Args:
        table: The levels with the kernels ``fp32``, ``bf16``, ``fp16``: one small convolution, one thread.
        has_bf16: ``Machine.has_bf16``.
        has_fp16: ``Machine.has_fp16``.
    """

    table: SimdTable
    has_bf16: bool | None
    has_fp16: bool | None

    def ratio(self, kind: str, level: str) -> float:
        """How many times as fast as fp32 at the same level."""
        readings = self.table.turns.readings
        return readings["fp32"][level].median_s / readings[kind][level].median_s

    def sentence(self) -> str:
        """What this run showed, beside what the flags promise."""
        if self.table.turns.is_empty:
            return self.table.why_not
        best = self.table.levels[-1]
        parts = [self._kind("bf16", self.has_bf16, best), self._kind("fp16", self.has_fp16, best)]
        lower = [level for level in self.table.levels[:-1] if self.has_bf16]
        if lower:
            level = lower[-1]
            parts.append(
                f"With oneDNN held at {level}, as if this processor had no such units, bf16 runs at "
                f"{self.ratio('bf16', level):.2f} times the speed of fp32 at that level: that is what a processor "
                "without them makes of it."
            )
        return " ".join(parts)

    def _kind(self, kind: str, has_units: bool | None, level: str) -> str:
        ratio = self.ratio(kind, level)
        flags = {True: f"has units for {kind}", False: f"has no units for {kind}", None: f"does not say about {kind}"}
        kept = (ratio > 1.1) == bool(has_units)
        result = f"{ratio:.2f} times the speed of fp32"
        if kept and has_units:
            return f"This processor {flags[has_units]}, and the convolution runs at **{result}**."
        if kept:
            return f"This processor {flags[has_units]}, and the convolution runs at **{result}**: half is no gain here."
        if has_units:
            return (
                f"This processor {flags[has_units]}, and yet this small convolution runs at only **{result}**: units "
                "alone do not make a kernel fast, so measure yours."
            )
        return (
            f"This processor {flags[has_units]}, and the convolution still runs at **{result}**: fewer bytes help too."
        )
