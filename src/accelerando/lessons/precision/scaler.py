"""The gradient scaler at work: how it finds its scale, and what a restart forgets."""

from __future__ import annotations

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
    model, optimizer = fresh()
    scaler = torch.amp.GradScaler("cpu", init_scale=init_scale)
    batches = list(first_batches(budget, 40))
    for batch in batches[:20]:
        right_order(Step(model, optimizer, scaler, [batch], 1e9))
    checkpoint = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "scaler": scaler.state_dict()}
    skipped = []
    for has_state in (True, False):
        model, optimizer = fresh()
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        scaler = torch.amp.GradScaler("cpu", init_scale=init_scale)
        if has_state:
            scaler.load_state_dict(checkpoint["scaler"])
        count = 0
        for batch in batches[20:]:
            before = scaler.get_scale()
            right_order(Step(model, optimizer, scaler, [batch], 1e9))
            count += scaler.get_scale() < before
        skipped.append(count)
    return Restart(checkpoint["scaler"]["scale"], skipped[0], skipped[1], len(batches) - 20)
