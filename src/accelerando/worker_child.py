"""The child's side of `workers`: a program that loads one function and calls it when asked.

Started as a file by `workers.Worker`, with the two ends of its pipes, the parent's process number and the cores
it may use as arguments. Nothing outside the standard library is imported before the cores are set: libraries
count them as they load.
"""

import gc
import importlib
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any


def main() -> None:
    """Obey requests until the parent goes away."""
    requests_fd, replies_fd, parent, cpus = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    if cpus:
        os.sched_setaffinity(0, [int(cpu) for cpu in cpus.split(",")])
    # Ctrl-C reaches the parent only (we lead our own session), and the parent decides.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    threading.Thread(target=_die_with, args=(parent,), daemon=True).start()
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    for descriptor in (requests_fd, replies_fd):
        os.set_inheritable(descriptor, False)
    _serve(os.fdopen(requests_fd, "rb"), os.fdopen(replies_fd, "wb"))


def _die_with(parent: int) -> None:
    # A watcher of its own and not PR_SET_PDEATHSIG, which is bound to the parent's *thread* and would
    # spare our own children. Asking twice a second costs nothing that can be measured.
    while os.getppid() == parent:
        time.sleep(0.5)
    os.killpg(os.getpgrp(), signal.SIGKILL)


def _serve(requests: Any, replies: Any) -> None:
    from accelerando import timing, wire

    function: Callable[[], Any] | None = None
    while True:
        try:
            request = wire.read_message(requests)
        except wire.WireClosed:
            return
        try:
            value = None
            if request["do"] == "load":
                function = _load(request)
            elif request["do"] == "settle":
                _settle(request["sampling"])
            else:
                assert function is not None
                value = _call(function, request, timing.wait_for_gpu)
            wire.write_message(replies, {"ok": True, "value": value})
        except BrokenPipeError:
            return
        except BaseException as error:  # SystemExit and KeyboardInterrupt are the learner's as well
            wire.write_message(replies, {"ok": False, "error": _explain(error)})


def _load(request: dict[str, Any]) -> Callable[[], Any]:
    sys.path[:] = [*dict.fromkeys([*request["path"], *sys.path])]
    module_name, _, names = request["target"].partition(":")
    found: Any = importlib.import_module(module_name)
    for name in names.split("."):
        found = getattr(found, name)
    if not callable(found):
        raise TypeError(f"{request['target']} is a {type(found).__name__}, not a function")
    arguments = request["arguments"]
    if not request["prepares"]:
        return lambda: found(**arguments)
    prepared = found(**arguments)
    if not callable(prepared):
        raise TypeError(
            f"{request['target']} returned a {type(prepared).__name__}; it prepares, so it must return a function"
        )
    return prepared


def _call(function: Callable[[], Any], request: dict[str, Any], wait_for_gpu: Callable[[], None]) -> Any:
    value = None
    for _ in range(request["repeats"]):
        value = function()
    wait_for_gpu()
    return value if request["with_value"] else None


def _settle(sampling: bool) -> None:
    gc.collect()
    if sampling:
        gc.freeze()
        gc.disable()
    else:
        gc.unfreeze()
        gc.enable()


def _explain(error: BaseException) -> str:
    """Name the error and the line of the target where it happened; print the whole traceback to our output."""
    traceback.print_exception(error)
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename != __file__]
    frames = [frame for frame in frames if "importlib" not in frame.filename]
    where = f" ({os.path.basename(frames[-1].filename)}, line {frames[-1].lineno})" if frames else ""
    text = str(error).strip() or "no message"
    return f"{type(error).__name__}: {text[:2000]}{where}"


if __name__ == "__main__":
    main()
