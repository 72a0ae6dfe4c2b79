"""The gradient scaler at work: how it finds its scale, which order of calls is right, and what a restart forgets."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import nn

from accelerando import datasets, models, seeds
from accelerando.lessons import Budget
from accelerando.lessons.precision.gradients import images

SIZES = models.MlpSizes(hidden=(64,))
"""Small: fp16 is slow on most CPUs, and the arithmetic of the scaler does not depend on the size."""
Batch = tuple[torch.Tensor, torch.Tensor]
Step = Callable[[nn.Module, torch.optim.Optimizer, torch.amp.GradScaler, list[Batch], float], None]


@dataclass(frozen=True)
class ScaleTrace:
    """What a scaler did, step by step.

    Args:
        scales: The scale that each step was made with.
        skipped: Whether the step found infinity or NaN and was left out.
        growth_interval: Clean steps in a row after which the scale doubles.
    """

    scales: tuple[float, ...]
    skipped: tuple[bool, ...]
    growth_interval: int

    def sentence(self) -> str:
        """What this run showed."""
        at_start = next((place for place, is_out in enumerate(self.skipped) if not is_out), len(self.skipped))
        later = sum(self.skipped[at_start:])
        if at_start == len(self.skipped):
            return "Every step overflowed: the start was too high for so few steps."
        grown = sum(b > a for a, b in zip(self.scales, self.scales[1:], strict=False))
        again = f"and {later} later step(s) overflowed again and were skipped" if later else "and none overflowed again"
        return (
            f"It began at {self.scales[0]:.3g}. The first {at_start} step(s) overflowed, were skipped, and halved it, "
            f"down to {self.scales[at_start]:.3g}. Then it doubled {grown} time(s) after {self.growth_interval} clean "
            f"steps in a row, {again}."
        )


def trace_scale(budget: Budget, *, init_scale: float = 2.0**24, growth_interval: int = 8) -> ScaleTrace:
    """Train in fp16 with a scaler that starts far too high, and watch its scale.

    Args:
        budget: How many steps.
        init_scale: Where it starts; torch's default is 2**16.
        growth_interval: torch's default is 2000; a small one shows in few steps what happens.
    """
    model, optimizer = _fresh()
    scaler = torch.amp.GradScaler("cpu", init_scale=init_scale, growth_interval=growth_interval)
    scales, skipped = [], []
    for batch in _batches(budget, 12 * min(budget.rounds, 7) + 12):
        scales.append(scaler.get_scale())
        right_order(model, optimizer, scaler, [batch], 1e9)
        skipped.append(scaler.get_scale() < scales[-1])
    return ScaleTrace(tuple(scales), tuple(skipped), growth_interval)


def _fresh() -> tuple[nn.Module, torch.optim.Optimizer]:
    with seeds.preserved():
        seeds.seed(0)
        model = models.build(SIZES)
    return model, torch.optim.SGD(model.parameters(), lr=0.05)


def _batches(budget: Budget, count: int, size: int = 32) -> Iterator[Batch]:
    train = images(budget).train
    for number in range(count):
        first = number * size % (len(train) - size + 1)
        rows = slice(first, first + size)
        yield datasets.as_batch(train.images[rows]), torch.from_numpy(train.labels[rows])


# -- the order of the calls -------------------------------------------------------------------------------------------


def right_order(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    scaler: torch.amp.GradScaler,
    batches: list[Batch],
    clip_norm: float,
) -> None:
    """Make one optimizer step: scale and accumulate, unscale once, clip, step, update once."""
    optimizer.zero_grad()
    _accumulate(model, scaler, batches)
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), clip_norm)
    scaler.step(optimizer)
    scaler.update()


def _accumulate(model: nn.Module, scaler: torch.amp.GradScaler, batches: list[Batch]) -> None:
    total = sum(len(labels) for _, labels in batches)
    for inputs, labels in batches:
        scaler.scale(_loss(model, inputs, labels) * (len(labels) / total)).backward()


def _loss(model: nn.Module, inputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", torch.float16):
        logits = model(inputs)
    return nn.functional.cross_entropy(logits.float(), labels)


def _clip_first(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    scaler: torch.amp.GradScaler,
    batches: list[Batch],
    clip_norm: float,
) -> None:
    optimizer.zero_grad()
    _accumulate(model, scaler, batches)
    nn.utils.clip_grad_norm_(model.parameters(), clip_norm)
    scaler.step(optimizer)
    scaler.update()


def _unscale_each(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    scaler: torch.amp.GradScaler,
    batches: list[Batch],
    clip_norm: float,
) -> None:
    optimizer.zero_grad()
    for batch in batches:
        _accumulate(model, scaler, [batch])
        scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), clip_norm)
    scaler.step(optimizer)
    scaler.update()


def _not_divided(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    scaler: torch.amp.GradScaler,
    batches: list[Batch],
    clip_norm: float,
) -> None:
    optimizer.zero_grad()
    for inputs, labels in batches:
        scaler.scale(_loss(model, inputs, labels)).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), clip_norm)
    scaler.step(optimizer)
    scaler.update()


def _step_without_scaler(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    scaler: torch.amp.GradScaler,
    batches: list[Batch],
    clip_norm: float,
) -> None:
    optimizer.zero_grad()
    _accumulate(model, scaler, batches)
    optimizer.step()


ORDERS: dict[str, Step] = {
    "scale, accumulate, unscale, clip, step, update": right_order,
    "clip before unscale": _clip_first,
    "unscale after every batch": _unscale_each,
    "losses of the batches summed, not averaged": _not_divided,
    "optimizer.step() instead of scaler.step()": _step_without_scaler,
}


@dataclass(frozen=True)
class OrderRow:
    """One order of calls.

    Args:
        name: In words.
        length: Of its update, relative to that of fp32: 1 is right; NaN when it raised.
        error: Length of the difference to fp32's update, relative to that update.
        raised: What torch said; empty when it said nothing.
    """

    name: str
    length: float
    error: float
    raised: str


@dataclass(frozen=True)
class OrderTable:
    """Orders of calls, each against one step in fp32 on all images at once.

    Args:
        rows: The right one first.
        clip_norm: Length that gradients were clipped to.
    """

    rows: tuple[OrderRow, ...]
    clip_norm: float

    def markdown(self) -> str:
        """All rows, as a table."""
        lines = ["| order of the calls | update, relative to fp32's | difference | torch says |", "|---|---|---|---|"]
        for row in self.rows:
            off = f"{row.error:.2%}" if row.error < 10 else f"{row.error:.3g} times its length"
            figures = "none | none" if row.raised else f"{row.length:.3g} x | {off}"
            lines.append(f"| {row.name} | {figures} | {row.raised or 'nothing'} |")
        return "\n".join(lines)

    def sentence(self) -> str:
        """What this run showed."""
        right, *others = self.rows
        silent = [row for row in others if not row.raised and row.error > 10 * right.error]
        return (
            f"Clipping to length {self.clip_norm:g} should change nothing here, since the gradient is shorter. The "
            f"first order differs from fp32 by {right.error:.2%}: rounding. {len(silent)} of the {len(others)} others "
            "are wrong by more than ten times that, and torch says nothing about them."
        )


def compare_orders(budget: Budget, *, clip_norm: float = 10.0) -> OrderTable:
    """Make one step in each order, from the same weights and batches, and compare the updates with fp32's.

    Args:
        budget: Of the images only.
        clip_norm: Longer than the gradient, so that right clipping changes nothing.
    """
    start, _ = _fresh()
    drawn = zip((32, 32, 16), _batches(budget, 3), strict=True)
    batches = [(inputs[:rows], labels[:rows]) for rows, (inputs, labels) in drawn]
    exact = _update(start, batches, clip_norm, _in_fp32)
    rows = []
    for name, order in ORDERS.items():
        try:
            found = _update(start, batches, clip_norm, order)
        except (RuntimeError, AssertionError) as error:
            rows.append(OrderRow(name, float("nan"), float("nan"), str(error).split(". ")[0][:80]))
            continue
        length = float(found.norm() / exact.norm())
        rows.append(OrderRow(name, length, float((found - exact).norm() / exact.norm()), ""))
    return OrderTable(tuple(rows), clip_norm)


def _in_fp32(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    scaler: torch.amp.GradScaler,
    batches: list[Batch],
    clip_norm: float,
) -> None:
    inputs, labels = (torch.cat(parts) for parts in zip(*batches, strict=True))
    nn.functional.cross_entropy(model(inputs), labels).backward()
    nn.utils.clip_grad_norm_(model.parameters(), clip_norm)
    optimizer.step()


def _update(start: nn.Module, batches: list[Batch], clip_norm: float, order: Step) -> torch.Tensor:
    model = copy.deepcopy(start)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    order(model, optimizer, torch.amp.GradScaler("cpu", init_scale=2.0**12), batches, clip_norm)
    pairs = zip(model.parameters(), start.parameters(), strict=True)
    return torch.cat([(after.detach() - before.detach()).reshape(-1) for after, before in pairs])


# -- a restart --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Restart:
    """A run that was saved and resumed.

    Args:
        settled: The scale at which it was saved.
        skipped_with: Steps skipped after resuming with the scaler's state.
        skipped_without: And with a scaler that starts anew.
        steps: Steps made after resuming.
    """

    settled: float
    skipped_with: int
    skipped_without: int
    steps: int

    def sentence(self) -> str:
        """What this run showed."""
        return (
            f"The scale had settled at {self.settled:.3g}. Resumed with the scaler's state, {self.skipped_with} of "
            f"{self.steps} steps were skipped; without it, {self.skipped_without}."
        )


def measure_restart(budget: Budget, *, init_scale: float = 2.0**24) -> Restart:
    """Train until the scale has settled, save, resume with and without the scaler's state, count skipped steps."""
    model, optimizer = _fresh()
    scaler = torch.amp.GradScaler("cpu", init_scale=init_scale)
    batches = list(_batches(budget, 40))
    for batch in batches[:20]:
        right_order(model, optimizer, scaler, [batch], 1e9)
    checkpoint = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "scaler": scaler.state_dict()}
    skipped = []
    for has_state in (True, False):
        model, optimizer = _fresh()
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        scaler = torch.amp.GradScaler("cpu", init_scale=init_scale)
        if has_state:
            scaler.load_state_dict(checkpoint["scaler"])
        count = 0
        for batch in batches[20:]:
            before = scaler.get_scale()
            right_order(model, optimizer, scaler, [batch], 1e9)
            count += scaler.get_scale() < before
        skipped.append(count)
    return Restart(checkpoint["scaler"]["scale"], skipped[0], skipped[1], len(batches) - 20)
