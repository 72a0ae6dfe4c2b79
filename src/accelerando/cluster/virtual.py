"""A virtual cluster that is up: what it is, programs on it, its end. The caller's side of the holder.

On Linux only. Where namespaces are allowed (root, or an ordinary user), a node has its own network, host name, shared
memory and processes. Where they are not, nodes are loopback addresses, and the link is told to programs, not enforced.
"""

import contextlib
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from accelerando.cluster import hosts, marks, places, running, slurm
from accelerando.cluster.places import ClusterError
from accelerando.rank_entry import FOLDER_VARIABLE
from accelerando.ranks import OnLine, RanksResult, launchers
from accelerando.ranks.exchange import Program

SCHEMA = 1


@dataclass(frozen=True)
class Cluster:
    """A cluster that is up.

    Attributes:
        name: Chosen at `up`; one user can have several.
        nodes: Names and addresses.
        link: Of every node.
        has_slurm: Slurm's daemons were started.
        why_loopback: None if nodes are namespaces; else why they are only addresses.
        keeper: Process id of the cluster's first process; when it ends, so does all of it.
        folder: Where its socket and logs are, until it is down.
    """

    name: str
    nodes: tuple[hosts.Node, ...]
    link: hosts.Link
    has_slurm: bool
    why_loopback: str | None
    keeper: int
    folder: Path

    def run(
        self,
        program: Program,
        arguments: Sequence[str] = (),
        *,
        launcher: str = "torchrun",
        on: str | None = None,
        ranks_per_node: int = 1,
        threads_per_rank: int = 1,
        fewest: int | None = None,
        time_limit_s: float = 600.0,
        environment: Mapping[str, str | None] | None = None,
        payload: Mapping[str, Any] | None = None,
        on_line: OnLine | None = None,
    ) -> RanksResult:
        """Run a program on the nodes.

        Args:
            program: As `ranks.run` takes it: a function, a Python file, a module, or a function of a module.
            arguments: Its command line.
            launcher: torchrun, mpirun, srun or sbatch.
            on: Nodes, such as ``"node2,node1"``; None: all.
            ranks_per_node: 1 to 64.
            threads_per_rank: At least 1.
            fewest: Nodes that must be left: with fewer than all, torchrun starts the program again on those that are
                left when others are lost, and the values of the lost ones are None. None: all nodes.
            time_limit_s: Afterwards everything it started is killed.
            environment: Variables on top of this process's own; None removes one.
            payload: Numbers, text, lists, dicts and arrays for every rank.
            on_line: Called with rank and line as they come, such as `ranks.show`.

        Returns:
            Values, outputs, seconds.

        Raises:
            RanksFailed: If a rank or a node did not come to its end, or the time was over.
            ValueError: If an argument makes no sense.
            ClusterError: If the launcher is not there, or the cluster is no longer up.
        """
        place = running.choose_place(self, on, ranks_per_node, threads_per_rank, fewest)
        job = running.Job(self, program, arguments, launcher, place, time_limit_s, payload)
        return job.run(self._environment(), environment or {}, on_line)

    def slurm(self, *words: str) -> str:
        """Type one of Slurm's commands on the login node, such as ``"squeue"``, and return what it says.

        Raises:
            ClusterError: If the cluster has no Slurm, or the command fails.
        """
        if not self.has_slurm or words[0] not in slurm.COMMANDS:
            raise ClusterError(f"{words[0]} needs a cluster with Slurm, and is one of {', '.join(slurm.COMMANDS)}")
        answer = self.ask({"op": "slurm", "words": words})
        if answer["code"]:
            raise ClusterError(f"{words[0]} ended with status {answer['code']}: {answer['said'].strip()}")
        return str(answer["said"])

    def _environment(self) -> dict[str, str]:
        """Return the variables that a program gets."""
        variables = own_variables() | {"PATH": f"{Path(sys.executable).parent}:{places.path()}"}
        if not self.link.is_enforced:
            variables[hosts.SIMULATED_LINK_VARIABLE] = json.dumps(asdict(self.link))
        return variables

    def status(self) -> dict[str, Any]:
        """Return what is up, lost and running, and the process that each node stands or falls with."""
        told = self.ask({"op": "status"})
        first = places.first_processes(self.keeper)
        return {
            "schema": SCHEMA,
            "name": self.name,
            "keeper": self.keeper,
            "nodes": [
                asdict(node) | {"state": "lost" if node.name in told["lost"] else "up", "process": first.get(node.name)}
                for node in self.nodes
            ],
            "link": asdict(self.link),
            "why_loopback": self.why_loopback,
            "runs": told["runs"],
            "slurm": told["slurm"],
            "ended_daemons": told["ended_daemons"],
        }

    def down(self) -> None:
        """End everything on the cluster and wait until nothing of it is left.

        Raises:
            ClusterError: If it does not end.
        """
        with contextlib.suppress(ClusterError, OSError), places.connected(self.folder) as connection:
            connection.sendall(b'{"op": "down"}')
        if not places.is_gone(self.folder, places.LIMIT_S):
            raise ClusterError(f"cluster {self.name!r} does not end: end process {self.keeper} with `kill -9`")

    def __enter__(self) -> "Cluster":
        """Use it for a block."""
        return self

    def __exit__(self, *_: object) -> None:
        """Take it down, whatever happened in the block."""
        self.down()

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """Put a question to the holder.

        Raises:
            ClusterError: If it does not answer, or not with what was asked.
        """
        try:
            with places.connected(self.folder) as connection:
                connection.sendall(json.dumps(request).encode())
                answer: dict[str, Any] = json.loads(connection.recv(1 << 20) or b'{"error": "it ended meanwhile"}')
        except TimeoutError:
            raise ClusterError(f"the cluster is busy: no answer within {places.LIMIT_S:g} s, try again") from None
        except OSError as error:
            raise ClusterError(f"the cluster is no longer up: it was taken down meanwhile ({error})") from error
        if "error" in answer:
            raise ClusterError(f"the cluster does not answer: {answer['error']}")
        return answer


def connect(name: str = "default") -> Cluster:
    """Return a cluster that is up.

    Raises:
        ClusterError: If there is none of that name.
    """
    folder = places.root() / name
    if not places.NAME.fullmatch(name) or places.is_gone(folder):
        raise ClusterError(f"no cluster named {name!r} is up: `./course cluster up` makes one")
    try:
        spec = json.loads((folder / "cluster.json").read_text(encoding="utf-8"))
        keeper = int((folder / "keeper.pid").read_text(encoding="ascii"))
    except (OSError, ValueError):  # read while it is being made, or removed
        raise ClusterError(f"cluster {name!r} is just coming up or going down: try again") from None
    return Cluster(
        name,
        tuple(hosts.Node(**node) for node in spec["nodes"]),
        hosts.Link(**spec["link"]),
        spec["slurm"],
        spec["why_loopback"],
        keeper,
        folder,
    )


def own_variables() -> dict[str, str]:
    """Return this process's variables without what says that it is part of a job, a run or a cluster itself."""
    return launchers.own_variables(FOLDER_VARIABLE, marks.VARIABLE, hosts.SIMULATED_LINK_VARIABLE)
