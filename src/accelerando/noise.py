"""How calm the machine was while something was measured: steal, load, throttling, other people's work."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from accelerando.readers import linux

BUSY_OTHERS = 0.15
"""Of all CPU time: from here on other programs disturb what is measured, and slowness may be theirs."""
SLOWING_STEAL = 0.10
"""Of all CPU time: from here on slowness may be the host's."""
_BUSY_STEAL = 0.02


@dataclass(frozen=True)
class MachineState:
    """The machine during one interval; None where this system does not count it.

    Attributes:
        steal_fraction: Share of all CPU time that the hypervisor gave to other guests, 0 to 1.
        others_fraction: Share of all CPU time used by others than this process and all that it started, 0 to 1.
        load_1min: Load average of the last minute at the end of the interval.
        throttled: True if a CPU was slowed for heat, or this process for its quota, during the interval.
        frequency_mhz: Mean clock of the CPUs at the end of the interval.
    """

    steal_fraction: float | None
    others_fraction: float | None
    load_1min: float | None
    throttled: bool | None
    frequency_mhz: float | None

    @property
    def is_calm(self) -> bool:
        """True unless something is known to have disturbed the interval."""
        return not self.disturbances

    @property
    def disturbances(self) -> tuple[str, ...]:
        """What disturbed the interval, each in a few words."""
        found = []
        if self.steal_fraction is not None and self.steal_fraction > _BUSY_STEAL:
            found.append(f"the hypervisor took {self.steal_fraction:.0%} of the CPU time")
        if self.others_fraction is not None and self.others_fraction > BUSY_OTHERS:
            found.append(f"other processes used {self.others_fraction:.0%} of the CPU time")
        if self.throttled:
            found.append("the CPU was throttled")
        return tuple(found)


UNKNOWN_STATE = MachineState(None, None, None, None, None)


class Watch:
    """What `watch` hands out: `state` is known once its block has ended."""

    def __init__(self) -> None:
        """Start with a state of which nothing is known."""
        self.state = UNKNOWN_STATE


@dataclass(frozen=True)
class _Reading:
    times: linux.CpuTimes | None
    own_cpu_s: float
    throttle_events: int | None


@contextmanager
def watch(root: Path = Path("/")) -> Iterator[Watch]:
    """Watch the machine while a block runs.

    The counters are read twice, so watching costs a few milliseconds and disturbs nothing. An interval shorter than a
    few clock ticks (10 ms each) says little, and the fractions are None when no tick passed.

    Args:
        root: Where ``/proc`` and ``/sys`` are; tests bring their own.

    Yields:
        An object whose ``state`` is set when the block ends, also by an exception.
    """
    watched = Watch()
    before = _read(root)
    try:
        yield watched
    finally:
        watched.state = compare_readings(before, _read(root), root)


def _read(root: Path) -> _Reading:
    own = sum(
        used.ru_utime + used.ru_stime
        for used in (resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN))
    )
    own += linux.descendants_ticks(root) / os.sysconf("SC_CLK_TCK")
    return _Reading(linux.cpu_times(root), own, linux.throttle_events(root))


def compare_readings(before: _Reading, after: _Reading, root: Path = Path("/")) -> MachineState:
    """Turn two readings into the state of the interval between them."""
    steal = others = None
    if before.times and after.times and after.times.total > before.times.total:
        total = after.times.total - before.times.total
        steal = max(0.0, (after.times.steal - before.times.steal) / total)
        own_ticks = (after.own_cpu_s - before.own_cpu_s) * os.sysconf("SC_CLK_TCK")
        others = min(1.0, max(0.0, (after.times.busy - before.times.busy - own_ticks) / total))
    throttled = None
    if before.throttle_events is not None and after.throttle_events is not None:
        throttled = after.throttle_events > before.throttle_events
    try:
        load: float | None = os.getloadavg()[0]
    except OSError:
        load = None
    return MachineState(steal, others, load, throttled, linux.frequency_mhz(root))
