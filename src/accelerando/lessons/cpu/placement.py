"""Which cores: hyper-threads share one, and memory is nearer to some than to others."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from accelerando import bandwidth
from accelerando.lessons import Budget
from accelerando.lessons.cpu.openmp import PREPARE, STEP
from accelerando.lessons.cpu.turns import measure_in_turns, time_once
from accelerando.workers import Experiment

PREPARE_NUMA = "accelerando.lessons.cpu.placement:prepare_numa"


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
    return told_hyper_threads(len(cpus), len(cores), turns.readings[STEP]["all"].ratio)


def told_hyper_threads(cpus: int, cores: int, ratio: float) -> str:
    """What a comparison of one thread per CPU with one per core says.

    Args:
        cpus: Usable CPUs.
        cores: Physical cores among them.
        ratio: Time with one thread per core / time with one per CPU.
    """
    start = (
        f"{cpus} CPUs are {cores} cores. {cpus} threads make a training step **{ratio:.2f} times** as fast as {cores}"
    )
    if ratio > 1.1:
        return f"{start}: here the second thread of a core finds pauses in the first."
    return f"{start}: the second thread of a core finds its arithmetic units busy."


def _numa(budget: Budget, cpus: tuple[int, ...], nodes: Mapping[int, tuple[int, ...]]) -> str:
    own = {node: tuple(cpu for cpu in of_node if cpu in cpus) for node, of_node in nodes.items()}
    own = {node: of_node for node, of_node in own.items() if of_node}
    if len(own) < 2:
        return "All memory is equally near: there is one node that this process may use, and nothing to compare."
    if not budget.process_s:
        return f"{len(own)} nodes; the smoke budget has no time for processes."
    home, away = list(own.values())[:2]
    turns = measure_in_turns(
        {
            "near": Experiment(PREPARE_NUMA, {"memory_cpus": list(home), "work_cpus": list(home)}, prepares=True),
            "far": Experiment(PREPARE_NUMA, {"memory_cpus": list(home), "work_cpus": list(away)}, prepares=True),
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

    torch.set_num_threads(1)
    os.sched_setaffinity(0, memory_cpus)
    run = bandwidth.triad(total_bytes, 1)
    run()
    os.sched_setaffinity(0, work_cpus)
    return lambda: {"seconds": time_once({"triad": run}, 0.05)}
