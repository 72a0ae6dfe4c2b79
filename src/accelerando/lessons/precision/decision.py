"""The decision that the measurements of a run lead to."""

from __future__ import annotations

import math
from dataclasses import dataclass

from accelerando.lessons import Budget
from accelerando.lessons.precision.memory import Saved
from accelerando.lessons.precision.rounding import AUTOCAST, AccuracyTable, compare_accuracy
from accelerando.lessons.precision.speed import SpeedTable

_NET = "wide MLP"


@dataclass(frozen=True)
class Decision:
    """What the measurements of a run say about one network.

    Args:
        precision: "fp32" or "bf16".
        reason: Why.
    """

    precision: str
    reason: str

    def sentence(self) -> str:
        """The decision, in words."""
        return f"For the wide MLP on this machine: **{self.precision}**. {self.reason}"


def judge_accuracy(budget: Budget, steps: SpeedTable) -> AccuracyTable | None:
    """Compare the wide MLP's accuracy under bf16 autocast with that in fp32, if bf16 was proven to be faster.

    Args:
        budget: How many images, and how many seeds.
        steps: Of `measure_steps`.

    Returns:
        None where nothing was gained: there an accuracy that is kept would change no decision.
    """
    if steps.find(_NET, "bf16").comparison.verdict != "faster":
        return None
    return compare_accuracy(budget, net=_NET, ways=(AUTOCAST,))


def decide(steps: SpeedTable, accuracy: AccuracyTable | None, saved: Saved) -> Decision:
    """Choose between fp32 and bf16 autocast for the wide MLP by what was measured, not by the flags.

    bf16 must be proven twice: its whole speed-up interval above 1, its whole accuracy interval above minus the margin.

    Args:
        steps: Of `measure_steps`.
        accuracy: Of `judge_accuracy`.
        saved: Of `memory.measure_saved`.
    """
    comparison = steps.find(_NET, "bf16").comparison
    low, high = comparison.interval
    ends = f"{low:.2f} to {high:.2f}" if math.isfinite(high) else "too few pairs for an interval"
    speed = f"a step is {comparison.ratio:.2f} times as fast ({ends})"
    memory = f"it keeps {saved.ratio:.2f} times the bytes for backward (batch {saved.batch_size})"
    if comparison.verdict == "undecided":
        return Decision("fp32", f"With bf16 {speed}: not decided, so not worth a change. Measure longer.")
    if comparison.verdict != "faster" or accuracy is None:
        return Decision("fp32", f"With bf16 {speed}. That {memory} would matter only if memory were short.")
    verdict = accuracy.rows[0].verdict
    low, high = (100 * end for end in verdict.interval)
    kept = f"its accuracy differs by {low:+.1f} to {high:+.1f} points, where -{100 * accuracy.margin:g} is allowed"
    if verdict.verdict == "kept":
        return Decision("bf16", f"With it {speed}; {kept}; and {memory}.")
    if verdict.verdict == "lost":
        return Decision("fp32", f"With bf16 {speed}, which does not matter: {kept}. That is a loss.")
    return Decision("fp32", f"With bf16 {speed}, but {kept}: not decided. Train with more seeds before you change it.")
