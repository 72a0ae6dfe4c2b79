"""Reader of Linux's own files: ``/proc`` and ``/sys`` below a root folder, so that tests can bring their own.

Nothing here raises for a file that is missing or odd: it is unknown then, and None or empty.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from accelerando.readers.text import cpu_list

_CACHE_KINDS = {"Data": "d", "Instruction": "i", "Unified": ""}
_UNITS = {"K": 2**10, "M": 2**20, "G": 2**30}


@dataclass(frozen=True)
class Topology:
    """Sockets, cores and hardware threads of the CPUs that are on-line; None where the kernel does not say."""

    sockets: int | None
    physical_cores: int | None
    threads_per_core: int | None


@dataclass(frozen=True)
class CpuTimes:
    """Clock ticks since boot, summed over all CPUs."""

    total: int
    busy: int
    steal: int


@dataclass(frozen=True)
class CoreWaits:
    """How often all threads of a process got a core since they began, and how long they were ready and had none."""

    waited_s: float
    slices: int


@dataclass(frozen=True)
class GraphicsCard:
    """A graphics card as the kernel lists it; None where it does not say."""

    pci_vendor: str
    driver: str | None
    memory_bytes: int | None
    is_integrated: bool | None


def read_text(path: Path) -> str | None:
    """Return a small file's text without surrounding space; None if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None


def read_int(path: Path) -> int | None:
    """Return a file's whole number; None if there is none ("max" too)."""
    text = read_text(path)
    return int(text) if text and re.fullmatch(r"-?\d{1,20}", text) else None


def _cpu_folders(root: Path) -> Iterator[Path]:
    folder = root / "sys/devices/system/cpu"
    if folder.is_dir():
        yield from (path for path in folder.iterdir() if re.fullmatch(r"cpu\d+", path.name))


def topology(root: Path) -> Topology:
    """Count sockets and cores from each CPU's ``topology`` folder."""
    sockets: set[int] = set()
    cores: set[str] = set()
    threads: set[int] = set()
    for cpu in _cpu_folders(root):
        siblings = read_text(cpu / "topology/thread_siblings_list") or read_text(cpu / "topology/core_cpus_list")
        package = read_int(cpu / "topology/physical_package_id")
        if siblings:
            cores.add(siblings)
            threads.add(len(cpu_list(siblings) or []))
        if package is not None and package >= 0:
            sockets.add(package)
    return Topology(len(sockets) or None, len(cores) or None, threads.pop() if len(threads) == 1 else None)


def core_siblings(root: Path) -> dict[int, tuple[int, ...]]:
    """Return for each CPU the CPUs of its core, itself among them; empty where the kernel does not say."""
    found = {}
    for cpu in _cpu_folders(root):
        text = read_text(cpu / "topology/thread_siblings_list") or read_text(cpu / "topology/core_cpus_list")
        siblings = cpu_list(text) if text else None
        if siblings:
            found[int(cpu.name[3:])] = tuple(siblings)
    return found


def caches(root: Path) -> dict[str, tuple[int, int]]:
    """Return each cache's size in bytes and how many there are, by its usual name ("L1d", "L2"…).

    Where two kinds of core have caches of different size, the larger size is given.
    """
    found: dict[str, dict[str, int]] = {}
    for cpu in _cpu_folders(root):
        for index in sorted((cpu / "cache").glob("index*")):
            level, kind = read_int(index / "level"), _CACHE_KINDS.get(read_text(index / "type") or "")
            size = re.fullmatch(r"(\d+)([KMG])", read_text(index / "size") or "")
            shared = read_text(index / "shared_cpu_list")
            if level is not None and kind is not None and size and shared:
                found.setdefault(f"L{level}{kind}", {})[shared] = int(size.group(1)) * _UNITS[size.group(2)]
    return {name: (max(sizes.values()), len(sizes)) for name, sizes in sorted(found.items())}


def numa_nodes(root: Path) -> dict[int, tuple[int, ...]]:
    """Return the CPUs of each NUMA node; a node may have none (memory only)."""
    nodes = {}
    for path in (root / "sys/devices/system/node").glob("node[0-9]*"):
        text = read_text(path / "cpulist")
        cpus = cpu_list(text) if text is not None else None
        if cpus is not None and path.name[4:].isdecimal():
            nodes[int(path.name[4:])] = tuple(cpus)
    return dict(sorted(nodes.items()))


def _cgroup_folders(root: Path, controller: str) -> Iterator[tuple[int, Path]]:
    """Yield the control groups this process is in, from its own up to the root, with the version (1 or 2)."""
    for line in (read_text(root / "proc/self/cgroup") or "").splitlines():
        parts = line.split(":", 2)
        if len(parts) != 3:
            continue
        number, controllers, name = parts
        if number == "0" and not controllers:
            version, mounts = 2, ["sys/fs/cgroup", "sys/fs/cgroup/unified"]
        elif controller in controllers.split(","):
            version, mounts = 1, [f"sys/fs/cgroup/{controllers}", f"sys/fs/cgroup/{controller}"]
        else:
            continue
        mount = next((root / mount for mount in mounts if (root / mount).is_dir()), None)
        if mount is None:
            continue
        folder = mount / name.lstrip("/")
        yield from ((version, path) for path in (folder, *folder.parents) if path.is_relative_to(mount))


