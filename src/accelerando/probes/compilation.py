"""Probes of lab 2: what Dynamo makes of the learner's functions is counted beside them, in their own process."""

from __future__ import annotations

import inspect
import time
import types
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any
from unittest import mock

import torch
from torch import nn

from accelerando import models, seeds, torch_compile
from accelerando.submission import Wrong, look_up_function

Outputs = dict[str, Any]
Step = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
FEATURES, CLASSES = 32, 10
TASK_SIZES = models.GatedSizes(inputs=FEATURES, width=256, blocks=2, classes=CLASSES)
BATCH_SIZE, TRAIN_ROWS, TEST_ROWS, EPOCHS = 1024, 8 * 1024 + 300, 1000, 5


class Translations:
    """A backend that counts the graphs it is given, and runs them as they stand."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, graph: torch.fx.GraphModule, inputs: Sequence[Any], **more: Any) -> Callable[..., Any]:
        """Count a graph; takes what `torch.compile` and Inductor give a code generator."""
        self.count += 1
        return graph.forward


# -- one graph --------------------------------------------------------------------------------------------------------


def mended_update(namespace: Mapping[str, Any], seed: int) -> Outputs:
    """Have Dynamo capture the learner's function in one piece, and run it on every kind of input.

    Args:
        namespace: The learner's names.
        seed: Draws the inputs.

    Returns:
        ``refused`` (what Dynamo said, or ""), ``graphs`` over all cases, and ``cases``: results and gradients of each.
    """
    function = look_up_function(namespace, "mended_update")
    counted = Translations()
    torch._dynamo.reset()

    def model(hidden: torch.Tensor, update: torch.Tensor) -> Any:
        return function(hidden, update)  # called from within: what is compiled itself may not say "leave me alone"

    # With the answer's own globals: those of another module Dynamo would look up by that module's name.
    own = getattr(inspect.unwrap(function), "__globals__", model.__globals__)
    within = types.FunctionType(model.__code__, own, closure=model.__closure__)
    compiled = torch.compile(within, backend=counted, fullgraph=True)
    plain, captured = [], []
    try:
        for inputs in update_cases(seed).values():
            plain.append(_with_gradients(function, inputs))
            with torch_compile.quiet():
                captured.append(_with_gradients(compiled, inputs))
    except (NotImplementedError, Wrong):
        raise
    except torch._dynamo.exc.TorchDynamoException as error:
        if not plain:
            raise
        return {"refused": _first_line(error), "graphs": counted.count, "plain": plain, "captured": captured}
    finally:
        torch._dynamo.reset()
    return {"refused": "", "graphs": counted.count, "plain": plain, "captured": captured}


def update_cases(seed: int) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """Draw inputs of one shape for which the function's decisions come out differently."""
    draw = torch.Generator().manual_seed(seed)

    def numbers(scale: float) -> torch.Tensor:
        return torch.randn(6, 8, generator=draw) * scale

    return {
        "long updates": (numbers(1.0), numbers(2.0)),
        "short updates": (numbers(1.0), numbers(0.05)),
        "no positive number": (-numbers(1.0).abs() - 0.1, numbers(1.0)),
        "a single positive number": (-numbers(1.0).abs() + 9.0 * (torch.arange(48) == 11).view(6, 8), numbers(1.0)),
        "an update of zeros": (numbers(1.0), torch.zeros(6, 8)),
    }


def _with_gradients(function: Callable[..., Any], inputs: tuple[torch.Tensor, torch.Tensor]) -> Outputs:
    hidden, update = (tensor.clone().requires_grad_() for tensor in inputs)
    found = function(hidden, update)
    if not isinstance(found, tuple) or len(found) != 2 or not all(isinstance(one, torch.Tensor) for one in found):
        raise Wrong("`mended_update` should return two tensors: the result and the level.")
    result, level = found
    if result.shape != hidden.shape:
        raise Wrong(f"The result has shape {tuple(result.shape)}; that of the original has {tuple(hidden.shape)}.")
    if not result.requires_grad:
        raise Wrong("The result does not lead back to its inputs: nothing could be learned through it.")
    weights = torch.linspace(-1, 1, result.numel()).view_as(result)
    gradients = torch.autograd.grad((result * weights).sum(), (hidden, update), allow_unused=True)
    given = [torch.zeros_like(hidden) if gradient is None else gradient for gradient in gradients]
    return {
        "result": result.detach(),
        "level": level.detach(),
        "has_gradient": level.requires_grad,
        "hidden_gradient": given[0],
        "update_gradient": given[1],
    }


