"""Threads that wait by asking again and again, and threads that sleep: where there are more of them than cores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from accelerando import measure
from accelerando.lessons import Budget
from accelerando.lessons.multi_cpu.layouts import (
    NOT_RUN,
    Layout,
    grid,
    setting,
    tell_disturbances,
    time_settings,
)

ASLEEP = {"OMP_WAIT_POLICY": "PASSIVE"}
"""GNU's OpenMP then asks not once (as with ``GOMP_SPINCOUNT=0``) before it lets a waiting thread sleep."""
_ROUNDS = 3


@dataclass(frozen=True)
class Waiting:
    """Two crowded layouts, with threads that wait as usual and with threads that sleep.

    Args:
        cores: That may be used.
        seconds: Layout -> seconds of a step in each round, as usual; from the map.
        asleep_s: Likewise, with `ASLEEP`; empty when nothing was measured.
        disturbances: What else was known to take the cores meanwhile.
    """

    cores: int
    seconds: Mapping[Layout, Sequence[float]] = field(default_factory=dict)
    asleep_s: Mapping[Layout, Sequence[float]] = field(default_factory=dict)
    disturbances: Sequence[str] = ()

    def table(self) -> str:
        """Markdown: a row for each layout."""
        rows = [
            f"| {layout} | {layout.threads} on {self.cores} | {_middle(self.seconds[layout])} | {_middle(taken)} |"
            for layout, taken in self.asleep_s.items()
        ]
        head = "| processes × threads | threads of a process, and cores | as usual | `OMP_WAIT_POLICY=PASSIVE` |"
        return "\n".join([head, "|---|---|---|---|", *rows]) if rows else ""

    def sentence(self) -> str:
        """What this run showed."""
        if not self.asleep_s:
            return NOT_RUN if self.cores > 1 else "With one core no process has threads that wait for each other."
        layout = crowded(self.cores)[0]
        gain = float(np.median(self.seconds[layout]) / np.median(self.asleep_s[layout]))
        told = f"With threads that sleep {layout} is **{gain:.1f} times as fast**: "
        told += "so much of its time had gone into asking." if gain > 1.3 else "asking was not what made it slow here."
        return f"{told} (Each column is a launch of its own.){tell_disturbances(self.disturbances)}"


def _middle(seconds: Sequence[float]) -> str:
    return measure.duration(float(np.median(seconds)))


def crowded(cores: int) -> tuple[Layout, Layout]:
    """The most processes of the map: each with as many threads as there are cores, and each with twice as many."""
    processes = max(layout.processes for layout in grid(cores))
    return Layout(processes, cores), Layout(processes, 2 * cores)


def measure_waiting(budget: Budget, cores: int, usual: Mapping[Layout, Sequence[float]]) -> Waiting:
    """Time the crowded layouts of the map again, in ranks whose waiting threads sleep; nothing in smoke.

    Args:
        budget: In smoke no rank is started.
        cores: ``Machine.usable_cores``.
        usual: Layout -> seconds of a step in each round, of the whole map.
    """
    layouts = crowded(cores)
    if budget.name == "smoke" or cores < 2:
        return Waiting(cores)
    told = time_settings([setting(layout) for layout in layouts], layouts[0].processes, _ROUNDS, ASLEEP)
    asleep_s = dict(zip(layouts, told["seconds"], strict=True))
    return Waiting(cores, {layout: usual[layout] for layout in layouts}, asleep_s, told["disturbances"])
