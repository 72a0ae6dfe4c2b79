"""The truth that lab 4 is judged by."""

from accelerando.submission import LearnerCall
from accelerando.workers import Experiment

from . import FakeRun


def fake_epoch(what: Experiment | LearnerCall) -> FakeRun:
    """The given epoch takes a second; an answer that gives the same tensors is taken to be four times as fast."""
    return FakeRun(0.25 if isinstance(what, LearnerCall) else 1.0, 1.0)


RUNS = {"pipelines.fast_epoch": fake_epoch}
