"""Several settings timed in turns: every round visits each of them once, in random order.

`measure.compare` decides between two. This is for curves: a slow minute of the machine then hits all points of a curve
alike, and the ratio to the first point is taken within each round.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import numpy as np

from accelerando import stats

Clock = Callable[[], float]


@dataclass(frozen=True)
class RoundPoint:
    """One setting of a series.

    Args:
        key: The setting, such as a number of threads.
        median_s: Seconds per call.
        ratio: Time of the first setting / time of this one, within rounds: above 1 this one is faster.
        interval: 95 % interval for the ratio; (0, inf) when there were fewer than six rounds.
        samples_s: Seconds per call, one per round.
    """

    key: int
    median_s: float
    ratio: float
    interval: tuple[float, float]
    samples_s: tuple[float, ...]


def measure_rounds(
    subjects: Mapping[int, Callable[[], object]],
    rounds: int,
    *,
    sample_s: float = 0.12,
    around: Callable[[int], AbstractContextManager[object]] = nullcontext,
    seed: int = 0,
    clock: Clock = time.perf_counter,
) -> tuple[RoundPoint, ...]:
    """Time several functions in turns.

    Args:
        subjects: Setting -> function; the first one is what the others are compared to.
        rounds: At least 1.
        sample_s: A sample repeats the call until it should last so long.
        around: Given the setting, what to enter around each sample, outside the clock.
        seed: Of the order within each round.
        clock: Seconds; tests bring their own.

    Returns:
        One point per setting, in the order given.
    """
    if rounds < 1 or not subjects:
        raise ValueError(f"rounds is {rounds} and there are {len(subjects)} settings: at least 1 of each is needed")
    order = np.random.default_rng(seed)
    keys = list(subjects)
    repeats, samples = {}, {key: np.empty(rounds) for key in keys}
    for key in keys:
        with around(key):
            _time(subjects[key], 1, clock)  # the first call warms caches and is not counted
            repeats[key] = max(1, math.ceil(sample_s / max(_time(subjects[key], 1, clock), 1e-7)))
    for number in range(rounds):
        for place in order.permutation(len(keys)):
            key = keys[place]
            with around(key):
                samples[key][number] = _time(subjects[key], repeats[key], clock) / repeats[key]
    return tuple(_point(key, samples[key], samples[keys[0]]) for key in keys)


def _time(function: Callable[[], object], repeats: int, clock: Clock) -> float:
    started_s = clock()
    for _ in range(repeats):
        function()
    return clock() - started_s


def _point(key: int, own_s: np.ndarray, first_s: np.ndarray) -> RoundPoint:
    center, low, high = stats.hodges_lehmann(np.log(first_s / own_s))
    interval = (math.exp(low), math.exp(high) if high < math.inf else math.inf)
    return RoundPoint(key, float(np.median(own_s)), math.exp(center), interval, tuple(own_s.tolist()))