def cpu_quota(root: Path) -> float | None:
    """Return how many CPUs' worth of time this process may use; None if its control groups set no limit."""
    quotas = []
    for version, folder in _cgroup_folders(root, "cpu"):
        if version == 2:
            fields = (read_text(folder / "cpu.max") or "").split()
            limit = int(fields[0]) if len(fields) == 2 and fields[0].isdecimal() else None
            period = int(fields[1]) if len(fields) == 2 and fields[1].isdecimal() else None
        else:
            limit, period = read_int(folder / "cpu.cfs_quota_us"), read_int(folder / "cpu.cfs_period_us")
        if limit and period and limit > 0:
            quotas.append(limit / period)
    return min(quotas, default=None)


def memory_limit(root: Path) -> int | None:
    """Return the memory limit of this process's control groups in bytes; None if there is none."""
    limits = []
    for version, folder in _cgroup_folders(root, "memory"):
        limit = read_int(folder / ("memory.max" if version == 2 else "memory.limit_in_bytes"))
        if limit is not None and 0 < limit < 2**60:  # version 1 writes "no limit" as almost 2**63
            limits.append(limit)
    return min(limits, default=None)


def memory_total(root: Path) -> int | None:
    """Return the machine's memory in bytes."""
    match = re.search(r"^MemTotal:\s+(\d+) kB", read_text(root / "proc/meminfo") or "", re.M)
    return int(match.group(1)) * 1024 if match else None


def cpu_times(root: Path) -> CpuTimes | None:
    """Read the first line of ``/proc/stat``: user nice system idle iowait irq softirq steal (guest is in user)."""
    fields = (read_text(root / "proc/stat") or "").split("\n")[0].split()
    if len(fields) < 9 or fields[0] != "cpu" or not all(field.isdecimal() for field in fields[1:9]):
        return None
    ticks = [int(field) for field in fields[1:9]]
    idle = ticks[3] + ticks[4]
    return CpuTimes(total=sum(ticks), busy=sum(ticks) - idle - ticks[7], steal=ticks[7])


def descendants_ticks(root: Path, process: str = "self") -> int:
    """Clock ticks that the processes below one have computed so far, with those that they have waited for.

    What has ended and was waited for by ``process`` itself is not in it. 0 where this system does not list children.
    """
    found = 0
    for listed in root.glob(f"proc/{process}/task/*/children"):
        for child in (read_text(listed) or "").split():
            fields = (read_text(root / "proc" / child / "stat") or "").rpartition(")")[2].split()
            found += sum(int(field) for field in fields[11:15])  # utime stime cutime cstime
            found += descendants_ticks(root, child)
    return found


def throttle_events(root: Path) -> int | None:
    """Return how often CPUs were slowed for heat or by their control group's quota; None if nothing counts it."""
    counts = throttle_counts(root)
    return sum(counts.values()) if counts else None


def throttle_counts(root: Path) -> dict[str, int]:
    """Return how often CPUs were slowed: for "heat", for the "quota" of their control group; only what is counted."""
    found = {}
    heat = [
        count
        for cpu in _cpu_folders(root)
        for path in (cpu / "thermal_throttle").glob("*_throttle_count")
        if (count := read_int(path)) is not None
    ]
    if heat:
        found["heat"] = sum(heat)
    for _, folder in _cgroup_folders(root, "cpu"):
        match = re.search(r"^nr_throttled (\d+)", read_text(folder / "cpu.stat") or "", re.M)
        if match:
            found["quota"] = int(match.group(1))
            break
    return found


def core_waits(root: Path) -> CoreWaits | None:
    """Return what the scheduler counts for this process's threads; None where it counts nothing."""
    rows = [read_text(path) or "" for path in (root / "proc/self/task").glob("*/schedstat")]
    counts = [tuple(map(int, row.split())) for row in rows if re.fullmatch(r"\d+ \d+ \d+", row)]
    if not counts:
        return None
    return CoreWaits(sum(row[1] for row in counts) / 1e9, sum(row[2] for row in counts))


def frequency_mhz(root: Path) -> float | None:
    """Return the mean clock of the on-line CPUs in MHz, as the kernel reports it now."""
    khz = [f for cpu in _cpu_folders(root) if (f := read_int(cpu / "cpufreq/scaling_cur_freq")) is not None]
    if khz:
        return sum(khz) / len(khz) / 1000
    found = re.findall(r"^cpu MHz\s*:\s*([\d.]+)", read_text(root / "proc/cpuinfo") or "", re.M)
    return sum(map(float, found)) / len(found) if found else None


def graphics_cards(root: Path) -> list[GraphicsCard]:
    """List the graphics cards in ``/sys/class/drm``, integrated ones too."""
    cards = []
    for card in sorted((root / "sys/class/drm").glob("card[0-9]*")):
        vendor = read_text(card / "device/vendor")
        if not re.fullmatch(r"card\d+", card.name) or not vendor:
            continue
        uevent = read_text(card / "device/uevent") or ""
        driver = re.search(r"^DRIVER=(\S+)", uevent, re.M)
        slot = re.search(r"^PCI_SLOT_NAME=[0-9a-fA-F]+:([0-9a-fA-F]+):", uevent, re.M)
        # Intel puts its integrated GPU on the CPU's own bus, 0; AMD's sit on other buses and cannot be told apart so.
        is_integrated = int(slot.group(1), 16) == 0 if slot and vendor == "0x8086" else None
        memory = read_int(card / "device/mem_info_vram_total")
        cards.append(GraphicsCard(vendor, driver.group(1) if driver else None, memory, is_integrated))
    return cards
