"""The bodies of ``./course check`` and ``./course assess``: progress, the report, and never a traceback."""

import json
import sys
import traceback
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import TypeVar

from .. import catalog, logbook, work
from ..catalog import Lesson
from . import score
from .report import print_report
from .terminal import Terminated, progress_line, refuse, signals_unwind

Graded = TypeVar("Graded")


def check_lab(lab: str, notebook: Path | None, solution: bool, as_json: bool, require_isolation: bool = False) -> int:
    """Grade a lab and print what came of it.

    Args:
        lab: 1, 01, scaling, or a folder.
        notebook: This file instead of the learner's own.
        solution: Grade the course's own solution.
        as_json: Print JSON and nothing else on standard output.
        require_isolation: Refuse where learner code cannot be isolated.

    Returns:
        0 all points, 1 some are missing, 2 could not be graded, 3 undecided; 128 + n when a signal ended it.
    """
    from rich.console import Console

    def run() -> tuple[Path, score.Report]:
        lesson = catalog.find(lab)
        _look_at_isolation(require_isolation)
        path = _find(lesson, notebook, solution)
        with progress_line(f"lab {lesson.number}") as progress:
            return path, score.grade(path, lesson, progress=progress)

    found = _unless_refused(run, as_json)
    if isinstance(found, int):
        return found
    path, report = found
    _record(report, path)
    if as_json:
        print(json.dumps(report.as_json(), indent=1, ensure_ascii=False, allow_nan=False))  # noqa: T201
    else:
        print_report(report, Console(highlight=False))
    return report.exit_code


def assess_command(submission: Path | None, as_json: bool, budget_s: float | None, require_isolation: bool) -> int:
    """Grade the final, write its report and print what came of it.

    Args:
        submission: This file instead of the learner's own.
        as_json: Print JSON and nothing else on standard output.
        budget_s: Seconds for all together; eight minutes when left out.
        require_isolation: Refuse where learner code cannot be isolated.

    Returns:
        As `check_lab`.
    """
    from rich.console import Console

    from . import assess, final_report

    def run() -> tuple[Path, assess.Assessment]:
        lesson = catalog.final()
        _look_at_isolation(require_isolation)
        if not lesson.is_built:
            raise ValueError("the final assessment is not built yet")
        path = work.find_notebook(lesson, submission)
        with progress_line("final") as progress:
            return path, assess.assess(path, budget_s=budget_s or assess.BUDGET_S, progress=progress)

    found = _unless_refused(run, as_json)
    if isinstance(found, int):
        return found
    path, assessment = found
    _record(assessment.report, path)
    files: list[Path] = []
    try:
        files = final_report.write_results(assessment, work.results_folder(), datetime.now())
    except Exception as error:  # whatever it is, the points below are earned
        print(f"course: the report was not written: {type(error).__name__}: {error}", file=sys.stderr)  # noqa: T201
    if as_json:
        print(json.dumps(assessment.as_json(), indent=1, ensure_ascii=False, allow_nan=False))  # noqa: T201
        return assessment.report.exit_code
    console = Console(highlight=False)
    if not assessment.is_isolated:
        console.print(assessment.report.isolation, style="red", markup=False, soft_wrap=True)
    print_report(assessment.report, console)
    noise = final_report.tell_noise(assessment)
    console.print(f"{final_report.standing(assessment)}. {noise}".rstrip(), markup=False, soft_wrap=True)
    for file in files:
        console.print(f"  {file}", markup=False, soft_wrap=True)
    return assessment.report.exit_code


def _look_at_isolation(is_required: bool) -> None:
    from . import isolation

    found = isolation.describe()
    if is_required and found.startswith("not isolated"):
        raise ValueError(f"{found}; without --require-isolation it runs all the same and says so")


def _unless_refused(run: Callable[[], Graded], as_json: bool) -> Graded | int:
    """What ``run`` returns, or the exit code of what kept it from that, which has been told then."""
    try:
        with signals_unwind():
            return run()
    except ValueError as error:
        return refuse(str(error), as_json)
    except KeyboardInterrupt:
        print("course: stopped; nothing was recorded", file=sys.stderr)  # noqa: T201
        return score.EXIT_STOPPED
    except Terminated as stop:
        return 128 + stop.number
    except Exception as error:  # a mistake of ours: one sentence and the place, not a page of traceback
        frame = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(frame.filename).name}, line {frame.lineno}"
        what = f"{type(error).__name__}: {error} ({where})"
        return refuse(f"the grader itself stopped with {what}; please report it", as_json)


def _find(lesson: Lesson, notebook: Path | None, solution: bool) -> Path:
    if not lesson.number:
        raise ValueError("the final assessment is graded by `./course assess`")
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
