"""The learner's side of a graded lab: runs cells, then answers requests. Started by path in a sandbox by `sandbox`.

It holds nothing that is secret: no check, no right answer, no seed. Whatever happens here, the grader on the other side
of the pipe survives it and knows why.
"""

import ast
import asyncio
import contextlib
import ctypes
import fcntl
import inspect
import json
import linecache
import os
import resource
import secrets
import signal
import sys
import traceback
import types
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from typing import Any, BinaryIO

PIPES_LOST = 70  # exit code: the learner's code closed the grader's pipes
_PR_SET_PDEATHSIG = 1
_RUN_ONCE = ("time", "timeit", "prun", "capture")  # magics that run code: here they only run it


class Mask(MetaPathFinder):
    """Keeps modules that would answer a question out of reach, with a sentence instead of a riddle."""

    def __init__(self, masked: Sequence[str]) -> None:
        """Mask these modules and what is in them."""
        self._masked = tuple(masked)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        """Refuse the masked ones; leave the others to the usual finders."""
        if any(name == masked or name.startswith(f"{masked}.") for masked in self._masked):
            raise ModuleNotFoundError(f"`{name}` is out of reach while a lab is graded: write it yourself", name=name)


class Shell:
    """Stands in for IPython's: magics and shell lines do nothing, except that ``%time`` and its like run their code."""

    def __init__(self, namespace: dict[str, Any]) -> None:
        """Run what ``%%time`` holds in ``namespace``."""
        self.user_ns = namespace

    def run_line_magic(self, magic: str, line: str, *_: Any, **__: Any) -> None:
        """``%magic line``."""
        if magic in _RUN_ONCE and line and not line.startswith("-"):
            exec(compile(line, f"<%{magic}>", "exec"), self.user_ns)

    def run_cell_magic(self, magic: str, line: str, cell: str) -> None:
        """``%%magic line`` and the cell below it."""
        if magic in _RUN_ONCE:
            exec(compile(cell, f"<%%{magic}>", "exec"), self.user_ns)

    def __getattr__(self, name: str) -> Callable[..., None]:
        """Everything else is accepted and ignored."""
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *arguments, **named: None


class Learner:
    """The learner's names, as they stand after the cells that ran."""

    def __init__(self) -> None:
        """Make an empty ``__main__`` like a fresh notebook's."""
        main = types.ModuleType("__main__")
        sys.modules["__main__"] = main
        self.namespace = vars(main)
        shell = Shell(self.namespace)
        self._get_ipython = lambda: shell
        self.namespace["display"] = lambda *objects, **named: None

    def run_cell(self, name: str, source: str) -> dict[str, Any]:
        """Run one cell; tell what it raised, and in which of its lines."""
        file = f"<cell {name}>"
        try:
            source = _plain_python(source)
            linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
            self._offer_ipython(source)
            code = compile(source, file, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
            waiting = eval(code, self.namespace)
            if code.co_flags & inspect.CO_COROUTINE:
                asyncio.run(waiting)
        except BaseException as error:
            return {"error": type(error).__name__, "message": _first_line(error), "line": _line_in(file, error)}
        return {"done": True}

    def _offer_ipython(self, source: str) -> None:
        """Magics need `get_ipython` whatever a cell made of that name; a cell may also import it, as scripts do."""
        self.namespace["get_ipython"] = self._get_ipython
        if "get_ipython" in source and "IPython" in source:
            import IPython

            vars(IPython)["get_ipython"] = vars(IPython.core.getipython)["get_ipython"] = self._get_ipython

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Do what a request asks: ``cell``, ``call``, ``value`` or ``probe``."""
        from accelerando import submission

        try:
            match request["do"]:
                case "cell":
                    return self.run_cell(request["name"], request["source"])
                case "call":
                    run = submission.run_learner_code
                    return {"value": run(self.namespace, request["name"], request["arguments"], request["named"])}
                case "value":
                    name = request["name"]
                    return {"value": submission.through_wire(submission.look_up(self.namespace, name), f"`{name}`")}
                case "probe":
                    value = submission.run_probe(self.namespace, request["name"], request["named"])
                    return {"value": submission.through_wire(value, "what the probe found")}
        except submission.NotAnswered:
            return {"not_answered": True}
        except submission.Wrong as wrong:
            return {"wrong": str(wrong)}
        except SystemExit:
            name = request["name"].rpartition(".")[2]  # of a probe, too, the learner knows the last part
            return {"wrong": f"`{name}` called `exit`. A function should return its answer."}
        except BaseException as error:
            return {"wrong": f"{type(error).__name__}: {_first_line(error)}"}
        return {"wrong": "the request is not known"}


def serve(learner: Learner, requests: BinaryIO, replies: BinaryIO) -> None:
    """Answer until the grader closes the pipe."""
    from accelerando import wire

    process = os.getpid()
    while True:
        try:
            request = wire.read_message(requests)
        except wire.WireClosed:
            return
        reply = learner.answer(request)
        if os.getpid() != process:
            os._exit(0)  # a child that the learner's code forked and forgot: it must not answer as well
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        nonce = {"nonce": request["nonce"]}
        try:
            wire.write_message(replies, reply | nonce)
        except wire.WireError as error:
            wire.write_message(replies, {"wrong": f"the answer cannot be sent: {error}"} | nonce)


def main() -> None:
    """Take the pipes and the limits from the command line, then serve."""
    options = json.loads(sys.argv[1])
    sys.argv[:] = [""]
    requests, replies = (_hide(fd) for fd in options["pipes"])
    _set_limits(options["file_bytes"], options["processes"])
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    sys.path.insert(0, options["package_parent"])
    from accelerando import submission

    submission.check = lambda question_id: None  # a test cell's line, copied elsewhere: only the grader's check counts
    sys.meta_path.insert(0, Mask(options["masked"]))
    try:
        with open(requests, "rb") as incoming, open(replies, "wb") as outgoing:
            serve(Learner(), incoming, outgoing)
    except (OSError, ValueError):
        os._exit(PIPES_LOST)
    os._exit(0)  # do not wait for threads that the learner's code left behind


def _hide(fd: int) -> int:
    """Move a pipe to a high, unannounced number that programs started from here do not inherit."""
    hidden = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 100 + secrets.randbelow(100))
    os.close(fd)
    return hidden


def _set_limits(file_bytes: int, processes: int) -> None:
    for kind, limit in (
        (resource.RLIMIT_FSIZE, file_bytes),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NPROC, processes),
    ):
        _, hard = resource.getrlimit(kind)
        limit = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(kind, (limit, limit))


def _plain_python(source: str) -> str:
    """Turn magics and shell lines into calls of `Shell`; IPython is imported only for cells that have some."""
    if any(line.lstrip().startswith(("%", "!", "?")) or line.rstrip().endswith("?") for line in source.splitlines()):
        from IPython.core.inputtransformer2 import TransformerManager

        return TransformerManager().transform_cell(source)
    return source


def _first_line(error: BaseException) -> str:
    text = error.msg if isinstance(error, SyntaxError) else str(error)
    return text.splitlines()[0][:300] if text else ""


def _line_in(file: str, error: BaseException) -> int | None:
    if isinstance(error, SyntaxError) and error.filename == file:
        return error.lineno
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    return lines[-1] if lines else None


if __name__ == "__main__":
    main()
