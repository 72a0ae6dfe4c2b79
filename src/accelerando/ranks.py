"""Runs a program on several ranks of one machine: torchrun starts them, gloo connects them, nothing is left of them.

What a notebook cannot do itself (a function defined in it cannot be started in another process) is one call here::

    result = ranks.run("accelerando.lessons.parallelism:average", 2, payload={"seed": 0})
    result.values          # what the function returned on rank 0, rank 1, …

Every rank's output comes line by line with its number. Whatever happens, error, time limit, Ctrl-C or the death of
this process, all ranks end. No port is fixed and nothing but the machine's own loopback is used, so it works in the
sandbox, and beside another run.
"""

import contextlib
import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from accelerando import wire
from accelerando.rank_entry import FOLDER_VARIABLE

SCHEMA = 1
MOST_RANKS = 64
OnLine = Callable[[int, str], None]

_ENTRY = Path(__file__).with_name("rank_entry.py")
_KEPT_BYTES = 8192
_LONGEST_LINE_BYTES = 4096
_LOOK_EVERY_S = 0.05
_LAST_WORDS_S = 2.0
_BANNERS = (b"[Gloo] Rank",)
_MODULE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*(:[A-Za-z_]\w*)?")


@dataclass(frozen=True)
class RanksResult:
    """What came of a run.

    Attributes:
        schema: Of this record.
        ranks: Processes.
        threads_per_rank: Threads that each was allowed.
        is_complete: Every rank came to its end.
        reason: One sentence: how it ended.
        failed_rank: The rank that failed first; None when none did, or when it cannot be told.
        elapsed_s: From starting the launcher until everything had ended, imports included.
        outputs: What each rank printed: the beginning and the end.
        values: What each rank gave (`give`, or a function's return value); None where nothing came.
    """

    schema: int
    ranks: int
    threads_per_rank: int
    is_complete: bool
    reason: str
    failed_rank: int | None
    elapsed_s: float
    outputs: tuple[str, ...]
    values: tuple[Any, ...]


class RanksFailed(RuntimeError):
    """Not every rank came to its end; ``result`` has the details."""

    def __init__(self, result: RanksResult) -> None:
        rank = 0 if result.failed_rank is None else result.failed_rank
        last = result.outputs[rank].strip().splitlines()[-8:]
        super().__init__(result.reason + "".join(f"\n  [rank {rank}] {line[:300]}" for line in last))
        self.result = result


def run(
    program: Path | str,
    ranks: int,
    *,
    threads_per_rank: int = 1,
    time_limit_s: float = 120.0,
    environment: Mapping[str, str | None] | None = None,
    arguments: Sequence[str] = (),
    payload: Mapping[str, Any] | None = None,
    on_line: OnLine | None = None,
) -> RanksResult:
    """Run a program once on each of ``ranks`` processes.

    Args:
        program: A Python file, a module (``"package.module"``) or a function (``"package.module:function"``), which is
            called with ``payload`` as keyword arguments and whose return value comes back. A file or module calls
            `payload` and `give` itself. All may call ``torch.distributed.init_process_group("gloo")``, or `joined`.
        ranks: Processes, 1 to 64.
        threads_per_rank: OpenMP threads of each, at least 1. (Left alone, torchrun silently sets 1.)
        time_limit_s: For everything, imports included; afterwards all ranks are killed.
        environment: Variables on top of this process's own; None removes one.
        arguments: Command line of the program.
        payload: Numbers, text, lists, dicts and arrays for every rank.
        on_line: Called with rank and line as they come; what the launcher itself says has rank -1.

    Returns:
        Values, outputs, seconds.

    Raises:
        RanksFailed: If a rank raised, died, ended with an error status, or the time was over.
        ValueError: If the arguments make no sense.
    """
    target = _target(program)
    if isinstance(ranks, bool) or not isinstance(ranks, int) or not 1 <= ranks <= MOST_RANKS:
        raise ValueError(f"ranks is {ranks!r}: it must be a whole number from 1 to {MOST_RANKS}")
    if isinstance(threads_per_rank, bool) or not isinstance(threads_per_rank, int) or threads_per_rank < 1:
        raise ValueError(f"threads_per_rank is {threads_per_rank!r}: it must be a whole number of at least 1")
    if not time_limit_s > 0:
        raise ValueError(f"time_limit_s is {time_limit_s!r}: it must be above 0")
    folder = Path(tempfile.mkdtemp(prefix="accelerando-ranks-"))
    try:
        with (folder / "payload").open("wb") as stream:
            wire.write_message(stream, dict(payload or {}))
        result = _Launch(folder, ranks, threads_per_rank, on_line).run([target, *arguments], time_limit_s, environment)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if not result.is_complete:
        raise RanksFailed(result)
    return result


def payload() -> dict[str, Any]:
    """Return what the caller of `run` sent, inside a rank."""
    with _own_folder().joinpath("payload").open("rb") as stream:
        sent: dict[str, Any] = wire.read_message(stream)
    return sent


