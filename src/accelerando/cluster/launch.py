"""The command lines of a distributed program, as they would be typed on a real cluster.

torchrun is started once on every node; mpirun, srun and sbatch are typed once, on the login node, and reach the others
themselves. A plan is data: `running` carries it out, a learner reads it.
"""

import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from accelerando import ranks
from accelerando.cluster.hosts import LOGIN, Node
from accelerando.rank_entry import FOLDER_VARIABLE
from accelerando.ranks.launchers import check, entry, typed

LAUNCHERS = ranks.LAUNCHERS
MOST_RANKS_PER_NODE = 64
IMPATIENT = "last_call_timeout=1,keep_alive_interval=1,keep_alive_max_attempt=5"
"""Of an elastic run: a node is given up after 5 s without a sign of life, and 1 s later the rest goes on."""


@dataclass(frozen=True)
class Step:
    """One command: where it is typed (a node's name or ``login``), what is started, and how one would type it."""

    place: str
    command: tuple[str, ...]
    typed: str


@dataclass(frozen=True)
class Plan:
    """What starts a program.

    Attributes:
        launcher: torchrun, mpirun, srun or sbatch.
        ranks: Of all nodes together.
        steps: Commands, all started at once.
        environment: Variables on top of those of the caller; they are the same on every node.
        script: What sbatch is given; None for the others.
    """

    launcher: str
    ranks: int
    steps: tuple[Step, ...]
    environment: dict[str, str]
    script: str | None = None

    @property
    def shown(self) -> str:
        """The commands as text, one a line, with the variables that matter; a script below its command."""
        names = [
            name
            for name in ("MASTER_ADDR", "MASTER_PORT", "GLOO_SOCKET_IFNAME", "OMP_NUM_THREADS")
            if name in self.environment
        ]
        variables = " ".join(f"{name}={shlex.quote(self.environment[name])}" for name in names)
        lines = [f"{step.place}$ {variables} {step.typed}" for step in self.steps]
        return "\n".join([*lines, *(self.script or "").splitlines()])


@dataclass(frozen=True)
class Place:
    """Where and how wide a program runs: the nodes, ranks on each, threads of each rank.

    Attributes:
        nodes: Rank 0 is on the first.
        ranks_per_node: On each.
        threads_per_rank: Of each.
        fewest: Nodes that must be left for it to go on when others are lost; None: all of them.
    """

    nodes: tuple[Node, ...]
    ranks_per_node: int = 1
    threads_per_rank: int = 1
    fewest: int | None = None

    @property
    def ranks(self) -> int:
        """Of all nodes together."""
        return self.ranks_per_node * len(self.nodes)


