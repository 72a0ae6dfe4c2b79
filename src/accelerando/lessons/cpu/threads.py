"""OpenMP's threads: how many, whose runtime, on which cores, and when it is too late to say so."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from accelerando import datasets, rounds, training
from accelerando.lessons import Budget
from accelerando.lessons.cpu.turns import Turns, measure_in_turns, time_once
from accelerando.recipes import Recipe
from accelerando.workers import Experiment

PREPARE = "accelerando.lessons.cpu.threads:prepare"
STEP, PIECES = "a training step", "200 short pieces"
RECIPE = Recipe(batch_size=64, learning_rate=0.01, schedule="constant", layout="channels_last", test_images=10)
OMP_VARIABLES = ("OMP_NUM_THREADS", "OMP_PROC_BIND", "OMP_PLACES", "OMP_WAIT_POLICY", "KMP_AFFINITY", "KMP_BLOCKTIME")
INTEL_REST_S = 0.25
"""Intel's threads spin for 200 ms after their work, unless KMP_BLOCKTIME says otherwise."""


def thread_counts(usable_cores: int) -> tuple[int, ...]:
    """Numbers of threads worth trying: one, all cores, one too many, twice and four times too many."""
    return tuple(sorted({1, usable_cores, usable_cores + 1, 2 * usable_cores, 4 * usable_cores}))


@dataclass(frozen=True)
class Oversubscription:
    """A training step on more and more threads, beyond the cores there are.

    Args:
        points: Keyed by threads; ratios are to 1 thread.
        usable_cores: ``Machine.usable_cores``.
        batch_size: Images per step.
    """

    points: tuple[rounds.RoundPoint, ...]
    usable_cores: int
    batch_size: int

    def at(self, threads: int) -> rounds.RoundPoint:
        """The point of one number of threads."""
        return next(point for point in self.points if point.key == threads)

    def cost(self, threads: int) -> float:
        """Time with so many threads / time with one for each core."""
        return self.at(threads).median_s / self.at(self.usable_cores).median_s

    def sentence(self) -> str:
        """What this run showed."""
        cores = self.usable_cores
        rates = ", ".join(f"{point.key}: {self.batch_size / point.median_s:,.0f}" for point in self.points)
        one_more, worst = self.cost(cores + 1), max(self.points, key=lambda point: point.median_s)
        start = f"Images per second by threads: {rates}. One thread more than cores"
        if one_more > 1.1:
            start += f" makes a step take **{one_more:.2f} times** as long"
        elif one_more < 0.9:
            start += (
                f" makes it *faster* here ({1 / one_more:.2f} times): are there more cores than this process may use?"
            )
        else:
            start += f" costs little here ({one_more:.2f} times the time)"
        return f"{start}; the worst of these is {worst.key} threads, at {self.cost(worst.key):.1f} times the time."


def measure_oversubscription(budget: Budget, usable_cores: int) -> Oversubscription:
    """Measure a training step on each number of threads, in turns.

    Args:
        budget: How many rounds.
        usable_cores: ``Machine.usable_cores``.
    """
    data = datasets.synthetic(256, 10)
    counts = thread_counts(usable_cores) if budget.name != "smoke" else thread_counts(usable_cores)[:3]
    steps = {count: training.stepper(RECIPE.changed(threads=count), data) for count in counts}
    points = rounds.measure_rounds(steps, budget.rounds, sample_s=0.1 if budget.rounds > 1 else 0.01)
    return Oversubscription(points, usable_cores, RECIPE.batch_size)


@dataclass(frozen=True)
class TooLate:
    """What a variable does that is set after torch was loaded.

    Args:
        before: torch's threads.
        asked: What the variable was set to.
        after_variable: torch's threads after the variable was set.
        after_call: torch's threads after ``torch.set_num_threads``.
    """

    before: int
    asked: int
    after_variable: int
    after_call: int

    def sentence(self) -> str:
        """What this run showed."""
        heard = "nothing happened" if self.after_variable == self.before else f"it has {self.after_variable}"
        return (
            f"torch has {self.before} thread(s). `OMP_NUM_THREADS={self.asked}` was set just now, and {heard}: the "
            f"runtime had read the variable when torch was imported. `torch.set_num_threads({self.asked})` works at "
            f"any time: {self.after_call} thread(s). For the other variables there is no such call."
        )