# -- one shape --------------------------------------------------------------------------------------------------------


def steady_batches(namespace: Mapping[str, Any], seed: int, rows: Sequence[int], batch_size: int) -> list[Outputs]:
    """Train through the learner's batches with one compiled loss, and count how often it is translated.

    Args:
        namespace: The learner's names.
        seed: Draws the examples.
        rows: Examples of each epoch, one entry an epoch.
        batch_size: Asked for.

    Returns:
        For each epoch: translations so far, sizes of the batches, the sum of the weights, loss and gradient.
    """
    function = look_up_function(namespace, "steady_batches")
    counted = Translations()
    torch._dynamo.reset()
    compiled = torch.compile(weighted_loss, backend=counted)
    found = []
    try:
        for epoch, count in enumerate(rows):
            inputs, labels = examples(seed + epoch, count)
            batches = list(function(inputs.clone(), labels.clone(), batch_size))
            found.append(_epoch(compiled, batches, counted))
    finally:
        torch._dynamo.reset()
    return found


def _epoch(compiled: Callable[..., torch.Tensor], batches: list[Any], counted: Translations) -> Outputs:
    weight = torch.zeros(CLASSES, FEATURES, requires_grad=True)
    with torch.no_grad():
        weight += torch.linspace(-0.2, 0.2, weight.numel()).view_as(weight)
    sizes, total, amount = [], torch.zeros(()), torch.zeros(())
    for batch in batches:
        if (
            not isinstance(batch, tuple | list)
            or len(batch) != 3
            or not all(isinstance(one, torch.Tensor) for one in batch)
        ):
            raise Wrong("Each batch should be three tensors: inputs, labels, weights.")
        inputs, labels, weights = batch
        if labels.dtype != torch.int64 or not inputs.is_floating_point() or not weights.is_floating_point():
            raise Wrong("Inputs and weights should be float32, labels int64, as they came in.")
        if not (labels.dim() == weights.dim() == 1 and len(inputs) == len(labels) == len(weights)):
            raise Wrong("Inputs, labels and weights of a batch should have equally many rows, one weight for each row.")
        if len(labels) and not bool(((labels >= 0) & (labels < CLASSES)).all()):
            raise Wrong("A label lies outside of the classes. The loss looks it up, also where the weight is 0.")
        sizes.append(len(inputs))
        total = total + compiled(weight, inputs, labels, weights)
        amount = amount + weights.sum()
    gradient = torch.autograd.grad(total, weight)[0] if total.requires_grad else torch.zeros_like(weight)
    return {
        "translations": counted.count,
        "sizes": sizes,
        "amount": float(amount),
        "loss": float(total.detach()),
        "gradient": gradient,
    }


def weighted_loss(
    weight: torch.Tensor, inputs: torch.Tensor, labels: torch.Tensor, weights: torch.Tensor
) -> torch.Tensor:
    """The sum of the rows' losses, each times its weight."""
    losses = nn.functional.cross_entropy(inputs @ weight.t(), labels, reduction="none")
    return (losses * weights).sum()


