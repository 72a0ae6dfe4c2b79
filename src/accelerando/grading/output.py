"""Keeps the beginning and the end of what a worker prints, however much that is."""

import threading
from typing import IO


class Tail:
    """A bounded memory of a stream: its first and its last bytes."""

    def __init__(self, most_bytes: int) -> None:
        """Keep at most ``most_bytes``, half of them from the beginning."""
        self._half = most_bytes // 2
        self._head, self._end, self._count = bytearray(), bytearray(), 0
        self._thread: threading.Thread | None = None

    def drain(self, stream: IO[bytes]) -> None:
        """Read the stream to its end in a thread of its own, so that who prints is never blocked."""
        self._thread = threading.Thread(target=self._read, args=(stream,), daemon=True)
        self._thread.start()

    def join(self, within_s: float = 2.0) -> None:
        """Wait for the stream's end."""
        if self._thread is not None:
            self._thread.join(within_s)

    def add(self, data: bytes) -> None:
        """Take in the next bytes."""
        self._count += len(data)
        room = self._half - len(self._head)
        self._head += data[: max(room, 0)]
        self._end = (self._end + data[max(room, 0) :])[-self._half :]

    def text(self) -> str:
        """What was printed, with a line that says how much is left out."""
        head, end = bytes(self._head), bytes(self._end)
        left_out = self._count - len(head) - len(end)
        gap = f"\n… {left_out:,} bytes left out …\n" if left_out else ""
        return head.decode(errors="replace") + gap + end.decode(errors="replace")

    def _read(self, stream: IO[bytes]) -> None:
        with stream:
            while data := stream.read1(2**16):  # type: ignore[attr-defined]
                self.add(data)
