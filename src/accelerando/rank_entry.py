"""What runs in the processes of `ranks`: first in the launcher, then in each rank. Started as a file.

Only the standard library is imported before the program: libraries read thread counts while they load.
"""

import contextlib
import ctypes
import importlib
import json
import os
import runpy
import signal
import sys
import threading
import time
import traceback
from typing import Any

_PR_SET_PDEATHSIG = 1
FOLDER_VARIABLE = "ACCELERANDO_RANKS_FOLDER"


def main() -> None:
    """Run ``rank_entry.py launch PARENT torchrun-arguments…`` or ``rank_entry.py rank TARGET arguments…``."""
    mode = sys.argv[1]
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C is for the process that called `ranks.run`; it decides
    if mode == "launch":
        _die_with(int(sys.argv[2]))
        sys.argv[:] = ["torchrun", *sys.argv[3:]]
        runpy.run_module("torch.distributed.run", run_name="__main__", alter_sys=True)
        return
    _die_with(os.getppid())
    rank, folder = int(os.environ["RANK"]), os.environ[FOLDER_VARIABLE]
    _print_into(os.path.join(folder, f"{rank}.output"))
    _leave(folder, rank, {"pid": os.getpid()})
    sys.argv[:] = sys.argv[2:]
    try:
        _run(sys.argv[0])
    except BaseException as error:
        if isinstance(error, SystemExit) and error.code in (None, 0):
            _leave(folder, rank, {"finished": True})
            return
        traceback.print_exc()
        _leave(folder, rank, {"error": _sentence(error), "at_s": time.monotonic()})
        _flush()
        os._exit(1)  # no farewell: closing a broken process group can wait for ever
    _leave(folder, rank, {"finished": True})
    _flush()


def _run(target: str) -> None:
    module, _, function = target.partition(":")
    if not function:
        if target.endswith(".py"):
            sys.path.insert(0, os.path.dirname(target))
            runpy.run_path(target, run_name="__main__")
        else:
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        return
    from accelerando import ranks

    ranks.give(getattr(importlib.import_module(module), function)(**ranks.payload()))


def _sentence(error: BaseException) -> str:
    if isinstance(error, SystemExit):
        return f"exited with status {error.code}"
    lines = str(error).strip().splitlines()
    return f"raised {type(error).__name__}" + (f": {lines[0][:300]}" if lines else "")


def _leave(folder: str, rank: int, status: dict[str, Any]) -> None:
    """Write what became of this rank; whole or not at all."""
    path = os.path.join(folder, f"{rank}.status")
    with open(f"{path}.new", "w", encoding="utf-8") as file:
        json.dump(status, file)
    os.replace(f"{path}.new", path)


def _print_into(fifo: str) -> None:
    """Send everything printed, by C code and children too, to this rank's own pipe."""
    descriptor = os.open(fifo, os.O_WRONLY)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()


def _die_with(parent: int) -> None:
    """End when the parent does: at once where the system can do that, within half a second elsewhere."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    threading.Thread(target=_watch, args=(parent,), daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.5)
    os.killpg(os.getpgrp(), signal.SIGKILL)


if __name__ == "__main__":
    main()
