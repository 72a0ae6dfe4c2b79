"""The speed lane: one lock for the whole machine, shared by what only checks answers, exclusive for what is timed.

It is an advisory lock on a folder that every machine has, so there is no file to make, to own or to leave behind. The
system frees it when its holder ends, however that happens, and programs that a holder starts do not inherit it. Who
wants it exclusively first closes a gate, the folder above: in a class somebody always checks, and nobody new may begin
while a timed run waits for those that have begun.
"""

import fcntl
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from ..submission import Ungradable

Mode = Literal["shared", "exclusive"]
PATIENCE_S = 900.0
_LOOK_EVERY_S = 0.2


def default_folder() -> Path:
    """One place for all users of the machine: the variable TMPDIR, which differs between them, plays no part."""
    shared = Path("/tmp")
    return shared if shared.is_dir() else Path(tempfile.gettempdir())


@contextmanager
def lane(
    mode: Mode,
    *,
    on_wait: Callable[[str], None] = lambda message: None,
    folder: Path | None = None,
    patience_s: float = PATIENCE_S,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[None]:
    """Hold the lane while the block runs.

    Args:
        mode: ``exclusive`` for timed runs: nothing else of the course computes meanwhile.
        on_wait: Told, each time that it changes, who is waited for.
        folder: What is locked; nothing is written there.
        patience_s: Longest wait.
        clock: Seconds that only grow.
        sleep: Waits for so many seconds.

    Raises:
        Ungradable: If it is not free within ``patience_s``, or the folder cannot be opened.
    """
    folder = folder or default_folder()
    kind = fcntl.LOCK_EX if mode == "exclusive" else fcntl.LOCK_SH
    ends_s, said = clock() + patience_s, ""
    with _opened(folder) as lock:
        with _opened(folder.resolve().parent) as gate:
            for door in (gate, lock):
                while not _try(door, kind):
                    holder = _holder(door)
                    if clock() >= ends_s:
                        raise Ungradable(f"the machine was not free for {patience_s:.0f} s: {holder}. Try again later.")
                    if holder != said:
                        on_wait(f"waiting for the machine to be free: {holder}")
                    said = holder
                    sleep(_LOOK_EVERY_S)
        yield


@contextmanager
def _opened(folder: Path) -> Iterator[int]:
    """A descriptor to lock; closing it frees the lock."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise Ungradable(f"{folder} cannot be opened ({error.strerror}): it serves as this machine's lock") from None
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _try(lock: int, kind: int) -> bool:
    try:
        fcntl.flock(lock, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _holder(lock: int) -> str:
    """Who holds it, as far as the system tells (Linux lists locks with their processes)."""
    inode, found = str(os.fstat(lock).st_ino), []
    try:
        lines = Path("/proc/locks").read_text().splitlines()
    except OSError:
        lines = []
    for line in lines:
        fields = line.split()
        if len(fields) >= 6 and fields[1] == "FLOCK" and fields[5].rpartition(":")[2] == inode:
            found.append(_describe(fields[4]))
    return " and ".join(dict.fromkeys(filter(None, found))) or "another process of the course is at work"


def _describe(pid: str) -> str:
    try:
        words = Path("/proc", pid, "cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return ""
    command = " ".join(word for word in words if word)
    return f"process {pid} ({command if len(command) <= 80 else command[:80] + '…'})"
