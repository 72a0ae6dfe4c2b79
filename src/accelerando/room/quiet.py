"""Keeps Jupyter's own chatter out of the learner's terminal: in a log file, to be read when something fails."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def errors_to(log: Path) -> Iterator[None]:
    """Send standard error of this process, and of the kernels it starts, to a file while the block runs.

    Done by file descriptor, as kernels inherit that. The file is begun anew each time.

    Raises:
        OSError: If the file cannot be written.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    sys.stderr.flush()
    terminal = os.dup(2)
    try:
        with open(log, "wb") as file:
            os.dup2(file.fileno(), 2)
        yield
    finally:
        sys.stderr.flush()
        os.dup2(terminal, 2)
        os.close(terminal)


def last_line(log: Path) -> str:
    """The last line of a log that says something; empty when there is none."""
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    return next((line.strip() for line in reversed(lines) if line.strip()), "")
