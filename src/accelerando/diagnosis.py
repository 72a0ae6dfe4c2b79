"""What `doctor` finds: the machine, what it lacks for which lesson, and how the environment compares with the lock."""

import shutil
import time
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from . import catalog, machine, work
from .machine import Machine, MachineState, Missing

SCHEMA = 1
EVERY_LAB_NEEDS = ("cores", "memory", "sandbox")
_WATCH_S = 0.5


@dataclass(frozen=True)
class Gap:
    """What a lesson needs and this machine lacks; ``lessons`` is empty when every lab is meant."""

    lessons: tuple[int, ...]
    missing: Missing


@dataclass(frozen=True)
class Strayed:
    """A package that is not installed as the lock says."""

    package: str
    locked: str
    installed: str | None  # None: not at all


@dataclass(frozen=True)
class Lock:
    """How the environment compares with ``requirements.txt``."""

    packages: int  # that apply here; 0 when there is no lock to compare with
    strayed: tuple[Strayed, ...]


@dataclass(frozen=True)
class Diagnosis:
    """Everything the doctor found."""

    machine: Machine
    state: MachineState
    gaps: tuple[Gap, ...]
    lock: Lock
    course: str
    work: str
    disk_free_bytes: int
    schema: int = SCHEMA


def diagnose() -> Diagnosis:
    """Look at the machine, the lock and the folders; takes about a second."""
    here = machine.probe()
    with machine.watch() as watched:
        time.sleep(_WATCH_S)
    root = work.checkout()
    return Diagnosis(
        machine=here,
        state=watched.state,
        gaps=find_gaps(here),
        lock=compare_lock(root / "requirements.txt"),
        course=str(root),
        work=str(work.work_folder()),
        disk_free_bytes=shutil.disk_usage(root).free,
    )


def find_gaps(here: Machine) -> tuple[Gap, ...]:
    """What every lab needs and is not here, then what single lessons need, each thing once."""
    wanted: dict[str, list[int]] = {}
    for lesson in catalog.lessons():
        for need in lesson.needs:
            wanted.setdefault(need, []).append(lesson.number)
    general = [Gap((), missing) for missing in machine.missing(here, EVERY_LAB_NEEDS)]
    single = [Gap(tuple(wanted[missing.need]), missing) for missing in machine.missing(here, wanted)]
    return (*general, *single)


def compare_lock(path: Path) -> Lock:
    """Compare what is installed with a lock file, line by line, where its environment marker applies here."""
    from packaging.requirements import InvalidRequirement, Requirement

    count, strayed = 0, []
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    for line in lines:
        try:
            wanted = Requirement(line.partition(" #")[0].strip())
        except InvalidRequirement:
            continue  # a comment, an option or an empty line
        if wanted.marker and not wanted.marker.evaluate():
            continue
        count += 1
        installed = _installed(wanted.name)
        if installed is None or not wanted.specifier.contains(installed, prereleases=True):
            strayed.append(Strayed(wanted.name, str(wanted.specifier).removeprefix("=="), installed))
    return Lock(count, tuple(strayed))


def _installed(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
