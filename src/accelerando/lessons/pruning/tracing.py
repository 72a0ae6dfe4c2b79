"""Follows a model's ``forward`` with torch.fx, and says where that is not possible."""

from __future__ import annotations

import linecache
import os
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn

PRUNABLE = (nn.Conv2d, nn.Linear)


class CannotPrune(ValueError):
    """The model cannot be pruned as asked; the message says where it stands and what to do."""


@dataclass(frozen=True)
class Place:
    """A line of somebody's ``forward``.

    Args:
        module: Name of the module inside the model; empty for the model itself.
        kind: Its class.
        file: Name of the file, without its folder.
        line: Line number in that file.
        source: What stands there.
    """

    module: str
    kind: str
    file: str
    line: int
    source: str

    def __str__(self) -> str:
        name = f"`{self.module}` ({self.kind})" if self.module else f"`{self.kind}`"
        return f"{name}, in the line `{self.source}` of {self.file},"


def trace(model: nn.Module) -> fx.GraphModule:
    """Trace a model as ``torch.fx.symbolic_trace`` does, with a tracer that remembers where it is.

    A trace runs ``forward`` once with stand-ins for tensors and writes down what happens to them. A stand-in has no
    values, so what depends on values cannot be followed. A decision on Python values (``if self.training``) does not
    stop the trace: it is frozen as it stands.

    Raises:
        CannotPrune: With the module and the line that stopped the trace.
    """
    tracer = fx.Tracer()
    try:
        graph = tracer.trace(model)
    except Exception as error:
        raise CannotPrune(f"{failing_place(error, model)} {_reason(error)}") from None
    return fx.GraphModule(tracer.root, graph, type(model).__name__)


def _reason(error: Exception) -> str:
    if isinstance(error, fx.proxy.TraceError):
        return (
            "decides by the values of a tensor, and a trace has none to look at. Move the decision out of `forward`, "
            "write it as arithmetic (`torch.where`), or prune the parts around it one by one."
        )
    return (
        f"stops the trace ({first_line(error)}). It needs a number where a trace has only a stand-in: use sizes that "
        "are known beforehand, or prune the parts around it one by one."
    )


def first_line(error: Exception) -> str:
    """An error's type and the first line of what it says."""
    said = str(error).splitlines()[0][:160] if str(error) else ""
    return f"{type(error).__name__}: {said}" if said else type(error).__name__


def failing_place(error: Exception, model: nn.Module) -> Place:
    """The innermost line of the model's own code on the way to an error: torch's lines help nobody."""
    names = {id(part): name for name, part in model.named_modules()}
    name, found = "", None
    for frame, line in traceback.walk_tb(error.__traceback__):
        path = frame.f_code.co_filename
        if path == __file__ or path.startswith((os.path.dirname(torch.__file__), "<eval_with_key>")):
            continue
        owner = id(frame.f_locals.get("self"))
        name = names.get(owner, name)
        if owner in names or found is not None:  # a function that a module's forward calls counts as its line
            found = path, line
    kind = type(model.get_submodule(name)).__name__
    if found is None:
        return Place(name, kind, "torch", 0, "forward")
    path, line = found
    file = "this notebook" if "ipykernel" in path else os.path.basename(path)
    return Place(name, kind, file, line, linecache.getline(path, line).strip())


def layers(graph: fx.GraphModule) -> Iterator[tuple[str, nn.Module]]:
    """Name the layers that may lose output channels, in the order in which they run.

    All convolutions and linear layers but those whose result leaves the model: its width is the caller's business.
    """
    seen = _heads(graph)
    for node in graph.graph.nodes:
        module = _layer(graph, node)
        if module is not None and node.target not in seen:
            seen.add(node.target)
            yield node.target, module


def _layer(graph: fx.GraphModule, node: fx.Node) -> nn.Module | None:
    module: Any = graph.get_submodule(str(node.target)) if node.op == "call_module" else None
    return module if isinstance(module, PRUNABLE) else None


def _heads(graph: fx.GraphModule) -> set[str]:
    """Layers from which a path leads to the output without another layer on it."""
    found: set[str] = set()
    waiting = [node for node in graph.graph.nodes if node.op == "output"]
    seen = set(waiting)
    while waiting:
        node = waiting.pop()
        if _layer(graph, node) is not None:
            found.add(str(node.target))
            continue
        fresh = [parent for parent in node.all_input_nodes if parent not in seen]
        seen.update(fresh)
        waiting += fresh
    return found
