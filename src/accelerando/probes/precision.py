"""Probes of lab 6: memory that a forward keeps, and training steps under a gradient scaler."""

import copy
import gc
import tracemalloc
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from accelerando.submission import Wrong, look_up_function

Found = dict[str, Any]
Batch = tuple[torch.Tensor, torch.Tensor]


# -- a ReLU that keeps a mask -----------------------------------------------------------------------------------------


def relu_saving_mask(namespace: Mapping[str, Any], seed: int) -> list[Found]:
    """Run the learner's ReLU forward and backward, and count what it keeps in between.

    Args:
        namespace: The learner's names.
        seed: Draws inputs and gradients.

    Returns:
        For each input of `inputs`: ``output`` and ``gradient`` (of the input's type), ``kept_bytes``, ``is_unchanged``.
    """
    function = look_up_function(namespace, "relu_saving_mask")
    return [_run_relu(function, kind, *given) for kind, given in inputs(seed).items()]


def inputs(seed: int) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """Draw (input, gradient of the output), keyed by what is special about them; zeros are among the inputs."""
    draw = torch.Generator().manual_seed(seed)
    shapes: dict[str, tuple[int, ...]] = {
        "a large batch": (251, 1001),
        "images": (16, 5, 41, 41),
        "a transposed view": (401, 303),
        "bf16": (300, 400),
    }
    found = {}
    for kind, shape in shapes.items():
        values = torch.randn(shape, generator=draw)
        values[torch.rand(shape, generator=draw) < 0.1] = 0.0
        gradient = torch.randn(shape, generator=draw)
        if kind == "bf16":
            values, gradient = values.to(torch.bfloat16), gradient.to(torch.bfloat16)
        found[kind] = (values.t(), gradient.t()) if kind == "a transposed view" else (values, gradient)
    return found


def _run_relu(function: Callable[..., Any], kind: str, values: torch.Tensor, gradient: torch.Tensor) -> Found:
    leaf = values.clone().requires_grad_()
    kept = []
    for _ in range(4):
        leaf.grad = None
        root, found = _forward(function, leaf, kind)
        root.backward(gradient)
        kept.append(found["kept_bytes"])
    # Not the first call: what is made once for ever is not kept for a backward. Of the others the least, since
    # other threads of this process can only add to what is counted.
    found["kept_bytes"] = min(kept[1:])
    if leaf.grad is None:
        raise Wrong(f"`relu_saving_mask` ({kind}): no gradient arrives at the input. Is its result part of the graph?")
    return {**found, "gradient": leaf.grad}


def _forward(function: Callable[..., Any], leaf: torch.Tensor, kind: str) -> tuple[torch.Tensor, Found]:
    """The graph's end; the learner's output, and the bytes that only the learner's code still holds."""
    saved: dict[int, torch.UntypedStorage] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        saved[storage.data_ptr()] = storage
        return tensor

    gc.freeze()  # what exists already is neither searched nor listed, so that only new objects cost time
    given = leaf * 1.0  # nobody but the learner's code may hold it afterwards
    tracemalloc.start()
    try:
        start_bytes, _ = tracemalloc.get_traced_memory()
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            output = function(given)
        if not isinstance(output, torch.Tensor) or output.shape != leaf.shape or output.dtype != leaf.dtype:
            raise Wrong(
                f"`relu_saving_mask` ({kind}) should return a tensor of its input's shape and type, but returned "
                f"{_describe(output)}."
            )
        if output.grad_fn is None:
            raise Wrong(f"`relu_saving_mask` ({kind}): the result has no way back to its input. Who would tell it?")
        value, root = output.detach().clone(), output * 1.0
        is_unchanged = bool(torch.equal(given.detach(), leaf.detach()))
        del output, given
        gc.collect()
        python_bytes = max(0, tracemalloc.get_traced_memory()[0] - start_bytes)
        tensors = [entry for entry in gc.get_objects() if issubclass(type(entry), torch.Tensor)]
    finally:
        tracemalloc.stop()
        gc.unfreeze()
    own = {entry.untyped_storage().data_ptr() for entry in (leaf, value, root)}
    for entry in tensors:
        storage = entry.untyped_storage()
        if storage.data_ptr() not in own:
            saved[storage.data_ptr()] = storage
    kept_bytes = python_bytes + sum(storage.nbytes() for storage in saved.values())
    return root, {"output": value, "kept_bytes": kept_bytes, "is_unchanged": is_unchanged}


def _describe(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')} {tuple(value.shape)}"
    return type(value).__name__


# -- one step from several batches, in fp16 ---------------------------------------------------------------------------


def careful_step(namespace: Mapping[str, Any], cases: list[Found]) -> list[Found]:
    """Let the learner's function make some steps in each case.

    Args:
        namespace: The learner's names.
        cases: As `start` takes them.

    Returns:
        For each: ``weights`` (flat float32, after every step), ``scales`` (after every step), ``was_half`` (whether the
        forward ran in fp16).
    """
    function = look_up_function(namespace, "careful_step")
    return [_run_steps(function, case) for case in cases]


def start(case: Mapping[str, Any]) -> tuple[nn.Module, list[list[Batch]]]:
    """Make the network and the batches of a case, the same in every process.

    Args:
        case: ``{"seed", "sizes" (images in each batch of a step), "steps", "clip_norm", "init_scale"}``.
    """
    draw = torch.Generator().manual_seed(case["seed"])
    model = nn.Sequential(nn.Linear(12, 24), nn.ReLU(), nn.Linear(24, 5))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=draw) * 0.4)
    steps = [
        [(torch.randn(size, 12, generator=draw), torch.randint(5, (size,), generator=draw)) for size in case["sizes"]]
        for _ in range(case["steps"])
    ]
    return model, steps


def make_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    """Plain SGD: its update is the gradient, so what is wrong with one is wrong with the other."""
    return torch.optim.SGD(model.parameters(), lr=0.2)


def flat_weights(model: nn.Module) -> torch.Tensor:
    """All parameters in a row."""
    return torch.cat([parameter.detach().float().reshape(-1) for parameter in model.parameters()])


def _run_steps(function: Callable[..., Any], case: Mapping[str, Any]) -> Found:
    model, steps = start(case)
    optimizer = make_optimizer(model)
    scaler = torch.amp.GradScaler("cpu", init_scale=case["init_scale"], growth_interval=3)
    seen: set[torch.dtype] = set()
    handle = model[0].register_forward_hook(lambda layer, given, out: seen.add(out.dtype))  # type: ignore[index]
    weights, scales = [], []
    for batches in steps:
        function(model, optimizer, scaler, copy.deepcopy(batches), case["clip_norm"])
        weights.append(flat_weights(model))
        scales.append(float(scaler.get_scale()))
    handle.remove()
    return {"weights": weights, "scales": scales, "was_half": seen == {torch.float16}}
