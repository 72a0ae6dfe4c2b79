"""One worker process as the grader holds it: started in its sandbox, watched, asked with a deadline, ended as a whole.

Use it from the main thread: the system ties a sandbox's life to the thread that started it.
"""

import contextlib
import os
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
from typing import Any, BinaryIO, cast

import psutil

from .. import wire
from ..submission import Ungradable
from . import isolation
from .output import Tail
from .worker import PIPES_LOST

_WATCH_EVERY_S = 0.1
_LOOK_EVERY_S = 0.05
_END_WITHIN_S = 8.0
_LATE_S = 2.0  # the longest that a reply which was there at the deadline may take to be read


def _default_memory_bytes() -> int:
    return min(8 * 2**30, psutil.virtual_memory().total // 2)


@dataclass(frozen=True)
class Limits:
    """What one notebook's worker may use."""

    start_s: float = 60.0
    cell_s: float = 60.0  # for cells that answer no question
    answer_s: float | None = None  # for those that do; the question's own limit when left out
    total_s: float = 360.0
    memory_bytes: int = field(default_factory=_default_memory_bytes)
    processes: int = 256
    threads: int = 4096
    file_bytes: int = 2**30
    output_bytes: int = 2**16
    reply_bytes: int = 2**28


class Gone(Exception):
    """The worker is no more; the message says why, as the end of a sentence that begins with what it did."""

    def __init__(self, why: str, *, is_slow: bool = False) -> None:
        """Keep whether it was ended because it ``is_slow``."""
        super().__init__(why)
        self.is_slow = is_slow


class WorkerProcess:
    """One running worker, with a deadline on every exchange."""

    def __init__(self, masked: Sequence[str], limits: Limits, choice: isolation.Choice) -> None:
        """Start it; it is not known to work before the first exchange."""
        self._limits, self._why = limits, ""
        self._output = Tail(limits.output_bytes)
        self._closed = threading.Event()
        self._seen: set[psutil.Process] = set()  # of a plain worker, whose code may kill the warden and stay behind
        # A plain worker's folder is named here and made by its warden, which outlives this process.
        scratch = Path(tempfile.gettempdir()) / f"accelerando-grading-{secrets.token_hex(8)}"
        theirs_in, ours_out = os.pipe()
        ours_in, theirs_out = os.pipe()
        lifeline, self._lifeline = os.pipe()
        with contextlib.ExitStack() as theirs, contextlib.ExitStack() as ours:
            for fds, stack in (
                ((theirs_in, theirs_out, lifeline), theirs),
                ((ours_in, ours_out, self._lifeline), ours),
            ):
                for fd in fds:
                    stack.callback(os.close, fd)
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
            ours.pop_all()  # from here on `close` closes them
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
            slow = f"took longer than {limit_s:.3g} s"
            self._end(slow)
            raise Gone(self._why, is_slow=self._why == slow) from None
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
        tree = list({*_tree(self._popen.pid), *self._seen})
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
            if self._scratch is not None:
                self._seen |= set(tree)
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
        self._late_s: float | None = None  # when it was first read from after the deadline
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

        Its end must be looked for: a process that it forked may hold the pipe open. What is there already when the
        deadline has passed still counts (the grader may have been stopped with Ctrl-Z), what drips in does not.
        """
        poll = select.poll()
        poll.register(fd, event)
        while True:
            was_running = self._is_running()
            now_s = time.monotonic()
            is_late = now_s > self.deadline_s
            if is_late and now_s > self._late_until_s(now_s):
                raise TimeoutError
            if poll.poll(1000 * _LOOK_EVERY_S if was_running and not is_late else 0):
                return True
            if not was_running:
                return False
            if is_late:
                raise TimeoutError

    def _late_until_s(self, now_s: float) -> float:
        if self._late_s is None or self._late_s <= self.deadline_s:
            self._late_s = now_s
        return self._late_s + _LATE_S


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
