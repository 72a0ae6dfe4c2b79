"""A real room: ``course lab`` in a process of its own, on a learner's folder made for the test."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

OPEN_LIMIT_S = 90.0
CLOSE_LIMIT_S = 40.0


@dataclass
class Room:
    """A running ``course lab``."""

    process: subprocess.Popen[str]
    folder: Path
    lines: list[str] = field(default_factory=list)

    @property
    def address(self) -> str:
        """The printed address, with its token; waits for it."""
        deadline = time.monotonic() + OPEN_LIMIT_S
        while time.monotonic() < deadline:
            for line in self.lines:
                if found := re.search(r"http://\S+", line):
                    return found[0]
            if self.process.poll() is not None:
                break
            time.sleep(0.1)
        raise AssertionError(f"no address was printed (exit code {self.process.poll()}):\n{''.join(self.lines)}")

    @property
    def base(self) -> str:
        """The server's address."""
        return self.address.partition("accelerando")[0]

    @property
    def token(self) -> str:
        """What lets a browser in."""
        return self.address.rpartition("token=")[2]

    def ask(self, path: str, body: Any = None) -> Any:
        """Call Jupyter's API."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.base + path, data, {"Authorization": f"token {self.token}"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)

    def descendants(self) -> list[psutil.Process]:
        """Every process the room has started."""
        return psutil.Process(self.process.pid).children(recursive=True)

    def close(self, number: int = signal.SIGINT) -> int:
        """Press Ctrl-C, as a terminal does it: the whole foreground group hears it."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, number)
        return self.process.wait(CLOSE_LIMIT_S)


def open_room(folder: Path, *options: str) -> Room:
    """Start ``course lab`` without a browser; a thread keeps what it prints."""
    environment = os.environ | {
        "ACCELERANDO_WORK": str(folder),
        "ACCELERANDO_BUDGET": "smoke",  # of the lessons that the tests open
        "PYTHONUNBUFFERED": "1",
    }
    process = subprocess.Popen(
        [sys.executable, "-m", "accelerando", "lab", "--no-browser", *options],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    room = Room(process, folder)
    assert process.stdout is not None
    threading.Thread(target=lambda: room.lines.extend(iter(process.stdout.readline, "")), daemon=True).start()  # type: ignore[union-attr]
    return room
