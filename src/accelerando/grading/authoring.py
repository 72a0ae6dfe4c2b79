"""The bodies of ``./course build`` and ``./course lesson``: what authors run, told in plain lines on standard error."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast

from .. import catalog
from .lesson_run import Budget, LessonFailed, Progress, check_lesson, notebook_path, run_lesson
from .notebooks import Unreadable
from .release import NotReleasable, build


def build_command(check: bool) -> int:
    """Make ``labs/`` from ``solutions/``.

    Args:
        check: Only tell what differs.

    Returns:
        0 when all is well, 1 when something differs or cannot be released.
    """
    try:
        changes = build(check)
    except NotReleasable as error:
        _say(f"course: nothing was changed; what keeps a lab from being released:\n{error}")
        return 1
    for change in changes:
        _say(change)
    if check and changes:
        _say("course: labs/ is not what solutions/ and the catalog make: run ./course build")
        return 1
    _say("course: labs/ is up to date" if not changes else f"course: {len(changes)} files written or removed")
    return 0


def lesson_command(lab: str, budget: str, check_only: bool) -> int:
    """Run a lesson's notebook and store its outputs; a smoke run only shows that it runs.

    Args:
        lab: 1, 01, scaling or a folder.
        budget: smoke, quick or full.
        check_only: Only tell whether code and stored outputs belong together.

    Returns:
        0 when all is well, 1 when a cell failed or outputs are stale, 2 when there is nothing to run.
    """
    try:
        lesson = catalog.find(lab)
        if not notebook_path(lesson).is_file():
            raise ValueError(f"lesson {lesson.number} ({lesson.slug}) has no notebook yet")
        if check_only:
            problems = check_lesson(lesson)
            for problem in problems:
                _say(problem)
            if not problems:
                _say(f"course: the stored outputs of lesson {lesson.number} belong to its code")
            return 1 if problems else 0
        with _progress(f"lesson {lesson.number}") as progress:
            run = run_lesson(lesson, cast(Budget, budget), store=budget != "smoke", progress=progress)
    except LessonFailed as failure:
        _say(f"course: {failure}\n\ncourse: the notebook was left as it is")
        return 1
    except (Unreadable, ValueError) as error:
        _say(f"course: {error}")
        return 2
    for remark in run.remarks:
        _say(f"{run.path.name}: {remark}")
    stored = "outputs stored" if run.is_stored else "a smoke run, nothing stored"
    _say(f"course: {run.cells} code cells of lesson {lesson.number} ran in {run.elapsed_s:.0f} s; {stored}")
    return 0


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)  # noqa: T201


@contextmanager
def _progress(label: str) -> Iterator[Progress]:
    """A bar with time left in a terminal; a line for each cell elsewhere."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    console = Console(stderr=True, highlight=False)
    if not console.is_terminal:
        yield lambda done, total, text: _say(f"{label}: cell {done + 1} of {total}: {text}") if done < total else None
        return
    left = (TextColumn("elapsed"), TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn())
    text_column = TextColumn("{task.description}", markup=False)
    with Bar(text_column, BarColumn(bar_width=24), MofNCompleteColumn(), *left, console=console) as bar:
        task = bar.add_task(label, total=None)
        yield lambda done, total, text: bar.update(task, completed=done, total=total, description=f"{label}: {text}")
