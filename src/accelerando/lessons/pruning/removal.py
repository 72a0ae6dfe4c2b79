"""NNI 3.0 step by step: what to prune, which channels, and taking them out. The only place that imports NNI.

Each step works on a copy, says nothing, and draws nothing from the global random generators. NNI by itself changes the
model it is given, wraps its layers, prints, logs, and trains BatchNorm's statistics on random numbers.
"""

from __future__ import annotations

import contextlib
import copy
import io
import itertools
import logging
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from accelerando import seeds
from accelerando.lessons.pruning.tracing import CannotPrune, failing_place, first_line, layers, trace

Config = list[dict[str, Any]]
Masks = dict[str, dict[str, torch.Tensor]]
Batch = tuple[torch.Tensor, torch.Tensor]

PRUNERS = {"l1": "L1NormPruner", "l2": "L2NormPruner", "fpgm": "FPGMPruner", "taylor": "TaylorPruner"}
"""How a channel's worth is judged -> NNI's class."""
METHODS = (*PRUNERS, "random")


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Let NNI work without prints, logs, warnings and threads; the random generators are put back afterwards."""
    said = io.StringIO()
    with (
        seeds.preserved(),
        contextlib.redirect_stdout(said),
        contextlib.redirect_stderr(said),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        import nni

        nni.silence_stdout()  # its handler would go on writing to whatever stdout was at its import
        log = logging.getLogger("nni")
        level, threads = log.level, torch.get_num_threads()
        log.setLevel(logging.CRITICAL + 1)  # the root's handlers, if there are any, would hear it too
        torch.set_num_threads(1)  # thousands of tiny operations: threads would mostly wait for each other
        try:
            yield
        finally:
            log.setLevel(level)
            torch.set_num_threads(threads)


def config_list(
    model: nn.Module, sparsity: float | Mapping[str, float], example: torch.Tensor, *, multiple: int = 1
) -> Config:
    """Write NNI's list of what to prune: one entry per layer, with the groups that must lose the same channels.

    Args:
        model: Left as it is.
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
    known = dict(layers(trace(model)))
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
