"""The truth that lab 1 is judged by."""

from accelerando.workers import Experiment

from . import FakeRun


def fake_training(experiment: Experiment) -> FakeRun:
    """Time goes with the number of steps; SGD learns by the learning rate per image, Adam scales its steps itself."""
    recipe = experiment.arguments["recipe"]
    learns = recipe["optimizer"] != "sgd" or recipe["learning_rate"] / recipe["batch_size"] >= 0.02 / 16 / 4
    return FakeRun(60.0 / recipe["batch_size"], 0.85 if learns else 0.70)


RUNS = {"scaling.faster_recipe": fake_training}
