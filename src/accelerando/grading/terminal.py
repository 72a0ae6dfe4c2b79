"""What the grading commands share at a terminal: progress, refusals in one line, signals that unwind."""

import json
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, NoReturn

from . import score
from .sandbox import clean


class Terminated(BaseException):
    """SIGTERM or SIGHUP came: unwind, so that every worker ends, then go."""

    def __init__(self, number: int) -> None:
        self.number = number


def refuse(message: str, as_json: bool) -> int:
    """Say in one line why nothing was graded; returns the exit code for that."""
    message = clean(message, 2000)
    if as_json:
        print(json.dumps({"schema": score.SCHEMA, "error": message, "exit_code": score.EXIT_UNGRADABLE}))  # noqa: T201
    else:
        print(f"course: {message}", file=sys.stderr)  # noqa: T201
    return score.EXIT_UNGRADABLE


@contextmanager
def signals_unwind() -> Iterator[None]:
    """Let SIGTERM and SIGHUP leave through every ``finally``, as Ctrl-C does."""

    def stop(number: int, frame: FrameType | None) -> NoReturn:
        raise Terminated(number)

    before: dict[int, Any] = {}
    for number in (signal.SIGTERM, signal.SIGHUP):
        with suppress(ValueError):  # not in the main thread: then signals are somebody else's matter
            before[number] = signal.signal(number, stop)
    try:
        yield
    finally:
        for caught, handler in before.items():
            signal.signal(caught, handler)


@contextmanager
def progress_line(label: str) -> Iterator[score.Progress]:
    """On standard error: a live line in a terminal, one line per step elsewhere."""
    from rich.console import Console
    from rich.text import Text

    console = Console(stderr=True, highlight=False)
    if not console.is_terminal:
        said = ""

        def say(doing: str, left_s: float) -> None:
            nonlocal said
            step = doing.partition(":")[0]
            if step != said:
                print(f"{label}: {step}", file=sys.stderr, flush=True)  # noqa: T201
            said = step

        yield say
        return
    with console.status(Text(label)) as status:

        def show(doing: str, left_s: float) -> None:
            left = f", about {left_s:.0f} s left" if left_s >= 1 else ""
            status.update(Text(f"{label}: {doing}{left}"))

        yield show
