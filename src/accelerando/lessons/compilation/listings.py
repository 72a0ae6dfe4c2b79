"""Graphs as text, one line per operation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

_SHORT_TYPES = {
    torch.float32: "f32",
    torch.float64: "f64",
    torch.int64: "i64",
    torch.bool: "b8",
    torch.bfloat16: "bf16",
}


def listing(graph: fx.Graph) -> str:
    """Write a graph as one line per operation, with the type and shape of what it gives."""
    lines = []
    for node in graph.nodes:
        value = node.meta.get("example_value", node.meta.get("val"))
        shape = f"   # {_shape(value)}" if isinstance(value, torch.Tensor) else ""
        if node.op == "placeholder":
            lines.append(f"{node.name} = input{shape}")
        elif node.op == "output":
            lines.append(f"return {_arguments(node.args)}")
        elif node.op == "get_attr":
            lines.append(f"{node.name} = self.{node.target}{shape}")
        else:
            given = ", ".join(filter(None, [_arguments(node.args), *(f"{k}={v}" for k, v in node.kwargs.items())]))
            lines.append(f"{node.name} = {_target(node)}({given}){shape}")
    return "\n".join(lines)


def _target(node: fx.Node) -> str:
    if isinstance(node.target, str):
        return f".{node.target}" if node.op == "call_method" else node.target
    if isinstance(node.target, torch._ops.OpOverload):
        return str(node.target).removesuffix(".default")
    module = getattr(node.target, "__module__", "") or ""
    return f"{module.lstrip('_')}.{getattr(node.target, '__name__', node.target)}".lstrip(".")


def _arguments(args: Sequence[Any]) -> str:
    return ", ".join(str(list(entry) if isinstance(entry, tuple | list) else entry) for entry in args)


def _shape(value: torch.Tensor) -> str:
    return (
        f"{_SHORT_TYPES.get(value.dtype, str(value.dtype).removeprefix('torch.'))}[{', '.join(map(str, value.shape))}]"
    )
