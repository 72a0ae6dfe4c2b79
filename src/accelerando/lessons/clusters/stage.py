"""Two nodes for a whole notebook: a virtual cluster that is up from one cell to the end of the kernel."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from accelerando import cluster, programs, ranks
from accelerando.cluster import slurm
from accelerando.cluster.hosts import SIMULATED_LINK_VARIABLE
from accelerando.lessons import Budget
from accelerando.ranks import OnLine, RanksResult

NODES = 2
MEGABITS_PER_S = 100
LIMIT_S = 150.0


@dataclass(frozen=True)
class Stage:
    """Where the programs of the lesson run.

    Args:
        cluster: None where none could be made: programs then run on ranks of this machine.
        megabits_per_s: Of every node's link; None: not slowed down.
        why_not: Why there is no cluster, or no Slurm on it; empty if all is there.
    """

    cluster: cluster.Cluster | None
    megabits_per_s: float | None
    why_not: str = ""

    @property
    def is_enforced(self) -> bool:
        """The system holds programs to the link; else they are told about it and wait."""
        return self.cluster is not None and self.cluster.link.is_enforced

    def launchers(self) -> tuple[str, ...]:
        """What can start a program here."""
        found = ["torchrun"]
        if programs.find_open_mpi():
            found.append("mpirun")
        if self.cluster is not None and self.cluster.has_slurm:
            found.append("srun")
        return tuple(found)

    @property
    def quickest(self) -> str:
        """The launcher that starts soonest: torchrun imports torch before the ranks do."""
        return self.launchers()[-1]

    def run(
        self,
        target: str,
        payload: Mapping[str, Any],
        *,
        launcher: str | None = None,
        on: str | None = None,
        fewest: int | None = None,
        on_line: OnLine | None = None,
    ) -> RanksResult:
        """Run a function of a module, one rank on each node.

        Args:
            target: ``"package.module:function"``.
            payload: Its arguments.
            launcher: One of `launchers`; None: the quickest.
            on: Nodes; None: all.
            fewest: As for `cluster.Cluster.run`; needs a cluster.
            on_line: As for `ranks.run`.

        Raises:
            ranks.RanksFailed: If a rank or a node did not come to its end.
        """
        launcher = launcher or self.quickest
        if self.cluster is not None:
            return self.cluster.run(
                target, payload=payload, launcher=launcher, on=on, fewest=fewest, on_line=on_line, time_limit_s=LIMIT_S
            )
        count = NODES if on is None else len(on.split(","))
        return ranks.run(
            target, count, payload=payload, launcher=launcher, on_line=on_line, time_limit_s=LIMIT_S,
            environment=self._told(),
        )  # fmt: skip

    def _told(self) -> dict[str, str | None]:
        if self.megabits_per_s is None:
            return {}
        link = cluster.Link(self.megabits_per_s * 1e6 / 8, is_enforced=False)
        return {SIMULATED_LINK_VARIABLE: json.dumps(asdict(link))}

    def close(self) -> None:
        """Take the cluster down; nothing of it is left."""
        if self.cluster is not None:
            self.cluster.down()

    def sentence(self) -> str:
        """What is up, and what stands in for what is not."""
        speed = "a link that nothing slows down" if self.megabits_per_s is None else f"{self.megabits_per_s:g} Mbit/s"
        if self.cluster is None:
            return f"No cluster: {self.why_not}. {NODES} ranks of this machine stand in for its nodes, link: {speed}."
        nodes = " and ".join(f"`{node.name}` ({node.address})" for node in self.cluster.nodes)
        told = f"Up: {nodes}, {speed} in each direction"
        if not self.is_enforced:
            told += (
                f". The nodes are addresses only ({self.cluster.why_loopback}), and the link is simulated: programs "
                "wait as long as it would take"
            )
        missing = f" {self.why_not}." if self.why_not else ""
        return f"{told}. Launchers: {', '.join(self.launchers())}.{missing}"


def open_stage(
    budget: Budget, *, megabits_per_s: float | None = MEGABITS_PER_S, with_slurm: bool = True, part: str = "main"
) -> Stage:
    """Make the nodes; they go when `Stage.close` is called, or this process ends.

    Args:
        budget: In smoke Slurm is left out.
        megabits_per_s: Of every link; None: not slowed down.
        with_slurm: Where it is installed and nodes are namespaces.
        part: Tells clusters of one process apart; at most 4 letters.
    """
    bandwidth = None if megabits_per_s is None else f"{megabits_per_s:g}mbit"
    name = f"l10-{part}-{os.getpid() % 10**6}"
    why_not = ""
    if with_slurm and budget.name == "smoke":
        why_not = "Slurm is left out of the smoke budget"
    elif with_slurm and (absent := slurm.missing()):
        why_not = f"Slurm is not installed ({', '.join(absent)} not found; on Debian, `apt install slurm-wlm munge`)"
    if with_slurm and not why_not:
        try:
            return Stage(cluster.up(NODES, bandwidth=bandwidth, name=name, with_slurm=True), megabits_per_s)
        except cluster.ClusterError as error:
            why_not = f"Slurm could not be started: {error}"
    try:
        return Stage(cluster.up(NODES, bandwidth=bandwidth, name=name), megabits_per_s, why_not)
    except cluster.ClusterError as error:
        return Stage(None, megabits_per_s, str(error))