def examples(seed: int, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw ``rows`` examples: float32 (rows, FEATURES) and int64 (rows,)."""
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(rows, FEATURES, generator=draw), torch.randint(CLASSES, (rows,), generator=draw)


# -- one faster step --------------------------------------------------------------------------------------------------


def count_step(namespace: Mapping[str, Any], seed: int, rows: int, batch_size: int, epochs: int) -> Outputs:
    """Train with the learner's step, with a stand-in for Inductor that counts what it is given and generates nothing.

    Args:
        namespace: The learner's names.
        seed: Draws examples and initial weights.
        rows: Examples of an epoch; the last batch may be smaller.
        batch_size: Examples per step.
        epochs: Times that they are gone through.

    Returns:
        ``losses``, float64 (steps,), and ``translations``, those so far after each epoch.
    """
    counted = Translations()
    losses, translations = [], []
    model, optimizer, step = _side(
        look_up_function(namespace, "make_step")
    )  # compiles nothing yet: that waits for a call
    torch_compile.load()
    torch._dynamo.reset()
    with mock.patch("torch._inductor.compile_fx.compile_fx", counted):
        try:
            _restart(model, optimizer, seed)
            inputs, labels = task_data(seed, rows)
            for _ in range(epochs):
                with torch_compile.quiet():
                    losses += [_loss(step(*batch)) for batch in _batches(inputs, labels, batch_size)]
                translations.append(counted.count)
        finally:
            torch._dynamo.reset()
    return {"losses": losses, "translations": translations}


def reference_losses(seed: int, rows: int, batch_size: int, epochs: int) -> list[float]:
    """The losses that the plain step gives."""
    model, optimizer, step = _side(make_plain_step)
    _restart(model, optimizer, seed)
    inputs, labels = task_data(seed, rows)
    return [_loss(step(*batch)) for _ in range(epochs) for batch in _batches(inputs, labels, batch_size)]


def train(namespace: Mapping[str, Any], seed: int) -> torch.Tensor:
    """Train with the learner's step, as it really compiles, and classify the held-out examples.

    The first call makes network and step, later ones begin anew with other weights and examples in the same objects: a
    run that lasts does not compile again either.

    Returns:
        int64 (TEST_ROWS,).
    """
    torch_compile.load()
    return _train(*_kept_side(look_up_function(namespace, "make_step")), seed)


def train_plainly(seed: int) -> Outputs:
    """The same with the plain step: the trusted side of the timed question, in a process of its own."""
    side = _kept_side(make_plain_step)
    begun = time.perf_counter()
    predictions = _train(*side, seed)
    return {"seconds": time.perf_counter() - begun, "predictions": predictions}


def held_out_labels() -> torch.Tensor:
    """The right classes of the held-out examples, the same for every seed; the examples are not."""
    return torch.arange(TEST_ROWS) % CLASSES


def make_plain_step(model: nn.Module, optimizer: torch.optim.Optimizer) -> Step:
    """The step as it stands in the lab."""

    def step(inputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), labels)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def task_data(seed: int, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw examples around one centre per class, which the seed places."""
    labels = torch.arange(rows) % CLASSES
    draw = torch.Generator().manual_seed(seed)
    centres = torch.randn(CLASSES, FEATURES, generator=draw)
    return centres[labels] + 1.4 * torch.randn(rows, FEATURES, generator=draw), labels


def _train(model: nn.Module, optimizer: torch.optim.Optimizer, step: Step, seed: int) -> torch.Tensor:
    _restart(model, optimizer, seed)
    inputs, labels = task_data(seed, TRAIN_ROWS + TEST_ROWS)
    held_out, inputs, labels = inputs[:TEST_ROWS], inputs[TEST_ROWS:], labels[TEST_ROWS:]
    order = torch.randperm(TEST_ROWS, generator=torch.Generator().manual_seed(seed + 1))
    for _ in range(EPOCHS):
        for batch in _batches(inputs, labels, BATCH_SIZE):
            step(*batch)
    with torch.no_grad():
        logits: torch.Tensor = model(held_out[order])
    predictions = torch.empty(TEST_ROWS, dtype=torch.int64)
    predictions[order] = logits.argmax(1)  # asked in another order each time: nobody can answer without looking
    return predictions


def _batches(inputs: torch.Tensor, labels: torch.Tensor, batch_size: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return list(zip(inputs.split(batch_size), labels.split(batch_size), strict=True))


@lru_cache(maxsize=2)
def _kept_side(make_step: Callable[..., Step]) -> tuple[nn.Module, torch.optim.Optimizer, Step]:
    return _side(make_step)


def _side(make_step: Callable[..., Step]) -> tuple[nn.Module, torch.optim.Optimizer, Step]:
    model = models.build(TASK_SIZES).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    step = make_step(model, optimizer)
    if not callable(step):
        raise Wrong(f"`make_step` returned {type(step).__name__}. It should return a function: the step.")
    return model, optimizer, step


def _restart(model: nn.Module, optimizer: torch.optim.Optimizer, seed: int) -> None:
    """Give the network fresh weights, in place, and let the optimizer forget."""
    with seeds.preserved():
        seeds.seed(seed % (2**31))
        fresh = models.build(TASK_SIZES).state_dict()
    model.load_state_dict(fresh)
    model.zero_grad(set_to_none=True)
    optimizer.state.clear()


def _loss(value: Any) -> float:
    if not isinstance(value, torch.Tensor) or value.numel() != 1:
        raise Wrong(f"The step returned {type(value).__name__}. It should return the loss, a tensor with one number.")
    return float(value.detach())


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:200] if lines else type(error).__name__
