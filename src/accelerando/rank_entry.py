"""What runs in the processes of `ranks`: first in the launcher, then in each rank. Started as a file.

``python -m accelerando.rank_entry PROGRAM arguments…`` also does by hand what mpirun and srun need: it gives a program
the variables that torchrun would. Only the standard library is imported before the program: libraries read thread
counts while they load.
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
from collections.abc import Mapping
from typing import Any

_PR_SET_PDEATHSIG = 1
FOLDER_VARIABLE = "ACCELERANDO_RANKS_FOLDER"
# torchrun's name -> what Open MPI and Slurm call it.
NAMES = {
    "RANK": ("OMPI_COMM_WORLD_RANK", "SLURM_PROCID"),
    "WORLD_SIZE": ("OMPI_COMM_WORLD_SIZE", "SLURM_NTASKS"),
    "LOCAL_RANK": ("OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID"),
    "LOCAL_WORLD_SIZE": ("OMPI_COMM_WORLD_LOCAL_SIZE", "SLURM_NTASKS_PER_NODE"),
}


def main() -> None:
    """Run ``rank_entry.py --launch PARENT launcher…`` or ``rank_entry.py PROGRAM arguments…``."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C is for the process that called `ranks.run`; it decides
    if sys.argv[1] == "--launch":
        _launch(int(sys.argv[2]), sys.argv[3:])
        return
    os.environ.update(translate(os.environ))
    sys.argv[:] = sys.argv[1:]
    folder = os.environ.get(FOLDER_VARIABLE)
    if folder is None:
        _run(sys.argv[0])
    else:
        _report(folder, int(os.environ["RANK"]))


def translate(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of torchrun that those of Open MPI or Slurm stand for; {} where torchrun's are there.

    Raises:
        ValueError: If no launcher started this process.
    """
    if "RANK" in variables:
        return {}
    index = 0 if NAMES["RANK"][0] in variables else 1
    if NAMES["RANK"][index] not in variables:
        raise ValueError("no rank is set: start this through torchrun, mpirun or srun")
    return {name: variables[theirs[index]] for name, theirs in NAMES.items() if theirs[index] in variables}


def _launch(parent: int, command: list[str]) -> None:
    _die_with(parent)
    if command[0] != "torchrun":
        os.execvp(command[0], command)  # what was asked for the parent's death stays
    sys.argv[:] = command
    runpy.run_module("torch.distributed.run", run_name="__main__", alter_sys=True)


def _report(folder: str, rank: int) -> None:
    """Run the program as a rank of `ranks.run`: its output to its pipe, its end into its status."""
    _die_with(os.getppid())
    _print_into(os.path.join(folder, f"{rank}.output"))
    _leave(folder, rank, {})
    sys.path.append(folder)
    try:
        _run(sys.argv[0])
    except BaseException as error:
        if isinstance(error, SystemExit) and error.code in (None, 0):
            _leave(folder, rank, {"finished": True})
            return
        _print_traceback(error)
        _leave(folder, rank, {"error": _sentence(error), "at_s": time.monotonic()})
        _flush()
        os._exit(1)  # no farewell: closing a broken process group can wait for ever
    _leave(folder, rank, {"finished": True})
    _flush()


def _run(target: str) -> None:
    if target.endswith(".py"):
        sys.path.insert(0, os.path.dirname(os.path.abspath(target)))
        runpy.run_path(target, run_name="__main__")
        return
    module, _, function = target.partition(":")
    if not function:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    elif FOLDER_VARIABLE in os.environ:
        from accelerando import ranks

        ranks.give(getattr(importlib.import_module(module), function)(**ranks.payload()))
    else:
        getattr(importlib.import_module(module), function)()


def _print_traceback(error: BaseException) -> None:
    """Print it from the program's own first line on."""
    trace = error.__traceback__
    while trace is not None and (trace.tb_frame.f_code.co_filename in (__file__, "<frozen runpy>")):
        trace = trace.tb_next
    traceback.print_exception(type(error), error, trace or error.__traceback__)


def _sentence(error: BaseException) -> str:
    if isinstance(error, SystemExit):
        return f"exited with status {error.code}"
    lines = str(error).strip().splitlines()
    return f"raised {type(error).__name__}" + (f": {lines[0][:300]}" if lines else "")


def _leave(folder: str, rank: int, status: dict[str, Any]) -> None:
    """Write which process this rank is and what became of it; whole or not at all."""
    path = os.path.join(folder, f"{rank}.status")
    with open(f"{path}.new", "w", encoding="utf-8") as file:
        json.dump({"pid": os.getpid(), **status}, file)
    os.replace(f"{path}.new", path)


def _print_into(fifo: str) -> None:
    """Send everything printed, by C code and children too, to this rank's own pipe.

    A pipe that nobody reads tells that the caller has gone; so may the launcher have been, before `_die_with` could
    learn its number. Then there is nobody to compute for.
    """
    try:
        descriptor = os.open(fifo, os.O_WRONLY | os.O_NONBLOCK)
    except OSError:
        os._exit(1)
    os.set_blocking(descriptor, True)
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
