"""What programs on the nodes print, as it comes: line by line with its place, the last of it kept."""

import contextlib
import json
import os
import select
import socket
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

OnLine = Callable[[str, str], None]

_KEPT_LINES, _LONGEST_LINE = 1000, 4096
# What libraries and launchers print about themselves that says nothing about the program.
_NOISE = (
    "[Gloo] Rank",
    "The hostname of the client socket cannot be retrieved",
    "plm:ssh: Warning: setpgid",  # mpirun's agent had already become the other program
)


class Output:
    """Cuts what a place prints into lines and keeps the last of them."""

    def __init__(self, place: str, on_line: OnLine) -> None:
        self.place, self._on_line, self._partial = place, on_line, b""
        self._lines: deque[str] = deque(maxlen=_KEPT_LINES)

    def take(self, piece: bytes) -> None:
        """Take what was read; nothing: it was the last."""
        *whole, self._partial = (self._partial + piece).split(b"\n")
        if len(self._partial) > _LONGEST_LINE or (not piece and self._partial):
            whole, self._partial = [*whole, self._partial], b""
        for line in whole:
            text = line[:_LONGEST_LINE].decode(errors="replace")
            if not any(words in text for words in _NOISE):
                self._lines.append(text)
                self._on_line(self.place, text)

    def text(self) -> str:
        """Return what is kept."""
        return "\n".join(self._lines)


def follow(connection: socket.socket, outputs: Mapping[int, Output]) -> dict[str, Any]:
    """Pass lines on until the holder says how it ended."""
    open_sources = set(outputs)
    answer: bytes | None = None
    while answer is None or open_sources:
        watched: list[Any] = [*open_sources, *([connection] if answer is None else [])]
        ready = select.select(watched, [], [], None if answer is None else 1.0)[0]
        if not ready:
            break  # somebody outside still holds the pipe
        for source in ready:
            if isinstance(source, int):
                piece = os.read(source, 1 << 16)
                outputs[source].take(piece)
                if not piece:
                    open_sources.discard(source)
            else:
                with contextlib.suppress(OSError):
                    answer = connection.recv(1 << 16)
                answer = answer or json.dumps({"is_complete": False, "reason": "the cluster ended"}).encode()
    told: dict[str, Any] = json.loads(answer or b"{}")
    return told
