"""Layers that depend on each other: what is added up must lose the same channels."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from accelerando.lessons.pruning.config import Config, config_list
from accelerando.lessons.pruning.nets import residual_cnn
from accelerando.lessons.pruning.pruned import widths
from accelerando.lessons.pruning.removal import find_masks, remove_channels


@dataclass(frozen=True)
class GroupReport:
    """A residual net pruned with and without NNI's dependency groups.

    Args:
        groups: Layers of each group.
        channels: Layer -> output channels before anything was pruned.
        masked: Layer -> channels masked, without groups.
        removed_without: Layer -> channels that could really be removed then.
        removed_with: Layer -> channels removed when the groups were named.
        config: What NNI was told, groups included.
    """

    groups: tuple[tuple[str, ...], ...]
    channels: dict[str, int]
    masked: dict[str, int]
    removed_without: dict[str, int]
    removed_with: dict[str, int]
    config: Config

    def sentence(self) -> str:
        """What this run showed."""
        names = " and ".join(" + ".join(group) for group in self.groups)
        group = self.groups[0] if self.groups else ()
        all_of_them, asked, got, grouped = (
            sum(found[name] for name in group)
            for found in (self.channels, self.masked, self.removed_without, self.removed_with)
        )
        chance = all_of_them * math.prod(self.masked[name] / self.channels[name] for name in group)
        return (
            f"Added to each other, so one group: {names}. Without the group {asked} of its {all_of_them} channels were "
            f"masked and **{got}** could be removed, since each layer had chosen its own (by chance alone one would "
            f"expect {chance:.0f}); with it {grouped} were removed."
        )


def compare_groups(sparsity: float = 0.5, channels: int = 32) -> GroupReport:
    """Prune a residual net twice: every layer for itself, and the layers that are added as one group.

    Args:
        sparsity: Share of channels to remove.
        channels: Width of the net.
    """
    model, example = residual_cnn(channels), torch.zeros(2, 1, 28, 28)
    with_groups = config_list(model, sparsity, example)
    alone = [{key: value for key, value in entry.items() if key != "dependency_group_id"} for entry in with_groups]
    before = widths(model)
    removed, masked = [], {}
    for config in (alone, with_groups):
        masks = find_masks(model, config)
        if config is alone:
            masked = {name: _masked_channels(found["weight"]) for name, found in masks.items()}
        after = widths(remove_channels(model, masks, example))
        removed.append({name: before[name] - after[name] for name in masks})
    members: dict[str, list[str]] = {}
    for entry in with_groups:
        if "dependency_group_id" in entry:
            members.setdefault(entry["dependency_group_id"], []).append(entry["op_names"][0])
    return GroupReport(tuple(map(tuple, members.values())), before, masked, removed[0], removed[1], with_groups)


def _masked_channels(mask: torch.Tensor) -> int:
    return int((mask.flatten(1).sum(1) == 0).sum())
