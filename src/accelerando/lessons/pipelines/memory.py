"""What workers cost in memory: pages that are shared until somebody writes, and /dev/shm."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import sys
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
from torch.utils.data import DataLoader

from accelerando import machine, workers
from accelerando.lessons import Budget
from accelerando.lessons.pipelines import samples
from accelerando.lessons.pipelines.samples import Holding
from accelerando.workers import Experiment

GROW = "accelerando.lessons.pipelines.memory:grow"
FILL_SHM = "accelerando.lessons.pipelines.memory:fill_shm"
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


# -- /dev/shm ---------------------------------------------------------------------------------------------------------


def predict_shm_bytes(batch_bytes: int, loader_workers: int, prefetch: int = 2) -> int:
    """Predict how much of /dev/shm a loader fills at most: what its workers have ready, and the batch in use.

    Args:
        batch_bytes: Size of one batch.
        loader_workers: Loader processes; without any, nothing is passed.
        prefetch: ``prefetch_factor``.
    """
    return batch_bytes * (loader_workers * prefetch + 1) if loader_workers else 0


@dataclass(frozen=True)
class SharedMemory:
    """What a loader takes of /dev/shm, and what happens when it is too small.

    Args:
        shm_bytes: Size of this machine's /dev/shm; None where there is none.
        predicted_bytes: By `predict_shm_bytes`, for the loader that was tried.
        used_bytes: What it took at most; None when it was not tried.
        error: What torch said when there was less; "" when it was not tried.
        small_bytes: The size that was too small.
        reason: Why it was not tried.
    """

    shm_bytes: int | None
    predicted_bytes: int
    used_bytes: int | None = None
    error: str = ""
    small_bytes: int = 0
    reason: str = ""

    def sentence(self) -> str:
        """What this run showed."""
        size = "no /dev/shm" if self.shm_bytes is None else f"a /dev/shm of {self.shm_bytes / MIB:,.0f} MiB"
        start = f"This machine has {size}. A loader with 2 workers, prefetch 2 and batches of 8 MiB"
        if self.used_bytes is None:
            return (
                f"{start} should take {self.predicted_bytes / MIB:.0f} MiB of it; it was not tried here: {self.reason}."
            )
        return (
            f"{start} should take {self.predicted_bytes / MIB:.0f} MiB of it, and took {self.used_bytes / MIB:.0f}. "
            "Then the same "
            f"loader in a room of its own with {self.small_bytes / MIB:.0f} MiB:\n\n```\n{self.error}\n```"
        )


def measure_shm(budget: Budget, here: machine.Machine) -> SharedMemory:
    """Give a loader a private /dev/shm, large and then small, in child processes; Linux with user namespaces only.

    Args:
        budget: The smoke budget starts no processes.
        here: For the size of the real one.
    """
    batch_bytes, small_bytes = 8 * MIB, 16 * MIB
    predicted = predict_shm_bytes(batch_bytes, 2)
    if not budget.process_s:
        return SharedMemory(here.shm_bytes, predicted, reason="the smoke budget starts no processes")
    found = []
    for size_bytes in (256 * MIB, small_bytes):
        try:
            found.append(
                workers.run(Experiment(FILL_SHM, {"size_bytes": size_bytes, "batch_bytes": batch_bytes}), 60).value
            )
        except workers.ExperimentFailed as failure:
            return SharedMemory(here.shm_bytes, predicted, reason=str(failure).splitlines()[0])
        if found[-1]["reason"]:
            return SharedMemory(here.shm_bytes, predicted, reason=found[-1]["reason"])
    large, small = found
    return SharedMemory(here.shm_bytes, predicted, large["used_bytes"], small["error"], small_bytes)


def fill_shm(size_bytes: int, batch_bytes: int) -> dict[str, Any]:
    """Run a loader whose /dev/shm has a given size, until its workers have all batches ready that they may.

    Returns:
        ``used_bytes``, ``error`` ("" when all went well) and ``reason`` (why it could not be tried).
    """
    if not sys.platform.startswith("linux"):
        return {"used_bytes": 0, "error": "", "reason": "only Linux has one"}
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    # A process of its own: only one that has a single thread may enter a user namespace.
    child = context.Process(target=_in_small_room, args=(theirs, size_bytes, batch_bytes))
    child.start()
    theirs.close()
    try:
        return ours.recv() if ours.poll(45) else {"used_bytes": 0, "error": "", "reason": "no answer within 45 s"}
    except EOFError:
        return {"used_bytes": 0, "error": "", "reason": "the process ended without an answer"}
    finally:
        child.kill()
        child.join()


def _in_small_room(answer: Connection, size_bytes: int, batch_bytes: int) -> None:
    found = {"used_bytes": 0, "error": "", "reason": ""}
    try:
        _mount_shm(size_bytes)
    except OSError as error:
        answer.send(found | {"reason": f"a private /dev/shm is not allowed ({error.strerror})"})
        return
    loader = DataLoader(samples.BigBatches(12, batch_bytes), batch_size=None, num_workers=2)
    try:
        batches = iter(loader)
        kept = next(batches)
        time.sleep(1.0)
        shm = os.statvfs("/dev/shm")
        found["used_bytes"] = (shm.f_blocks - shm.f_bfree) * shm.f_frsize
        for batch in batches:
            kept = batch
        del kept
    except RuntimeError as error:
        found["error"] = _plain(str(error.__cause__ or error))
    answer.send(found)


def _plain(text: str) -> str:
    """The words of an error, without the traceback of the worker in it."""
    lines = [line.strip() for line in text.strip().splitlines() if line.strip()]
    return "\n".join(lines if len(lines) < 3 else [lines[0], lines[-1]])


_NEW_USER, _NEW_MOUNTS, _PRIVATE_BELOW = 0x10000000, 0x00020000, (1 << 14) | (1 << 18)


def _mount_shm(size_bytes: int) -> None:
    """Put a /dev/shm of this size in place of the machine's, for this process and its children alone.

    Raises:
        OSError: If the system does not allow it.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    user, group = os.getuid(), os.getgid()
    _call(libc.unshare(_NEW_USER | _NEW_MOUNTS))
    for name, text in (("setgroups", "deny"), ("uid_map", f"0 {user} 1"), ("gid_map", f"0 {group} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)
    _call(libc.mount(b"none", b"/", None, _PRIVATE_BELOW, None))
    _call(libc.mount(b"tmpfs", b"/dev/shm", b"tmpfs", 0, f"size={size_bytes}".encode()))


def _call(status: int) -> None:
    if status:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
