"""The command lines of a distributed program, as they would be typed on a real cluster.

torchrun is started once on every node; mpirun and srun are typed once, on the login node, and reach the others
themselves. A plan is data: `virtual` carries it out, a learner reads it.
"""

import re
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from accelerando import programs
from accelerando.cluster.hosts import LOGIN, Node

LAUNCHERS = ("torchrun", "mpirun", "srun")
MOST_RANKS_PER_NODE = 64
_MODULE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


@dataclass(frozen=True)
class Step:
    """One command: where it is typed (a node's name or ``login``), and what."""

    place: str
    command: tuple[str, ...]


@dataclass(frozen=True)
class Plan:
    """What starts a program.

    Attributes:
        launcher: torchrun, mpirun or srun.
        ranks: Of all nodes together.
        steps: Commands, all started at once.
        environment: Variables on top of those of the caller; they are the same on every node.
    """

    launcher: str
    ranks: int
    steps: tuple[Step, ...]
    environment: dict[str, str]

    @property
    def shown(self) -> str:
        """The commands as text, one a line, with the variables that matter."""
        variables = " ".join(f"{name}={shlex.quote(value)}" for name, value in sorted(self.environment.items()))
        return "\n".join(f"{step.place}$ {variables} {shlex.join(step.command)}" for step in self.steps)


def check_program(program: str | Path, arguments: Sequence[str]) -> tuple[str, ...]:
    """Return the program's part of a command line.

    Raises:
        ValueError: If it is neither a Python file that exists nor the name of a module.
    """
    text = str(program)
    if text.endswith(".py"):
        if not Path(text).is_file():
            raise ValueError(f"{text}: there is no such Python file")
        return (str(Path(text).resolve()), *arguments)
    if not _MODULE.fullmatch(text):
        raise ValueError(f"program is {text!r}: give a .py file or a module such as package.module")
    return (text, *arguments)


def plan(
    launcher: str,
    program: Sequence[str],
    nodes: Sequence[Node],
    *,
    port: int,
    interface: str,
    ranks_per_node: int = 1,
    threads_per_rank: int = 1,
    mpirun: Sequence[str] = ("mpirun",),
    agent: str | None = None,
) -> Plan:
    """Plan how to start a program on nodes.

    Args:
        launcher: torchrun, mpirun or srun.
        program: From `check_program`.
        nodes: Where; rank 0 is on the first.
        port: Free on the first node; where the ranks meet.
        interface: Name of the network card that gloo shall use.
        ranks_per_node: 1 to 64.
        threads_per_rank: OpenMP threads of each, at least 1.
        mpirun: Words that start Open MPI's, from `find_open_mpi`.
        agent: What mpirun calls instead of ssh; None: all ranks are started on this host.

    Raises:
        ValueError: If an argument is out of range.
    """
    if launcher not in LAUNCHERS:
        raise ValueError(f"launcher is {launcher!r}: it must be {', '.join(LAUNCHERS[:-1])} or {LAUNCHERS[-1]}")
    if not 1 <= ranks_per_node <= MOST_RANKS_PER_NODE:
        raise ValueError(f"ranks per node is {ranks_per_node}: it must be from 1 to {MOST_RANKS_PER_NODE}")
    if threads_per_rank < 1:
        raise ValueError(f"threads per rank is {threads_per_rank}: it must be at least 1")
    ranks = ranks_per_node * len(nodes)
    meeting = {"MASTER_ADDR": nodes[0].address, "MASTER_PORT": str(port)}
    environment = {"GLOO_SOCKET_IFNAME": interface, "OMP_NUM_THREADS": str(threads_per_rank)}
    entry = (sys.executable, "-u", "-m", "accelerando.cluster.entry", *program)
    if launcher == "torchrun":
        return Plan(launcher, ranks, _torchrun(program, nodes, port, ranks_per_node), environment)
    if launcher == "mpirun":
        hosts = ",".join(f"{node.address}:{ranks_per_node}" for node in nodes) if agent else f"localhost:{ranks}"
        how = ["--prtemca", "plm_ssh_agent", agent, "--map-by", f"ppr:{ranks_per_node}:node"] if agent else []
        options = [*how, "--host", hosts, "-n", str(ranks), "--bind-to", "none"]
        forwarded = [word for name in (*meeting, *environment) for word in ("-x", name)]
        return Plan(
            launcher, ranks, (Step(LOGIN, (*mpirun, *options, *forwarded, *entry)),),
            # Ordinary users are root inside their own namespaces.
            environment | meeting | {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"},
        )  # fmt: skip
    options = [f"--nodes={len(nodes)}", f"--ntasks={ranks}", f"--ntasks-per-node={ranks_per_node}", "--overcommit"]
    options += [f"--nodelist={','.join(node.name for node in nodes)}", "--kill-on-bad-exit=1", "--unbuffered"]
    return Plan(launcher, ranks, (Step(LOGIN, ("srun", *options, *entry)),), environment | meeting)


def _torchrun(program: Sequence[str], nodes: Sequence[Node], port: int, ranks_per_node: int) -> tuple[Step, ...]:
    is_module = not program[0].endswith(".py")
    steps = []
    for number, node in enumerate(nodes):
        options = [f"--nnodes={len(nodes)}", f"--node-rank={number}", f"--nproc-per-node={ranks_per_node}"]
        options += [f"--master-addr={nodes[0].address}", f"--master-port={port}", f"--local-addr={node.address}"]
        options += ["--max-restarts=0", "--monitor-interval=0.2", *(["--module"] if is_module else [])]
        command = (sys.executable, "-u", "-m", "torch.distributed.run", *options, *program)
        steps.append(Step(node.name, command))
    return tuple(steps)


def find_open_mpi() -> tuple[str, ...] | None:
    """Find the words that start Open MPI's mpirun; None if there is none.

    Several packages install a program of that name, and in one environment the last one wins. So the wheel's real
    program is tried as well: its mpirun does no more than to say where it lies, and to call that.
    """
    for program in programs.find_mpi():
        if program.kind == "Open MPI" and program.command == "mpirun":
            return (program.path,)
    wrapped = ("env", f"OPAL_PREFIX={sys.prefix}", str(Path(sys.prefix) / "bin" / "ompirun_wrapper"))
    answer = programs.ask(*wrapped, "--version") or ""
    return wrapped if programs.mpi_kind(answer) == "Open MPI" else None
