"""A chain of operations done block by block, so that a block is still in a cache when it is wanted again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from accelerando import rounds, seeds
from accelerando.lessons import Budget
from accelerando.lessons.cpu.memory import FLOAT_BYTES, Staircase

if TYPE_CHECKING:
    import torch

OPERATIONS = 8
"""Elementwise operations of the chain."""


def predict_blocked_speedup(operations: int, memory_bytes_per_s: float, cache_bytes_per_s: float) -> float:
    """Predict how many times faster a chain of elementwise operations runs when it is done block by block.

    Whole, every operation reads and writes the array in memory. In blocks, only the first read and the last write go to
    memory, and what is between them stays in a cache.

    Args:
        operations: Of the chain, at least 1.
        memory_bytes_per_s: Measured, above 0.
        cache_bytes_per_s: Likewise.

    Returns:
        Time of the whole / time in blocks, with nothing counted but bytes.
    """
    whole = 2 * operations / memory_bytes_per_s
    return whole / (2 / memory_bytes_per_s + 2 * (operations - 1) / cache_bytes_per_s)


def run_chain(values: torch.Tensor, out: torch.Tensor, block: int) -> torch.Tensor:
    """Run a chain of cheap elementwise operations, ``block`` numbers at a time; the result does not depend on it.

    Args:
        values: float32, one dimension.
        out: Of the same shape; written.
        block: At least 1.
    """
    import torch

    for start in range(0, values.numel(), block):
        part = out[start : start + block]
        torch.mul(values[start : start + block], 0.5, out=part)
        part.add_(1.0)
        part.mul_(part)
        part.sub_(0.25)
        part.clamp_(0.0, 4.0)
        part.mul_(0.5)
        part.add_(0.125)
        part.neg_()
    return out


@dataclass(frozen=True)
class BlockCurve:
    """A chain of elementwise operations, done in blocks of several sizes.

    Args:
        points: Keyed by numbers per block; the first one is the whole array at once.
        whole_bytes_per_s: Of reading, from an array of the whole size.
        block_bytes_per_s: Likewise, from one of the best block's size.
    """

    points: tuple[rounds.RoundPoint, ...]
    whole_bytes_per_s: float
    block_bytes_per_s: float

    @property
    def predicted(self) -> float:
        """What the bytes alone would give with the best block."""
        return predict_blocked_speedup(OPERATIONS, self.whole_bytes_per_s, self.block_bytes_per_s)

    @property
    def best(self) -> rounds.RoundPoint:
        """The fastest block."""
        return max(self.points, key=lambda point: point.ratio)

    def sentence(self) -> str:
        """What this run showed."""
        best, smallest = self.best, min(self.points, key=lambda point: point.key)
        size = f"{best.key * FLOAT_BYTES / 1024:,.0f} KiB"
        if best.ratio < 1.1:
            return (
                f"Blocks gain nothing here ({best.ratio:.2f} times at best, predicted {self.predicted:.1f}): the whole "
                "array may already lie in a cache, or starting an operator costs as much as its bytes."
            )
        tail = (
            f" Blocks of {smallest.key * FLOAT_BYTES / 1024:,.0f} KiB reach only {smallest.ratio:.2f} times: then "
            "starting the operators costs more than the bytes."
            if smallest.ratio < 0.8 * best.ratio
            else ""
        )
        return (
            f"The same {OPERATIONS} operations on the same numbers, in blocks of {size}: **{best.ratio:.1f} times** as "
            f"fast as over the whole array. Bytes alone, read at {self.block_bytes_per_s / 1e9:.0f} GB/s from an array "
            f"of the block's size and at {self.whole_bytes_per_s / 1e9:.0f} GB/s from the whole, predict "
            f"{self.predicted:.1f}.{self._gap()}{tail}"
        )

    def _gap(self) -> str:
        if self.best.ratio > 0.85 * self.predicted:
            return ""
        return " What is missing was not counted: writing, the operations themselves, and the start of each operator."


def measure_blocking(budget: Budget, stairs: Staircase, total_bytes: int) -> BlockCurve:
    """Measure the chain on one thread, over the whole array and in smaller and smaller blocks.

    Args:
        budget: How many rounds.
        stairs: Measured before; the prediction stands on it.
        total_bytes: Of one array, for one that no cache holds.
    """
    import torch

    count = total_bytes // FLOAT_BYTES if budget.name != "smoke" else 2**16
    values = torch.rand(count, generator=seeds.generator(0))
    out = torch.empty_like(values)
    sizes = [count, *(2**power for power in range(22, 9, -2) if 2**power < count)]
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        runs = {size: _chain(values, out, size) for size in sizes}
        points = rounds.measure_rounds(runs, min(budget.rounds, 7), sample_s=0.01)
    finally:
        torch.set_num_threads(before)
    best = max(points, key=lambda point: point.ratio)
    return BlockCurve(points, stairs.at(count * FLOAT_BYTES), stairs.at(best.key * FLOAT_BYTES))


def _chain(values: torch.Tensor, out: torch.Tensor, block: int) -> Callable[[], object]:
    return lambda: run_chain(values, out, block)
