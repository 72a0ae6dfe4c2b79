"""What needs no stopwatch: parameters, bytes, operators, FLOPs, graph breaks, recompiles.

Counts do not vary from run to run or from machine to machine, so they can be asserted where a time can only be
estimated.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from accelerando import torch_compile


def parameters(module: nn.Module) -> int:
    """Count the trained numbers of a module, each once, even where a parameter is shared."""
    return sum(entry.numel() for entry in module.parameters() if entry.requires_grad)


def parameter_bytes(module: nn.Module) -> int:
    """Count the bytes of a module's parameters, trained or frozen, each once."""
    return sum(entry.numel() * entry.element_size() for entry in module.parameters())


def optimizer_state_bytes(optimizer: torch.optim.Optimizer) -> int:
    """Count the bytes an optimizer keeps between steps (0 before the first): momentum, Adam's two averages."""
    return sum(
        value.numel() * value.element_size()
        for state in optimizer.state.values()
        for value in state.values()
        if isinstance(value, torch.Tensor)
    )


@dataclass
class SavedBytes:
    """Bytes that a forward kept for its backward.

    Args:
        total: Distinct memory kept, in bytes; views of one tensor count once.
        activations: The part of ``total`` that is not a parameter.
        tensors: How often autograd saved something, views and repeats included.
    """

    total: int = 0
    activations: int = 0
    tensors: int = 0


@contextmanager
def saved_for_backward(module: nn.Module | None = None) -> Iterator[SavedBytes]:
    """Count what autograd keeps during the block: run a forward in it.

    Memory is counted by storage, so that a tensor saved by two operators, or saved as a view, counts once.

    Args:
        module: Its parameters are counted in ``total`` but not in ``activations``; they exist anyway.
    """
    own = {entry.untyped_storage().data_ptr() for entry in module.parameters()} if module is not None else set()
    counted = SavedBytes()
    seen: dict[int, torch.UntypedStorage] = {}  # keeps the storages alive: an address must not be used twice

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        counted.tensors += 1
        if storage.data_ptr() not in seen:
            seen[storage.data_ptr()] = storage
            counted.total += storage.nbytes()
            counted.activations += 0 if storage.data_ptr() in own else storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        yield counted


class _Operators(TorchDispatchMode):
    """Counts every operator that reaches the dispatcher below autograd."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.counts[str(func)] += 1
        return func(*args, **(kwargs or {}))


@contextmanager
def operators() -> Iterator[Counter[str]]:
    """Count operator calls during the block by name, such as "aten.addmm.default": about one kernel start each."""
    mode = _Operators()
    with mode:
        yield mode.counts


def flops(module: nn.Module, inputs: torch.Tensor, *, is_training: bool = True) -> int:
    """Count the floating-point operations of matrix products and convolutions for one batch.

    Args:
        module: Called once with ``inputs``; its gradients are left as they were.
        inputs: One batch.
        is_training: Forward and backward; False for forward only.
    """
    with FlopCounterMode(display=False) as counter, torch.set_grad_enabled(is_training):
        outputs = module(inputs)
        if is_training:
            trained = [entry for entry in module.parameters() if entry.requires_grad]
            torch.autograd.grad(outputs.float().sum(), trained, allow_unused=True)
    return int(counter.get_total_flops())


@dataclass(frozen=True)
class GraphReport:
    """How Dynamo cuts a function into graphs.

    Args:
        graphs: Graphs captured for one call; 1 is best, 0 means that Dynamo gave up (a break inside a loop).
        breaks: Graph breaks; 0 is best.
        operators: Operators captured, over all graphs.
        reasons: Why each break happened, in Dynamo's words, first line each.
    """

    graphs: int
    breaks: int
    operators: int
    reasons: tuple[str, ...] = field(default=())


def graph_breaks(function: Callable[..., Any], *args: Any) -> GraphReport:
    """Ask Dynamo how it would cut ``function(*args)``; compiles nothing, and forgets what it knew before."""
    torch._dynamo.reset()
    with torch_compile.quiet():
        explained = torch._dynamo.explain(function)(*args)
    torch._dynamo.reset()
    reasons = tuple(str(entry.reason).strip().splitlines()[0] for entry in explained.break_reasons)
    breaks = max(explained.graph_break_count, 0)  # it counts graphs less one, also where there is none
    return GraphReport(explained.graph_count, breaks, explained.op_count, reasons)


def recompiles(function: Callable[..., Any], calls: list[tuple[Any, ...]], *, dynamic: bool | None = None) -> int:
    """Count how often ``torch.compile`` translated ``function`` again while the calls were made, the first not counted.

    Uses the "eager" backend: what is counted is Dynamo's guards, and those do not depend on the code generator.

    Args:
        function: What to compile.
        calls: The arguments of each call, in order.
        dynamic: As for ``torch.compile``.
    """
    translated = 0

    def count_and_run(graph: torch.fx.GraphModule, example_inputs: list[torch.Tensor]) -> Callable[..., Any]:
        nonlocal translated
        translated += 1
        return graph.forward

    torch._dynamo.reset()
    compiled = torch.compile(function, backend=count_and_run, dynamic=dynamic)
    per_call = []
    try:
        for args in calls:
            before = translated
            with torch_compile.quiet():
                compiled(*args)
            per_call.append(translated - before)
    finally:
        torch._dynamo.reset()
    return sum(1 for graphs in per_call[1:] if graphs)


def sent_bytes() -> int | None:
    """Count the bytes that this process has handed to its open TCP connections, by the system's own counters.

    Nobody has to be asked: whatever library sends, and by whatever algorithm, it is counted. Take the difference around
    what is to be counted.

    Returns:
        Bytes since each connection was made; None where the system does not tell (it does on Linux).
    """
    folder = Path("/proc/self/fd")
    if sys.platform != "linux" or not folder.is_dir():
        return None
    total = 0
    for entry in os.listdir(folder):
        with contextlib.suppress(OSError):
            if os.readlink(folder / entry).startswith("socket:"):
                total += _sent_on(int(entry))
    return total


def _sent_on(descriptor: int) -> int:
    with socket.socket(fileno=os.dup(descriptor)) as connection:
        if connection.family not in (socket.AF_INET, socket.AF_INET6) or connection.type != socket.SOCK_STREAM:
            return 0
        told = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
    if len(told) < _TCP_INFO_END:  # a kernel before 4.19
        return 0
    sent, sent_again = struct.unpack_from("=QQ", told, _TCP_SENT)
    (waiting,) = struct.unpack_from("=I", told, _TCP_WAITING)
    return int(sent - sent_again + waiting)


# Offsets in struct tcp_info of linux/tcp.h: tcpi_notsent_bytes; tcpi_bytes_sent and tcpi_bytes_retrans.
_TCP_WAITING, _TCP_SENT, _TCP_INFO_END = 144, 200, 216
