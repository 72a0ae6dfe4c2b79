"""The truth that lab 2 is judged by."""

from accelerando.submission import LearnerCall
from accelerando.workers import Experiment

from . import FakeRun


def fake_training(side: Experiment | LearnerCall) -> FakeRun:
    """Whatever reached the code generator runs in half the time; what did not is caught before anything is timed."""
    return FakeRun(0.5 if isinstance(side, LearnerCall) else 1.0, 0.9)


RUNS = {"compilation.make_step": fake_training}
