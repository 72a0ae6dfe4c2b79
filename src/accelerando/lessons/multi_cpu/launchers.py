"""What launchers set without being asked: threads, and the cores that a rank may use."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from accelerando import programs, ranks
from accelerando.lessons import Budget

TELL = "accelerando.lessons.multi_cpu.on_launchers:tell"
RANKS = 2
TORCHRUN = "torchrun, nothing said about threads"
TOLD = "torchrun, after `export OMP_NUM_THREADS=3`"
MPIRUN = "mpirun, nothing said about cores"
UNBOUND = "mpirun --bind-to none"
_LOOK = (
    "import json,os;print('@'+json.dumps({'variables':{n:os.environ.get(n) for n in "
    "('RANK','LOCAL_RANK','WORLD_SIZE','OMP_NUM_THREADS','OMPI_COMM_WORLD_LOCAL_RANK')},"
    "'cpus':sorted(os.sched_getaffinity(0)) if hasattr(os,'sched_getaffinity') else None}))"
)


@dataclass(frozen=True)
class Found:
    """What one rank saw.

    Args:
        threads: ``OMP_NUM_THREADS``; None when it is not set.
        cpus: That it may use; None where the system does not tell.
        local_rank: ``LOCAL_RANK``; None when it is not set.
    """

    threads: str | None
    cpus: tuple[int, ...] | None
    local_rank: str | None


@dataclass(frozen=True)
class Launchers:
    """What ranks saw under each launcher.

    Args:
        found: Launcher, in words -> what each rank saw.
        missing: Launcher -> why it was not tried.
        command: Of the second torchrun, as one would type it.
    """

    found: Mapping[str, Sequence[Found]] = field(default_factory=dict)
    missing: Mapping[str, str] = field(default_factory=dict)
    command: str = ""

    def table(self) -> str:
        """Markdown: a row for each launcher."""
        lines = ["| started by | `OMP_NUM_THREADS` | `LOCAL_RANK` | CPUs of the ranks |", "|---|---|---|---|"]
        for name, ranks_found in self.found.items():
            threads = ", ".join(one.threads or "not set" for one in ranks_found[:1])
            local = " and ".join(one.local_rank or "not set" for one in ranks_found)
            cpus = " and ".join(_set(one.cpus) for one in ranks_found)
            lines.append(f"| {name} | {threads} | {local} | {cpus} |")
        lines += [f"| {name} | {why} | | |" for name, why in self.missing.items()]
        return "\n".join(lines)

    def sentence(self) -> str:
        """What this run showed."""
        told = []
        if TORCHRUN in self.found:
            threads = self.found[TORCHRUN][0].threads
            told.append(
                "torchrun set `OMP_NUM_THREADS=1` in every rank, and did not ask how many cores there are"
                if threads == "1"
                else f"torchrun left `OMP_NUM_THREADS` at {threads or 'nothing'} here"
            )
        if MPIRUN in self.found:
            sets = [one.cpus for one in self.found[MPIRUN]]
            free = self.found.get(UNBOUND, ())
            all_cpus = free[0].cpus if free else None
            if all(cpus is not None and len(cpus) == 1 for cpus in sets) and all_cpus and len(all_cpus) > 1:
                told.append(
                    "mpirun gave each rank a single CPU: a rank with more threads would have them take turns on it"
                )
            elif all_cpus and sets[0] == all_cpus:
                told.append("mpirun bound nobody here")
            else:
                told.append(f"mpirun gave the ranks {' and '.join(_set(cpus) for cpus in sets)}")
            if all(one.local_rank is None for one in self.found[MPIRUN]):
                told.append("and it does not know `LOCAL_RANK`, it has a name of its own for that")
        if not told:
            return "Nothing was started: the smoke budget starts no ranks."
        typed = f" The second row was started by `{self.command}`." if self.command else ""
        return "; ".join(told) + f".{typed}"


def _set(cpus: Sequence[int] | None) -> str:
    return "not told" if cpus is None else "{" + ", ".join(map(str, cpus)) + "}"


def measure_launchers(budget: Budget) -> Launchers:
    """Start two ranks by every launcher that is here, and look at what they see; nothing in smoke.

    Args:
        budget: In smoke no launcher is started.
    """
    if budget.name == "smoke":
        return Launchers()
    found: dict[str, Sequence[Found]] = {}
    missing: dict[str, str] = {}
    silent = ranks.run(TELL, RANKS, environment={"OMP_NUM_THREADS": None}, time_limit_s=60.0)
    told = ranks.run(TELL, RANKS, threads_per_rank=3, time_limit_s=60.0)
    for name, result in ((TORCHRUN, silent), (TOLD, told)):
        found[name] = [_found(value) for value in result.values]
    mpirun = programs.find_open_mpi()
    for name, options in ((MPIRUN, ()), (UNBOUND, ("--bind-to", "none"))):
        if mpirun is None:
            missing[name] = "Open MPI is not installed here"
            continue
        host = ("--allow-run-as-root", "--host", f"localhost:{RANKS}", "-n", str(RANKS))
        said = programs.ask(*mpirun, *host, *options, sys.executable, "-S", "-c", _LOOK, limit_s=30.0)
        rows = [_found(json.loads(line[1:])) for line in (said or "").splitlines() if line.startswith("@")]
        if len(rows) == RANKS:
            found[name] = sorted(rows, key=lambda one: one.cpus or ())
        else:
            missing[name] = "it could not start two ranks here"
    return Launchers(found, missing, told.command)


def _found(value: Mapping[str, Any]) -> Found:
    cpus = value["cpus"]
    variables = value["variables"]
    return Found(variables["OMP_NUM_THREADS"], None if cpus is None else tuple(cpus), variables["LOCAL_RANK"])
