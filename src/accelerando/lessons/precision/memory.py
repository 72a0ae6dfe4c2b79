"""What a forward keeps for its backward, counted in bytes: no stopwatch, the same on every machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint_sequential

from accelerando import counts, models
from accelerando.lessons.precision.task import NETS


@dataclass(frozen=True)
class Saved:
    """Bytes that one forward kept for its backward, beside the parameters themselves.

    Args:
        net: Which network.
        batch_size: Images.
        kept_bytes: "fp32", "bf16" (autocast), and both with recomputing ("… recomputed") -> bytes.
        weight_bytes: Size of the parameters in fp32.
    """

    net: str
    batch_size: int
    kept_bytes: dict[str, int]
    weight_bytes: int

    @property
    def ratio(self) -> float:
        """Kept under bf16 autocast, relative to fp32."""
        return self.kept_bytes["bf16"] / self.kept_bytes["fp32"]


def measure_saved(net: str, batch_size: int, *, with_recomputing: bool = False) -> Saved:
    """Count what a training forward of one batch keeps.

    Args:
        net: One of ``NETS``.
        batch_size: Images.
        with_recomputing: Count it with activation checkpointing too: in two segments of layers. Of the first only its
            input is kept, and its forward runs again during the backward.
    """
    torch.manual_seed(0)
    module = models.build(NETS[net]).train()
    batch = models.example_input(NETS[net], batch_size)
    kept = {name: _kept(module, batch, half, 0) for name, half in (("fp32", False), ("bf16", True))}
    if with_recomputing:
        kept |= {f"{name} recomputed": _kept(module, batch, name == "bf16", 2) for name in ("fp32", "bf16")}
    return Saved(net, batch_size, kept, counts.parameter_bytes(module))


def _kept(module: nn.Module, batch: torch.Tensor, is_half: bool, segments: int) -> int:
    with counts.saved_for_backward(module) as saved, torch.autocast("cpu", torch.bfloat16, enabled=is_half):
        _forward(module, batch, segments)
    return saved.activations


def _forward(module: Any, batch: torch.Tensor, segments: int) -> torch.Tensor:
    out: torch.Tensor = (
        checkpoint_sequential(module, segments, batch, use_reentrant=False) if segments else module(batch)
    )
    return out


@dataclass(frozen=True)
class SavedSweep:
    """Bytes kept over batch size, for several networks."""

    rows: tuple[Saved, ...]

    def of(self, net: str) -> tuple[Saved, ...]:
        """The rows of one network."""
        return tuple(row for row in self.rows if row.net == net)

    def sentence(self) -> str:
        """What the count showed."""
        most, least = (pick(self.rows, key=lambda row: row.ratio) for pick in (max, min))
        told = " and ".join(
            f"**{row.ratio:.3g} times** the bytes of fp32 ({row.net}, batch {row.batch_size})" for row in (most, least)
        )
        why = (
            " Where it is above 1, the bf16 copies of the weights weigh more than the activations save: "
            f"{most.weight_bytes / 2**20:.0f} MiB of weights are kept a second time, at half size."
            if most.ratio > 1
            else ""
        )
        return f"bf16 autocast kept between {told}.{why}"


def sweep_saved(sizes: Sequence[int] = (8, 32, 128, 1024)) -> SavedSweep:
    """Count bytes kept for backward over batch sizes, in fp32 and under bf16 autocast."""
    return SavedSweep(tuple(measure_saved(net, size) for net in NETS for size in sizes))


def recompute_table(batch_size: int = 128) -> str:
    """Bytes kept with and without recomputing, as a Markdown table."""
    lines = ["| network, batch | fp32 | bf16 | fp32, recomputed | bf16, recomputed |", "|---|---|---|---|---|"]
    for net in NETS:
        kept = measure_saved(net, batch_size, with_recomputing=True).kept_bytes
        sizes = " | ".join(f"{kept[name] / 2**20:.1f} MiB" for name in kept)
        lines.append(f"| {net}, {batch_size} | {sizes} |")
    return "\n".join(lines)
