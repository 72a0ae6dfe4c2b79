"""The bytes that a forward moves, counted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from accelerando.lessons.compilation.stages import Stages

_VIEWS = ("view", "expand", "permute", "transpose", "t", "squeeze", "unsqueeze", "detach", "alias", "select", "slice")


@dataclass(frozen=True)
class Traffic:
    """Bytes that a forward moves to and from memory.

    Args:
        operators: Operators that read or write (views do neither).
        eager_bytes: When each reads its inputs and writes its output.
        fused_bytes: When only the function's inputs are read and its results written.
    """

    operators: int
    eager_bytes: int
    fused_bytes: int

    @property
    def predicted_gain(self) -> float:
        """How many times as fast one fused kernel would be, if moving bytes were all the work."""
        return self.eager_bytes / max(self.fused_bytes, 1)


def count_traffic(function: Callable[..., Any], *args: Any) -> Traffic:
    """Count the bytes of a forward without gradients.

    Args:
        function: Of tensors.
        args: What to call it with.
    """
    stages = Stages(None)
    torch._dynamo.reset()
    with torch.no_grad():
        torch.compile(function, backend=stages.backend)(*args)
    torch._dynamo.reset()
    return _traffic(stages.forward)


def _traffic(graphs: Sequence[fx.Graph]) -> Traffic:
    """Count bytes in a forward graph whose nodes know their tensors."""
    operators, eager, fused = 0, 0, 0
    for graph in graphs:
        results = next(node for node in graph.nodes if node.op == "output").all_input_nodes
        fused += sum(_bytes(node) for node in graph.nodes if node.op == "placeholder")
        fused += sum(_bytes(node) for node in results if node.op != "placeholder")
        for node in graph.nodes:
            if node.op == "call_function" and not _is_view(node):
                operators += 1
                eager += _bytes(node) + sum(map(_bytes, node.all_input_nodes))
    return Traffic(operators, eager, fused)


def _is_view(node: fx.Node) -> bool:
    return str(node.target).removeprefix("aten.").partition(".")[0] in _VIEWS or "getitem" in str(node.target)


def _bytes(node: fx.Node) -> int:
    value = node.meta.get("val")
    return value.numel() * value.element_size() if isinstance(value, torch.Tensor) else 0
