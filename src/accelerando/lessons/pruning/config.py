"""What to prune: NNI's list of layers, shares and groups."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from accelerando.lessons.pruning.silence import quiet
from accelerando.lessons.pruning.tracing import CannotPrune, failing_place, first_line, layers, trace

Config = list[dict[str, Any]]


def config_list(
    model: nn.Module, sparsity: float | Mapping[str, float], example: torch.Tensor, *, multiple: int = 1
) -> Config:
    """Write NNI's list of what to prune: one entry per layer, with the groups that must lose the same channels.

    Args:
        model: Left as it is. A copy is traced, in evaluation, as `removal.remove_channels` does.
        sparsity: Share of output channels to remove, 0 to below 1: of every layer, or of each layer by name.
        example: A batch that the model can take.
        multiple: Round the channels that stay up to a multiple of this, if there are so many.

    Returns:
        Entries with ``op_names``, ``sparse_ratio`` and, where layers depend on each other, ``dependency_group_id`` or
        ``internal_metric_block``. Layers that lose nothing have none.

    Raises:
        CannotPrune: If the model cannot be traced, or layers of one group are to lose different shares.
        ValueError: If a name is no layer of the model, or a number is out of range.
    """
    shares = _shares(model, sparsity)
    with quiet():
        from nni.compression.utils import auto_set_denpendency_group_ids  # its own spelling

        work = copy.deepcopy(model).eval()
        entries = [{"op_names": [name], "sparse_ratio": share} for name, share in shares.items()]
        try:
            grouped = auto_set_denpendency_group_ids(work, entries, example)
        except Exception as error:
            raise CannotPrune(f"{failing_place(error, work)} cannot run on the example: {first_line(error)}") from error
    return _rounded(model, _readable(grouped), multiple)


def _shares(model: nn.Module, sparsity: float | Mapping[str, float]) -> dict[str, float]:
    # In evaluation, like every other step: `if self.training` would show other layers in another mode.
    known = dict(layers(trace(copy.deepcopy(model).eval())))
    if not known:
        raise CannotPrune("no layer can lose channels: there is no convolution or linear layer before the last one")
    shares = dict(sparsity) if isinstance(sparsity, Mapping) else dict.fromkeys(known, sparsity)
    for name, share in shares.items():
        if name not in known:
            raise ValueError(f"{name!r} is no layer that can lose channels; there are {', '.join(known)}")
        if isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share < 1:
            raise ValueError(f"sparsity is {share!r}: it must be a number from 0 up to, not including, 1")
    return {name: float(shares[name]) for name in known if name in shares}


def _readable(grouped: Config) -> Config:
    """Short names for groups of several layers; NNI gives every layer a long random one."""
    members: dict[str, list[str]] = {}
    for entry in grouped:
        members.setdefault(entry.get("dependency_group_id", ""), []).append(entry["op_names"][0])
    names = {group: f"added: {' + '.join(layers)}" for group, layers in members.items() if group and len(layers) > 1}
    readable = []
    for entry in grouped:
        entry = dict(entry)
        group = names.get(entry.pop("dependency_group_id", ""))
        if entry.get("internal_metric_block") == 1:
            del entry["internal_metric_block"]
        readable.append({**entry, "dependency_group_id": group} if group else entry)
    for group in names.values():
        shares = {entry["sparse_ratio"] for entry in readable if entry.get("dependency_group_id") == group}
        if len(shares) > 1:
            raise CannotPrune(f"{group}: these layers lose the same channels, so give all of them the same sparsity")
    return readable


def _rounded(model: nn.Module, config: Config, multiple: int) -> Config:
    if isinstance(multiple, bool) or not isinstance(multiple, int) or multiple < 1:
        raise ValueError(f"multiple is {multiple!r}: it must be a whole number from 1, for example 16")
    rounded = []
    for entry in config:
        width = len(model.get_parameter(f"{entry['op_names'][0]}.weight"))
        blocks = entry.get("internal_metric_block", 1)
        step = math.lcm(multiple, blocks)
        removed = int(width // blocks * entry["sparse_ratio"]) * blocks
        kept = min(width, -(-(width - removed) // step) * step)
        if kept < width:
            rounded.append({**entry, "sparse_ratio": _ratio(width // blocks, (width - kept) // blocks)})
    return rounded


def _ratio(width: int, removed: int) -> float:
    """The share that NNI, which rounds ``width * share`` down, turns into exactly ``removed``."""
    ratio = removed / width
    while int(width * ratio) < removed:
        ratio = math.nextafter(ratio, 1.0)
    return ratio
