"""What ``torch.compile`` makes of a function, stage by stage: graph, guards, joint graph, decompositions, kernels."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn

from accelerando.lessons.compilation.kernels import Kernel, generate
from accelerando.lessons.compilation.listings import listing
from accelerando.lessons.compilation.stages import Stages, run_both_ways
from accelerando.lessons.compilation.toolchain import Toolchain


@dataclass(frozen=True)
class Workflow:
    """The artefacts of compiling one function for one set of arguments.

    Args:
        dynamo: Dynamo's graph, one operation a line; several graphs stand below each other.
        graphs: How many of them.
        guards: What must hold of arguments and globals for the compiled code to be used again.
        joint: AOTAutograd's graph of forward and backward together; empty when no gradient is asked for.
        forward: Its forward part, after the cut.
        backward: Its backward part, after the cut.
        as_written: Operator -> how often, in the joint graph (or forward) without decompositions.
        decomposed: Likewise, after decomposing into the core operators.
        kernels: Generated code.
        why_no_kernels: Why there is none; empty when there is.
    """

    dynamo: str
    graphs: int
    guards: tuple[str, ...]
    joint: str
    forward: str
    backward: str
    as_written: Mapping[str, int]
    decomposed: Mapping[str, int]
    kernels: tuple[Kernel, ...]
    why_no_kernels: str

    def graph_sentence(self) -> str:
        """What Dynamo did."""
        one = "One graph" if self.graphs == 1 else f"{self.graphs} graphs, so something in it cannot be captured"
        return (
            f"{one}, and {len(self.guards)} guards on your arguments and globals. As long as the guards hold, the "
            "graph is used again and Python does not look at your lines any more; when one fails, Dynamo translates "
            "the function once more."
        )

    def joint_sentence(self) -> str:
        """What AOTAutograd did."""
        if not self.joint:
            return "None of the arguments asks for a gradient, so there is no backward to build and no joint graph."
        lines = [len(text.splitlines()) for text in (self.joint, self.forward, self.backward)]
        return (
            f"The joint graph has {lines[0]} lines; cut in two it is {lines[1]} for the forward and {lines[2]} for "
            "the backward: each half has inputs of its own, and what is computed again stands in both. The forward "
            f"ends with `{self.forward.splitlines()[-1]}`: its result, and behind it what crosses the cut, kept in "
            "memory until the backward comes. So it is in this listing, which is made without decompositions; "
            "Inductor cuts after them, and may compute again what is kept here."
        )

    def decomposition_sentence(self) -> str:
        """What the decompositions changed."""
        gone = sorted(set(self.as_written) - set(self.decomposed))
        new = sorted(set(self.decomposed) - set(self.as_written))
        if not gone and not new:
            return (
                f"All {len(self.as_written)} kinds of operators are core ones already: nothing was taken apart. "
                "Put a `torch.nn.functional.gelu` or `layer_norm` into `mine` and look again."
            )
        return (
            f"Taken apart, by {len(torch._decomp.core_aten_decompositions()):,} rules that this PyTorch brings: "
            f"{_names(gone)}. In their place: {_names(new) or 'more of the same core operators'}."
        )

    def kernel_sentence(self) -> str:
        """What Inductor made of it."""
        if not self.kernels:
            return self.why_no_kernels
        written, decomposed = (sum(found.values()) for found in (self.as_written, self.decomposed))
        parts = "forward and backward" if self.joint else "forward only"
        names = ", ".join(f"`{kernel.name}`" for kernel in self.kernels)
        count = "one kernel" if len(self.kernels) == 1 else f"{len(self.kernels)} kernels"
        return (
            f"{written} operators, {parts} ({decomposed} after the rules above, views included), became {count} of "
            f"{self.kernels[0].language}: {names}."
        )


def trace(function: Callable[..., Any], *args: Any, toolchain: Toolchain) -> Workflow:
    """Compile a function and keep what each stage made of it.

    Args:
        function: Any function or module of tensors; it is called a few times.
        args: What to call it with.
        toolchain: Whether kernels may be generated.
    """
    written, decomposed = Stages(None), Stages(torch._decomp.core_aten_decompositions())
    for stages in (written, decomposed):
        torch._dynamo.reset()
        run_both_ways(torch.compile(function, backend=stages.backend), args)
    guards = _guards(function)
    torch._dynamo.reset()
    kernels, why = (generate(function, *args), "") if toolchain.generates_code else ((), toolchain.why)
    return Workflow(
        "\n\n".join(listing(graph) for graph in written.dynamo),
        len(written.dynamo),
        guards,
        "\n\n".join(map(listing, written.joint)),
        "\n\n".join(map(listing, written.forward)),
        "\n\n".join(map(listing, written.backward)),
        _operators(written.joint or written.forward),
        _operators(decomposed.joint or decomposed.forward),
        kernels,
        why,
    )


def _guards(function: Callable[..., Any]) -> tuple[str, ...]:
    """The last translation's guards on arguments and globals, in their order; those on PyTorch's state are left out."""
    from torch._dynamo.eval_frame import _debug_get_cache_entry_list

    inner = function.forward if isinstance(function, nn.Module) else function
    entries: list[Any] = list(_debug_get_cache_entry_list(inner.__code__))
    parts = [part for entry in entries[:1] for part in entry.guard_manager.code_parts]
    told = (part for part in parts if re.search(r"\b[LG]\[", part) and "_dynamo_" not in part)
    return tuple(dict.fromkeys(map(_plain_guard, told)))


def _plain_guard(part: str) -> str:
    part = re.sub(r"DispatchKeySet\([^)]*\), ", "", " ".join(part.split()))
    part = re.sub(r"___check_obj_id\((.+), \d+\)", r"\1 is the same object", part)
    return re.sub(r"___check_type_id\((.+), \d+\)", r"\1 is of the same type", part)


def _operators(graphs: Sequence[fx.Graph]) -> dict[str, int]:
    names = (node.target for graph in graphs for node in graph.nodes if node.op == "call_function")
    counted = Counter(str(name).removeprefix("aten.").partition(".")[0] for name in names if "getitem" not in str(name))
    return {name: count for name, count in counted.most_common() if name not in ("detach", "alias")}


def _names(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)
