"""The ``ccl`` backend: torch.distributed for CPU tensors over Intel's oneCCL library.

oneCCL reduces through shared memory where gloo sends through sockets, so ranks on one host exchange large tensors
several times faster. The library comes from PyPI, the small piece that joins it to torch is compiled on first use::

    oneccl.register()
    torch.distributed.init_process_group("ccl")

Where that is not possible, `why_not` gives the reason in a sentence, and `choose` says so and names gloo.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import re
import socket
import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from accelerando.backends.oneccl import build

NAME = "ccl"
SHARED_MEMORY = Path("/dev/shm")
_LEAST_SHARED_BYTES = 256 * 2**20  # libfabric makes a region of 64 MB for each rank and touches a part of it
_REGION = re.compile(r"(\d+):\d+:\d+")

OneCCLMissing = build.OneCCLMissing
why_not = build.why_not


@dataclass(frozen=True)
class Choice:
    """A backend for CPU tensors: "ccl" or "gloo", and why it is not "ccl" (None when it is)."""

    backend: str
    reason: str | None


def environment() -> dict[str, str]:
    """Return the variables that every rank needs before it joins; `register` sets those that are not set.

    Ranks share few cores here, so oneCCL gets no thread of its own (``CCL_WORKER_OFFLOAD=0``): with one, 4 KB took
    10 ms instead of 0.1. Where there is too little shared memory for the ranks, the local sockets are used.

    Returns:
        Names and values; empty where oneCCL is not installed.
    """
    library = build.find_library()
    if library is None:
        return {}
    settings = {
        "CCL_ATL_TRANSPORT": "ofi",
        "CCL_ATL_SHM": "1" if _free_shared_bytes() >= _LEAST_SHARED_BYTES else "0",
        "CCL_PROCESS_LAUNCHER": "none",
        "CCL_WORKER_OFFLOAD": "0",
        "CCL_LOG_LEVEL": "error",
        "CCL_OFI_LIBRARY_PATH": str(library.parent / "libfabric.so.1"),
        "FI_PROVIDER": "tcp",
        "FI_PROVIDER_PATH": str(library.parent),
    }
    if not _has_network():  # a sandbox: left alone, oneCCL finds no address to meet at
        settings |= {"CCL_KVS_IFACE": "lo", "FI_TCP_IFACE": "lo"}
    return settings


def register(*, time_limit_s: float = 600.0) -> None:
    """Make ``torch.distributed.init_process_group("ccl")`` possible in this process; builds the extension if need be.

    Args:
        time_limit_s: The longest that building, or waiting for another process that builds, may take.

    Raises:
        OneCCLMissing: If there is no oneCCL, no compiler, or the build failed; says which.
    """
    import torch.distributed as dist

    if NAME.upper() in dist.Backend._plugins:
        return
    extension = _load(time_limit_s)

    def create(store: Any, rank: int, world_size: int, timeout: Any) -> Any:
        return extension.create(store, rank, world_size, timeout)

    dist.Backend.register_backend(NAME, create, devices=["cpu"])
    atexit.register(_leave, extension)
    sweep()


def choose(*, time_limit_s: float = 600.0) -> Choice:
    """Register ``ccl`` if this machine can, else name gloo and say why."""
    try:
        register(time_limit_s=time_limit_s)
    except OneCCLMissing as problem:
        return Choice("gloo", str(problem))
    return Choice(NAME, None)


def version() -> str:
    """Return what the loaded oneCCL calls itself.

    Raises:
        OneCCLMissing: As `register`.
    """
    return str(_load(600.0).version())


def sweep(*, older_than_s: float = 60.0, of: Collection[int] = ()) -> int:
    """Remove shared memory that killed ranks left behind; a rank that ends by itself, even by an error, leaves none.

    Only what belongs to this user, was made by a process that is gone, and is old enough: a number may be that of a
    process in another container, whose region must stay until its neighbours have found it.

    Args:
        older_than_s: Since the region was last written.
        of: Processes that the caller has seen end; their regions go at any age.

    Returns:
        How many regions were removed.
    """
    removed = 0
    for path, pid in _regions():
        with contextlib.suppress(OSError):
            status = path.stat()
            if (
                status.st_uid == os.getuid()
                and not _is_alive(pid)
                and (pid in of or time.time() - status.st_mtime > older_than_s)
            ):
                path.unlink()
                removed += 1
    for pid in of:  # Intel's OpenMP, which IPEX brings, leaves a mark of each process that was killed
        with contextlib.suppress(OSError):
            if not _is_alive(pid):
                (SHARED_MEMORY / f"__KMP_REGISTERED_LIB_{pid}_{os.getuid()}").unlink()
                removed += 1
    return removed


def _load(time_limit_s: float) -> Any:
    reason, library = why_not(), build.find_library()
    if reason or library is None:
        raise OneCCLMissing(reason or "oneCCL is not installed")
    for name, value in environment().items():
        os.environ.setdefault(name, value)
    with contextlib.suppress(OSError):  # oneCCL opens it by name, wherever the loader finds it first
        ctypes.CDLL(str(library.parent / "libfabric.so.1"), ctypes.RTLD_GLOBAL)
    return build.load(time_limit_s)


def _leave(extension: Any) -> None:
    """End the backend's thread, and take away what oneCCL could not because a group was broken."""
    extension.stop()
    for path, pid in _regions():
        if pid == os.getpid():
            with contextlib.suppress(OSError):
                path.unlink()


def _regions() -> list[tuple[Path, int]]:
    try:
        names = os.listdir(SHARED_MEMORY)
    except OSError:
        return []
    return [(SHARED_MEMORY / name, int(found[1])) for name in names if (found := _REGION.fullmatch(name))]


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _has_network() -> bool:
    """Tell whether there is an interface beside the loopback that is up."""
    states = (Path("/sys/class/net", name, "operstate") for _, name in socket.if_nameindex() if name != "lo")
    return any(state.is_file() and state.read_text().strip() in ("up", "unknown") for state in states)


def _free_shared_bytes() -> int:
    try:
        status = os.statvfs(SHARED_MEMORY)
    except OSError:
        return 0
    return status.f_bavail * status.f_frsize
