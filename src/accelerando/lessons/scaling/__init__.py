"""Lesson 1: where a training step spends its time, and what more cores, bigger batches and switches do about it.

Every experiment returns a frozen result with a ``sentence``: what this run showed, whichever way it came out.
"""

from accelerando.costs import Offer
from accelerando.lessons.scaling.batches import BatchPoint, BatchSweep, batch_sweep, fastest_kept
from accelerando.lessons.scaling.breakdown import StepBreakdown, step_breakdown
from accelerando.lessons.scaling.own_loop import stand_in
from accelerando.lessons.scaling.prices import EXAMPLE_OFFERS, price_table
from accelerando.lessons.scaling.subject import STEP_RECIPE, images
from accelerando.lessons.scaling.surroundings import PREPARE_STEPS, measure_surroundings, prepare_steps
from accelerando.lessons.scaling.switches import SWITCH_RECIPE, SWITCHES, Switch, ceilings, measure_switch, reading
from accelerando.lessons.scaling.task import SLOW_START, TRAIN_RECIPE, RecipeTrial, task_data, train_recipe, try_recipe
from accelerando.lessons.scaling.threads import SpeedupCurve, measure_kernels, measure_threads, thread_counts

__all__ = [
    "EXAMPLE_OFFERS",
    "PREPARE_STEPS",
    "SLOW_START",
    "STEP_RECIPE",
    "SWITCHES",
    "SWITCH_RECIPE",
    "TRAIN_RECIPE",
    "BatchPoint",
    "BatchSweep",
    "Offer",
    "RecipeTrial",
    "SpeedupCurve",
    "StepBreakdown",
    "Switch",
    "batch_sweep",
    "ceilings",
    "fastest_kept",
    "images",
    "measure_kernels",
    "measure_surroundings",
    "measure_switch",
    "measure_threads",
    "prepare_steps",
    "price_table",
    "reading",
    "stand_in",
    "step_breakdown",
    "task_data",
    "thread_counts",
    "train_recipe",
    "try_recipe",
]
