"""One process with many threads against many processes with few, and what pinning does to them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from accelerando import stats
from accelerando.lessons import Budget
from accelerando.lessons.multi_cpu.layouts import (
    BATCH,
    MOST_PROCESSES,
    NOT_RUN,
    Layout,
    Ratio,
    compare,
    setting,
    tell_disturbances,
    time_settings,
)

FREE, OWN, SAME = "not pinned", "each on its own cores", "all on the same core"


@dataclass(frozen=True)
class Race:
    """One process with many threads, and many processes with few, pinned and not.

    Args:
        cores: That all of them shared.
        threads: The layout with one process.
        processes: The layout with many.
        seconds: Name of a setting -> seconds of a step in each round; empty when nothing was measured.
        disturbances: What else was known to take the cores meanwhile.
    """

    cores: int
    threads: Layout
    processes: Layout
    seconds: Mapping[str, Sequence[float]] = field(default_factory=dict)
    disturbances: Sequence[str] = ()

    @property
    def ratio(self) -> Ratio:
        """Processes against threads, nobody pinned."""
        return compare(self.seconds[str(self.threads)], self.seconds[FREE])

    def images_per_s(self, *, is_pinned: bool) -> dict[str, tuple[float, float, float]]:
        """Setting -> median and interval.

        Args:
            is_pinned: Show the settings with pinned ranks too.
        """
        rows = {}
        for name, taken in self.seconds.items():
            if name in (OWN, SAME) and not is_pinned:
                continue
            middle, low, high = stats.median_interval(np.array(taken))
            label = name if name == str(self.threads) else f"{self.processes}, {name}"
            rows[label] = (BATCH / middle, BATCH / high, BATCH / low)
        return rows

    def sentence(self) -> str:
        """What this run showed about processes and threads."""
        if not self.seconds:
            return NOT_RUN
        if self.cores < 2:
            return "This process may use one core: there is nothing for a second thread or process to do here."
        ratio = self.ratio
        start = (
            f"On the same {self.cores} cores, for the same {BATCH} images: {self.processes} (processes × threads) is "
            f"**{ratio}** as {self.threads}."
        )
        told = {
            "faster": "Processes won: each runs its own Python and its own step, and they meet once, for a message.",
            "slower": "Threads won: here sharing the loops of each operator costs less than a message after each step.",
            "too close to call": "The interval holds 1, so this run does not tell who is faster. A single pair of "
            "numbers would have named a winner all the same.",
        }
        return f"{start} {told[ratio.verdict]}{tell_disturbances(self.disturbances)}"

    def pinning_sentence(self) -> str:
        """What pinning did."""
        if not self.seconds:
            return NOT_RUN
        if SAME not in self.seconds:
            return "This system cannot pin a process to cores, so nothing was compared."
        own, same = (compare(self.seconds[FREE], self.seconds[name]) for name in (OWN, SAME))
        helped = {
            "faster": "pinning helped",
            "slower": "pinning cost something (one candidate: the threads with which gloo sends and receives must now "
            "share the core with those that compute)",
            "too close to call": "no difference can be told from chance (with as many processes as cores the system "
            "usually finds these places by itself)",
        }
        told = (
            f"Each rank on its own cores: **{own}** as not pinned; {helped[own.verdict]}. All ranks on the same core: "
        )
        if same.middle > 0.95:
            return (
                f"{told}a step takes hardly longer here. Others must have had the cores anyway: of {self.cores} cores "
                "only one was used."
            )
        return (
            f"{told}a step takes **{1 / same.middle:.1f} times as long**, and nothing raises an error or warns. "
            f"{self.cores - 1} of {self.cores} cores stood idle."
        )


def measure_race(budget: Budget, cpus: Sequence[int], cores: int) -> Race:
    """Race one process with a thread on every core against many processes with few, in one launch; nothing in smoke.

    Args:
        budget: How many rounds.
        cpus: ``Machine.cpus``.
        cores: ``Machine.usable_cores``.
    """
    many = max(2, min(cores, MOST_PROCESSES))
    threads, processes = Layout(1, cores), Layout(many, max(1, cores // many))
    if budget.name == "smoke":
        return Race(cores, threads, processes)
    settings = {str(threads): setting(threads), FREE: setting(processes)}
    if can_pin():
        settings[OWN] = setting(processes, share(cpus, many))
        settings[SAME] = setting(processes, [list(cpus)[:1]] * many)
    told = time_settings(list(settings.values()), many, budget.rounds)
    return Race(cores, threads, processes, dict(zip(settings, told["seconds"], strict=True)), told["disturbances"])


def share(cpus: Sequence[int], count: int) -> list[list[int]]:
    """Cut a list of CPUs into ``count`` parts in a row, as even as possible; with too few CPUs some have two owners."""
    if count > len(cpus):
        return [[cpus[rank % len(cpus)]] for rank in range(count)]
    return [[int(cpu) for cpu in part] for part in np.array_split(np.array(cpus), count)]


def can_pin() -> bool:
    """Whether this system lets a process choose its cores (Linux)."""
    return hasattr(os, "sched_setaffinity") and os.path.isdir("/proc/self/task")
