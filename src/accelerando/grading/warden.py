"""Looks after one worker where there is no bubblewrap: its scratch folder and its whole process tree end with it.

Runs as a process of its own between grader and worker, so that it can still clean up when the grader is killed
outright: it then reads the end of its lifeline, a pipe whose other end only the grader holds. Started by path.
"""

import contextlib
import ctypes
import os
import select
import shutil
import signal
import subprocess
import sys
import time

import psutil

_PR_SET_CHILD_SUBREAPER = 36
_LOOK_EVERY_S = 0.05


def main() -> int:
    """Run ``warden.py LIFELINE SCRATCH PIPES COMMAND…``; returns the command's exit code, 128 + n for a signal."""
    lifeline, scratch = int(sys.argv[1]), sys.argv[2]
    pipes, command = [int(fd) for fd in sys.argv[3].split(",")], sys.argv[4:]
    for stop in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(stop, signal.SIG_IGN)
    if sys.platform == "linux":  # children whose parent died become ours, so that none gets away
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
    try:
        os.makedirs(scratch, mode=0o700)
    except OSError as error:
        print(f"the scratch folder cannot be made: {error}")  # noqa: T201
        return 1
    try:
        worker = subprocess.Popen(
            command, cwd=scratch, pass_fds=pipes, start_new_session=True, preexec_fn=_default_signals
        )
        for fd in pipes:
            os.close(fd)
        while worker.poll() is None and not select.select([lifeline], [], [], _LOOK_EVERY_S)[0]:
            pass
        code = worker.poll()
        _end_tree(worker.pid)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return 128 + signal.SIGKILL if code is None else code if code >= 0 else 128 - code


def _default_signals() -> None:
    for stop in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(stop, signal.SIG_DFL)


def _end_tree(group: int) -> None:
    """Kill what is left, again and again: a program may fork while it is being killed."""
    ends = time.monotonic() + 5
    while time.monotonic() < ends:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)
        left = psutil.Process().children(recursive=True)
        for child in left:
            with contextlib.suppress(psutil.Error):
                child.kill()
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        if not left:
            return
        time.sleep(0.01)


if __name__ == "__main__":
    sys.exit(main())
