"""The grader's side of a learner's worker: starts it, runs the notebook's cells in it, asks it, and ends it.

Everything here assumes that the other side may loop, print without end, eat the memory, fork, die or lie. Each of these
ends as a sentence about one cell or one question. Use it from the main thread: the system ties a sandbox's life to the
thread that started it.
"""

import contextlib
import os
import re
import secrets
import select
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Protocol, Self, cast

import psutil

from .. import catalog, wire
from ..submission import NotAnswered, Submission, Ungradable, Wrong
from . import isolation
from .output import Tail
from .worker import PIPES_LOST

_WATCH_EVERY_S = 0.1
_LOOK_EVERY_S = 0.05
_END_WITHIN_S = 8.0


class Cell(Protocol):
    """What the sandbox needs of a notebook's cell; see `notebooks.LabCell`."""

    @property
    def kind(self) -> str:
        """``setup``, ``solution``, ``test`` or ``plain``."""

    @property
    def question(self) -> str | None:
        """The question that a solution cell answers."""

    @property
    def name(self) -> str:
        """What a person calls the cell."""

    @property
    def source(self) -> str:
        """Its code."""


def _default_memory_bytes() -> int:
    return min(8 * 2**30, psutil.virtual_memory().total // 2)


@dataclass(frozen=True)
class Limits:
    """What one notebook's worker may use."""

    start_s: float = 60.0
    cell_s: float = 60.0  # for cells that answer no question; those have the question's own limit
    total_s: float = 360.0
    memory_bytes: int = field(default_factory=_default_memory_bytes)
    processes: int = 256
    threads: int = 4096
    file_bytes: int = 2**30
    output_bytes: int = 2**16
    reply_bytes: int = 2**28


@dataclass(frozen=True)
class CellFailure:
    """Why a cell did not come to its end."""

    cell: str
    question: str | None
    message: str  # a sentence without the cell's name


class Gone(Exception):
    """The worker is no more; the message says why, as the end of a sentence that begins with what it did."""


class WorkerProcess:
    """One running worker, with a deadline on every exchange."""

    def __init__(self, masked: Sequence[str], limits: Limits, choice: isolation.Choice) -> None:
        """Start it; it is not known to work before the first exchange."""
        self._limits, self._why = limits, ""
        self._output = Tail(limits.output_bytes)
        self._closed = threading.Event()
        # A plain worker's folder is named here and made by its warden, which outlives this process.
        scratch = Path(tempfile.gettempdir()) / f"accelerando-grading-{secrets.token_hex(8)}"
        theirs_in, ours_out = os.pipe()
        ours_in, theirs_out = os.pipe()
        lifeline, self._lifeline = os.pipe()
        start = isolation.start(
            choice,
            masked=masked,
            pipes=(theirs_in, theirs_out),
            lifeline=lifeline,
            scratch=scratch,
            file_bytes=limits.file_bytes,
            processes=limits.threads,
            environment={},
        )
        self._scratch = start.scratch
        try:
            self._popen = subprocess.Popen(
                start.command,
                env=start.environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=(theirs_in, theirs_out, *((lifeline,) if start.scratch else ())),
                start_new_session=True,  # Ctrl-C in the terminal is for the grader alone
            )
        except OSError as error:
            raise Ungradable(f"the sandbox did not start: {error}") from None
        finally:
            for fd in (theirs_in, theirs_out, lifeline):
                os.close(fd)
        self._line = _Line(ours_in, ours_out, self._is_running)
        assert self._popen.stdout is not None
        self._output.drain(self._popen.stdout)
        self._watcher = threading.Thread(target=self._watch, daemon=True)
        self._watcher.start()

    @property
    def output(self) -> str:
        """What it printed: the beginning and the end."""
        return self._output.text()

    def exchange(self, request: Mapping[str, Any], limit_s: float) -> dict[str, Any]:
        """Send a request and wait for its reply.

        Raises:
            Gone: If none came in time or it was none; the worker is ended then.
        """
        nonce = secrets.token_hex(8)
        self._line.deadline_s = time.monotonic() + limit_s
        stream = cast(BinaryIO, self._line)
        try:
            wire.write_message(stream, {**request, "nonce": nonce})
            reply = wire.read_message(stream, self._limits.reply_bytes)
        except TimeoutError:
            self._end(f"took longer than {limit_s:.3g} s")
        except (wire.WireClosed, OSError):
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._popen.wait(2)
            self._end(_cause_of_death(self._popen.poll()))
        except wire.WireError as error:
            self._end(f"sent an answer that cannot be read ({error})")
        else:
            if isinstance(reply, dict) and reply.pop("nonce", None) == nonce:
                return reply
            self._end("answered something that was not asked")
        raise Gone(self._why)

    def close(self) -> None:
        """End it with everything it started, and remove its scratch; may be called twice."""
        self._closed.set()
        tree = _tree(self._popen.pid)
        if self._lifeline >= 0:
            os.close(self._lifeline)
            self._lifeline = -1
        if self._scratch is None:
            self._popen.kill()  # the sandbox's first process; the others die with it
        try:
            self._popen.wait(_END_WITHIN_S)
        except subprocess.TimeoutExpired:
            self._popen.kill()
            self._popen.wait()
        for process in tree:
            with contextlib.suppress(psutil.Error):
                if process.pid != self._popen.pid:
                    process.kill()
        _wait_until_gone(tree)
        if self._scratch is not None:
            shutil.rmtree(self._scratch, ignore_errors=True)
        self._line.close()
        self._output.join()

    def _is_running(self) -> bool:
        return self._popen.poll() is None

    def _end(self, why: str) -> None:
        self._why = self._why or why  # the watcher's reason came first: it is the cause
        self.close()

    def _watch(self) -> None:
        limits = self._limits
        while not self._closed.wait(_WATCH_EVERY_S):
            tree = _tree(self._popen.pid)
            used_bytes = _memory_bytes(tree, limits.memory_bytes)
            if used_bytes > limits.memory_bytes:
                self._why = f"used {_gigabytes(used_bytes)} of memory (the limit is {_gigabytes(limits.memory_bytes)})"
            elif len(tree) > limits.processes:
                self._why = f"started {len(tree)} processes (the limit is {limits.processes})"
            if self._why:
                for process in tree if self._scratch is None else tree[1:]:  # a warden must stay to clean up
                    with contextlib.suppress(psutil.Error):
                        process.kill()
                return


class _Line:
    """The two pipes to a worker as one stream; every read and write keeps a deadline and notices the worker's end."""

    def __init__(self, incoming: int, outgoing: int, is_running: Callable[[], bool]) -> None:
        self.deadline_s = 0.0
        self._incoming, self._outgoing, self._is_running = incoming, outgoing, is_running
        os.set_blocking(outgoing, False)

    def read(self, nbytes: int) -> bytes:
        return os.read(self._incoming, nbytes) if self._wait(self._incoming, select.POLLIN) else b""

    def write(self, data: bytes | memoryview) -> None:
        rest = memoryview(data).cast("B")
        while rest:
            if not self._wait(self._outgoing, select.POLLOUT):
                raise wire.WireClosed("the worker has ended")
            with contextlib.suppress(BlockingIOError):
                rest = rest[os.write(self._outgoing, rest[: 2**16]) :]

    def flush(self) -> None:
        pass

    def close(self) -> None:
        for fd in (self._incoming, self._outgoing):
            if fd >= 0:
                os.close(fd)
        self._incoming = self._outgoing = -1

    def _wait(self, fd: int, event: int) -> bool:
        """Wait until ``fd`` is ready. False: the worker has ended and nothing is left to read.

        Its end must be looked for: a process that it forked may hold the pipe open.
        """
        poll = select.poll()
        poll.register(fd, event)
        while True:
            was_running = self._is_running()
            if poll.poll(1000 * _LOOK_EVERY_S if was_running else 0):
                return True
            if not was_running:
                return False
            if time.monotonic() > self.deadline_s:
                raise TimeoutError


class SandboxedSubmission(Submission):
    """The answers in a worker process. Calls cost the question's time, the grader's own thinking does not."""

    def __init__(self, sandbox: "Sandbox") -> None:
        """Ask through ``sandbox``, which knows the question at hand."""
        self._sandbox = sandbox

    def call(self, function: str, *arguments: Any, **named: Any) -> Any:
        return self._sandbox._ask(function, "call", arguments=list(arguments), named=named)

    def value(self, name: str) -> Any:
        return self._sandbox._ask(name, "value")

    def probe(self, name: str, **arguments: Any) -> Any:
        return self._sandbox._ask(name, "probe", named=arguments)


class Sandbox:
    """A notebook's worker, made anew when a cell or a call kills it. A context manager: nothing is left behind."""

    def __init__(
        self,
        cells: Sequence[Cell],
        *,
        masked: Sequence[str] = (),
        limits: Limits | None = None,
        choice: isolation.Choice = "auto",
        on_step: Callable[[str], None] = lambda doing: None,
    ) -> None:
        """Prepare; nothing is started yet.

        Args:
            cells: Of the notebook, in order; test cells are not run, set-up cells come first.
            masked: Modules that the learner's code must not reach.
            limits: Of time, memory and output.
            choice: ``plain`` does without bubblewrap even where it works.
            on_step: Told what is being done, in a few words.
        """
        runnable = [cell for cell in cells if cell.kind != "test" and cell.source.strip()]
        self._cells = sorted(runnable, key=lambda cell: cell.kind != "setup")
        self._masked, self._limits, self._choice, self._on_step = masked, limits or Limits(), choice, on_step
        self._worker: WorkerProcess | None = None
        self._failures: dict[int, CellFailure] = {}
        self._deadly: set[int] = set()
        self._left_s = 0.0
        self._ends_s = time.monotonic() + self._limits.total_s
        self._output = ""
        self.isolation = isolation.describe(choice)
        self.submission = SandboxedSubmission(self)

    def __enter__(self) -> Self:
        """The sandbox itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End whatever still runs."""
        self.close()

    @property
    def failures(self) -> tuple[CellFailure, ...]:
        """Cells that did not come to their end, in order."""
        return tuple(self._failures[place] for place in sorted(self._failures))

    @property
    def output(self) -> str:
        """What the learner's code printed: the beginning and the end."""
        return self._worker.output if self._worker else self._output

    def begin(self, question: catalog.Question | None, limit_s: float | None = None) -> None:
        """Get ready for a question: a running worker that holds the notebook's names, and a full clock.

        Raises:
            Ungradable: If no worker can be had, or the notebook's total time is used up.
        """
        if self._worker is None:
            self._worker = self._run_cells()
        self._left_s = limit_s if limit_s is not None else question.time_limit_s if question else self._limits.cell_s

    def failure_of(self, question_id: str) -> CellFailure | None:
        """What went wrong in the cell that answers this question, if something did."""
        return next((failure for failure in self.failures if failure.question == question_id), None)

    def close(self) -> None:
        """End the worker; a later `begin` would start another."""
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.close()
            self._output = worker.output

    def _run_cells(self) -> WorkerProcess:
        """Start workers until one has run every cell that does not kill it."""
        starts_left = 2
        while True:
            worker = None
            try:
                worker = WorkerProcess(self._masked, self._limits, self._choice)
                place = self._run_cells_in(worker)
            except BaseException:
                if worker is not None:
                    worker.close()
                raise
            if place is None:
                return worker
            starts_left -= place < 0
            if not starts_left:
                why = f"the worker did not start: it {self._failures.pop(-1).message}"
                raise Ungradable(f"{why}. It said: {clean(worker.output[-300:]) or 'nothing'}")

    def _run_cells_in(self, worker: WorkerProcess) -> int | None:
        """None when all is done, else the place of the cell that killed the worker; -1 when it did not even start."""
        self._on_step("starting the worker")
        try:
            worker.exchange({"do": "cell", "name": "start", "source": ""}, self._limits.start_s)
        except Gone as gone:
            self._failures[-1] = CellFailure("start", None, str(gone))
            return -1
        for place, cell in enumerate(self._cells):
            if place in self._deadly:
                continue
            self._on_step(f"running cell {cell.name}")
            try:
                reply = worker.exchange({"do": "cell", "name": cell.name, "source": cell.source}, self._limit_of(cell))
            except Gone as gone:
                self._deadly.add(place)
                self._fail(place, cell, str(gone))
                return place
            if "error" in reply:
                where = f" in line {reply['line']}" if isinstance(reply.get("line"), int) else ""
                said = f": {clean(reply.get('message', ''))}" if reply.get("message") else ""
                self._fail(place, cell, f"stopped with {clean(reply['error'])}{where}{said}")
            else:
                self._failures.pop(place, None)
        return None

    def _fail(self, place: int, cell: Cell, message: str) -> None:
        if cell.kind == "setup":
            raise Ungradable(f"the lab's own set-up cell {cell.name} {message}")
        self._failures[place] = CellFailure(cell.name, cell.question, message)

    def _limit_of(self, cell: Cell) -> float:
        left_s = self._ends_s - time.monotonic()
        if left_s <= 0:
            raise Ungradable(self._time_is_up())
        own_s = catalog.question(cell.question).time_limit_s if cell.question else self._limits.cell_s
        return min(own_s, left_s)

    def _time_is_up(self) -> str:
        slow = ", ".join(failure.cell for failure in self.failures if "took longer" in failure.message)
        hint = f" Look at {slow} first." if slow else ""
        return f"not reached: the notebook used up its {self._limits.total_s:.3g} s.{hint}"

    def _ask(self, name: str, do: str, **more: Any) -> Any:
        """One request of a check.

        Raises:
            NotAnswered: As the learner's function does.
            Wrong: Whatever else went wrong on the other side.
            Ungradable: If the total time is used up.
        """
        what = f"`{name.partition('.')[2] or name}`"
        if self._worker is None:
            raise Wrong(f"{what} could not be asked: an earlier call had ended the worker.")
        total_left_s = self._ends_s - time.monotonic()
        if total_left_s <= 0:
            raise Ungradable(self._time_is_up())
        started_s = time.monotonic()
        try:
            reply = self._worker.exchange({"do": do, "name": name, **more}, max(0.05, min(self._left_s, total_left_s)))
        except wire.WireError as error:
            raise Ungradable(f"the check sent what cannot be sent: {error}") from None
        except Gone as gone:
            self.close()
            raise Wrong(f"{what} {gone}. {_advice(str(gone))}".strip()) from None
        self._left_s -= time.monotonic() - started_s
        if reply.get("not_answered"):
            raise NotAnswered
        if "value" in reply:
            return reply["value"]
        raise Wrong(clean(reply.get("wrong", f"{what} gave no answer.")))


_CONTROL = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def clean(text: object, most: int = 600) -> str:
    """Text from the other side, fit for a terminal: no control characters, one line, not endless."""
    plain = " ".join(_CONTROL.sub("", str(text)[: 4 * most]).split())
    return plain if len(plain) <= most else f"{plain[:most]} …"


def _advice(why: str) -> str:
    if "took longer" in why:
        return "Is there a loop that does not end?"
    if "memory" in why:
        return "What does it keep that it no longer needs?"
    return ""


def _cause_of_death(code: int | None) -> str:
    if code is None or code == PIPES_LOST:
        return "closed its pipe to the grader"
    if code > 128 or code < 0:
        number = code - 128 if code > 0 else -code
        name = signal.Signals(number).name if number in signal.valid_signals() else f"signal {number}"
        return f"was killed by {name}" + (": was memory short?" if number == signal.SIGKILL else "")
    return f"ended its own process (exit code {code}), as `os._exit` does"


def _tree(pid: int) -> list[psutil.Process]:
    """The process and all its descendants."""
    try:
        root = psutil.Process(pid)
        return [root, *root.children(recursive=True)]
    except psutil.Error:
        return []


def _memory_bytes(tree: Sequence[psutil.Process], limit_bytes: int) -> int:
    """Memory of a process tree. Adding up counts shared pages often, so a sum above the limit is taken again finely."""
    total = 0
    for process in tree:
        with contextlib.suppress(psutil.Error):
            total += process.memory_info().rss
    if total <= limit_bytes or not psutil.LINUX:
        return total
    total = 0
    for process in tree:
        with contextlib.suppress(psutil.Error):
            total += process.memory_full_info().pss
    return total


def _wait_until_gone(tree: Sequence[psutil.Process]) -> None:
    """Wait for processes that were killed; dead ones that nobody has collected yet count as gone."""
    ends_s = time.monotonic() + _END_WITHIN_S
    for process in tree:
        with contextlib.suppress(psutil.Error):
            while process.is_running() and process.status() != psutil.STATUS_ZOMBIE and time.monotonic() < ends_s:
                time.sleep(0.005)


def _gigabytes(nbytes: int) -> str:
    return f"{nbytes / 2**30:.1f} GB"
