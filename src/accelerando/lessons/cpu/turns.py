"""Several child processes measured in turns: what a variable changes is fixed when a process starts.

Each setting lives in a process of its own, started once. Every round visits each of them once, in random order, so a
slow minute hits all settings alike, and ratios are taken within a round.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from accelerando import rounds, stats
from accelerando.workers import Experiment, ExperimentFailed, Worker

REST_S = 0.015
"""GNU's OpenMP threads spin for about 9 ms after their work before they sleep: the next process waits for that."""
_STARTING_AT_ONCE = 2


@dataclass(frozen=True)
class Reading:
    """One kernel under one setting.

    Args:
        median_s: Seconds per call.
        ratio: Time under the first setting / time under this one, within rounds: above 1 this one is faster.
        interval: 95 % interval for the ratio; (0, inf) with fewer than six rounds.
    """

    median_s: float
    ratio: float
    interval: tuple[float, float]


@dataclass(frozen=True)
class Turns:
    """Kernels under settings.

    Args:
        readings: Kernel -> setting -> reading.
        facts: Setting -> what its process said of itself.
        failed: Setting -> why its process gave no time.
        samples: Setting -> for each round, kernel -> seconds.
    """

    readings: Mapping[str, Mapping[str, Reading]] = field(default_factory=dict)
    facts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    failed: Mapping[str, str] = field(default_factory=dict)
    samples: Mapping[str, list[Mapping[str, float]]] = field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        """Nothing was measured."""
        return not self.readings

    def compare(self, baseline: tuple[str, str], candidate: tuple[str, str]) -> Reading:
        """Set two kernels side by side within rounds, each given as (setting, kernel)."""
        first, own = (
            np.array([row[kernel] for row in self.samples[setting]]) for setting, kernel in (baseline, candidate)
        )
        return _reading(first, own)


def time_once(kernels: Mapping[str, Callable[[], object]], sample_s: float) -> dict[str, float]:
    """Time each kernel once, after a call that warms it up; seconds per call by name. Runs inside the child."""
    points = rounds.measure_rounds(dict(enumerate(kernels.values())), 1, sample_s=sample_s)
    return {name: point.median_s for name, point in zip(kernels, points, strict=True)}


def measure_in_turns(
    experiments: Mapping[str, Experiment],
    count: int,
    *,
    rest_s: float = REST_S,
    also: Mapping[str, Callable[[], AbstractContextManager[object]]] | None = None,
    seed: int = 0,
) -> Turns:
    """Start a process for each setting and time all of them in turns.

    Args:
        experiments: Setting -> what prepares a function that returns ``{"seconds": {kernel: s}, "facts": {…}}``.
            Ratios are taken to the first one that works.
        count: Rounds, at least 1.
        rest_s: Pause after each visit, until the threads of that process have gone to sleep.
        also: Words -> what to enter around one more call of each visit; its kernels get the words behind their names.
        seed: Of the order.
    """
    failed: dict[str, str] = {}
    facts: dict[str, Mapping[str, Any]] = {}
    samples: dict[str, list[Mapping[str, float]]] = {name: [] for name in experiments}
    order = np.random.default_rng(seed)
    with contextlib.ExitStack() as stack:
        workers = _start(experiments, stack, failed)
        for _ in range(count):
            for place in order.permutation(len(workers)):
                name = list(workers)[place]
                if name in failed:
                    continue
                try:
                    found = workers[name].call()
                    row = dict(found["seconds"])
                    for words, around in (also or {}).items():
                        with around():
                            more = workers[name].call()["seconds"]
                        row |= {f"{kernel}, {words}": seconds for kernel, seconds in more.items()}
                except ExperimentFailed as error:
                    failed[name] = _first_line(error)
                    continue
                samples[name].append(row)
                facts[name] = found.get("facts", {})
                time.sleep(rest_s)
    whole = {name: rows for name, rows in samples.items() if name not in failed and rows}
    return Turns(summarise(whole), {name: facts[name] for name in whole}, failed, whole)


def summarise(samples: Mapping[str, list[Mapping[str, float]]]) -> dict[str, dict[str, Reading]]:
    """Turn samples (setting, round, kernel: seconds) into readings against the first setting that has the kernel."""
    found: dict[str, dict[str, Reading]] = {}
    first: dict[str, np.ndarray] = {}
    for setting, rows in samples.items():
        for kernel in rows[0]:
            own_s = np.array([row[kernel] for row in rows])
            found.setdefault(kernel, {})[setting] = _reading(first.setdefault(kernel, own_s), own_s)
    return found


def _reading(first_s: np.ndarray, own_s: np.ndarray) -> Reading:
    center, low, high = stats.hodges_lehmann(np.log(first_s / own_s))
    interval = (math.exp(low), math.exp(high) if high < math.inf else math.inf)
    return Reading(float(np.median(own_s)), math.exp(center), interval)


def _start(
    experiments: Mapping[str, Experiment], stack: contextlib.ExitStack, failed: dict[str, str]
) -> dict[str, Worker]:
    """Start the processes, two at a time: importing torch takes one core some seconds."""

    def start(name: str) -> tuple[str, Worker | None]:
        try:
            return name, Worker(experiments[name]).__enter__()
        except ExperimentFailed as error:
            failed[name] = _first_line(error)
            return name, None

    with ThreadPoolExecutor(_STARTING_AT_ONCE) as pool:
        started = dict(pool.map(start, experiments))
    workers = {name: worker for name, worker in started.items() if worker is not None}
    for worker in workers.values():
        stack.callback(worker.close)
    return workers


def _first_line(error: ExperimentFailed) -> str:
    return str(error).splitlines()[0].partition(": ")[2] or str(error)