def set_too_late() -> TooLate:
    """Set OMP_NUM_THREADS in this process, where torch is loaded already, and look; everything is put back."""
    import torch

    before, variable = torch.get_num_threads(), os.environ.get("OMP_NUM_THREADS")
    asked = before + 1
    try:
        os.environ["OMP_NUM_THREADS"] = str(asked)
        torch.ones(100_000).add_(1.0)
        after_variable = torch.get_num_threads()
        torch.set_num_threads(asked)
        return TooLate(before, asked, after_variable, torch.get_num_threads())
    finally:
        torch.set_num_threads(before)
        if variable is None:
            os.environ.pop("OMP_NUM_THREADS", None)
        else:
            os.environ["OMP_NUM_THREADS"] = variable


# -- settings that are read once --------------------------------------------------------------------------------------


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
    }
    if intel_runtime is not None:
        intel = {**plain, "LD_PRELOAD": intel_runtime}
        found |= {
            "libiomp5": intel,
            "libiomp5, pinned": {**intel, "KMP_AFFINITY": "granularity=fine,compact,1,0"},
            "libiomp5, no spinning": {**intel, "KMP_BLOCKTIME": "0"},
        }
    return found


def prepare(sample_s: float) -> Callable[[], dict[str, Any]]:
    """Prepare a training step and a row of very short parallel pieces in a child process.

    Args:
        sample_s: Seconds for one sample of each.
    """
    import torch

    step = training.stepper(RECIPE, datasets.synthetic(256, 10))
    numbers = torch.rand(2**17)

    def pieces() -> None:
        for _ in range(200):
            numbers.mul_(0.999)

    facts = {"threads": torch.get_num_threads(), "runtime": loaded_runtime()}
    return lambda: {"seconds": time_once({STEP: step, PIECES: pieces}, sample_s), "facts": facts}


def loaded_runtime() -> str:
    """Which OpenMP library answers in this process: the one that was loaded first."""
    import ctypes

    try:
        ctypes.CDLL(None).kmp_get_blocktime  # noqa: B018 (only Intel's library, and LLVM's of the same stock, has it)
    except (AttributeError, OSError, TypeError):
        return "libgomp"
    return "libiomp5"


@dataclass(frozen=True)
class OpenMpTable:
    """A training step and short parallel pieces under several OpenMP settings.

    Args:
        turns: What was measured.
        why_no_intel: Why Intel's runtime was not among them; empty when it was.
    """

    turns: Turns
    why_no_intel: str = ""

    def sentence(self) -> str:
        """What this run showed."""
        if self.turns.is_empty:
            return "Nothing was measured: the smoke budget has no time for processes."
        parts = [self._kernel(kernel) for kernel in (STEP, PIECES)]
        spun, slept = "libiomp5", "libiomp5, no spinning"
        pieces = self.turns.readings[PIECES]
        if spun in pieces and slept in pieces:
            ratio = pieces[slept].median_s / pieces[spun].median_s
            parts.append(
                f"With `KMP_BLOCKTIME=0` the short pieces take {ratio:.1f} times as long: threads are woken for each."
                if ratio > 1.15
                else f"`KMP_BLOCKTIME=0` costs the short pieces nothing to speak of here ({ratio:.2f} times the time)."
            )
        if self.why_no_intel:
            parts.append(f"Intel's runtime is left out: {self.why_no_intel}.")
        parts += [f"*{name}* gave no time: {why}." for name, why in self.turns.failed.items()]
        return " ".join(parts)

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
        name: Experiment(PREPARE, {"sample_s": sample_s}, variables, prepares=True)
        for name, variables in settings(usable_cores, intel_runtime).items()
    }
    return OpenMpTable(measure_in_turns(experiments, budget.rounds, rest_s=INTEL_REST_S), why)


# -- which cores ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Placement:
    """The same work on other cores of the same machine.

    Args:
        hyper_threads: What the machine has, or a measured comparison, in a sentence.
        numa: Likewise.
    """

    hyper_threads: str
    numa: str

    def sentence(self) -> str:
        """What this run showed."""
        return f"**Hyper-threads.** {self.hyper_threads}\n\n**NUMA.** {self.numa}"


