"""The speed lane: one lock for the whole machine, shared by what only checks answers, exclusive for what is timed.

It is an advisory lock on a small file. The system frees it when its holder ends, however that happens, and programs
that a holder starts do not inherit it. The last one out removes the file.
"""

import contextlib
import fcntl
import json
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
_OPEN = os.O_RDWR | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0)


def default_path() -> Path:
    """One place for all users of the machine: the variable TMPDIR, which differs between them, plays no part."""
    shared = Path("/tmp")
    return (shared if shared.is_dir() else Path(tempfile.gettempdir())) / "accelerando-speed.lock"


@contextmanager
def lane(
    mode: Mode,
    what: str,
    *,
    on_wait: Callable[[str], None] = lambda message: None,
    path: Path | None = None,
    patience_s: float = PATIENCE_S,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[None]:
    """Hold the lane while the block runs.

    Args:
        mode: ``exclusive`` for timed runs: nothing else of the course computes meanwhile.
        what: What it is held for, for those who wait.
        on_wait: Told, each time that it changes, who is waited for.
        path: The lock's file.
        patience_s: Longest wait.
        clock: Seconds that only grow.
        sleep: Waits for so many seconds.

    Raises:
        Ungradable: If it is not free within ``patience_s``, or its file cannot be opened.
    """
    path = path or default_path()
    lock = _acquire(path, mode, on_wait, patience_s, clock, sleep)
    try:
        _sign(lock, what)
        yield
    finally:
        _release(lock, path)


def _acquire(
    path: Path,
    mode: Mode,
    on_wait: Callable[[str], None],
    patience_s: float,
    clock: Callable[[], float],
    sleep: Callable[[float], None],
) -> int:
    kind = fcntl.LOCK_EX if mode == "exclusive" else fcntl.LOCK_SH
    ends_s, said = clock() + patience_s, ""
    while True:
        lock = _open(path)
        try:
            fcntl.flock(lock, kind | fcntl.LOCK_NB)
            if _is_current(lock, path):
                return lock
            os.close(lock)  # the holder before us has removed this file: take the new one
            continue
        except BlockingIOError:
            holder = _holder(lock)
            os.close(lock)
        except BaseException:
            os.close(lock)
            raise
        if clock() >= ends_s:
            raise Ungradable(
                f"the machine was not free for {patience_s:.0f} s: {holder}. Try again when that has ended."
            )
        if holder != said:
            said = holder
            on_wait(f"waiting for the machine to be free: {holder}")
        sleep(_LOOK_EVERY_S)


def _open(path: Path) -> int:
    while True:
        try:
            return os.open(path, _OPEN)
        except FileNotFoundError:
            pass
        except OSError as error:
            raise Ungradable(f"{path} cannot be opened ({error.strerror}): remove it, it is only a lock") from None
        try:
            lock = os.open(path, _OPEN | os.O_CREAT | os.O_EXCL, 0o666)
        except FileExistsError:
            continue
        except OSError as error:
            raise Ungradable(f"{path} cannot be made ({error.strerror}): a lock is needed there") from None
        os.fchmod(lock, 0o666)  # whatever the umask says: other users of the machine wait here too
        return lock


def _is_current(lock: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(lock), os.stat(path))
    except FileNotFoundError:
        return False


def _sign(lock: int, what: str) -> None:
    with contextlib.suppress(OSError):  # a full disk does not matter here: the lock holds without a name
        os.ftruncate(lock, 0)
        os.pwrite(lock, json.dumps({"pid": os.getpid(), "what": what[:200]}).encode(), 0)


def _holder(lock: int) -> str:
    try:
        holder = json.loads(os.pread(lock, 1000, 0))
        return f"process {int(holder['pid'])} is {str(holder['what'])[:200]}"
    except (ValueError, KeyError, TypeError, OSError):
        return "another process of the course is at work"


def _release(lock: int, path: Path) -> None:
    with contextlib.suppress(OSError):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # fails while others hold it too: they will tidy up
        if _is_current(lock, path):
            path.unlink()
    os.close(lock)
