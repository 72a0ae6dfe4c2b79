"""Starts a program on several ranks of this machine, and ends all of them, whatever happens."""

import contextlib
import os
import secrets
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from accelerando.backends import oneccl
from accelerando.rank_entry import FOLDER_VARIABLE
from accelerando.ranks import exchange, launchers
from accelerando.ranks.exchange import Program
from accelerando.ranks.outputs import Listener, OnLine
from accelerando.ranks.record import SCHEMA, RanksFailed, RanksResult, epitaph, why

MOST_RANKS = 64

_LOOK_EVERY_S = 0.05
_LAST_WORDS_S = 2.0


def run(
    program: Program,
    ranks: int,
    *,
    launcher: str = "torchrun",
    threads_per_rank: int = 1,
    time_limit_s: float = 120.0,
    environment: Mapping[str, str | None] | None = None,
    arguments: Sequence[str] = (),
    payload: Mapping[str, Any] | None = None,
    on_line: OnLine | None = None,
) -> RanksResult:
    """Run a program once on each of ``ranks`` processes.

    Args:
        program: A function (also one of a notebook: its text is sent, see `functions`), a Python file, a module
            (``"package.module"``) or a function of a module (``"package.module:function"``). A function is called with
            ``payload`` as keyword arguments, and its return value comes back. A file or module calls `payload` and
            `give` itself. All may call ``torch.distributed.init_process_group("gloo")``, or `joined`.
        ranks: Processes, 1 to 64.
        launcher: torchrun, mpirun (Open MPI's), srun or sbatch. The two of Slurm get a cluster of one virtual node for
            the run, see `accelerando.cluster`.
        threads_per_rank: OpenMP threads of each, at least 1. (Left alone, torchrun silently sets 1.)
        time_limit_s: For everything, imports included; afterwards all ranks are killed. Slurm's cluster is made before
            it begins to count, which takes up to 90 s more.
        environment: Variables on top of this process's own (but for those of a job around it); None removes one.
        arguments: Command line of the program.
        payload: Numbers, text, lists, dicts and arrays for every rank.
        on_line: Called with rank and line as they come, such as `show`. Rank -1 is the launcher; its first lines are
            the commands as one would type them.

    Returns:
        Values, outputs, seconds.

    Raises:
        RanksFailed: If a rank raised, died, ended with an error status, or the time was over.
        ValueError: If the arguments make no sense, or the launcher is not installed.
        ClusterError: With srun and sbatch, if the cluster of one node cannot be made or ends meanwhile.
    """
    if isinstance(ranks, bool) or not isinstance(ranks, int) or not 1 <= ranks <= MOST_RANKS:
        raise ValueError(f"ranks is {ranks!r}: it must be a whole number from 1 to {MOST_RANKS}")
    launchers.check(launcher, threads_per_rank, time_limit_s)
    if launcher in ("srun", "sbatch"):
        from accelerando import cluster

        with cluster.up(1, with_slurm=True, name=f"ranks-{secrets.token_hex(4)}") as made:
            return made.run(
                program, arguments, launcher=launcher, ranks_per_node=ranks, threads_per_rank=threads_per_rank,
                time_limit_s=time_limit_s, environment=environment, payload=payload, on_line=on_line,
            )  # fmt: skip
    folder = Path(tempfile.mkdtemp(prefix="accelerando-ranks-"))
    try:
        words = exchange.pack(folder, program, arguments, payload)
        command = launchers.torchrun(folder, ranks) if launcher == "torchrun" else launchers.mpirun(folder, ranks)
        launch = _Launch(folder, launcher, ranks, threads_per_rank, command, words, environment or {})
        result = launch.run(time_limit_s, on_line)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if not result.is_complete:
        raise RanksFailed(result)
    return result


