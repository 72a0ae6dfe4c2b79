"""A backend of ``torch.compile`` that keeps the graph of each stage."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx


class Stages:
    """A backend that keeps what it is given and runs it as it stands."""

    def __init__(self, decompositions: Mapping[Any, Any] | None) -> None:
        from torch._dynamo.backends.common import aot_autograd

        self.dynamo: list[fx.Graph] = []
        self.joint: list[fx.Graph] = []
        self.forward: list[fx.Graph] = []
        self.backward: list[fx.Graph] = []
        self._autograd = aot_autograd(
            fw_compiler=self._keep(self.forward),
            bw_compiler=self._keep(self.backward),
            partition_fn=self._cut,
            decompositions=dict(decompositions or {}),
        )

    def backend(self, module: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        self.dynamo.append(module.graph)
        made: Callable[..., Any] = self._autograd(module, inputs)
        return made

    def _cut(self, joint: fx.GraphModule, inputs: Sequence[Any], **more: Any) -> Any:
        from functorch.compile import min_cut_rematerialization_partition

        kept = fx.Graph()
        kept.output(kept.graph_copy(joint.graph, {}))
        self.joint.append(kept)
        return min_cut_rematerialization_partition(joint, inputs, **more)

    def _keep(self, kept: list[fx.Graph]) -> Callable[..., Any]:
        from functorch.compile import make_boxed_func

        def compiler(module: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
            kept.append(module.graph)
            boxed: Callable[..., Any] = make_boxed_func(module.forward)
            return boxed

        return compiler


def run_both_ways(function: Callable[..., Any], args: Sequence[Any]) -> None:
    """Call a function, and its backward if it has one; gradients of the arguments are left as they were."""
    found = function(*args)
    if isinstance(found, torch.Tensor) and found.requires_grad:
        sources = [entry for entry in args if isinstance(entry, torch.Tensor) and entry.requires_grad]
        wanted = sources or list(getattr(function, "parameters", list)())
        torch.autograd.grad(found.sum(), wanted, allow_unused=True)
