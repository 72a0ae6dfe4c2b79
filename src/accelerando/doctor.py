"""``./course doctor``: this machine as the course sees it, what it lacks for which lesson, and how to get that."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from . import machine, units
from .diagnosis import Diagnosis, Gap, Lock, diagnose
from .machine import Machine, MachineState

if TYPE_CHECKING:
    from rich.table import Table

_UNKNOWN = "unknown"
_NOT_SHOWN = "L1i"  # the instruction cache explains nothing in this course; the JSON has it


def doctor_command(as_json: bool) -> int:
    """Show what this machine has and lacks.

    Args:
        as_json: Print the whole diagnosis as JSON and nothing else.

    Returns:
        0: something missing is a finding, not a failure.
    """
    found = diagnose()
    if as_json:
        print(json.dumps(asdict(found), indent=2))  # noqa: T201
    else:
        show(found)
    return 0


def facts(found: Diagnosis) -> dict[str, list[tuple[str, str]]]:
    """The diagnosis as a person reads it: sections of (what, how much); what is unknown says so."""
    here = found.machine
    return {
        "Processor": [
            ("model", f"{here.model or _UNKNOWN} ({here.architecture})"),
            ("cores", describe_cores(here)),
            ("NUMA nodes", describe_numa(here.numa_nodes)),
            ("caches", describe_caches(here) or _UNKNOWN),
            ("SIMD", here.simd or _UNKNOWN),
            ("in hardware", f"bfloat16: {yes_no(here.has_bf16)} · half precision: {yes_no(here.has_fp16)}"),
            ("right now", describe_state(found.state)),
        ],
        "Memory": [
            ("usable", _size(here.memory_bytes)),
            ("/dev/shm", _size(here.shm_bytes)),
            ("disk", f"{_size(found.disk_free_bytes)} free"),
        ],
        "Graphics": [(gpu.vendor, _describe_gpu(gpu)) for gpu in here.gpus] or [("GPU", "none")],
        "Programs": [
            ("C++ compiler", _describe_programs(here.compilers)),
            ("MPI", _describe_programs(here.mpi)),
            ("sandbox", f"{here.sandbox.kind}" if here.sandbox.is_usable else f"not usable: {here.sandbox.reason}"),
        ],
        "Libraries": [(name, version or "not installed") for name, version in here.versions.items()],
        "Places": [("course", found.course), ("your work", found.work)],
    }


def describe_cores(here: Machine) -> str:
    """How many cores may be used, and what cuts them down when that is fewer than there are."""
    parts = [f"{here.logical_cores or _UNKNOWN} logical"]
    if here.physical_cores:
        parts.append(f"{here.physical_cores} physical")
    if here.sockets:
        parts.append(f"{here.sockets} socket{'s'[: here.sockets > 1]}")
    quota = here.limits.get("cpu_quota")
    if here.logical_cores and len(here.cpus) < here.logical_cores:
        parts.append(f"affinity leaves CPUs {ranges(here.cpus)}")
    if quota is not None:
        parts.append(f"quota of {quota:g} CPUs")
    return f"{here.usable_cores} usable ({', '.join(parts)})"


def describe_numa(nodes: Mapping[int, Sequence[int]]) -> str:
    """Each node with its CPUs."""
    return " · ".join(f"{node}: CPUs {ranges(cpus)}" for node, cpus in nodes.items()) or _UNKNOWN


def describe_caches(here: Machine) -> str:
    """Each level with its size and number."""
    return " · ".join(
        f"{level} {f'{cache.instances} × ' if cache.instances > 1 else ''}{_size(cache.each_bytes)}"
        for level, cache in here.caches.items()
        if level != _NOT_SHOWN
    )


def describe_state(state: MachineState) -> str:
    """How calm the machine is."""
    if state == machine.UNKNOWN_STATE:
        return _UNKNOWN
    calm = "calm" if state.is_calm else "disturbed: " + ", ".join(state.disturbances)
    load = "" if state.load_1min is None else f" · load {state.load_1min:.2f}"
    clock = "" if state.frequency_mhz is None else f" · {state.frequency_mhz:,.0f} MHz"
    return calm + load + clock


def ranges(numbers: Iterable[int]) -> str:
    """CPU ids as a person writes them: ``0-3,8``."""
    pieces: list[list[int]] = []
    for number in sorted(numbers):
        if pieces and number == pieces[-1][-1] + 1:
            pieces[-1].append(number)
        else:
            pieces.append([number])
    return ",".join(f"{piece[0]}-{piece[-1]}" if len(piece) > 1 else f"{piece[0]}" for piece in pieces) or "none"


def _size(count: float | None) -> str:
    return _UNKNOWN if count is None else units.binary_size(count)


def yes_no(fact: bool | None) -> str:
    """A fact in a word."""
    return {True: "yes", False: "no", None: _UNKNOWN}[fact]


def show(found: Diagnosis) -> None:
    """Print the diagnosis as tables."""
    from rich.console import Console

    console = Console(highlight=False)
    console.print(_facts_table(found))
    if found.gaps:
        console.print(_gaps_table(found.gaps))
    else:
        console.print("[green]✓[/] Nothing is missing: every lesson can be measured in full on this machine.")
    _show_lock(console.print, found.lock)


def _facts_table(found: Diagnosis) -> "Table":
    from rich.markup import escape
    from rich.table import Table

    table = Table(title="This machine", title_justify="left", show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_column(style="bold")
    table.add_column(style="dim")
    table.add_column(overflow="fold")
    for section, rows in facts(found).items():
        for index, (what, how_much) in enumerate(rows):
            table.add_row(section if index == 0 else "", what, escape(how_much), end_section=index == len(rows) - 1)
        table.add_row()
    return table


def _gaps_table(gaps: Iterable[Gap]) -> "Table":
    from rich.table import Table

    table = Table(title="Missing here", title_justify="left", show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for gap in gaps:
        lessons = ", ".join(str(number) for number in gap.lessons)
        where = f"lesson{'s'[: len(gap.lessons) > 1]} {lessons}" if gap.lessons else "every lab"
        table.add_row(where, f"{_code(gap.missing.why)}\n[dim]{_code(gap.missing.how)}[/]\n")
    return table


def _show_lock(say: Any, lock: Lock) -> None:
    if not lock.packages:
        say("There is no requirements.txt here to compare the installed packages with.")
    elif not lock.strayed:
        say(f"[green]✓[/] All {lock.packages} packages are installed as locked.")
    else:
        say(f"[yellow]![/] {len(lock.strayed)} of {lock.packages} packages are not as locked:")
        for item in lock.strayed:
            say(f"    {item.package}: {item.installed or 'not installed'}, locked {item.locked}")
        say("    Delete the folder [bold].venv[/] and run [bold]./course doctor[/]: it installs what the lock says.")


def _code(text: str) -> str:
    """Show what stands between backticks in bold."""
    from rich.markup import escape

    return "".join(
        f"[bold]{escape(piece)}[/]" if i % 2 and piece else escape(piece) for i, piece in enumerate(text.split("`"))
    )


def _describe_gpu(gpu: machine.Gpu) -> str:
    parts = [gpu.name or _UNKNOWN, _size(gpu.memory_bytes) if gpu.memory_bytes else None]
    parts += [f"driver {gpu.driver}" if gpu.driver else None, "integrated" if gpu.is_integrated else None]
    return " · ".join(part for part in parts if part)


def _describe_programs(programs: Iterable[machine.Program]) -> str:
    return " · ".join(f"{p.command} ({p.kind} {p.version or ''}".rstrip() + ")" for p in programs) or "none"
