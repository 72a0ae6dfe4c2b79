"""One core for the worker: a model that uses every core, beside one that leaves the worker its own."""

from __future__ import annotations

import gc
import math
from dataclasses import dataclass

import numpy as np

from accelerando import rounds, stats, training
from accelerando.lessons import Budget
from accelerando.lessons.pipelines.epochs import PER_SAMPLE, batches_of, data_of, per_batch, repeat


@dataclass(frozen=True)
class Sharing:
    """One worker beside a model that uses every core, and beside one that leaves it a core.

    Args:
        points: Keys are the model's threads: 0 stands for all of them without a worker, then all and one less, each
            with one worker.
        cores: That there are.
    """

    points: tuple[rounds.RoundPoint, ...]
    cores: int

    def polite_interval(self) -> tuple[float, float]:
        """How many times as fast the polite model is as the crowded one, within rounds: a 95 % interval."""
        _, crowded, polite = self.points
        _, low, high = stats.hodges_lehmann(np.log(np.divide(crowded.samples_s, polite.samples_s)))
        return math.exp(low), math.exp(high) if high < math.inf else math.inf

    def sentence(self) -> str:
        """What this run showed."""
        if len(self.points) < 3:
            return "Not measured: it takes a worker and two cores, and the smoke budget starts no processes."
        _, crowded, polite = self.points
        start = (
            f"And a model that leaves the worker a core? Against no worker at all, one worker beside a model on "
            f"{crowded.key} threads gives {_ranged(crowded)} the speed, and beside a model on {polite.key} "
            f"{_ranged(polite)}."
        )
        low, high = self.polite_interval()
        if high < 1:
            return f"{start} Here the model needs its threads more than the worker needs a core of its own."
        if low <= 1:
            return f"{start} Between the two ways that is too close to call."
        return (
            f"{start} So if there is a worker, leave it its own core: the threads of a step wait for each other at the "
            "end of every operator, so a step that loses one core to a worker is probably held up as a whole. "
            f"{self._against_none()}"
        )

    def _against_none(self) -> str:
        low, high = self.points[-1].interval
        if low > 1:
            return "That is better than no worker, too."
        return "Even so it is slower than no worker." if high < 1 else "Even so it is no clear gain over no worker."


def _ranged(point: rounds.RoundPoint) -> str:
    low, high = point.interval
    return f"**{point.ratio:.2f} times**" + (f" ({low:.2f} to {high:.2f})" if high < math.inf else "")


def measure_sharing(budget: Budget, cores: int) -> Sharing:
    """Train without a worker, with one beside a model on all cores, and with one beside a model on one core less.

    Args:
        budget: How many rounds.
        cores: ``Machine.usable_cores``.
    """
    if not budget.process_s or cores < 2:
        return Sharing((), cores)
    data, batches = data_of(budget), batches_of(budget)
    one = PER_SAMPLE.changed(num_workers=1, persistent_workers=True)
    recipes = {0: PER_SAMPLE, cores: one.changed(threads=cores), cores - 1: one.changed(threads=cores - 1)}
    epochs = {key: repeat(training.stepper(recipe, data), batches) for key, recipe in recipes.items()}
    try:
        found = rounds.measure_rounds(epochs, budget.rounds, sample_s=1e-6)
    finally:
        epochs.clear()
        gc.collect()
    return Sharing(tuple(per_batch(point, batches) for point in found), cores)
