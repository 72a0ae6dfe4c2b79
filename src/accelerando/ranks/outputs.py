"""What ranks and their launcher print, as it comes: line by line with the rank, its beginning and end kept."""

import os
import re
import select
import sys
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

OnLine = Callable[[int, str], None]
LAUNCHER = -1

_KEPT_BYTES = 8192
_LONGEST_LINE_BYTES = 4096
_STREAMED_BYTES = 2**20
# What libraries and launchers print about themselves that says nothing about the program.
_NOISE = (
    b"[Gloo] Rank",
    b"The hostname of the client socket cannot be retrieved",
    b"plm:ssh: Warning: setpgid",  # mpirun's agent had already become the other program
)
_TYPED = re.compile(r"\w*\$ ")


def show(rank: int, line: str) -> None:
    """Print a line with its rank: what to give as ``on_line`` in a notebook. Commands come first, as they are."""
    prefix = f"[rank {rank}] " if rank >= 0 else "" if _TYPED.match(line) else "[launcher] "
    sys.stdout.write(f"{prefix}{line}\n")
    sys.stdout.flush()


class Listener:
    """Reads a pipe of each rank, and those of launchers; each gets its turn however much one prints."""

    def __init__(self, folder: Path, ranks: int, on_line: OnLine | None) -> None:
        """Make the ranks' pipes, ``RANK.output`` in ``folder``."""
        self._on_line = on_line or (lambda rank, line: None)
        self._streamed = dict.fromkeys(range(LAUNCHER, ranks), 0)
        self._sources: dict[int, tuple[int, str, Kept]] = {}  # descriptor -> rank, prefix of its lines, what is kept
        self._opened: list[int] = []
        self.ranks = [Kept() for _ in range(ranks)]
        self.launchers: list[Kept] = []
        for rank, kept in enumerate(self.ranks):
            fifo = folder / f"{rank}.output"
            os.mkfifo(fifo, 0o600)
            self._opened.append(os.open(fifo, os.O_RDONLY | os.O_NONBLOCK))
            self._sources[self._opened[-1]] = rank, "", kept
            self._opened.append(os.open(fifo, os.O_WRONLY))  # our own end keeps the pipe open between writers

    def __enter__(self) -> "Listener":
        """Close the pipes after a block."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Take what is left, unless the block failed, and close."""
        try:
            if kind is None:
                self.read(0)
                for rank, prefix, kept in self._all():
                    self._tell(rank, prefix, kept.rest())
        finally:
            for descriptor in self._opened:
                os.close(descriptor)

    def _all(self) -> list[tuple[int, str, "Kept"]]:
        return [(rank, "", kept) for rank, kept in enumerate(self.ranks)] + [
            (LAUNCHER, "", kept) for kept in self.launchers
        ]

    def open_launcher(self, place: str = "") -> int:
        """Make a pipe for a launcher; returns the end to write to, which the caller closes."""
        source, sink = os.pipe()
        os.set_blocking(source, False)
        self._opened.append(source)
        self.launchers.append(Kept())
        self._sources[source] = LAUNCHER, f"{place}: " if place else "", self.launchers[-1]
        return sink

    def read(self, wait_s: float, also: int | None = None) -> bool:
        """Take what there is from every pipe; returns whether the descriptor ``also`` can be read too."""
        waiting = select.poll()
        for descriptor in (*self._sources, *([] if also is None else [also])):
            waiting.register(descriptor, select.POLLIN)
        ready = [descriptor for descriptor, _ in waiting.poll(int(wait_s * 1000))]
        for descriptor in ready:
            if descriptor == also:
                continue
            rank, prefix, kept = self._sources[descriptor]
            try:
                piece = os.read(descriptor, 1 << 20)
            except BlockingIOError:
                continue
            if not piece:  # the launcher closed its output; the pipes of ranks never end
                del self._sources[descriptor]
            self._tell(rank, prefix, kept.lines(piece))
        return also in ready

    def say(self, commands: str) -> None:
        """Pass on commands, as one would type them."""
        self._on_line(LAUNCHER, commands)

    def _tell(self, rank: int, prefix: str, lines: list[bytes]) -> None:
        for line in lines:
            before = self._streamed[rank]
            self._streamed[rank] += len(line) + 1
            if self._streamed[rank] <= _STREAMED_BYTES:
                self._on_line(rank, prefix + line.decode(errors="replace"))
            elif before <= _STREAMED_BYTES:
                self._on_line(rank, f"[... more than {_STREAMED_BYTES >> 20} MB: the rest is not shown ...]")


class Kept:
    """Cuts a stream into lines and keeps its beginning and end."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self._head, self._tail, self._left_out, self._partial = bytearray(), bytearray(), 0, b""

    def lines(self, piece: bytes) -> list[bytes]:
        """Take what was read; returns the lines that are whole now, long ones cut."""
        *whole, self._partial = (self._partial + piece).split(b"\n")
        if len(self._partial) > _LONGEST_LINE_BYTES:
            whole, self._partial = [*whole, self._partial], b""
        whole = [_cut(line) for line in whole if not any(words in line for words in _NOISE)]
        for line in whole:
            self._keep(line + b"\n")
        return whole

    def rest(self) -> list[bytes]:
        """Return the last line if it never ended."""
        return self.lines(b"\n") if self._partial else []

    def add(self, text: str) -> None:
        """Keep text that came another way, as a whole."""
        self.lines(text.encode())
        self.rest()

    def _keep(self, piece: bytes) -> None:
        room = max(0, _KEPT_BYTES - len(self._head)) if not self._tail else 0
        self._head += piece[:room]
        self._tail += piece[room:]
        extra = len(self._tail) - 2 * _KEPT_BYTES
        if extra > 0:
            del self._tail[: extra + _KEPT_BYTES]
            self._left_out += extra + _KEPT_BYTES

    def text(self) -> str:
        """Return what is kept."""
        gap = f"[... {self._left_out} bytes left out ...]\n" if self._left_out else ""
        return self._head.decode(errors="replace") + gap + self._tail.decode(errors="replace")


def _cut(line: bytes) -> bytes:
    return line if len(line) <= _LONGEST_LINE_BYTES else line[:_LONGEST_LINE_BYTES] + b" [...]"
