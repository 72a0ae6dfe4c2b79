"""One call that prunes: traps of NNI inside, a smaller model out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.utils import prune as torch_prune

from accelerando import counts
from accelerando.lessons.pruning.config import Config, config_list
from accelerando.lessons.pruning.removal import Batch, Masks, find_masks, remove_channels
from accelerando.lessons.pruning.tracing import CannotPrune


@dataclass(frozen=True, eq=False)
class Pruned:
    """A smaller model, and how it came about.

    Args:
        model: The smaller model; the one that was given is as it was. Make a new optimizer for it.
        config: What NNI was told.
        masks: Layer -> parameter -> 1 for what stays.
        method: How a channel's worth was judged.
        channels: Layer -> output channels before and after; the layers that could lose some.
        parameters: Before and after.
    """

    model: nn.Module
    config: Config
    masks: Masks
    method: str
    channels: dict[str, tuple[int, int]]
    parameters: tuple[int, int]

    def sentence(self) -> str:
        """What was taken away."""
        before, after = self.parameters
        widths = ", ".join(f"{name}: {old} → {new}" for name, (old, new) in self.channels.items() if old != new)
        if not widths:
            return f"Nothing was removed: all {before:,} parameters are still there."
        return (
            f"Channels by layer: {widths}. Of {before:,} parameters {after:,} are left ({after / before:.0%}), chosen "
            f"by {self.method}."
        )


def prune(
    model: nn.Module,
    sparsity: float | Mapping[str, float],
    example: torch.Tensor,
    *,
    method: str = "l1",
    multiple: int = 1,
    batches: Sequence[Batch] = (),
) -> Pruned:
    """Take output channels out of a model's convolutions and linear layers, the last one excepted.

    Args:
        model: Left as it is. A copy is traced in evaluation: a decision on Python values, such as
            ``if self.training``, is frozen as it stands then, without a word.
        sparsity: Share of channels to remove, 0 to below 1: of every layer, or of each layer by name.
        example: A batch that the model can take; only its shape and type matter.
        method: "l1", "l2", "fpgm", "taylor" or "random"; see `removal.find_masks`.
        multiple: Round the channels that stay up to a multiple of this.
        batches: For "taylor": batches of images and labels.

    Returns:
        A smaller model with the old names, weights, layout and mode. It needs training again, with a new optimizer:
        an old one would go on moving weights that are no longer there.

    Raises:
        CannotPrune: If a trace cannot follow ``forward`` (the message names module and line), or something in it
            insists on the old number of channels.
        ValueError: If a number or a name is not allowed.
    """
    if torch_prune.is_pruned(model):
        raise CannotPrune("layers still carry masks of torch.nn.utils.prune: call its `remove` on them first")
    config = config_list(model, sparsity, example, multiple=multiple)
    masks = find_masks(model, config, method, batches)
    small = remove_channels(model, masks, example)
    return Pruned(
        model=small,
        config=config,
        masks=masks,
        method=method,
        channels={name: (width, widths(small)[name]) for name, width in widths(model).items()},
        parameters=(counts.parameters(model), counts.parameters(small)),
    )


def widths(model: nn.Module) -> dict[str, int]:
    """Output channels of each convolution and linear layer, by name."""
    return {
        name: module.weight.shape[0]
        for name, module in model.named_modules()
        if isinstance(module, nn.Conv2d | nn.Linear)
    }


def filter_norms(model: nn.Module, masks: Masks) -> dict[str, tuple[list[float], list[bool]]]:
    """L1 norm of each output channel's filter, and whether the channel stays, for every masked layer."""
    found = {}
    for name, targets in masks.items():
        weight = model.get_parameter(f"{name}.weight").detach()
        stays = targets["weight"].flatten(1).sum(1) > 0
        found[name] = (weight.flatten(1).abs().sum(1).tolist(), stays.tolist())
    return found
