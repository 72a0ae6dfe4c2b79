"""NNI 3.0 step by step, once it is told what to prune: which channels go, and taking them out.

Each step works on a copy, says nothing, and draws nothing from the global random generators. NNI by itself changes the
model it is given, wraps its layers, prints, logs, and trains BatchNorm's statistics on random numbers.
"""

from __future__ import annotations

import copy
import itertools
import logging
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from accelerando import seeds
from accelerando.lessons.pruning.config import Config
from accelerando.lessons.pruning.silence import quiet
from accelerando.lessons.pruning.tracing import CannotPrune, failing_place, first_line, trace

Masks = dict[str, dict[str, torch.Tensor]]
Batch = tuple[torch.Tensor, torch.Tensor]

PRUNERS = {"l1": "L1NormPruner", "l2": "L2NormPruner", "fpgm": "FPGMPruner", "taylor": "TaylorPruner"}
"""How a channel's worth is judged -> NNI's class."""
METHODS = (*PRUNERS, "random")


def find_masks(model: nn.Module, config: Config, method: str = "l1", batches: Sequence[Batch] = ()) -> Masks:
    """Let one of NNI's pruners decide which channels go.

    Args:
        model: Left as it is.
        config: From `config_list`, or written by hand.
        method: "l1", "l2" (small filters go), "fpgm" (filters close to all others go), "taylor" (filters go that the
            loss hardly depends on), or "random" (ours, to compare with).
        batches: For "taylor": images and labels, at least one batch.

    Returns:
        Layer -> "weight" and "bias" -> float32 of that parameter's shape: 1 stays, 0 goes.
    """
    if method not in METHODS:
        raise ValueError(f"method is {method!r}: it must be one of {', '.join(METHODS)}")
    if method == "taylor" and not batches:
        raise ValueError("method 'taylor' looks at gradients: give it batches of images and labels")
    if not config:
        return {}
    with quiet():
        from nni.compression import pruning as pruners

        work = copy.deepcopy(model).eval()
        if method == "random":
            for parameter in work.parameters():
                parameter.data = torch.randn(parameter.shape, generator=seeds.generator(parameter.numel()))
        arguments: tuple[Any, ...] = (_evaluator(work, batches), len(batches)) if method == "taylor" else ()
        pruner = getattr(pruners, PRUNERS.get(method, "L1NormPruner"))(work, config, *arguments)
        _, masks = pruner.compress()
        return {
            layer: {target: mask.detach().clone() for target, mask in found.items() if mask is not None}
            for layer, found in masks.items()
        }


def _evaluator(work: nn.Module, batches: Sequence[Batch]) -> Any:
    """What NNI calls an evaluator: a training loop that it may run. At rate 0, so only gradients come of it."""
    import nni
    from nni.compression import TorchEvaluator

    def loss_of(batch: Batch, model: nn.Module) -> torch.Tensor:
        images, labels = batch
        return nn.functional.cross_entropy(model(images), labels)

    def train(model: nn.Module, optimizer: Any, step: Any, _: Any, steps: int | None, epochs: int | None) -> None:
        for batch in itertools.islice(itertools.cycle(batches), steps):
            optimizer.zero_grad()
            step(batch, model).backward()
            optimizer.step()

    optimizer = nni.trace(torch.optim.SGD)(work.parameters(), lr=0.0)
    return TorchEvaluator(train, optimizer, loss_of)


def apply_masks(model: nn.Module, masks: Masks) -> nn.Module:
    """A copy of the model whose masked weights are 0: what a mask does, and all that it does."""
    masked = copy.deepcopy(model)
    with torch.no_grad():
        for layer, found in masks.items():
            for target, mask in found.items():
                getattr(masked.get_submodule(layer), target).mul_(mask)
    return masked


def remove_channels(model: nn.Module, masks: Masks, example: torch.Tensor) -> nn.Module:
    """A copy of the model without the masked channels: NNI's ``ModelSpeedup``.

    NNI's own tracer fails on this PyTorch, so it is given the graph of `tracing.trace`.

    Raises:
        CannotPrune: If the model cannot be traced, or something in it insists on the old number of channels.
    """
    small = copy.deepcopy(model)
    if not masks:
        return small
    log = _Log()
    with quiet():
        from nni.compression.speedup import ModelSpeedup

        small.eval()  # NNI runs the model on random numbers: BatchNorm must not learn from them
        own = copy.deepcopy(masks)  # NNI adds to what it is given
        try:
            ModelSpeedup(small, example, own, graph_module=trace(small), logger=log.logger).speedup_model()
        except CannotPrune:
            raise
        except Exception as error:
            raise CannotPrune(f"NNI cannot follow the channels through this model ({first_line(error)})") from error
    _put_back(model, small)
    _try(model, small, example, log)
    return small


class _Log:
    """Collects which modules NNI did not know how to shrink."""

    def __init__(self) -> None:
        self.errors: list[str] = []
        handler = logging.Handler(logging.ERROR)
        handler.emit = lambda record: self.errors.append(record.getMessage())  # type: ignore[method-assign]
        self.logger = logging.Logger("accelerando.pruning", logging.ERROR)
        self.logger.addHandler(handler)

    def hint(self) -> str:
        kinds = dict.fromkeys(said.partition("with type: ")[2].partition(",")[0] for said in self.errors)
        return f" NNI cannot shrink {', '.join(filter(None, kinds))}." if self.errors else ""


def _put_back(model: nn.Module, small: nn.Module) -> None:
    """Give the new layers what NNI forgets: mode, frozen parameters, layout; and take away the gradients it left."""
    modules, parameters = dict(model.named_modules()), dict(model.named_parameters())
    is_last = any(
        parameter.ndim == 4
        and parameter.is_contiguous(memory_format=torch.channels_last)
        and not parameter.is_contiguous()
        for parameter in parameters.values()
    )
    for name, module in small.named_modules():
        module.training = modules[name].training
    for name, parameter in small.named_parameters():
        parameter.requires_grad_(parameters[name].requires_grad)
        parameter.grad = None
    if is_last:
        small.to(memory_format=torch.channels_last)  # type: ignore[call-overload]


def _try(model: nn.Module, small: nn.Module, example: torch.Tensor, log: _Log) -> None:
    """Run the result once: a fixed number of channels somewhere in ``forward`` shows only now."""
    probe = copy.deepcopy(small).eval()
    try:
        with torch.no_grad():
            found = probe(example)
    except Exception as error:
        raise CannotPrune(
            f"{failing_place(error, probe)} insists on the old number of channels ({first_line(error)})."
            f"{log.hint()} Write sizes that follow their input (`x.flatten(1)`), or leave out the layers before it."
        ) from None
    with torch.no_grad():
        expected = copy.deepcopy(model).eval()(example)
    if found.shape != expected.shape:
        raise CannotPrune(
            f"the output would change from {tuple(expected.shape)} to {tuple(found.shape)}: leave out the layer that "
            "makes it"
        )
