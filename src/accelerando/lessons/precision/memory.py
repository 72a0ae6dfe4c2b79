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
        copy_bytes: Those of ``kept_bytes["bf16"]`` that are narrow copies of weights.
        copies: How many weights they are copies of.
        layers: How many layers have weights that autocast casts.
    """

    net: str
    batch_size: int
    kept_bytes: dict[str, int]
    weight_bytes: int
    copy_bytes: int = 0
    copies: int = 0
    layers: int = 0

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
    layers = [layer for layer in module.modules() if isinstance(layer, nn.Conv2d | nn.Linear)]
    copies = _kept_copies(module, batch[:2], [layer.weight for layer in layers])
    return Saved(net, batch_size, kept, counts.parameter_bytes(module), sum(copies), len(copies), len(layers))


def _kept_copies(module: nn.Module, batch: torch.Tensor, weights: Sequence[torch.Tensor]) -> list[int]:
    """Bytes of each weight's narrow copy that a forward under autocast keeps: tensors that hold just its numbers."""
    kept: dict[int, torch.Tensor] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.dtype == torch.bfloat16:
            kept[tensor.untyped_storage().data_ptr()] = tensor.detach()
        return tensor

    with (
        torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor),
        torch.autocast("cpu", torch.bfloat16),
    ):
        module(batch)
    found = []
    for weight in weights:
        wanted = _bits(weight.detach().to(torch.bfloat16))
        found += [2 * wanted.numel() for entry in kept.values() if _bits(entry).equal(wanted)][:1]
    return found


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    """A bf16 tensor's memory, whatever view of it the tensor is."""
    return torch.empty(0, dtype=torch.int16).set_(tensor.untyped_storage())


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
            f"**{row.ratio:.3g} times** the bytes of fp32 ({row.net}, batch {row.batch_size}: "
            f"{_mib(row.kept_bytes['bf16'])} against {_mib(row.kept_bytes['fp32'])})"
            for row in (most, least)
        )
        return f"bf16 autocast kept between {told}.{self._copies(most) if most.ratio > 1 else ''}"

    def _copies(self, row: Saved) -> str:
        """What the copies of the weights weigh where they weigh most."""
        some = "" if row.copies == row.layers else f" of {row.copies} of the {row.layers} layers"
        first = (
            ""
            if row.copies == row.layers
            else " (no gradient is needed of the images, so the first layer's weights are not needed on the way back)"
        )
        return (
            " Where it is above 1, bf16 copies of weights weigh more than the activations save: "
            f"{_mib(row.copy_bytes)}, the copies{some}{first}. "
            f"The weights themselves are {_mib(row.weight_bytes)} of fp32 and exist anyway."
        )


def sweep_saved(sizes: Sequence[int] = (8, 32, 128, 1024)) -> SavedSweep:
    """Count bytes kept for backward over batch sizes, in fp32 and under bf16 autocast."""
    return SavedSweep(tuple(measure_saved(net, size) for net in NETS for size in sizes))


def recompute_table(batch_size: int = 128) -> str:
    """Bytes kept with and without recomputing, as a Markdown table."""
    lines = ["| network, batch | fp32 | bf16 | fp32, recomputed | bf16, recomputed |", "|---|---|---|---|---|"]
    told = []
    for net in NETS:
        kept = measure_saved(net, batch_size, with_recomputing=True).kept_bytes
        sizes = " | ".join(_mib(kept[name]) for name in kept)
        lines.append(f"| {net}, {batch_size} | {sizes} |")
        told.append(f"for the {net} it {_saving(kept, 'fp32')} in fp32 and {_saving(kept, 'bf16')} in bf16")
    table = "\n".join(lines)
    return f"{table}\n\nRecomputing the first half of the layers: {'; '.join(told)}."


def _saving(kept: dict[str, int], name: str) -> str:
    share = 1 - kept[f"{name} recomputed"] / kept[name]
    if abs(share) < 0.005:
        return "saves nothing"
    return f"saves {share:.0%}" if share > 0 else f"keeps {-share:.0%} more"


def _mib(count_bytes: int) -> str:
    return f"{count_bytes / 2**20:.2g} MiB" if count_bytes < 2**20 else f"{count_bytes / 2**20:.1f} MiB"