def plan(
    launcher: str,
    words: Sequence[str],
    place: Place,
    *,
    port: int,
    interface: str,
    folder: Path,
    mpirun: Sequence[str] = ("mpirun",),
    agent: str | None = None,
) -> Plan:
    """Plan how to start a program on nodes.

    Args:
        launcher: torchrun, mpirun, srun or sbatch.
        words: The program and its arguments, from `exchange.pack`.
        place: Where; rank 0 is on the first node.
        port: Free on the first node; where the ranks meet.
        interface: Name of the network card that gloo shall use.
        folder: Through which the ranks exchange.
        mpirun: Words that start Open MPI's, from `programs.find_open_mpi`.
        agent: What mpirun calls instead of ssh; None: all ranks are started on this host.

    Raises:
        ValueError: If an argument is out of range.
    """
    check(launcher, place.threads_per_rank, 1.0)
    if not 1 <= place.ranks_per_node <= MOST_RANKS_PER_NODE:
        raise ValueError(f"ranks per node is {place.ranks_per_node}: it must be from 1 to {MOST_RANKS_PER_NODE}")
    if place.fewest is not None and (launcher != "torchrun" or not 1 <= place.fewest <= len(place.nodes)):
        raise ValueError(
            f"fewest is {place.fewest} with {launcher}: only torchrun goes on with fewer nodes, and at least 1 of "
            f"{len(place.nodes)} must be left"
        )
    meeting = {"MASTER_ADDR": place.nodes[0].address, "MASTER_PORT": str(port)}
    environment = {
        "GLOO_SOCKET_IFNAME": interface,
        "OMP_NUM_THREADS": str(place.threads_per_rank),
        FOLDER_VARIABLE: str(folder),
    }
    if launcher == "torchrun":
        return Plan(launcher, place.ranks, _torchrun(words, place, port), environment)
    environment |= meeting
    if launcher == "mpirun":
        # Ordinary users are root inside their own namespaces.
        allowed = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        options = _mpirun_options(place, [*meeting, "GLOO_SOCKET_IFNAME", "OMP_NUM_THREADS"], agent)
        real = [*mpirun, "-x", FOLDER_VARIABLE]
        return Plan(launcher, place.ranks, (_step(real, "mpirun", options, words),), environment | allowed)
    shape = [f"--nodes={len(place.nodes)}", f"--ntasks={place.ranks}", f"--ntasks-per-node={place.ranks_per_node}"]
    shape += ["--overcommit", f"--nodelist={','.join(node.name for node in place.nodes)}"]
    job = ["--kill-on-bad-exit=1", "--unbuffered"]
    if launcher == "srun":
        return Plan(launcher, place.ranks, (_step(["srun"], "srun", [*shape, *job], words),), environment)
    script = folder / "job.sh"
    head = ["#!/bin/sh", *(f"#SBATCH {option}" for option in [*shape, "--output=job.out"])]
    real = [*head, shlex.join(["srun", *job, *entry(words)])]
    script.write_text("\n".join(real) + "\n", encoding="utf-8")
    shown = "\n".join([*head, shlex.join(["srun", *job, *typed(words, sets_variables=False)])])
    command = ("sbatch", "--wait", f"--chdir={folder}", str(script))
    return Plan(launcher, place.ranks, (Step(LOGIN, command, "sbatch --wait job.sh"),), environment, shown)


def _step(real: list[str], name: str, options: Sequence[str], words: Sequence[str]) -> Step:
    return Step(
        LOGIN, (*real, *options, *entry(words)), shlex.join([name, *options, *typed(words, sets_variables=False)])
    )


def _mpirun_options(place: Place, forwarded: Sequence[str], agent: str | None) -> list[str]:
    each = place.ranks_per_node
    hosts = ",".join(f"{node.address}:{each}" for node in place.nodes) if agent else f"localhost:{place.ranks}"
    how = ["--prtemca", "plm_ssh_agent", agent, "--map-by", f"ppr:{each}:node"] if agent else []
    variables = [word for name in forwarded for word in ("-x", name)]
    return [*how, "--host", hosts, "-n", str(place.ranks), "--bind-to", "none", *variables]


def _torchrun(words: Sequence[str], place: Place, port: int) -> tuple[Step, ...]:
    steps = []
    nodes, each = place.nodes, f"--nproc-per-node={place.ranks_per_node}"
    for number, node in enumerate(nodes):
        if place.fewest is None:
            options = [f"--nnodes={len(nodes)}", f"--node-rank={number}", each]
            options += [f"--master-addr={nodes[0].address}", f"--master-port={port}", f"--local-addr={node.address}"]
            more = ["--max-restarts=0"]
        else:  # nodes come and go, so none has a number of its own
            options = [f"--nnodes={place.fewest}:{len(nodes)}", each, "--max-restarts=3", "--rdzv-backend=c10d"]
            options += [f"--rdzv-endpoint={nodes[0].address}:{port}", "--rdzv-id=job", f"--rdzv-conf={IMPATIENT}"]
            options, more = [*options, f"--local-addr={node.address}"], []
        more += ["--monitor-interval=0.2", "--no-python", *entry(words)]
        command = (sys.executable, "-u", "-m", "torch.distributed.run", *options, *more)
        steps.append(Step(node.name, command, shlex.join(["torchrun", *options, *typed(words, sets_variables=True)])))
    return tuple(steps)
