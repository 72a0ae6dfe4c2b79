"""Run an experiment in a child process, under given environment variables and on given cores.

Some things are fixed once a process has started: thread counts, instruction sets, allocators. To compare
two of them, each side lives in its own `Worker`: started once, warmed up once, called many times, idle in between
(blocked on its pipe). Values travel on pipes of their own with `wire`, so that prints cannot disturb them.

A worker never outlives its parent: it leads its own process group, which is killed as a whole on time-out, on an
error, on Ctrl-C and on leaving the ``with`` block; if the parent is killed, the closing of its pipe ends the group.
"""

import contextlib
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from accelerando import wire
from accelerando.plain_errors import PlainError

START_LIMIT_S = 120.0
"""Loading a target may import torch on a busy machine."""
_KEPT_BYTES = 8192
_FAREWELL_S = 3.0


class ExperimentFailed(PlainError):
    """The experiment did not give a value; the message says why and shows the child's last lines."""


@dataclass(frozen=True)
class Experiment:
    """A function that a child process can find, with all that must be set before it starts.

    Attributes:
        target: ``"package.module:function"``.
        arguments: Keyword arguments: numbers, text, lists, dicts, arrays, tensors.
        environment: Variables set before Python starts, on top of this process's own; None removes one.
        cpus: Cores the process and its threads may use; None leaves them as they are.
        prepares: The target builds model and data and returns the function to be called and timed.
    """

    target: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, str | None] = field(default_factory=dict)
    cpus: tuple[int, ...] | None = None
    prepares: bool = False

    def __post_init__(self) -> None:
        module, _, function = self.target.partition(":")
        if not (module and function) or not all(part.isidentifier() for part in module.split(".")):
            raise ValueError(f"the target is {self.target!r}: write it as 'package.module:function'")
        for name, value in self.environment.items():
            if (
                not isinstance(name, str)
                or not isinstance(value, str | None)
                or "=" in name
                or "\0" in f"{name}{value}"
            ):
                raise ValueError(f"environment has {name!r}: {value!r}: names and values are text, None removes one")
        if self.cpus is not None and (not self.cpus or min(self.cpus) < 0):
            raise ValueError(f"cpus is {self.cpus}: give at least one core number, or None for all")


@dataclass(frozen=True)
class WorkerResult:
    """What one run of an experiment gave.

    Attributes:
        value: What the function returned.
        elapsed_s: By this process's clock, from the request to the reply.
        start_s: From starting the process until its target was loaded.
        output: What it printed, standard output and error together, the middle left out if long.
    """

    value: Any
    elapsed_s: float
    start_s: float
    output: str


def run(experiment: Experiment, time_limit_s: float = 300.0) -> WorkerResult:
    """Run an experiment once in a fresh process.

    Args:
        experiment: What to run.
        time_limit_s: For starting and running together.

    Raises:
        ExperimentFailed: If it cannot be loaded, raises, dies, or takes longer.
    """
    started = time.monotonic()
    with Worker(experiment, start_limit_s=time_limit_s) as worker:
        value = worker.call(time_limit_s=max(0.0, time_limit_s - (time.monotonic() - started)))
    return WorkerResult(value, worker.elapsed_s, worker.start_s, worker.output)


