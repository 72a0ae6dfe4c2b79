"""The gradient scaler at work: how it finds its scale, and what a restart forgets."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass

import torch

from accelerando.lessons import Budget
from accelerando.lessons.precision.orders import Step, first_batches, fresh, right_order


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
            f"It began at {_power(self.scales[0])}. The first {at_start} step(s) overflowed, were skipped, and halved "
            f"it, down to {_power(self.scales[at_start])}. Then it doubled {grown} time(s) after "
            f"{self.growth_interval} clean steps in a row, {again}."
        )


def trace_scale(budget: Budget, *, init_scale: float = 2.0**24, growth_interval: int = 8) -> ScaleTrace:
    """Train in fp16 with a scaler that starts far too high, and watch its scale.

    Args:
        budget: How many steps.
        init_scale: Where it starts; torch's default is 2**16.
        growth_interval: torch's default is 2000; a small one shows in few steps what happens.
    """
    model, optimizer = fresh()
    scaler = torch.amp.GradScaler("cpu", init_scale=init_scale, growth_interval=growth_interval)
    scales, skipped = [], []
    for batch in first_batches(budget, 12 * min(budget.rounds, 7) + 12):
        scales.append(scaler.get_scale())
        right_order(Step(model, optimizer, scaler, [batch], 1e9))
        skipped.append(scaler.get_scale() < scales[-1])
    return ScaleTrace(tuple(scales), tuple(skipped), growth_interval)


# -- a restart --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Restart:
    """A run that was saved and resumed.

    Args:
        start: The scale that a new scaler of this run begins with.
        settled: The scale at which it was saved.
        skipped_with: Steps skipped after resuming with the scaler's state.
        skipped_without: And with a scaler that starts anew.
        steps: Steps made after resuming.
    """

    start: float
    settled: float
    skipped_with: int
    skipped_without: int
    steps: int

    def __str__(self) -> str:
        return f"| {_power(self.start)} | {_power(self.settled)} | {self.skipped_with} | {self.skipped_without} |"


@dataclass(frozen=True)
class Restarts:
    """The same run, saved and resumed, with scalers that begin at several scales."""

    rows: tuple[Restart, ...]

    def sentence(self) -> str:
        """What this run showed, with a table."""
        head = "| a new scaler begins at | it had settled at | skipped with its state | skipped without |"
        table = "\n".join([head, "|---|---|---|---|", *map(str, self.rows)])
        high = max(self.rows, key=lambda row: row.start)
        default = min(self.rows, key=lambda row: abs(row.start - DEFAULT_SCALE))
        lost = high.skipped_without - high.skipped_with
        costs = f"costs {lost} more of {high.steps} steps" if lost > 0 else "costs nothing"
        told = (
            f"Beginning again at {_power(high.start)}, {high.start / DEFAULT_SCALE:g} times torch's default, {costs}."
        )
        if default is high:
            return f"{table}\n\n{told}"
        lost = default.skipped_without - default.skipped_with
        usual = (
            f"costs {lost} of them"
            if lost > 0
            else "costs none: that start lies no higher than where the scale settles here"
        )
        return f"{table}\n\n{told} At the default it {usual}."


DEFAULT_SCALE = 2.0**16
"""Where torch's scaler begins."""


def measure_restart(budget: Budget, *, starts: tuple[float, ...] = (2.0**24, DEFAULT_SCALE)) -> Restarts:
    """Train until the scale has settled, save, resume with and without the scaler's state, count skipped steps.

    Args:
        budget: How many images.
        starts: Scales that a new scaler begins with, in the run that is saved as in the one that forgets.
    """
    return Restarts(tuple(_restart(budget, start) for start in starts))


def _restart(budget: Budget, start: float) -> Restart:
    model, optimizer = fresh()
    scaler = torch.amp.GradScaler("cpu", init_scale=start)
    batches = list(first_batches(budget, 40))
    for batch in batches[:20]:
        right_order(Step(model, optimizer, scaler, [batch], 1e9))
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "scaler": scaler.state_dict()}
    checkpoint = copy.deepcopy(state)  # a file on the disk, in effect
    skipped = []
    for has_state in (True, False):
        model, optimizer = fresh()
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        scaler = torch.amp.GradScaler("cpu", init_scale=start)
        if has_state:
            scaler.load_state_dict(checkpoint["scaler"])
        count = 0
        for batch in batches[20:]:
            before = scaler.get_scale()
            right_order(Step(model, optimizer, scaler, [batch], 1e9))
            count += scaler.get_scale() < before
        skipped.append(count)
    return Restart(start, checkpoint["scaler"]["scale"], skipped[0], skipped[1], len(batches) - 20)


def _power(scale: float) -> str:
    """A power of two, as one."""
    return f"2^{math.log2(scale):.0f}"
