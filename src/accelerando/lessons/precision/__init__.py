"""Lesson 6: what half the bits cost, what they bring on this machine, and how to train with them all the same.

Every experiment returns a frozen result with a ``sentence``: what this run showed, whichever way it came out.
"""

from accelerando.lessons.precision.casting import rules, rules_table, traps, traps_table
from accelerando.lessons.precision.decision import decide, judge_accuracy
from accelerando.lessons.precision.gradients import measure_underflow, sample_gradients
from accelerando.lessons.precision.lowered import measure_lowered
from accelerando.lessons.precision.memory import measure_saved, recompute_table, sweep_saved
from accelerando.lessons.precision.orders import compare_orders
from accelerando.lessons.precision.rounding import compare_accuracy, measure_swallowed, stuck_table
from accelerando.lessons.precision.runs import train_in_half
from accelerando.lessons.precision.scaler import measure_restart, trace_scale
from accelerando.lessons.precision.speed import (
    compare_gains,
    describe_hardware,
    measure_batches,
    measure_matmul_errors,
    measure_products,
    measure_steps,
)
from accelerando.lessons.precision.task import NETS

__all__ = [
    "NETS",
    "compare_accuracy",
    "compare_gains",
    "compare_orders",
    "decide",
    "describe_hardware",
    "judge_accuracy",
    "measure_batches",
    "measure_lowered",
    "measure_matmul_errors",
    "measure_products",
    "measure_restart",
    "measure_saved",
    "measure_steps",
    "measure_swallowed",
    "measure_underflow",
    "recompute_table",
    "rules",
    "rules_table",
    "sample_gradients",
    "stuck_table",
    "sweep_saved",
    "trace_scale",
    "train_in_half",
    "traps",
    "traps_table",
]