class Worker:
    """One child process with a loaded experiment, for a ``with`` block.

    Attributes:
        elapsed_s: Seconds of the last call, by this process's clock.
        start_s: Seconds from starting the process until its target was loaded.
    """

    def __init__(
        self,
        experiment: Experiment,
        *,
        start_limit_s: float = START_LIMIT_S,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Start nothing yet: the process starts with the ``with`` block."""
        self.experiment = experiment
        self.elapsed_s = self.start_s = 0.0
        self._start_limit_s, self._clock = start_limit_s, clock
        self._process: subprocess.Popen[bytes] | None = None
        self._output = _Output()
        self._opened: list[int] = []
        self._closing = threading.Lock()

    def __enter__(self) -> Self:
        """Start the process and load the target."""
        begun = self._clock()
        try:
            self._start()
            self._ask(
                {
                    "do": "load",
                    "target": self.experiment.target,
                    "arguments": dict(self.experiment.arguments),
                    "prepares": self.experiment.prepares,
                    "path": [str(Path(entry or os.curdir).absolute()) for entry in sys.path],
                },
                self._start_limit_s,
            )
        except BaseException:
            self.close()
            raise
        self.start_s = self._clock() - begun
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the process group and collect what it printed."""
        self.close(wait_s=_FAREWELL_S if kind is None else 0.0)

    def call(self, repeats: int = 1, *, with_value: bool = True, time_limit_s: float = 300.0) -> Any:
        """Call the function in the child, ``repeats`` times, and return the last value.

        Args:
            repeats: At least 1; the loop runs inside the child.
            with_value: Send the value back; False keeps transport out of ``elapsed_s``.
            time_limit_s: For all repeats together; afterwards the process group is killed.

        Raises:
            ExperimentFailed: If the function raises, dies, or reaches the limit; the worker is then closed.
        """
        begun = self._clock()
        value = self._ask({"do": "call", "repeats": repeats, "with_value": with_value}, time_limit_s)
        self.elapsed_s = self._clock() - begun
        return value

    def settle(self, sampling: bool) -> None:
        """Collect garbage in the child now; while ``sampling``, not by itself during a call."""
        self._ask({"do": "settle", "sampling": sampling}, 60.0)

    @property
    def output(self) -> str:
        """What the child printed so far; surely all of it once the worker is closed."""
        return self._output.text()

    def close(self, wait_s: float = 0.0) -> None:
        """End the whole process group; safe to call twice, also by two threads at once.

        Args:
            wait_s: Let the process end by itself for so long first (it removes its temporary files then).
        """
        with self._closing:
            opened, self._opened = self._opened, []
            process, self._process = self._process, None
        for descriptor in opened:
            os.close(descriptor)
        if process is not None:
            try:
                _has_ended(process, wait_s)
            finally:  # also when Ctrl-C cuts the farewell short
                _end_group(process)
        self._output.finish()

    def _start(self) -> None:
        cpus = self.experiment.cpus
        if cpus is not None:
            if not hasattr(os, "sched_setaffinity"):
                raise ValueError("this system cannot pin a process to cores: leave cpus as None")
            if not set(cpus) <= os.sched_getaffinity(0):
                raise ValueError(f"cpus is {cpus}: allowed here are {sorted(os.sched_getaffinity(0))}")
        variables = dict(os.environ)
        for name, setting in self.experiment.environment.items():
            if setting is None:
                variables.pop(name, None)
            else:
                variables[name] = setting
        requests_in, requests_out = os.pipe()
        replies_in, replies_out = os.pipe()
        output_in, output_out = os.pipe()
        self._opened = [requests_out, replies_in]
        theirs = (requests_in, replies_out)
        # A file and not -m: the cores must be set before numpy, which our own modules import, counts them. -P:
        # else its folder, our package's, would come first and our names would hide the standard library's.
        command = [sys.executable, "-P", "-u", str(Path(__file__).with_name("worker_child.py"))]
        command += [*map(str, theirs), str(os.getpid()), ",".join(map(str, cpus or ()))]
        try:
            self._process = subprocess.Popen(
                command,
                env=variables,
                stdin=subprocess.DEVNULL,
                stdout=output_out,
                stderr=output_out,
                pass_fds=theirs,
                start_new_session=True,
            )
        finally:
            for descriptor in (*theirs, output_out):
                os.close(descriptor)
            self._output.drain(output_in)
        process = self._process
        self._requests = _Pipe(requests_out, lambda: _has_ended(process))
        self._replies = _Pipe(replies_in, lambda: _has_ended(process))

    def _ask(self, request: dict[str, Any], time_limit_s: float) -> Any:
        if self._process is None:
            raise ExperimentFailed(f"{self.experiment.target}: the worker is not running; use it in a with block")
        self._requests.deadline = self._replies.deadline = time.monotonic() + time_limit_s
        try:
            wire.write_message(self._requests, request)  # type: ignore[arg-type]
            reply = wire.read_message(self._replies)  # type: ignore[arg-type]
            return self._value(reply)
        except (wire.WireClosed, BrokenPipeError):
            raise self._failure(self._epitaph()) from None
        except TimeoutError:
            raise self._failure(f"no answer within {time_limit_s:g} s; it was ended") from None
        except wire.WireError as error:
            raise self._failure(str(error)) from None
        except BaseException:  # Ctrl-C in the middle of a message: the pipes are out of step
            self.close()
            raise

    def _value(self, reply: Any) -> Any:
        if not isinstance(reply, dict) or not isinstance(reply.get("ok"), bool):
            raise wire.WireError("it sent a reply that is not one of ours")
        if not reply["ok"]:
            raise self._failure(str(reply.get("error", "it failed without a reason")))
        return reply.get("value")

    def _epitaph(self) -> str:
        assert self._process is not None
        if not _has_ended(self._process, 5.0):
            return "the process closed its pipe without an answer"
        status = _end_group(self._process)
        if status >= 0:
            return f"the process ended with exit status {status} before it answered"
        name = signal.Signals(-status).name if -status in set(signal.Signals) else f"signal {-status}"
        return f"the process was ended by {name}" + (" (often: out of memory)" if name == "SIGKILL" else "")

    def _failure(self, reason: str) -> ExperimentFailed:
        self.close()
        printed = self.output.strip().splitlines()[-12:]
        lines = "".join(f"\n  | {line[:300]}" for line in printed)
        return ExperimentFailed(f"{self.experiment.target}: {reason}{lines}")


def _has_ended(process: subprocess.Popen[bytes], wait_s: float = 0.0) -> bool:
    """Whether it ended, within ``wait_s``; leaves its number taken, so that the group's number stays ours."""
    deadline = time.monotonic() + wait_s
    while True:
        if process.returncode is not None:
            return True
        if hasattr(os, "waitid"):
            if os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
                return True
        elif process.poll() is not None:
            return True
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.005)


