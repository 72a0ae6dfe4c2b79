"""OpenMP's runtimes and the variables that they read once, as they are loaded."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from accelerando import datasets, training
from accelerando.lessons import Budget
from accelerando.lessons.cpu.threads import RECIPE
from accelerando.lessons.cpu.turns import Reading, Turns, measure_in_turns, time_once
from accelerando.readers import linux
from accelerando.workers import Experiment

PREPARE = "accelerando.lessons.cpu.openmp:prepare"
STEP, PIECES = "a training step", "200 short pieces"
NEIGHBOUR = "beside a neighbour"
SHARED_STEP = f"{STEP}, {NEIGHBOUR}"
SHOWN = (STEP, SHARED_STEP, PIECES)
OMP_VARIABLES = ("OMP_NUM_THREADS", "OMP_PROC_BIND", "OMP_PLACES", "OMP_WAIT_POLICY", "KMP_AFFINITY", "KMP_BLOCKTIME")
INTEL_REST_S = 0.25
"""Intel's threads spin for 200 ms after their work, unless KMP_BLOCKTIME says otherwise."""

_SLEEPERS = (
    ("libgomp", "libgomp, passive", "OMP_WAIT_POLICY=passive"),
    ("libiomp5", "libiomp5, no spinning", "KMP_BLOCKTIME=0"),
)


def settings(usable_cores: int, intel_runtime: str | None) -> dict[str, dict[str, str | None]]:
    """Variables worth trying, by a few words; the first is what the others are compared to.

    Args:
        usable_cores: ``Machine.usable_cores``.
        intel_runtime: Path of libiomp5, as `surroundings.find_intel_openmp` gives it; None leaves its settings out.
    """
    plain: dict[str, str | None] = {**dict.fromkeys(OMP_VARIABLES), "OMP_NUM_THREADS": str(usable_cores)}
    found = {
        "libgomp": plain,
        "libgomp, pinned": {**plain, "OMP_PROC_BIND": "close", "OMP_PLACES": "cores"},
        "libgomp, passive": {**plain, "OMP_WAIT_POLICY": "passive"},
    }
    if intel_runtime is not None:
        intel = {**plain, "LD_PRELOAD": intel_runtime}
        found |= {
            "libiomp5": intel,
            "libiomp5, pinned": {**intel, "KMP_AFFINITY": "granularity=fine,compact,1,0"},
            "libiomp5, no spinning": {**intel, "KMP_BLOCKTIME": "0"},
        }
    return found


def prepare(sample_s: float, has_neighbour: bool = False) -> Callable[[], dict[str, Any]]:
    """Prepare a training step and a row of very short parallel pieces in a child process.

    Args:
        sample_s: Seconds for one sample of each.
        has_neighbour: Every second call is made beside a neighbour, and leaves the pieces out: they take too long then.
    """
    import torch

    step = training.stepper(RECIPE, datasets.synthetic(256, 10))
    numbers = torch.rand(2**17)

    def pieces() -> None:
        for _ in range(200):
            numbers.mul_(1.0)

    steps = 0
    facts: dict[str, Any] = {"threads": torch.get_num_threads(), "runtime": loaded_runtime()}
    beside = {"steps": 0, "waited_s": 0.0, "slices": 0}

    def counted() -> None:
        nonlocal steps
        step()
        steps += 1

    def alone() -> dict[str, Any]:
        return {"seconds": time_once({STEP: step, PIECES: pieces}, sample_s), "facts": {**facts, NEIGHBOUR: {**beside}}}

    def shared() -> dict[str, Any]:
        first, begun = linux.core_waits(Path("/")), steps
        seconds = time_once({STEP: counted}, sample_s)
        last = linux.core_waits(Path("/"))
        if first and last:
            beside["steps"] += steps - begun
            beside["waited_s"] += last.waited_s - first.waited_s
            beside["slices"] += last.slices - first.slices
        return {"seconds": seconds}

    calls = itertools.cycle([alone, shared] if has_neighbour else [alone])
    return lambda: next(calls)()


def loaded_runtime() -> str:
    """Which OpenMP library answers in this process: the one that was loaded first."""
    import ctypes

    try:
        ctypes.CDLL(None).kmp_get_blocktime  # noqa: B018 (only Intel's library, and LLVM's of the same stock, has it)
    except (AttributeError, OSError, TypeError):
        return "libgomp"
    return "libiomp5"


@contextmanager
def busy_neighbour() -> Iterator[None]:
    """Keep one core busy from this process while another one is timed, as a loader or somebody else's job would."""
    import torch

    is_over, numbers = threading.Event(), torch.rand(2**14)  # below the size from which torch uses more threads

    def work() -> None:
        while not is_over.is_set():
            numbers.mul_(1.0)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


