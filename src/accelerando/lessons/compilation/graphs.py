"""What ``torch.compile`` makes of a function, stage by stage: graph, guards, joint graph, decompositions, kernels."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn

from accelerando import torch_compile
from accelerando.lessons.compilation.toolchain import Toolchain

_VIEWS = ("view", "expand", "permute", "transpose", "t", "squeeze", "unsqueeze", "detach", "alias", "select", "slice")
_SHORT_TYPES = {
    torch.float32: "f32",
    torch.float64: "f64",
    torch.int64: "i64",
    torch.bool: "b8",
    torch.bfloat16: "bf16",
}


@dataclass(frozen=True)
class Kernel:
    """One generated kernel.

    Args:
        name: Inductor names it after the operators that it holds.
        language: "C++", or "Triton" on a GPU.
        text: Its source, without includes.
    """

    name: str
    language: str
    text: str


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


@dataclass(frozen=True)
class Workflow:
    """The artefacts of compiling one function for one set of arguments.

    Args:
        dynamo: Dynamo's graph, one operation a line; several graphs stand below each other.
        graphs: How many of them.
        guards: What must hold for the compiled code to be used again.
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
            f"{one}, and {len(self.guards)} guards. As long as the guards hold, the graph is used again and Python "
            "does not look at your lines any more; when one fails, Dynamo translates the function once more."
        )

    def joint_sentence(self) -> str:
        """What AOTAutograd did."""
        if not self.joint:
            return "None of the arguments asks for a gradient, so there is no backward to build and no joint graph."
        lines = [len(text.splitlines()) for text in (self.joint, self.forward, self.backward)]
        return (
            f"The joint graph has {lines[0]} lines; cut in two it is {lines[1]} for the forward and {lines[2]} for "
            "the backward. What the backward needs crosses the cut, or is computed again where that is cheaper than "
            "keeping it."
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
        calls = sum(self.decomposed.values())
        names = ", ".join(f"`{kernel.name}`" for kernel in self.kernels)
        count = "one kernel" if len(self.kernels) == 1 else f"{len(self.kernels)} kernels"
        return f"{calls} operators became {count} of {self.kernels[0].language}: {names}."


def trace(function: Callable[..., Any], *args: Any, toolchain: Toolchain) -> Workflow:
    """Compile a function and keep what each stage made of it.

    Args:
        function: Any function or module of tensors; it is called a few times.
        args: What to call it with.
        toolchain: Whether kernels may be generated.
    """
    written, decomposed = _Stages(None), _Stages(torch._decomp.core_aten_decompositions())
    for stages in (written, decomposed):
        torch._dynamo.reset()
        _run(torch.compile(function, backend=stages.backend), args)
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


class _Stages:
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


def count_traffic(function: Callable[..., Any], *args: Any) -> Traffic:
    """Count the bytes of a forward without gradients.

    Args:
        function: Of tensors.
        args: What to call it with.
    """
    stages = _Stages(None)
    torch._dynamo.reset()
    with torch.no_grad():
        torch.compile(function, backend=stages.backend)(*args)
    torch._dynamo.reset()
    return _traffic(stages.forward)


def generate(function: Callable[..., Any], *args: Any) -> tuple[Kernel, ...]:
    """Compile a function with Inductor in fresh caches and return the kernels that it wrote, forward and backward."""
    with torch_compile.empty_caches():
        from torch._inductor.utils import run_and_get_code

        _, sources = run_and_get_code(_run, torch.compile(function), args)
        torch._dynamo.reset()
    return tuple(kernel for source in sources for kernel in read_kernels(source))


def read_kernels(source: str) -> tuple[Kernel, ...]:
    """Find the kernels in the program that Inductor writes around them.

    Args:
        source: Python, with each kernel in it as a long string.
    """
    found = re.findall(r"^(\w+) = async_compile\.(\w+)\(.*?'''(.*?)'''", source, re.DOTALL | re.MULTILINE)
    return tuple(
        Kernel(
            name,
            "Triton" if kind == "triton" else "C++",
            "\n".join(line for line in text.strip().splitlines() if not line.startswith("#include")).strip(),
        )
        for name, kind, text in found
    )


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


def _run(function: Callable[..., Any], args: Sequence[Any]) -> None:
    """Call a function, and its backward if it has one; gradients of the arguments are left as they were."""
    found = function(*args)
    if isinstance(found, torch.Tensor) and found.requires_grad:
        sources = [entry for entry in args if isinstance(entry, torch.Tensor) and entry.requires_grad]
        wanted = sources or list(getattr(function, "parameters", list)())
        torch.autograd.grad(found.sum(), wanted, allow_unused=True)


def _guards(function: Callable[..., Any]) -> tuple[str, ...]:
    """The guards of the last translation, in the order in which they are checked, without those on Dynamo's state."""
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
