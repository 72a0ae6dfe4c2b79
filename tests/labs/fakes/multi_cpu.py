"""The truth that lab 8 is judged by: a machine of two cores."""

from typing import Any

from accelerando.lessons.multi_cpu import task
from accelerando.workers import Experiment

from . import FakeRun

_CORES = 2


def fake_training(experiment: Experiment) -> FakeRun:
    """A step costs something in itself; ranks on one core take turns; a rate is judged by what an image gets of it."""
    if experiment.target == task.PREPARE_BEST:
        layout: dict[str, Any] = {
            "processes": _CORES,
            "threads": 1,
            "pinning": "none",
            "learning_rate": 0.005,
            "batch": 16 // _CORES,
        }
    else:
        layout = dict(experiment.arguments["layout"])
    together = layout["processes"] * layout["batch"]
    cores = 1 if layout["pinning"] == "one core" else min(_CORES, layout["processes"] * layout["threads"])
    crowd = max(1.0, layout["processes"] * layout["threads"] / cores)
    step_s = (0.001 * layout["processes"] + 0.0001 * together) * crowd**0.5 / cores
    steps = task.EPOCHS * task.TRAIN_IMAGES / together
    return FakeRun(steps * step_s, 0.82 if layout["learning_rate"] / together > 0.0003 else 0.72)


RUNS = {"multi_cpu.faster_layout": fake_training}