def give(value: Any) -> None:
    """Hand a value back to the caller of `run`, inside a rank; the last one counts."""
    path = _own_folder() / f"{os.environ['RANK']}.value"
    with path.with_suffix(".new").open("wb") as stream:
        wire.write_message(stream, value)
    path.with_suffix(".new").replace(path)


@contextlib.contextmanager
def joined(*, time_limit_s: float = 60.0) -> Iterator[tuple[int, int]]:
    """Join the other ranks through gloo, inside a rank: ``with ranks.joined() as (rank, world_size):``.

    Args:
        time_limit_s: The longest that one collective may wait for the others.
    """
    import datetime

    import torch.distributed as dist

    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=time_limit_s))
    yield dist.get_rank(), dist.get_world_size()
    dist.destroy_process_group()  # not after an error: the others may never come


def _own_folder() -> Path:
    folder = os.environ.get(FOLDER_VARIABLE)
    if folder is None:
        raise ValueError("this process is no rank of `ranks.run`: nothing was sent to it")
    return Path(folder)


def _target(program: Path | str) -> str:
    if isinstance(program, Path) or str(program).endswith(".py"):
        path = Path(program).resolve()
        if path.suffix != ".py" or not path.is_file():
            raise ValueError(f"{program}: there is no such Python file")
        return str(path)
    if not isinstance(program, str) or not _MODULE.fullmatch(program):
        raise ValueError(f"program is {program!r}: give a .py file, 'package.module' or 'package.module:function'")
    return program


