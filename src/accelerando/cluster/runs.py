"""One program on the cluster as the holder sees it: its commands, its caller's connection, its end."""

import contextlib
import json
import signal
import socket
import subprocess
import time
from typing import Any

from accelerando.cluster import marks

_GRACE_S = 3.0  # for the others, after one command has failed


class Run:
    """Commands that run for a caller, who waits for one answer."""

    def __init__(self, connection: socket.socket, mark: str, request: dict[str, Any]) -> None:
        self.connection, self.mark = connection, mark
        self.nodes, self.limit_s = request["nodes"], float(request["limit_s"])
        self.fewest = int(request["fewest"])
        self.in_slurm = bool(request["in_slurm"])
        self.began_s = time.monotonic()
        self.failed_s: float | None = None
        self.processes: list[tuple[str, subprocess.Popen[bytes]]] = []

    def outcome(self, lost: set[str]) -> dict[str, Any] | None:
        """How it ended: whether well, a sentence, and what to blame; None while it runs."""
        now_s = time.monotonic()
        gone = [name for name in self.nodes if name in lost]
        if self.misses(gone):  # asked first: mpirun ends with status 0 when a node is lost
            return lost_node(gone[0])
        codes = [(place, process.poll()) for place, process in self.processes if place not in gone]
        if all(code == 0 for _, code in codes):
            return {"is_complete": True, "reason": "finished"}
        failed = [(place, code) for place, code in codes if code]
        self.failed_s = (self.failed_s or now_s) if failed else None
        if failed and (now_s > (self.failed_s or 0) + _GRACE_S or all(code is not None for _, code in codes)):
            place, code = failed[0]
            ending = f"on {place} {_epitaph(int(code or 0))}"
            return {"is_complete": False, "cause": "command", "reason": f"the command {ending}", "ending": ending}
        if now_s > self.began_s + self.limit_s:
            return {"is_complete": False, "cause": "time", "reason": f"not finished after {self.limit_s:g} s"}
        return None

    def misses(self, gone: list[str]) -> bool:
        """Whether it cannot go on without these nodes."""
        return len(self.nodes) - len(gone) < self.fewest

    def end(self, answer: dict[str, Any]) -> None:
        """Kill what is left and answer."""
        marks.end(self.mark)
        for _, process in self.processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(5.0)
        answer_on(self.connection, answer)


def answer_on(connection: socket.socket, answer: dict[str, Any]) -> None:
    """Answer on a connection, if there is still somebody, and close it."""
    with contextlib.suppress(OSError), connection:
        connection.setblocking(True)
        connection.settimeout(5.0)
        connection.sendall(json.dumps(answer).encode())


def lost_node(node: str) -> dict[str, Any]:
    """The outcome of a run whose node is gone."""
    return {"is_complete": False, "cause": "node", "reason": f"{node} was lost: its first process ended"}


def broken_off(reason: str) -> dict[str, Any]:
    """The outcome of a run that nobody waits for any more."""
    return {"is_complete": False, "cause": "caller", "reason": reason}


def _epitaph(code: int) -> str:
    if code < 0 and -code in set(signal.Signals):
        return f"was ended by {signal.Signals(-code).name}"
    return f"ended with status {code}"
