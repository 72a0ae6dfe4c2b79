"""The machine as the course sees it: what may really be used, what is missing, and how calm it is.

Nothing here imports torch: the command line and the grader ask before they pay for that.
"""

from __future__ import annotations

import os
import platform
import sys
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from accelerando import programs
from accelerando.needs import NEEDS, Missing, missing
from accelerando.noise import UNKNOWN_STATE, MachineState, Watch, watch
from accelerando.programs import Gpu, Program, Sandbox
from accelerando.readers import cpuinfo, linux, macos
from accelerando.readers.text import Unreadable, clean

__all__ = [
    "NEEDS",
    "UNKNOWN_STATE",
    "Cache",
    "Gpu",
    "Machine",
    "MachineState",
    "Missing",
    "ProcessMemory",
    "Program",
    "Sandbox",
    "Watch",
    "allowed_cpus",
    "core_siblings",
    "count_usable_cores",
    "installed_versions",
    "missing",
    "probe",
    "process_memory",
    "usable_cores",
    "watch",
]

SCHEMA = 1
WATCHED_VERSIONS = {
    "torch": "torch",
    "torchvision": "torchvision",
    "ipex": "intel-extension-for-pytorch",
    "oneccl": "oneccl-cpu",
    "nni": "nni",
    "nbgrader": "nbgrader",
    "jupyterlab": "jupyterlab",
    "numpy": "numpy",
}
_PCI_VENDORS = {"0x8086": "Intel", "0x1002": "AMD", "0x10de": "NVIDIA"}


@dataclass(frozen=True)
class Cache:
    """One level of cache: the size of one, and how many there are."""

    each_bytes: int
    instances: int


@dataclass(frozen=True)
class Machine:
    """What the course knows of a machine. None is unknown, never zero.

    Attributes:
        usable_cores: Logical CPUs this process may keep busy at once: its affinity, cut by its control groups' quota
            (rounded down, at least 1).
        cpus: Ids of the CPUs in its affinity.
        numa_nodes: Node to the ids of its CPUs.
        simd: Highest level, such as "AVX2", "AVX512+AMX", "NEON", "SVE2".
        has_bf16: True if the CPU computes in bfloat16 in hardware.
        has_fp16: True if the CPU computes in half precision in hardware (conversion alone does not count).
        memory_bytes: Memory, or the control groups' limit where that is lower.
        limits: ``cpu_quota`` (CPUs), ``memory_limit_bytes``, ``open_files``, ``processes``; None: no limit.
    """

    vendor: str | None
    model: str | None
    architecture: str
    system: str
    sockets: int | None
    physical_cores: int | None
    logical_cores: int | None
    usable_cores: int
    cpus: tuple[int, ...]
    threads_per_core: int | None
    numa_nodes: dict[int, tuple[int, ...]]
    caches: dict[str, Cache]
    simd: str | None
    has_bf16: bool | None
    has_fp16: bool | None
    memory_bytes: int | None
    shm_bytes: int | None
    gpus: tuple[Gpu, ...]
    compilers: tuple[Program, ...]
    mpi: tuple[Program, ...]
    sandbox: Sandbox
    versions: dict[str, str | None]
    limits: dict[str, float | None] = field(default_factory=dict)
    schema: int = SCHEMA


def probe(root: Path = Path("/")) -> Machine:
    """Look at this machine.

    Args:
        root: Where ``/proc`` and ``/sys`` are; tests bring their own.

    Returns:
        What was found, in about half a second: the programs that are there are asked for their versions.
    """
    cpu = _cpu(root)
    topology = linux.topology(root)
    cpus = allowed_cpus()
    quota = linux.cpu_quota(root)
    memory, memory_limit = linux.memory_total(root) or _memory_from_psutil(), linux.memory_limit(root)
    return Machine(
        vendor=cpu["vendor"],
        model=cpu["model"],
        architecture=platform.machine(),
        system=f"{platform.system()} {platform.release()}",
        sockets=topology.sockets or cpu["sockets"],
        physical_cores=topology.physical_cores or cpu["cores"],
        logical_cores=os.cpu_count(),
        usable_cores=count_usable_cores(len(cpus), quota),
        cpus=cpus,
        threads_per_core=topology.threads_per_core or cpu["threads_per_core"],
        numa_nodes=linux.numa_nodes(root),
        caches={name: Cache(*size) for name, size in linux.caches(root).items()},
        simd=cpu["simd"],
        has_bf16=cpu["bf16"],
        has_fp16=cpu["fp16"],
        memory_bytes=min((size for size in (memory, memory_limit) if size), default=None),
        shm_bytes=_shm_bytes(root / "dev/shm"),
        gpus=_gpus(root),
        compilers=programs.find_compilers(),
        mpi=programs.find_mpi(),
        sandbox=programs.try_sandbox(),
        versions=installed_versions(),
        limits={"cpu_quota": quota, "memory_limit_bytes": memory_limit, **_resource_limits()},
    )


