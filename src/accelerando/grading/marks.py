"""The nbgrader marks of any notebook: which cell is graded for how many points, and what its instructor got wrong."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from .cells import BEGIN_SOLUTION, END_SOLUTION, GRADE_ID_PATTERN, SCHEMA_VERSION, Cell, Notebook, marks_of

MarkKind = Literal["solution", "test", "manual", "task", "readonly"]
_RESERVED = re.compile(r"BEGIN HIDDEN TESTS|END HIDDEN TESTS|BEGIN MARK SCHEME|END MARK SCHEME")


@dataclass(frozen=True)
class Mark:
    """What nbgrader's metadata say of one cell."""

    number: int  # of the cell, counted from 1 as people count
    grade_id: str
    kind: MarkKind  # `manual`: an answer that a person grades; `readonly`: given, locked
    points: float | None  # None where nothing is graded


def list_marks(notebook: Notebook) -> tuple[tuple[Mark, ...], tuple[str, ...]]:
    """List the marked cells of a repaired notebook, and the instructor's errors.

    Args:
        notebook: As `notebooks.read_notebook` returns it. Marks of nbgrader's older schemas are understood.

    Returns:
        The marks in the notebook's order, and one sentence for each error: repeated, missing or impossible grade ids,
        missing or impossible points, solution regions that are not closed or stand in the wrong cell.
    """
    marks: list[Mark] = []
    errors: list[str] = []
    for number, cell in enumerate(notebook["cells"], 1):
        stated = cell["metadata"].get("nbgrader")
        if stated is not None and not isinstance(stated, Mapping):
            errors.append(f"cell {number}: its nbgrader metadata is of type {type(stated).__name__}, not a table")
        kind = kind_of(cell)
        errors.extend(f"cell {number}: {error}" for error in _region_errors(cell, kind))
        if kind is None:
            continue
        errors.extend(f"cell {number}: {error}" for error in _mark_errors(cell, kind))
        points = _points(marks_of(cell)) if kind in ("test", "manual", "task") else None
        marks.append(Mark(number, str(marks_of(cell).get("grade_id", "")), kind, points))
    return tuple(marks), (*_repeats(marks), *errors)


def kind_of(cell: Cell) -> MarkKind | None:
    """What a cell is marked as; None when it is not marked."""
    marks = marks_of(cell)
    is_grade, is_solution = _is(marks, "grade"), _is(marks, "solution")
    if _is(marks, "task"):
        return "task"
    if is_grade and is_solution:
        return "manual"
    if is_solution:
        return "solution"
    if is_grade:
        return "test"
    return "readonly" if _is(marks, "locked") else None


def _is(marks: Mapping[str, Any], flag: str) -> bool:
    return marks.get(flag) is True


def _repeats(marks: list[Mark]) -> list[str]:
    errors = []
    for grade_id in dict.fromkeys(mark.grade_id for mark in marks if mark.grade_id):
        same = [mark for mark in marks if mark.grade_id == grade_id]
        if len(same) > 1:
            cells = " and ".join(f"{mark.number}{_worth(mark)}" for mark in same)
            errors.append(
                f"the grade id {grade_id!r} stands in cells {cells}: grade ids must be unique, or nbgrader counts only "
                "one of them. Rename all but one"
            )
    return errors


def _worth(mark: Mark) -> str:
    return "" if mark.points is None else f" ({mark.points:g} point{'' if mark.points == 1 else 's'})"


def _mark_errors(cell: Cell, kind: MarkKind) -> list[str]:
    marks = marks_of(cell)
    errors = []
    schema = marks.get("schema_version", 0)
    if not isinstance(schema, int) or schema > SCHEMA_VERSION:
        errors.append(f"nbgrader schema {schema!r} is newer than {SCHEMA_VERSION}, which this course's nbgrader knows")
    grade_id = marks.get("grade_id")
    if not isinstance(grade_id, str) or not grade_id:
        errors.append("it is marked but has no grade id")
    elif not GRADE_ID_PATTERN.fullmatch(grade_id):
        errors.append(f"the grade id {grade_id!r} has other characters than letters, digits, _ and -")
    if kind in ("test", "manual", "task") and _points(marks) is None:
        errors.append(f"it is graded but its points are {marks.get('points')!r}: a number of at least 0 is needed")
    if cell["cell_type"] == "markdown" and kind in ("test", "solution"):
        errors.append(f"a text cell cannot be a {kind} cell alone: mark it as manually graded")
    if cell["cell_type"] == "code" and kind == "task":
        errors.append("a task must be a text cell")
    stated = marks.get("cell_type")
    if stated is not None and stated != cell["cell_type"]:
        errors.append(f"it was released as a {stated} cell and is a {cell['cell_type']} cell now")
    return errors


def _points(marks: Mapping[str, Any]) -> float | None:
    points = marks.get("points")
    if isinstance(points, str):
        try:
            points = float(points)
        except ValueError:
            return None
    if isinstance(points, bool) or not isinstance(points, int | float) or not math.isfinite(points) or points < 0:
        return None
    return float(points)


def _region_errors(cell: Cell, kind: MarkKind | None) -> list[str]:
    errors: list[str] = []
    is_open = False
    for line in cell["source"].splitlines():
        if BEGIN_SOLUTION in line:
            if is_open:
                errors.append(f"a second {BEGIN_SOLUTION} before {END_SOLUTION}")
            is_open = True
        elif END_SOLUTION in line:
            if not is_open:
                errors.append(f"{END_SOLUTION} without {BEGIN_SOLUTION}")
            is_open = False
    if is_open:
        errors.append(f"{BEGIN_SOLUTION} without {END_SOLUTION}")
    if BEGIN_SOLUTION in cell["source"] and kind not in ("solution", "manual"):
        errors.append("a solution region in a cell that is not marked as a solution: it would stop the release")
    if _RESERVED.search(cell["source"]) and kind is None:
        errors.append("hidden tests or a mark scheme in a cell that is not marked: learners would see them")
    return errors
