"""Finds and ends processes by a mark that they carry in their environment, and their children inherit."""

import contextlib
import os
import signal
import time
from pathlib import Path

VARIABLE = "ACCELERANDO_CLUSTER_RUN"
_LIMIT_S = 5.0


def carriers(mark: str) -> list[int]:
    """Return the processes whose mark begins with ``mark``, but for this one."""
    wanted = b"\0" + f"{VARIABLE}={mark}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):  # it ended, or is somebody else's
                if wanted in b"\0" + (entry / "environ").read_bytes():
                    found.append(int(entry.name))
    return found


def end(mark: str) -> None:
    """Kill them, again and again: one may fork meanwhile."""
    deadline_s = time.monotonic() + _LIMIT_S
    while (left := carriers(mark)) and time.monotonic() < deadline_s:
        for pid in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)
