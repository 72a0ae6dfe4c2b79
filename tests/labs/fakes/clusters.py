"""The truth that lab 10 is judged by."""

from accelerando.lessons.clusters import plans, task
from accelerando.workers import Experiment

from . import FakeRun

_BATCH_S = 0.002


def fake_training(experiment: Experiment) -> FakeRun:
    """Seconds as predicted; fewer optimizer steps cost accuracy, and so do ranks that hardly ever meet."""
    plan = plans.check_plan(experiment.arguments["plan"])
    accuracy = 0.83 - 0.02 * (plan.accumulate - 1) - (0.03 if plan.average_every > 32 else 0.0)
    return FakeRun(plans.predict_seconds(plan, _BATCH_S, task.LINK), accuracy)


RUNS = {"clusters.slow_link_plan": fake_training}