@dataclass(frozen=True)
class OpenMpTable:
    """A training step and short parallel pieces under several OpenMP settings.

    Args:
        turns: What was measured.
        why_no_intel: Why Intel's runtime was not among them; empty when it was.
    """

    turns: Turns
    why_no_intel: str = ""

    @property
    def shown(self) -> dict[str, Mapping[str, Reading]]:
        """The groups of a figure."""
        return {kernel: self.turns.readings[kernel] for kernel in SHOWN}

    def table(self) -> str:
        """Milliseconds, as a Markdown table; empty when nothing was measured."""
        if self.turns.is_empty:
            return ""
        rows = [
            f"| {name} | " + " | ".join(f"{row[name].median_s * 1e3:,.1f} ms" for row in self.shown.values()) + " |"
            for name in self.turns.readings[STEP]
        ]
        return "\n".join([f"| | {' | '.join(SHOWN)} |", f"|---|{'---|' * len(SHOWN)}", *rows])

    def sentence(self) -> str:
        """What this run showed."""
        failures = [f"*{name}* gave no time: {why}." for name, why in self.turns.failed.items()]
        if self.turns.is_empty:
            return " ".join(failures) or "Nothing was measured: the smoke budget has no time for processes."
        parts = [self._kernel(kernel) for kernel in SHOWN]
        parts.append(self._shared())
        parts += [self._sleeping(*pair) for pair in _SLEEPERS if set(pair[:2]) <= set(self.turns.readings[PIECES])]
        if self.why_no_intel:
            parts.append(f"Intel's runtime is left out: {self.why_no_intel}.")
        return " ".join([*parts, *failures])

    def _shared(self) -> str:
        """Which setting bears a neighbour best."""
        alone, shared = self.turns.readings[STEP], self.turns.readings[SHARED_STEP]
        cost = {name: shared[name].median_s / alone[name].median_s for name in shared}
        first, best = next(iter(shared)), min(shared, key=lambda name: shared[name].median_s)
        told = f"A neighbour that keeps one core busy makes a step take {cost[first]:.1f} times as long with {first}"
        end = (
            ", and no other setting is clearly faster then."
            if best == first or shared[best].interval[0] <= 1
            else f"; fastest is then *{best}*, **{shared[best].ratio:.1f} times** as fast."
        )
        return f"{told}{end}{self._waits(first, shared[first].median_s)}{self._pinned()}"

    def _waits(self, name: str, step_s: float) -> str:
        """What the scheduler counted in a step beside the neighbour."""
        counted = self.turns.facts.get(name, {}).get(NEIGHBOUR) or {}
        if not counted.get("steps") or not counted.get("slices"):
            return ""
        slices = counted["slices"] / counted["steps"]
        each_s = counted["waited_s"] / counted["slices"]
        return (
            f" The scheduler counted why: in a step of {step_s * 1e3:,.0f} ms, threads that had work were given a core "
            f"{slices:,.0f} times and had waited {each_s * 1e3:.1f} ms for it each time, "
            f"{slices * each_s * 1e3:,.0f} ms together."
        )

    def _pinned(self) -> str:
        """Whether pinning helps alone and in company."""
        rows = [self.turns.readings[kernel] for kernel in (STEP, SHARED_STEP)]
        if "libgomp, pinned" not in rows[0]:
            return ""
        alone, beside = (row["libgomp, pinned"].ratio for row in rows)
        return (
            f" Pinned, libgomp's step is {alone:.2f} times as fast alone, and {beside:.2f} times beside the neighbour."
        )

    def _sleeping(self, spinning: str, sleeping: str, variable: str) -> str:
        """What it costs the short pieces when threads go to sleep at once."""
        pieces = self.turns.readings[PIECES]
        ratio = pieces[sleeping].median_s / pieces[spinning].median_s
        if ratio > 1.15:
            return f"With `{variable}` the short pieces take {ratio:.1f} times as long: threads are woken for each."
        return f"`{variable}` costs the short pieces nothing to speak of here ({ratio:.2f} times the time)."

    def _kernel(self, kernel: str) -> str:
        readings = dict(self.turns.readings[kernel])
        baseline = next(iter(readings))
        clear = {
            name: reading
            for name, reading in readings.items()
            if name != baseline and not reading.interval[0] <= 1 <= reading.interval[1]
        }
        if not clear:
            return f"{kernel.capitalize()}: no setting differs clearly from {baseline}."
        told = ", ".join(f"*{name}* {reading.ratio:.2f}" for name, reading in clear.items())
        return f"{kernel.capitalize()}, times as fast as with {baseline}, where the interval is clear of 1: {told}."


def measure_openmp(budget: Budget, usable_cores: int, intel_runtime: str | None) -> OpenMpTable:
    """Measure OpenMP settings in turns, each in a process of its own.

    Args:
        budget: How many rounds; the smoke budget starts no process.
        usable_cores: ``Machine.usable_cores``.
        intel_runtime: Path of libiomp5, or None.
    """
    why = "" if intel_runtime else "the package intel-openmp, for Linux on x86-64, is not installed"
    if not budget.process_s:
        return OpenMpTable(Turns(), why)
    sample_s = 0.08 if budget.name == "quick" else 0.3
    experiments = {
        name: Experiment(PREPARE, {"sample_s": sample_s, "has_neighbour": True}, variables, prepares=True)
        for name, variables in settings(usable_cores, intel_runtime).items()
    }
    beside = {NEIGHBOUR: busy_neighbour}
    return OpenMpTable(measure_in_turns(experiments, budget.rounds, rest_s=INTEL_REST_S, also=beside), why)
