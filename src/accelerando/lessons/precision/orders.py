"""The order of the scaler's calls: one right, and what becomes of a step in the others."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from accelerando import datasets, models, seeds
from accelerando.lessons import Budget
from accelerando.lessons.precision.gradients import images

SIZES = models.MlpSizes(hidden=(64,))
"""Small: fp16 is slow on most CPUs, and the arithmetic of the scaler does not depend on the size."""
Batch = tuple[torch.Tensor, torch.Tensor]


def fresh() -> tuple[nn.Module, torch.optim.Optimizer]:
    """The small network, always with the same weights, and an optimizer for it."""
    with seeds.preserved():
        seeds.seed(0)
        model = models.build(SIZES)
    return model, torch.optim.SGD(model.parameters(), lr=0.05)


def first_batches(budget: Budget, count: int, size: int = 32) -> Iterator[Batch]:
    """The first batches of the training images, from the beginning again when they are used up."""
    train = images(budget).train
    for number in range(count):
        first = number * size % (len(train) - size + 1)
        rows = slice(first, first + size)
        yield datasets.as_batch(train.images[rows]), torch.from_numpy(train.labels[rows])


@dataclass(frozen=True, eq=False)
class Step:
    """What one optimizer step is made of, in whatever order.

    Args:
        model: In fp32; autocast makes it compute in fp16.
        optimizer: Of its parameters.
        scaler: Of its losses.
        batches: Whose gradients make the step together.
        clip_norm: Length that gradients are clipped to.
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler
    batches: Sequence[Batch]
    clip_norm: float

    def accumulate(self, batches: Sequence[Batch]) -> None:
        """Add up scaled gradients of the mean loss over all images of these batches."""
        total = sum(len(labels) for _, labels in batches)
        for inputs, labels in batches:
            self.add(inputs, labels, len(labels) / total)

    def add(self, inputs: torch.Tensor, labels: torch.Tensor, share: float = 1.0) -> None:
        """Add the scaled gradients of one batch's mean loss, times its share."""
        with torch.autocast("cpu", torch.float16):
            logits = self.model(inputs)
        self.scaler.scale(nn.functional.cross_entropy(logits.float(), labels) * share).backward()

    def clip(self) -> None:
        """Clip the gradients, as large as they stand there now."""
        nn.utils.clip_grad_norm_(self.model.parameters(), self.clip_norm)

    def make(self) -> None:
        """Let the scaler step, and learn from it."""
        self.scaler.step(self.optimizer)
        self.scaler.update()


Order = Callable[[Step], None]


def right_order(step: Step) -> None:
    """Scale and accumulate, unscale once, clip, step, update once."""
    step.optimizer.zero_grad()
    step.accumulate(step.batches)
    step.scaler.unscale_(step.optimizer)
    step.clip()
    step.make()


def _clip_first(step: Step) -> None:
    step.optimizer.zero_grad()
    step.accumulate(step.batches)
    step.clip()
    step.make()


def _unscale_each(step: Step) -> None:
    step.optimizer.zero_grad()
    for batch in step.batches:
        step.accumulate([batch])
        step.scaler.unscale_(step.optimizer)
    step.clip()
    step.make()


def _not_divided(step: Step) -> None:
    step.optimizer.zero_grad()
    for inputs, labels in step.batches:
        step.add(inputs, labels)
    step.scaler.unscale_(step.optimizer)
    step.clip()
    step.make()


def _step_without_scaler(step: Step) -> None:
    step.optimizer.zero_grad()
    step.accumulate(step.batches)
    step.optimizer.step()


def _in_fp32(step: Step) -> None:
    inputs, labels = (torch.cat(parts) for parts in zip(*step.batches, strict=True))
    nn.functional.cross_entropy(step.model(inputs), labels).backward()
    step.clip()
    step.optimizer.step()


ORDERS: dict[str, Order] = {
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
    start, _ = fresh()
    drawn = zip((32, 32, 16), first_batches(budget, 3), strict=True)
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


def _update(start: nn.Module, batches: list[Batch], clip_norm: float, order: Order) -> torch.Tensor:
    model = copy.deepcopy(start)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    order(Step(model, optimizer, torch.amp.GradScaler("cpu", init_scale=2.0**12), batches, clip_norm))
    pairs = zip(model.parameters(), start.parameters(), strict=True)
    return torch.cat([(after.detach() - before.detach()).reshape(-1) for after, before in pairs])
