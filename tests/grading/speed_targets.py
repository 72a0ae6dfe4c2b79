"""Experiments for the tests of timed questions."""

import time

import numpy as np


def train(seconds: float, seed: int) -> dict:
    """Claim some seconds; predict the seed."""
    return {"seconds": seconds, "predictions": np.full(4, seed)}


def sleep(seed: int) -> None:
    """Take far too long."""
    time.sleep(60)


def fail(seed: int) -> None:
    """Raise."""
    raise ValueError("no")
