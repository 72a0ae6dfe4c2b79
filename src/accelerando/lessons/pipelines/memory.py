"""What workers cost in memory: pages that are shared until somebody writes."""

from __future__ import annotations

import multiprocessing
import os
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch.utils.data import DataLoader

from accelerando import machine, workers
from accelerando.lessons import Budget
from accelerando.lessons.pipelines import samples
from accelerando.lessons.pipelines.samples import Holding
from accelerando.workers import Experiment

GROW = "accelerando.lessons.pipelines.memory:grow"
MIB = 2**20


@dataclass(frozen=True)
class Growth:
    """Memory that belongs to one worker alone, before and after an epoch.

    Args:
        holding: How the dataset holds its names.
        data_bytes: What the names take in the parent.
        first_uss_bytes: Unique set size of a worker after its first batch; median over workers.
        last_uss_bytes: After the epoch.
        last_pss_bytes: Proportional set size after the epoch, in which shared pages are divided among those who
            share them; None where the system does not tell.
        workers: How many there were.
    """

    holding: Holding
    data_bytes: int
    first_uss_bytes: int
    last_uss_bytes: int
    last_pss_bytes: int | None
    workers: int

    @property
    def grown_bytes(self) -> int:
        """What a worker copied during one epoch."""
        return self.last_uss_bytes - self.first_uss_bytes


@dataclass(frozen=True)
class Memory:
    """The same names held in two ways."""

    growths: tuple[Growth, ...]
    items: int
    reason: str = ""  # why nothing was measured

    def markdown(self) -> str:
        """The table."""
        if not self.growths:
            return f"Nothing was measured: {self.reason}."
        lines = [
            "| names held in | in the parent | a worker's own memory, first batch | after the epoch | it copied | its "
            "share of all (PSS) |",
            "|---|---|---|---|---|---|",
        ]
        for found in self.growths:
            own = (
                found.data_bytes,
                found.first_uss_bytes,
                found.last_uss_bytes,
                found.grown_bytes,
                found.last_pss_bytes,
            )
            cells = " | ".join("unknown" if size is None else f"{size / MIB:,.0f} MiB" for size in own)
            kind = "a list of `str`" if found.holding == "list" else "one array of bytes"
            lines.append(f"| {kind} | {cells} |")
        return "\n".join(lines)

    def sentence(self) -> str:
        """What this run showed."""
        if not self.growths:
            return "The table would show how much of the parent's memory each worker ends up copying."
        objects, array = self.growths
        if objects.grown_bytes < 2 * max(array.grown_bytes, MIB):
            return (
                "The list did not grow much more than the array here. Where workers do not start as copies of the "
                "parent "
                "(macOS, Windows), each gets everything from the beginning instead."
            )
        return (
            f"Nobody changed a name, and yet every worker copied **{objects.grown_bytes / MIB:,.0f} MiB** of the list "
            "and "
            f"{array.grown_bytes / MIB:,.1f} MiB of the array. Sixteen workers would copy "
            f"{16 * objects.grown_bytes / 2**30:.1f} GiB."
        )


def measure_memory(budget: Budget, loader_workers: int = 2) -> Memory:
    """Let workers read through a million names, in a list and in an array, and watch their memory.

    Args:
        budget: The smoke budget starts no processes.
        loader_workers: Of each loader.
    """
    items = 1_000_000
    if not budget.process_s:
        return Memory((), items, "the smoke budget starts no processes")
    growths = []
    for holding in ("list", "array"):
        experiment = Experiment(GROW, {"holding": holding, "items": items, "loader_workers": loader_workers})
        try:
            found = workers.run(experiment, 120.0).value
        except workers.ExperimentFailed as failure:
            return Memory((), items, str(failure).splitlines()[0])
        growths.append(Growth(**found))
    return Memory(tuple(growths), items)


def grow(holding: Holding, items: int, loader_workers: int) -> dict[str, Any]:
    """Read all names once, in random order, and look at the workers' memory; runs in a process of its own.

    Returns:
        The fields of `Growth`.
    """
    before = machine.process_memory(os.getpid())
    dataset = samples.Names(holding, items)
    data_bytes = machine.process_memory(os.getpid()).uss_bytes - before.uss_bytes
    order = np.random.default_rng(0).permutation(items)
    # At first only batches of one name, as many as may be under way: the workers must be seen before they have read.
    batches_of_names = [[0]] * (2 * loader_workers + 1) + [part.tolist() for part in np.array_split(order, 50)]
    loader = DataLoader(
        dataset, batch_sampler=batches_of_names, num_workers=loader_workers, persistent_workers=True,
        collate_fn=sum, multiprocessing_context="fork",
    )  # fmt: skip
    batches = iter(loader)
    next(batches)
    first = [machine.process_memory(child.pid or 0) for child in multiprocessing.active_children()]
    for _ in batches:
        pass
    last = [machine.process_memory(child.pid or 0) for child in multiprocessing.active_children()]
    shares = np.median([one.pss_bytes for one in last]) if last[0].pss_bytes is not None else None
    return {
        "holding": holding,
        "data_bytes": data_bytes,
        "first_uss_bytes": int(np.median([one.uss_bytes for one in first])),
        "last_uss_bytes": int(np.median([one.uss_bytes for one in last])),
        "last_pss_bytes": None if shares is None else int(shares),
        "workers": len(last),
    }
