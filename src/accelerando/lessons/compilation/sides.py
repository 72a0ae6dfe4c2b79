"""One training step on two sides, eager and compiled, timed in a process of its own with empty compile caches."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

from accelerando import models, rounds, seeds, torch_compile, workers
from accelerando.lessons import Budget
from accelerando.workers import Experiment

EAGER, COMPILED = 0, 1
_LIBRARY = ("conv", "addmm", "aten::mm", "aten::bmm", "linear", "gemm")


class Side:
    """One side: a network, its optimizer and the function that is compiled, forward and loss together."""

    def __init__(self, model: nn.Module, loss_of: Callable[..., torch.Tensor], inputs: torch.Tensor) -> None:
        self.model, self.loss_of, self.inputs = model, loss_of, inputs
        self.labels = torch.arange(len(inputs)) % 10
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step(self, rows: int | None = None) -> float:
        """Train on the batch, or on its first rows; returns the loss."""
        self.optimizer.zero_grad()
        loss = self.loss_of(self.model, self.inputs[:rows], self.labels[:rows])
        loss.backward()
        self.optimizer.step()
        return float(loss.detach())


def loss_of(model: nn.Module, inputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """What is compiled: forward and loss; backward follows from it."""
    return nn.functional.cross_entropy(model(inputs), labels)


def make_sides(sizes: Mapping[str, Any], batch_size: int, backend: str, **more: Any) -> tuple[Side, Side]:
    """Make both sides, eager and compiled, with the same weights and batch; ``more`` goes to ``torch.compile``."""
    seeds.seed(0)
    family = models.sizes_from_dict(sizes)
    model, inputs = models.build(family).train(), models.example_input(family, batch_size)
    compiled: Callable[..., torch.Tensor] = torch.compile(loss_of, backend=backend, **more)
    return Side(copy.deepcopy(model), loss_of, inputs), Side(model, compiled, inputs)


def time_sides(eager: Side, compiled: Side, count: int) -> tuple[dict[str, Any], tuple[list[float], list[float]]]:
    """Compile, and time both sides in turns.

    Args:
        eager: Not trained yet.
        compiled: Neither compiled nor trained yet.
        count: Rounds.

    Returns:
        Fields of `Payback`, and the seconds of each side's first steps.
    """
    first_s, losses = zip(*(_first_steps(side) for side in (eager, compiled)), strict=True)
    points = in_turns({EAGER: eager.step, COMPILED: compiled.step}, count)
    step_s = [point.median_s for point in points]
    found = {
        "compile_s": max(sum(first_s[COMPILED]) - len(first_s[COMPILED]) * step_s[COMPILED], 0.0),
        "eager_step_s": step_s[EAGER],
        "compiled_step_s": step_s[COMPILED],
        "ratio": points[COMPILED].ratio,
        "interval": list(points[COMPILED].interval),
        "library_share": library_share(eager.step),
        "loss_difference": float(np.max(np.abs(np.divide(losses[COMPILED], losses[EAGER]) - 1))),
    }
    return found, first_s


def _first_steps(side: Side) -> tuple[list[float], list[float]]:
    """Seconds and losses of a side's first two steps; compiling happens in them."""
    seconds, losses = [], []
    for _ in range(2):
        begun = time.perf_counter()
        losses.append(side.step())
        seconds.append(time.perf_counter() - begun)
    return seconds, losses


def library_share(step: Callable[[], object], steps: int = 3) -> float:
    """Measure the share of a step that is spent inside convolutions and matrix products.

    Args:
        step: A training step, not compiled.
        steps: How many to look at.
    """
    from torch.profiler import ProfilerActivity, profile

    step()
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        for _ in range(steps):
            step()
    events = profiler.key_averages()
    total = sum(event.self_cpu_time_total for event in events)
    library = sum(event.self_cpu_time_total for event in events if any(name in event.key for name in _LIBRARY))
    return library / total if total else 0.0


def in_turns(steps: Mapping[int, Callable[[], object]], count: int) -> tuple[rounds.RoundPoint, ...]:
    """Time steps in turns; each sample is a few dozen milliseconds or more, except in a single round."""
    return rounds.measure_rounds(steps, count, sample_s=0.12 if count > 1 else 0.01)


def seconds(function: Callable[[], object]) -> float:
    """Seconds of one call."""
    begun = time.perf_counter()
    function()
    return time.perf_counter() - begun


def get_ready(backend: str) -> float:
    """Load the compiler, which is not counted, and compile a trifle; returns the seconds of the trifle, if any."""
    if backend != "inductor":
        return 0.0
    torch_compile.load()
    return seconds(compile_trifle)


def compile_trifle() -> None:
    """Compile a function of one line: what is done once per process is then behind."""
    torch.compile(_trifle)(torch.ones(8))


def _trifle(x: torch.Tensor) -> torch.Tensor:
    return x + 1


def in_own_process(
    function: Callable[..., dict[str, Any]], arguments: dict[str, Any], budget: Budget
) -> dict[str, Any]:
    """Run a function in a fresh process with fresh caches; in this one when the budget has no time."""
    if not budget.process_s:
        torch._dynamo.reset()
        return function(**arguments)
    with torch_compile.fresh_caches() as variables:
        found: dict[str, Any] = workers.run(Experiment(target_of(function), arguments, variables)).value
    return found


def target_of(function: Callable[..., Any]) -> str:
    """How a child process finds a function of a module."""
    return f"{function.__module__}:{function.__name__}"