class _Launch:
    """One launch: the launcher process, a pipe from each rank, and the end of all of them."""

    def __init__(self, folder: Path, ranks: int, threads_per_rank: int, on_line: OnLine | None) -> None:
        self.folder, self.ranks, self.threads = folder, ranks, threads_per_rank
        self.on_line = on_line or (lambda rank, line: None)
        self.kept: dict[int, _Kept] = {rank: _Kept() for rank in range(-1, ranks)}
        self.sources: dict[int, int] = {}  # descriptor -> rank

    def run(self, command: list[str], limit_s: float, environment: Mapping[str, str | None] | None) -> RanksResult:
        began_s = time.monotonic()
        opened: list[int] = []
        launcher: subprocess.Popen[bytes] | None = None
        try:
            for rank in range(self.ranks):
                fifo = self.folder / f"{rank}.output"
                os.mkfifo(fifo, 0o600)
                opened.append(os.open(fifo, os.O_RDONLY | os.O_NONBLOCK))
                self.sources[opened[-1]] = rank
                opened.append(os.open(fifo, os.O_WRONLY))  # our own end keeps the pipe open between writers
            source, sink = os.pipe()
            opened.append(source)
            os.set_blocking(source, False)
            self.sources[source] = -1
            try:
                launcher = self._start(command, sink, environment)
            finally:
                os.close(sink)
            is_late = self._follow(launcher, began_s + limit_s)
        finally:
            if launcher is not None:
                _end(launcher, str(self.folder))
            with contextlib.suppress(Exception):  # a listener that raises must not keep descriptors open
                self._read(0)
            for descriptor in opened:
                os.close(descriptor)
        for rank, kept in self.kept.items():
            self._tell(rank, kept.rest())
        return self._result(time.monotonic() - began_s, limit_s if is_late else None)

    def _start(
        self, command: list[str], sink: int, environment: Mapping[str, str | None] | None
    ) -> subprocess.Popen[bytes]:
        loopback = "lo" if sys.platform == "linux" else "lo0"
        paths = [str(_ENTRY.parents[1]), *(str(Path(entry or os.curdir).absolute()) for entry in sys.path)]
        settings: dict[str, str | None] = {
            "OMP_NUM_THREADS": str(self.threads),
            "GLOO_SOCKET_IFNAME": loopback,
            "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths)),
            **(environment or {}),
            FOLDER_VARIABLE: str(self.folder),
        }
        variables = {name: value for name, value in {**os.environ, **settings}.items() if value is not None}
        python = [sys.executable, "-P", "-u", str(_ENTRY)]
        # --local-addr: else the host's own name must resolve, which it often does not.
        torchrun = ["--standalone", "--local-addr=127.0.0.1", f"--nproc-per-node={self.ranks}", "--max-restarts=0"]
        # --log-dir: else a launcher that is killed leaves an empty folder below /tmp.
        torchrun += [f"--log-dir={self.folder}", "--monitor-interval=0.1", "--no-python", *python, "rank", *command]
        return subprocess.Popen(
            [*python, "launch", str(os.getpid()), *torchrun],
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=sink,
            start_new_session=True,
        )

    def _follow(self, launcher: subprocess.Popen[bytes], deadline_s: float) -> bool:
        """Pass lines on until the launcher ends or a rank fails; returns whether the time was over first."""
        failed_s: float | None = None
        while launcher.poll() is None:
            self._read(_LOOK_EVERY_S)
            now_s = time.monotonic()
            if failed_s is None and any("error" in self._status(rank) for rank in range(self.ranks)):
                failed_s = now_s
            if failed_s is not None and now_s > failed_s + _LAST_WORDS_S:
                return False
            if now_s > deadline_s:
                return failed_s is None
        return False

    def _read(self, wait_s: float) -> None:
        """Take what there is from every pipe; each gets its turn however much one rank prints."""
        waiting = select.poll()
        for descriptor in self.sources:
            waiting.register(descriptor, select.POLLIN)
        for descriptor, _ in waiting.poll(int(wait_s * 1000)):
            rank = self.sources[descriptor]
            try:
                piece = os.read(descriptor, 1 << 20)
            except BlockingIOError:
                continue
            if not piece:  # the launcher closed its output; the pipes of ranks never end
                del self.sources[descriptor]
            self._tell(rank, self.kept[rank].lines(piece))

    def _tell(self, rank: int, lines: list[bytes]) -> None:
        for line in lines:
            if not line.startswith(_BANNERS):
                self.on_line(rank, line.decode(errors="replace"))

    def _status(self, rank: int) -> dict[str, Any]:
        try:
            status: dict[str, Any] = json.loads((self.folder / f"{rank}.status").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return status

    def _result(self, elapsed_s: float, limit_s: float | None) -> RanksResult:
        statuses = [self._status(rank) for rank in range(self.ranks)]
        is_complete = limit_s is None and all("finished" in status for status in statuses)
        failed_rank, reason = None, f"all {self.ranks} ranks finished"
        if not is_complete:
            failed_rank, reason = _why(statuses, self.kept[-1].text(), limit_s)
        return RanksResult(
            SCHEMA, self.ranks, self.threads, is_complete, reason, failed_rank, elapsed_s,
            tuple(self.kept[rank].text() for rank in range(self.ranks)),
            tuple(self._value(rank) for rank in range(self.ranks)),
        )  # fmt: skip

    def _value(self, rank: int) -> Any:
        try:
            with (self.folder / f"{rank}.value").open("rb") as stream:
                return wire.read_message(stream)
        except FileNotFoundError:
            return None


def _why(statuses: list[dict[str, Any]], launcher_said: str, limit_s: float | None) -> tuple[int | None, str]:
    """Find the rank that failed first, and say what it did.

    A rank that dies takes the others with it: they find their connections closed. So one that was killed counts
    before those that complained, and of those the first.
    """
    exits = [(int(rank), int(code)) for rank, code in _EXITS.findall(launcher_said)]
    for rank, code in exits:
        if rank < len(statuses) and not {"error", "finished"} & set(statuses[rank]) and code != -signal.SIGTERM:
            return rank, f"rank {rank} {_epitaph(code)}"
    errors = [(status["at_s"], rank) for rank, status in enumerate(statuses) if "error" in status]
    if errors:
        rank = min(errors)[1]
        return rank, f"rank {rank} {statuses[rank]['error']}"
    missing = [rank for rank, status in enumerate(statuses) if not status]
    unfinished = [rank for rank, status in enumerate(statuses) if "finished" not in status]
    only = unfinished[0] if len(unfinished) == 1 else None
    if limit_s is not None and missing:
        return None, f"after {limit_s:g} s rank {missing[0]} had not even started; all ranks were ended"
    if limit_s is not None:
        names = ", ".join(map(str, unfinished)) or "none"
        return only, f"not finished after {limit_s:g} s (still running: rank {names}); all ranks were ended"
    last = launcher_said.strip().splitlines()[-1:] or ["it said nothing"]
    return only, f"the launcher ended before the ranks did: {last[0][:300]}"


_EXITS = re.compile(r"rank\s*:\s*(\d+) \(local_rank: \d+\)\s*exitcode\s*:\s*(-?\d+)")


def _epitaph(code: int) -> str:
    if code >= 0:
        return f"ended with status {code} in the middle"
    name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
    return f"was ended by {name}" + (" (often: out of memory)" if name == "SIGKILL" else "")


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


class _Kept:
    """Cuts a stream into lines and keeps its beginning and end."""

    def __init__(self) -> None:
        self._head, self._tail, self._left_out, self._partial = bytearray(), bytearray(), 0, b""

    def lines(self, piece: bytes) -> list[bytes]:
        *whole, self._partial = (self._partial + piece).split(b"\n")
        if len(self._partial) > _LONGEST_LINE_BYTES:
            whole, self._partial = [*whole, self._partial], b""
        whole = [line[:_LONGEST_LINE_BYTES] for line in whole]
        for line in whole:
            if not line.startswith(_BANNERS):
                self._keep(line + b"\n")
        return whole

    def rest(self) -> list[bytes]:
        return self.lines(b"\n") if self._partial else []

    def _keep(self, piece: bytes) -> None:
        room = max(0, _KEPT_BYTES - len(self._head)) if not self._tail else 0
        self._head += piece[:room]
        self._tail += piece[room:]
        extra = len(self._tail) - 2 * _KEPT_BYTES
        if extra > 0:
            del self._tail[: extra + _KEPT_BYTES]
            self._left_out += extra + _KEPT_BYTES

    def text(self) -> str:
        gap = f"[... {self._left_out} bytes left out ...]\n" if self._left_out else ""
        return self._head.decode(errors="replace") + gap + self._tail.decode(errors="replace")
