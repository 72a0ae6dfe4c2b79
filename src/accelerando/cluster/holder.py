"""The process that owns a virtual cluster: nodes, cables, daemons and every program that runs there.

``python -m accelerando.cluster.holder FOLDER SOCKET``, started by the keeper as the first process of fresh
namespaces: when it ends, however that comes, the system ends all others in them and takes the network down. It
answers one question on each connection to its socket: status, port, run or down.
"""

import contextlib
import json
import os
import select
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from accelerando.cluster import marks, network, slurm
from accelerando.cluster.hosts import LOGIN, Link, Node, hosts_file
from accelerando.cluster.runs import Run, answer_on, broken_off, lost_node

_LOOK_EVERY_S = 0.05
_DAEMONS_S = 30.0
_FIRST_PORT, _PORTS = 20000, 10000
_MOST_STEPS = 64


class Holder:
    """Builds the cluster and serves it."""

    def __init__(self, folder: Path, server: socket.socket) -> None:
        self.folder, self.server = folder, server
        self.spec: dict[str, Any] = json.loads((folder / "cluster.json").read_text(encoding="utf-8"))
        self.nodes = tuple(Node(**node) for node in self.spec["nodes"])
        self.link = Link(**self.spec["link"])
        self.has_namespaces = bool(self.spec["unshare"])
        self.first: dict[str, tuple[subprocess.Popen[bytes], int]] = {}  # node -> unshare, its first process
        self.daemons: dict[str, subprocess.Popen[bytes]] = {}
        self.runs: list[Run] = []
        self.started_runs = 0
        self.environment = dict(os.environ)

    def build(self) -> None:
        """Make nodes and cables, and start Slurm if it is wanted."""
        (self.folder / "tmp").mkdir()
        if not self.has_namespaces:
            return
        hosts = self.folder / "hosts"
        hosts.write_text(hosts_file(self.nodes), encoding="utf-8")
        network.command("mount", "--bind", str(hosts), "/etc/hosts")
        network.command("mount", "-t", "tmpfs", "tmpfs", "/dev/shm")
        socket.sethostname(LOGIN)
        network.lay_bridge()
        for node in self.nodes:
            self._make(node)
            network.lay_cable(node, self.first[node.name][1], self.link)
        self._write_agent()
        if self.spec["slurm"]:
            self._start_slurm()

    def _make(self, node: Node) -> None:
        command = [*network.UNSHARE, sys.executable, "-P", "-m", "accelerando.cluster.node", node.name]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert process.stdout is not None
        if process.stdout.readline() != b"ready\n":
            raise network.NetworkError(f"{node.name} could not be made; see {self.folder / 'holder.log'}")
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text(encoding="ascii").split()
        self.first[node.name] = process, int(children[0])

    def _write_agent(self) -> None:
        """Write the script that mpirun calls instead of ssh: it takes a host and a command line.

        Each node gets a folder for temporary files of its own. Daemons name theirs by their process id, which may be
        the same on two nodes: they would write into one file, and now and then end with SIGSEGV.
        """
        cases = "".join(
            f'{node.name}|{node.address}) exec {" ".join(network.inside(self.first[node.name][1]))} sh -c "$*";;\n'
            for node in self.nodes
        )
        agent = self.folder / "enter"
        own = 'export TMPDIR="$TMPDIR/$host"; mkdir -p "$TMPDIR"'
        agent.write_text(
            f'#!/bin/sh\nhost=$1; shift\n{own}\ncase "$host" in\n{cases}esac\necho "no node $host" >&2; exit 1\n'
        )
        agent.chmod(0o700)

    def _start_slurm(self) -> None:
        is_root = self.spec["is_root"]
        if not is_root:
            self._name_user()
        slurm.prepare(self.folder, self.nodes, is_root=is_root)
        self.environment["SLURM_CONF"] = str(self.folder / "slurm.conf")
        as_user = () if is_root else slurm.AS_USER
        self._daemon("munged", [*as_user, *slurm.munged(self.folder)])
        self._wait_for("munged", lambda: (self.folder / "munge.socket").exists())
        self._daemon("slurmctld", [*as_user, "slurmctld", "-D"])
        for node in self.nodes:
            enter = network.inside(self.first[node.name][1])
            self._daemon(f"slurmd on {node.name}", [*enter, *as_user, "slurmd", "-D", "-N", node.name])
        self._wait_for("Slurm's nodes", lambda: self._slurm_states() == {node.name: "idle" for node in self.nodes})

    def _name_user(self) -> None:
        for name, line in (("passwd", "x:{0}:{0}::/:/bin/sh"), ("group", "x:{0}:")):
            file = self.folder / name
            known = Path("/etc", name).read_text(encoding="utf-8", errors="replace")
            file.write_text(f"{known}{slurm.USER}:{line.format(slurm.USER_ID)}\n", encoding="utf-8")
            network.command("mount", "--bind", str(file), f"/etc/{name}")
            for _, pid in self.first.values():
                network.command(*network.inside(pid), "mount", "--bind", str(file), f"/etc/{name}")

    def _daemon(self, name: str, command: list[str]) -> None:
        self.daemons[name] = subprocess.Popen(
            command, env=self.environment, stdin=subprocess.DEVNULL, stdout=sys.stderr, start_new_session=True
        )

    def _wait_for(self, what: str, is_there: Any) -> None:
        deadline_s = time.monotonic() + _DAEMONS_S
        while not is_there():
            ended = [name for name, process in self.daemons.items() if process.poll() is not None]
            if ended or time.monotonic() > deadline_s:
                why = f"{ended[0]} ended" if ended else f"not there after {_DAEMONS_S:g} s"
                log = (self.folder / "holder.log").read_text(errors="replace").strip().splitlines()
                fatal = next((line for line in reversed(log) if "fatal" in line or "Error" in line), (log or [""])[-1])
                raise network.NetworkError(f"{what} could not be started: {why}: {fatal[:200]}")
            time.sleep(0.1)

    def _slurm_states(self) -> dict[str, str]:
        command = ("sinfo", "-h", "-N", "-o", "%N %T")
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            done = subprocess.run(
                command, env=self.environment, capture_output=True, text=True, timeout=10, check=False
            )
            return dict(line.split()[:2] for line in done.stdout.splitlines() if len(line.split()) >= 2)
        return {}

    def serve(self) -> None:
        """Answer until told to go down, the keeper has gone, or the time is over."""
        deadline_s = time.monotonic() + self.spec["limit_s"]
        while time.monotonic() < deadline_s:
            watched: list[Any] = [0, self.server, *(run.connection for run in self.runs)]
            ready = select.select(watched, [], [], _LOOK_EVERY_S if self.runs else 1.0)[0]
            if 0 in ready:
                return
            if self.server in ready and not self._accept():
                return
            lost = {name for name, (process, _) in self.first.items() if process.poll() is not None}
            for run in list(self.runs):
                answer = run.outcome(lost)
                if answer:
                    answer = self._confirmed(run, answer)
                if run.connection in ready:  # its caller never writes again: this is its end
                    answer = broken_off("its caller went away")
                if answer:
                    self.runs.remove(run)
                    self._end(run, answer)

    def _confirmed(self, run: Run, answer: dict[str, Any]) -> dict[str, Any]:
        """Ask each node whether it still is: mpirun may end, even with status 0, while a node is dying."""
        gone = [name for name in run.nodes if not self._is_alive(name)]
        return lost_node(gone[0]) if run.misses(gone) else answer

    def _end(self, run: Run, answer: dict[str, Any]) -> None:
        """End a run; Slurm is told, who else keeps the nodes for a job whose srun was killed."""
        run.end(answer)
        if run.in_slurm and not answer["is_complete"]:
            with contextlib.suppress(OSError, subprocess.TimeoutExpired):
                words = ("scancel", f"--name={run.mark}")
                subprocess.run(words, env=self.environment, capture_output=True, timeout=10, check=False)

    def _is_alive(self, name: str) -> bool:
        if not self.has_namespaces:
            return True
        process, pid = self.first[name]
        if process.poll() is not None:
            return False
        words = (*network.inside(pid), "true")  # a dying node takes no new process
        return subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, check=False).returncode == 0

    def _accept(self) -> bool:
        connection, _ = self.server.accept()
        connection.settimeout(5.0)
        descriptors: list[int] = []
        try:
            data, descriptors, _, _ = socket.recv_fds(connection, 1 << 20, _MOST_STEPS)
            request = json.loads(data)
            if request["op"] == "run":
                self._run(connection, request, descriptors)
                return True
            if request["op"] == "down":
                return False  # the caller sees the connection close when all is over
            answers = {
                "status": self._status,
                "port": lambda: {"port": self._port()},
                "slurm": lambda: self._slurm(request["words"]),
            }
            answer_on(connection, answers[request["op"]]())
        except (OSError, ValueError, KeyError, TypeError, subprocess.TimeoutExpired) as error:
            answer_on(connection, {"error": f"{type(error).__name__}: {error}"})
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        return True

    def _run(self, connection: socket.socket, request: dict[str, Any], descriptors: list[int]) -> None:
        self.started_runs += 1
        run = Run(connection, f"{self.spec['id']}.{self.started_runs}.", request)
        scratch = self.folder / "tmp" / str(self.started_runs)
        scratch.mkdir()
        variables = {**request["environment"], marks.VARIABLE: run.mark, "TMPDIR": str(scratch)}
        variables |= {"SLURM_JOB_NAME": run.mark, "SBATCH_JOB_NAME": run.mark} if run.in_slurm else {}
        if "SLURM_CONF" in self.environment:
            variables["SLURM_CONF"] = self.environment["SLURM_CONF"]
        try:
            for (place, command), sink in zip(request["steps"], descriptors, strict=True):
                words = [*self._enter(place, command[0]), "env", f"--chdir={request['folder']}", "--", *command]
                process = subprocess.Popen(
                    words, env=variables, stdin=subprocess.DEVNULL, stdout=sink, stderr=sink, start_new_session=True
                )
                run.processes.append((place, process))
        except BaseException:
            marks.end(run.mark)
            raise
        connection.setblocking(False)
        self.runs.append(run)

    def _enter(self, place: str, program: str) -> tuple[str, ...]:
        if place in self.first:
            return network.inside(self.first[place][1])
        return slurm.AS_USER if program in ("srun", "sbatch") and not self.spec["is_root"] else ()

    def _slurm(self, words: list[str]) -> dict[str, Any]:
        """Run one of Slurm's commands on the login node; nobody else is answered meanwhile."""
        command = [*self._enter(LOGIN, words[0]), *words]
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=10, check=False)
        return {"code": done.returncode, "said": done.stdout or done.stderr}

    def _status(self) -> dict[str, Any]:
        return {
            "lost": [node.name for node in self.nodes if not self._is_alive(node.name)],
            "runs": len(self.runs),
            "slurm": self._slurm_states() if self.spec["slurm"] else None,
            "ended_daemons": [name for name, process in self.daemons.items() if process.poll() is not None],
        }

    def _port(self) -> int:
        """A port that nobody else was told: nodes have their own, loopback shares the machine's."""
        if self.has_namespaces:
            self.started_runs += 1
            return _FIRST_PORT + self.started_runs % _PORTS
        with socket.socket() as trial:
            trial.bind((self.nodes[0].address, 0))
            return int(trial.getsockname()[1])

    def close(self) -> None:
        """End the runs with an answer; everything else ends with this process."""
        for run in self.runs:
            run.end(broken_off("the cluster was taken down"))


def main() -> None:
    """Build, say ready (or why not), serve."""
    holder = Holder(Path(sys.argv[1]), socket.socket(fileno=int(sys.argv[2])))
    try:
        holder.build()
    except (network.NetworkError, OSError) as error:
        os.write(1, f"error: {' '.join(str(error).split())}\n".encode())
        return
    os.write(1, b"ready\n")
    os.dup2(2, 1)
    try:
        holder.serve()
    finally:
        holder.close()


if __name__ == "__main__":
    main()