def _end_group(process: subprocess.Popen[bytes]) -> int:
    """Kill what is left of the group, then release its leader; its exit status."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    return process.wait()


class _Pipe:
    """One end of a pipe as a stream whose reads and writes give up at a deadline, or when the child is gone."""

    def __init__(self, descriptor: int, is_over: Callable[[], bool]) -> None:
        self.deadline = float("inf")
        self._descriptor, self._is_over = descriptor, is_over
        os.set_blocking(descriptor, False)

    def _wait(self, event: int) -> bool:
        # In slices: a child of the dead child may hold the other end open, and then no end of file comes.
        waiting = select.poll()  # and not select(), which refuses descriptors above 1023
        waiting.register(self._descriptor, event)
        while (left_s := self.deadline - time.monotonic()) > 0:
            is_over = self._is_over()
            if waiting.poll(int(min(1.0, left_s) * 1000) + 1 if not is_over else 0):
                return True
            if is_over:
                return False
        raise TimeoutError

    def read(self, size: int) -> bytes:
        while True:
            try:
                return os.read(self._descriptor, size)
            except BlockingIOError:
                if not self._wait(select.POLLIN):
                    return b""

    def write(self, data: bytes | memoryview) -> None:
        left = memoryview(data).cast("B")
        while left:
            try:
                left = left[os.write(self._descriptor, left) :]
            except BlockingIOError:
                if not self._wait(select.POLLOUT):
                    raise BrokenPipeError from None

    def flush(self) -> None:
        """Nothing is held back."""


class _Output:
    """Keeps the beginning and the end of what a child prints, and counts the rest."""

    def __init__(self) -> None:
        self._head, self._tail, self._left_out = bytearray(), bytearray(), 0
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._stop_out = -1

    def drain(self, descriptor: int) -> None:
        stop_in, self._stop_out = os.pipe()
        self._thread = threading.Thread(target=self._read, args=(descriptor, stop_in), daemon=True)
        self._thread.start()

    def _read(self, descriptor: int, stop: int) -> None:
        waiting = select.poll()
        waiting.register(descriptor, select.POLLIN)
        waiting.register(stop, select.POLLIN)
        stopping = False
        while True:
            ready = dict(waiting.poll(0 if stopping else None))
            if descriptor in ready:
                piece = os.read(descriptor, 65536)
                if not piece:
                    break
                self._keep(piece)
            elif stopping:  # told to stop and nothing left: a process that left our group may hold the pipe open
                break
            stopping = stopping or stop in ready
        os.close(descriptor)
        os.close(stop)

    def _keep(self, piece: bytes) -> None:
        with self._lock:
            room = _KEPT_BYTES - len(self._head)
            self._head += piece[:room]
            self._tail += piece[max(0, room) :]
            extra = len(self._tail) - _KEPT_BYTES
            if extra > 0:
                del self._tail[:extra]
                self._left_out += extra

    def finish(self) -> None:
        with self._lock:
            thread, self._thread = self._thread, None
        if thread is not None:
            os.close(self._stop_out)
            thread.join(timeout=5)

    def text(self) -> str:
        with self._lock:
            gap = f"\n[... {self._left_out} bytes left out ...]\n" if self._left_out else ""
            return self._head.decode(errors="replace") + gap + self._tail.decode(errors="replace")