class _Launch:
    """One launch: the launcher process, and the end of all that it started."""

    def __init__(
        self,
        folder: Path,
        launcher: str,
        ranks: int,
        threads: int,
        command: launchers.Command,
        words: Sequence[str],
        environment: Mapping[str, str | None],
    ) -> None:
        self.folder, self.launcher, self.ranks, self.threads = folder, launcher, ranks, threads
        self.command, self.words, self.environment = command, list(words), environment

    def run(self, limit_s: float, on_line: OnLine | None) -> RanksResult:
        began_s = time.monotonic()
        launcher: subprocess.Popen[bytes] | None = None
        with Listener(self.folder, self.ranks, on_line) as listener:
            listener.say(f"$ {self._typed()}")
            sink = listener.open_launcher()
            try:
                try:
                    launcher = self._start(sink)
                finally:
                    os.close(sink)
                is_late = self._follow(launcher, listener, began_s + limit_s)
            finally:
                code = None if launcher is None else launcher.poll()
                if launcher is not None:
                    _end(launcher, str(self.folder))
        elapsed_s = time.monotonic() - began_s
        statuses = exchange.statuses(self.folder, self.ranks)
        oneccl.sweep(of=[status["pid"] for status in statuses if status])
        is_complete = not is_late and all("finished" in status for status in statuses)
        failed_rank, reason = None, f"all {self.ranks} ranks finished"
        said = listener.launchers[0].text()
        if not is_complete:
            ending = "ended" if code is None or code >= 0 else epitaph(code).partition(" (")[0]
            failed_rank, reason = why(statuses, [said], limit_s if is_late else None, ending)
        return RanksResult(
            SCHEMA, self.launcher, self._typed(), self.ranks, self.threads, is_complete, reason, failed_rank, elapsed_s,
            tuple(kept.text() for kept in listener.ranks), said, exchange.values(self.folder, self.ranks),
        )  # fmt: skip

    def _typed(self) -> str:
        """The command as one would type it, with the variables that matter."""
        words = launchers.typed(self.words, sets_variables=self.launcher == "torchrun")
        shown = {**self._variables(), **{n: v for n, v in self.command.variables.items() if n.startswith("MASTER_")}}
        return " ".join(
            [
                *(f"{name}={shlex.quote(value)}" for name, value in shown.items()),
                shlex.join([*self.command.typed, *words]),
            ]
        )

    def _variables(self) -> dict[str, str]:
        loopback = "lo" if sys.platform == "linux" else "lo0"
        return {"OMP_NUM_THREADS": str(self.threads), "GLOO_SOCKET_IFNAME": loopback}

    def _start(self, sink: int) -> subprocess.Popen[bytes]:
        settings: dict[str, str | None] = {
            **self._variables(),
            **self.command.variables,
            "PYTHONPATH": launchers.search_path(),
            **self.environment,
            FOLDER_VARIABLE: str(self.folder),
        }
        variables = {
            name: value for name, value in {**launchers.own_variables(), **settings}.items() if value is not None
        }
        return subprocess.Popen(
            [*launchers.entry(["--launch", str(os.getpid())]), *self.command.real, *launchers.entry(self.words)],
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=sink,
            start_new_session=True,
        )

    def _follow(self, launcher: subprocess.Popen[bytes], listener: Listener, deadline_s: float) -> bool:
        """Pass lines on until the launcher ends or a rank fails; returns whether the time was over first."""
        failed_s: float | None = None
        while launcher.poll() is None:
            listener.read(_LOOK_EVERY_S)
            now_s = time.monotonic()
            statuses = exchange.statuses(self.folder, self.ranks)
            if failed_s is None and any("error" in status for status in statuses):
                failed_s = now_s
            if failed_s is not None and now_s > failed_s + _LAST_WORDS_S:
                return False
            if now_s > deadline_s:
                return failed_s is None
        return False


def _end(launcher: subprocess.Popen[bytes], mark: str) -> None:
    """Kill the launcher and whatever carries this launch's mark, again and again: a program may fork meanwhile."""
    deadline_s = time.monotonic() + 5.0
    while True:
        if launcher.poll() is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(launcher.pid, signal.SIGKILL)
        left = [process for process in psutil.process_iter() if _carries(process, mark)]
        for process in left:
            with contextlib.suppress(psutil.Error):
                process.kill()
        if not left or time.monotonic() > deadline_s:
            break
        psutil.wait_procs(left, timeout=0.5)
    launcher.wait()


def _carries(process: psutil.Process, mark: str) -> bool:
    try:
        return process.pid != os.getpid() and process.environ().get(FOLDER_VARIABLE) == mark
    except (psutil.Error, OSError):
        return False  # a zombie, or somebody else's: not ours to end
