"""What can be set around a program without touching it: variables that libraries read as they start."""

from __future__ import annotations

import glob
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path


@dataclass(frozen=True)
class Surroundings:
    """Two settings of the environment to be compared in two child processes; variables as for `Experiment`."""

    name: str
    before: Mapping[str, str | None]
    after: Mapping[str, str | None]


def worth_trying(usable_cores: int, preload: str | None = None) -> tuple[Surroundings, ...]:
    """Settings worth trying on any machine: threads, too many threads, affinity, allocator.

    Args:
        usable_cores: ``Machine.usable_cores``.
        preload: An allocator's library, as `find_allocator` gives it; None tunes the C library's own.
    """
    # GNU's malloc hands large blocks back to the system at once; each new one costs page faults. These two keep them.
    keep = {"MALLOC_MMAP_THRESHOLD_": str(2**30), "MALLOC_TRIM_THRESHOLD_": str(2**32)}
    allocator = {"LD_PRELOAD": preload} if preload else keep
    cores = str(usable_cores)
    name = f"allocator: {preload.rpartition('/')[2]}" if preload else "allocator: malloc keeps its blocks"
    return (
        Surroundings(f"{cores} threads instead of 1", {"OMP_NUM_THREADS": "1"}, {"OMP_NUM_THREADS": cores}),
        Surroundings(
            f"{4 * usable_cores} threads instead of {cores}",
            {"OMP_NUM_THREADS": cores},
            {"OMP_NUM_THREADS": str(4 * usable_cores)},
        ),
        Surroundings(
            "threads pinned to cores",
            {"OMP_PROC_BIND": None, "OMP_PLACES": None},
            {"OMP_PROC_BIND": "close", "OMP_PLACES": "cores"},
        ),
        Surroundings(name, dict.fromkeys(allocator), allocator),
    )


def find_allocator() -> str | None:
    """Find tcmalloc or jemalloc on this machine; None when there is none, or this is not Linux with GNU's C library."""
    if platform.libc_ver()[0] != "glibc":
        return None
    for name in ("libtcmalloc_minimal", "libtcmalloc", "libjemalloc"):
        for folder in ("/usr/lib/*-linux-gnu", "/usr/lib64", "/usr/local/lib"):
            found = sorted(glob.glob(f"{folder}/{name}.so*"))
            if found:
                return found[0]
    return None


def find_intel_openmp() -> str | None:
    """Find Intel's OpenMP runtime, which LD_PRELOAD puts before the one that torch brings; None when there is none."""
    if platform.system() != "Linux":
        return None
    try:
        files = metadata.files("intel-openmp") or []
    except metadata.PackageNotFoundError:
        return None
    return next((str(Path(file.locate()).resolve()) for file in files if file.name == "libiomp5.so"), None)