def one_cpu_per_core(siblings: Mapping[int, tuple[int, ...]], cpus: tuple[int, ...]) -> tuple[int, ...]:
    """The lowest usable CPU of each physical core.

    Args:
        siblings: CPU -> all CPUs of its core.
        cpus: Those that may be used.
    """
    return tuple(cpu for cpu in cpus if cpu == min(set(siblings.get(cpu, (cpu,))) & set(cpus)))


def measure_placement(
    budget: Budget, cpus: tuple[int, ...], siblings: Mapping[int, tuple[int, ...]], nodes: Mapping[int, tuple[int, ...]]
) -> Placement:
    """Compare one thread per core with one per hyper-thread, and near memory with far memory, where there are both.

    Args:
        budget: How many rounds; the smoke budget starts no process.
        cpus: ``Machine.cpus``.
        siblings: CPU -> CPUs of its core, as `readers.linux.core_siblings` gives them; empty when unknown.
        nodes: ``Machine.numa_nodes``.
    """
    return Placement(_hyper_threads(budget, cpus, siblings), _numa(budget, cpus, nodes))


def _hyper_threads(budget: Budget, cpus: tuple[int, ...], siblings: Mapping[int, tuple[int, ...]]) -> str:
    cores = one_cpu_per_core(siblings, cpus)
    if not siblings:
        return "This system does not say which CPUs share a core."
    if len(cores) == len(cpus):
        return (
            f"Each of the {len(cpus)} CPUs is a core of its own, says the kernel: there is nothing to compare. (A "
            "virtual machine says what its host told it; two of its CPUs may still share a core.)"
        )
    if not budget.process_s:
        return f"{len(cpus)} CPUs are {len(cores)} cores; the smoke budget has no time for processes."
    few, all_of_them = str(len(cores)), str(len(cpus))
    arguments = {"sample_s": 0.1}
    turns = measure_in_turns(
        {
            "cores": Experiment(PREPARE, arguments, {"OMP_NUM_THREADS": few}, cpus=cores, prepares=True),
            "all": Experiment(PREPARE, arguments, {"OMP_NUM_THREADS": all_of_them}, cpus=cpus, prepares=True),
        },
        budget.rounds,
    )
    if turns.failed:
        return f"The comparison could not be made: {'; '.join(turns.failed.values())}."
    reading = turns.readings[STEP]["all"]
    return (
        f"{len(cpus)} CPUs are {len(cores)} cores. All {all_of_them} of them make a training step "
        f"**{reading.ratio:.2f} times** as fast as {few}, one for each core: a second thread finds the units busy."
    )


def _numa(budget: Budget, cpus: tuple[int, ...], nodes: Mapping[int, tuple[int, ...]]) -> str:
    own = {node: tuple(cpu for cpu in of_node if cpu in cpus) for node, of_node in nodes.items()}
    own = {node: of_node for node, of_node in own.items() if of_node}
    if len(own) < 2:
        return "All memory is equally near: there is one node that this process may use, and nothing to compare."
    if not budget.process_s:
        return f"{len(own)} nodes; the smoke budget has no time for processes."
    home, away = list(own.values())[:2]
    target = "accelerando.lessons.cpu.threads:prepare_numa"
    turns = measure_in_turns(
        {
            "near": Experiment(target, {"memory_cpus": list(home), "work_cpus": list(home)}, prepares=True),
            "far": Experiment(target, {"memory_cpus": list(home), "work_cpus": list(away)}, prepares=True),
        },
        budget.rounds,
    )
    if turns.failed:
        return f"The comparison could not be made: {'; '.join(turns.failed.values())}."
    slower = 1 / turns.readings["triad"]["far"].ratio
    return f"One thread that reads and writes the other node's memory takes **{slower:.2f} times** as long for a triad."


def prepare_numa(memory_cpus: list[int], work_cpus: list[int], total_bytes: int = 192 * 2**20) -> Callable[[], Any]:
    """Prepare a triad whose arrays were first touched on some CPUs, and which runs on others (Linux).

    Args:
        memory_cpus: A page lies on the node of the core that touches it first.
        work_cpus: Where the triad runs, on one thread.
        total_bytes: Of the three arrays.
    """
    import torch

    from accelerando import bandwidth

    torch.set_num_threads(1)
    os.sched_setaffinity(0, memory_cpus)
    run = bandwidth.triad(total_bytes, 1)
    run()
    os.sched_setaffinity(0, work_cpus)
    return lambda: {"seconds": time_once({"triad": run}, 0.05)}
