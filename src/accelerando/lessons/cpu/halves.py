"""Half precision on a processor: which kernel runs, and what it gives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from accelerando.lessons.cpu.simd import HALF_KERNELS, SimdTable


@dataclass(frozen=True)
class HalfPrecision:
    """What half precision costs or gives, per level of SIMD.

    Args:
        table: The levels with the kernels of `HALF_KERNELS`: one small convolution, one thread.
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

    def named(self, level: str) -> Mapping[str, str]:
        """Format -> the kernel that oneDNN named; empty where it named none."""
        found: Mapping[str, str] = self.table.turns.facts.get(level, {}).get("oneDNN", {})
        return found

    def sentence(self) -> str:
        """What this run showed, beside what the flags promise."""
        if self.table.turns.is_empty:
            return self.table.why_not
        best = self.table.levels[-1]
        parts = [self._kind("bf16", self.has_bf16, best), self._kind("fp16", self.has_fp16, best), self._told(best)]
        lower = [level for level in self.table.levels[:-1] if self.has_bf16]
        if lower:
            level = lower[-1]
            ran = self.named(level).get("bf16")
            parts.append(
                f"With oneDNN held at {level}, where it has no such instructions, bf16 runs at "
                f"{self.ratio('bf16', level):.2f} times the speed of fp32 at that level, "
                f"{f'with the kernel `{ran}`' if ran else 'and oneDNN names no kernel for it either'}."
            )
        return " ".join(part for part in parts if part)

    def _told(self, level: str) -> str:
        """Which kernels ran, as oneDNN itself says."""
        named = self.named(level)
        if not any(named.values()):
            return ""
        told = " and ".join(f"`{name}` for {kind}" for kind, name in named.items() if name)
        missing = " and ".join(kind for kind in HALF_KERNELS if not named.get(kind))
        end = (
            f" For {missing} it names none: it has no kernel for it on this processor, and PyTorch falls back on a "
            "general one of its own that nobody tuned."
            if missing
            else ""
        )
        return f"Asked which kernels it ran, oneDNN names {told}.{end}"

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
