"""The truth that lab 6 is judged by: bf16 units and no others, and weights that fly apart at a huge learning rate."""

from accelerando.workers import Experiment

from . import FakeRun

SPEED = {"fp32": 1.0, "bf16": 1.8, "fp16": 0.2}


def fake_training(experiment: Experiment) -> FakeRun:
    """Products take nearly all the time."""
    recipe = experiment.arguments["recipe"]
    optimizer = 0.01 if recipe["optimizer_kind"] == "fused" else 0.03
    return FakeRun(1.0 / SPEED[recipe["precision"]] + optimizer, 0.80 if recipe["learning_rate"] < 1 else 0.1)


RUNS = {"precision.faster_recipe": fake_training}
