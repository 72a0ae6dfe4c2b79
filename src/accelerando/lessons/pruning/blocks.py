"""Where a step's time goes: each convolution with what follows it, by multiplications and by time."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from accelerando import counts, datasets, rounds
from accelerando.lessons import Budget
from accelerando.lessons.pruning.subject import images


@dataclass(frozen=True)
class Block:
    """A layer with everything behind it up to the next one.

    Args:
        name: Of the layer.
        channels: In and out.
        pixels: Width of the pictures that come in.
        work: Share of the net's multiplications in forward, 0 to 1.
        time: Share of the time of forward and backward, all blocks timed in turns, 0 to 1.
    """

    name: str
    channels: tuple[int, int]
    pixels: int
    work: float
    time: float


@dataclass(frozen=True)
class BlockReport:
    """What each block has of the multiplications and of the time."""

    blocks: tuple[Block, ...]

    def sentence(self) -> str:
        """A table, and which block takes most time for its multiplications."""
        lines = ["| block begins with | channels | pixels | multiplications | time |", "|---|---|---|---|---|"]
        lines += [
            f"| layer `{one.name}` | {one.channels[0]} → {one.channels[1]} | {one.pixels} x {one.pixels} | "
            f"{one.work:.0%} | {one.time:.0%} |"
            for one in self.blocks
        ]
        dearest = max(self.blocks, key=lambda one: one.time / one.work)
        said = (
            f"The block of layer `{dearest.name}` has {dearest.work:.0%} of the multiplications and "
            f"**{dearest.time:.0%} of the time**."
        )
        return "\n".join([*lines, "", said])


def measure_blocks(model: nn.Sequential, budget: Budget, *, batch: int = 64) -> BlockReport:
    """Time forward and backward of every block, in turns.

    Args:
        model: Layers in a row, the first one a convolution; left as it is.
        budget: How many rounds.
        batch: Images.
    """
    parts = list(copy.deepcopy(model).train().named_children())
    starts = [place for place, (_, part) in enumerate(parts) if isinstance(part, nn.Conv2d)]
    hidden = datasets.as_batch(images(budget).train.images[:batch]).to(memory_format=torch.channels_last)
    passes: dict[int, Callable[[], object]] = {}
    found: list[tuple[str, nn.Conv2d, int, int]] = []
    for number, (start, end) in enumerate(zip(starts, [*starts[1:], len(parts)], strict=True)):
        block = nn.Sequential(*(part for _, part in parts[start:end]))
        name, first = parts[start]
        assert isinstance(first, nn.Conv2d)
        found.append((name, first, hidden.shape[-1], counts.flops(block, hidden, is_training=False)))
        passes[number] = functools.partial(_pass, block, hidden.requires_grad_(number > 0))
        hidden = block(hidden).detach()
    points = rounds.measure_rounds(passes, budget.rounds, sample_s=0.06 if budget.rounds > 1 else 0.002)
    work, time = sum(entry[3] for entry in found), sum(point.median_s for point in points)
    return BlockReport(
        tuple(
            Block(name, (first.in_channels, first.out_channels), pixels, flops / work, point.median_s / time)
            for (name, first, pixels, flops), point in zip(found, points, strict=True)
        )
    )


def _pass(block: nn.Module, given: torch.Tensor) -> None:
    wanted = [*block.parameters(), *([given] if given.requires_grad else [])]
    torch.autograd.grad(block(given).sum(), wanted)
