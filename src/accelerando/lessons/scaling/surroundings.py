"""The environment around a program: one change of its variables, before against after, in child processes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from accelerando import datasets, measure, training
from accelerando.lessons import Budget
from accelerando.lessons.scaling.subject import STEP_RECIPE
from accelerando.surroundings import Surroundings
from accelerando.workers import Experiment

PREPARE_STEPS = "accelerando.lessons.scaling.surroundings:prepare_steps"


def measure_surroundings(wanted: Sequence[Surroundings], budget: Budget) -> tuple[measure.Comparison, ...]:
    """Compare environments, each pair in two child processes; nothing when the budget has no time for processes."""
    arguments = {"recipe": {"batch_size": 128}, "steps": 4}
    found = []
    for setting in wanted if budget.process_s else ():
        sides = (setting.before, setting.after)
        before, after = (Experiment(PREPARE_STEPS, arguments, variables, prepares=True) for variables in sides)
        found.append(measure.compare(before, after, budget_s=budget.process_s, labels=("before", setting.name)))
    return tuple(found)


def prepare_steps(recipe: dict[str, Any], steps: int) -> Callable[[], None]:
    """Prepare training steps for a child process: the function that it returns makes ``steps`` of them."""
    step = training.stepper(STEP_RECIPE.changed(**recipe), datasets.synthetic(1024, 10))

    def run() -> None:
        for _ in range(steps):
            step()

    return run
