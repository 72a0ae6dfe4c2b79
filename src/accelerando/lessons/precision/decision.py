"""The decision that the measurements of a run lead to."""

from __future__ import annotations

from dataclasses import dataclass

from accelerando.lessons.precision.memory import Saved
from accelerando.lessons.precision.rounding import AccuracyTable
from accelerando.lessons.precision.speed import SpeedTable


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


def decide(steps: SpeedTable, accuracy: AccuracyTable, saved: Saved) -> Decision:
    """Choose between fp32 and bf16 autocast by what was measured, not by the flags.

    Args:
        steps: Of `measure_steps`.
        accuracy: Of `rounding.compare_accuracy`; its first row is autocast.
        saved: Of `memory.measure_saved`.
    """
    comparison, kept = steps.find("wide MLP", "bf16").comparison, accuracy.rows[0].verdict
    low, high = comparison.interval
    speed = f"a step is {comparison.ratio:.2f} times as fast ({low:.2f} to {high:.2f})"
    memory = f"it keeps {saved.ratio:.2f} times the bytes for backward"
    if kept.verdict == "lost":
        return Decision("fp32", f"bf16 loses accuracy, so {speed} does not matter.")
    if comparison.verdict == "faster":
        doubt = ", but the accuracy is not decided: measure more runs before you keep it"
        return Decision("bf16", f"With it {speed}, and {memory}{'' if kept.verdict == 'kept' else doubt}.")
    if comparison.verdict == "undecided":
        return Decision("fp32", f"With bf16 {speed}: not decided, so not worth a change. Measure longer.")
    return Decision("fp32", f"With bf16 {speed}. That {memory} would matter only if memory were short.")
