"""The body of ``./course check``: finds the notebook, shows progress, prints the report, never a traceback."""

import json
import signal
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from .. import catalog, logbook, work
from ..catalog import Lesson
from . import score
from .report import print_report
from .sandbox import clean


class _Terminated(BaseException):
    """SIGTERM or SIGHUP came: unwind, so that every worker ends, then go."""

    def __init__(self, number: int) -> None:
        self.number = number


def check_lab(lab: str, notebook: Path | None, solution: bool, as_json: bool) -> int:
    """Grade a lab and print what came of it.

    Args:
        lab: 1, 01, scaling, or a folder.
        notebook: This file instead of the learner's own.
        solution: Grade the course's own solution.
        as_json: Print JSON and nothing else on standard output.

    Returns:
        0 all points, 1 some are missing, 2 could not be graded, 3 undecided; 128 + n when a signal ended it.
    """
    from rich.console import Console

    try:
        lesson = catalog.find(lab)
        path = _find(lesson, notebook, solution)
        with _signals_unwind(), _progress(f"lab {lesson.number}") as progress:
            report = score.grade(path, lesson, progress=progress)
    except ValueError as error:
        return _refuse(str(error), as_json)
    except KeyboardInterrupt:
        print("course: stopped; nothing was recorded", file=sys.stderr)  # noqa: T201
        return score.EXIT_STOPPED
    except _Terminated as stop:
        return 128 + stop.number
    except Exception as error:  # a mistake of ours: one sentence and the place, not a page of traceback
        frame = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(frame.filename).name}, line {frame.lineno}"
        return _refuse(
            f"the grader itself stopped with {type(error).__name__}: {error} ({where}); please report it", as_json
        )
    _record(report, path)
    if as_json:
        print(json.dumps(report.as_json(), indent=1, ensure_ascii=False, allow_nan=False))  # noqa: T201
    else:
        print_report(report, Console(highlight=False))
    return report.exit_code


def _find(lesson: Lesson, notebook: Path | None, solution: bool) -> Path:
    if not lesson.is_built:
        raise ValueError(f"lab {lesson.number} ({lesson.slug}) is not built yet")
    if solution and notebook is not None:
        raise ValueError("--solution grades the course's own file: leave --notebook out")
    if not solution:
        return work.find_notebook(lesson, notebook)
    path = work.checkout() / "solutions" / lesson.folder / f"{lesson.folder}.ipynb"
    if not path.is_file():
        raise ValueError(f"lab {lesson.number} has no solution at {path}")
    return path


def _record(report: score.Report, path: Path) -> None:
    """Tell the landing page of the learner's own file; that it cannot be written must not hide what came of it."""
    if not work.is_learners(path):
        return
    try:
        logbook.record_graded(report.results)
    except (OSError, ValueError) as error:
        print(f"course: the landing page was not told: {error}", file=sys.stderr)  # noqa: T201


def _refuse(message: str, as_json: bool) -> int:
    message = clean(message, 2000)
    if as_json:
        print(json.dumps({"schema": score.SCHEMA, "error": message, "exit_code": score.EXIT_UNGRADABLE}))  # noqa: T201
    else:
        print(f"course: {message}", file=sys.stderr)  # noqa: T201
    return score.EXIT_UNGRADABLE


@contextmanager
def _signals_unwind() -> Iterator[None]:
    """Let SIGTERM and SIGHUP leave through every ``finally``, as Ctrl-C does."""

    def stop(number: int, frame: FrameType | None) -> NoReturn:
        raise _Terminated(number)

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
def _progress(label: str) -> Iterator[score.Progress]:
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