@dataclass(frozen=True)
class ProcessMemory:
    """What a process has in memory.

    Attributes:
        uss_bytes: Pages that are its own alone: what would be free if it ended.
        pss_bytes: Those, and its part of the shared ones, divided evenly among those who share them; None off Linux.
    """

    uss_bytes: int
    pss_bytes: int | None


def process_memory(pid: int) -> ProcessMemory:
    """Look at a process's memory; reading it takes milliseconds, for the kernel walks through its pages."""
    import psutil

    found = psutil.Process(pid).memory_full_info()
    return ProcessMemory(int(found.uss), int(found.pss) if hasattr(found, "pss") else None)


def count_usable_cores(affinity: int, quota: float | None) -> int:
    """Return how many cores can be kept busy: a quota of 2.5 CPUs keeps two busy, one of 0.5 still runs one."""
    return max(1, min(affinity, int(quota) if quota is not None else affinity))


def usable_cores(root: Path = Path("/")) -> int:
    """Return ``Machine.usable_cores`` without looking at the rest of the machine."""
    return count_usable_cores(len(allowed_cpus()), linux.cpu_quota(root))


def core_siblings(root: Path = Path("/")) -> dict[int, tuple[int, ...]]:
    """Return for each CPU the CPUs of its core (hyper-threads), itself among them; empty where that is unknown."""
    return linux.core_siblings(root)


def allowed_cpus() -> tuple[int, ...]:
    """Return the ids of the CPUs this process may run on; all of them where the system has no affinity (macOS)."""
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 1))


def installed_versions() -> dict[str, str | None]:
    """Return the version of each library the lessons name; None if it is not installed."""
    found: dict[str, str | None] = {"python": platform.python_version()}
    for name, package in WATCHED_VERSIONS.items():
        try:
            found[name] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[name] = None
    return found


def _cpu(root: Path) -> dict[str, Any]:
    text = linux.read_text(root / "proc/cpuinfo")
    if text:
        try:
            return cpuinfo.parse(clean(text + "\n"))
        except Unreadable:
            pass
    return macos.read_cpu(lambda key: programs.ask("sysctl", "-n", key) if sys.platform == "darwin" else None)


def _memory_from_psutil() -> int | None:
    try:
        import psutil
    except ImportError:
        return None
    return int(psutil.virtual_memory().total)


def _shm_bytes(folder: Path) -> int | None:
    try:
        shm = os.statvfs(folder)
    except (OSError, AttributeError):
        return None
    return shm.f_blocks * shm.f_frsize


def _gpus(root: Path) -> tuple[Gpu, ...]:
    """Discrete GPUs by their own tools; the rest by the kernel's list of graphics cards."""
    gpus = programs.find_gpus()
    seen = {gpu.vendor for gpu in gpus}
    for card in linux.graphics_cards(root):
        vendor = _PCI_VENDORS.get(card.pci_vendor)
        if vendor and vendor not in seen:
            gpus += (Gpu(vendor, None, card.memory_bytes, card.driver, card.is_integrated),)
    return gpus


def _resource_limits() -> dict[str, float | None]:
    try:
        import resource
    except ImportError:  # Windows
        return {}
    names = {"open_files": resource.RLIMIT_NOFILE, "processes": getattr(resource, "RLIMIT_NPROC", None)}
    soft = {name: resource.getrlimit(kind)[0] for name, kind in names.items() if kind is not None}
    return {name: None if limit == resource.RLIM_INFINITY else limit for name, limit in soft.items()}
