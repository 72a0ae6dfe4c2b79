"""The batches on their way: what a loader takes of /dev/shm, and what happens when that is too small."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import sys
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from torch.utils.data import DataLoader

from accelerando import machine, workers
from accelerando.lessons import Budget
from accelerando.lessons.pipelines import samples
from accelerando.workers import Experiment

FILL_SHM = "accelerando.lessons.pipelines.shared_memory:fill_shm"
MIB = 2**20


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
            f"loader in a room of its own with {self.small_bytes / MIB:.0f} MiB{self._told()}"
        )

    def _told(self) -> str:
        if not self.error:
            return ", and it got through this time."
        other = (
            "A worker that writes to shared memory which is not there is killed with a *Bus error*. The same trouble "
            "can come as an exception, *unable to allocate shared memory*."
            if "Bus error" in self.error
            else "That is how it looks here. The same trouble can come as a *Bus error*, which kills the worker."
        )
        return f":\n\n```\n{self.error}\n```\n\n{other}"


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
