r"""The cells of a lab, and the convention of its hand-written source in ``solutions/NN_slug/NN_slug.ipynb``.

A lab is an ordinary nbgrader notebook. Beside text and plain code it has three kinds of marked cells:

* **setup**: given code, read-only; the grader runs the released version of it whatever a learner's copy says.
  Imports stand here, among them ``from accelerando.submission import check``. Names ``setup``, ``setup-data``, …
* **solution**: one per question, right before its test; what stands between ``### BEGIN SOLUTION`` and
  ``### END SOLUTION`` becomes ``# YOUR CODE HERE`` and ``raise NotImplementedError()`` in the lab.
* **test**: one per question, read-only, exactly one line: ``check("scaling.predict_time")``. `build` writes points
  into it from the catalog, both into the metadata and into a comment, so they never go stale.

nbgrader allows letters, digits, ``_`` and ``-`` in a grade id, no dots: the question ``scaling.predict_time`` is
answered in the cell ``scaling-predict_time`` and tested in ``test-scaling-predict_time``.

A question answered by data (the quiz) gives an empty value first, so that its blank is defined and empty::

    quiz = {}  # what you chose in the widget above
    ### BEGIN SOLUTION
    quiz = {"cores": "b", "batch": "a"}
    ### END SOLUTION

A lab is written by a person; a script may help once::

    cells = [
        new_cell("text", source="# Lab 1 …"),
        new_cell("setup", source="from accelerando.submission import check"),
        new_cell("solution", "scaling.predict_time", "def predict_time(…):\n    …"),
        new_cell("test", "scaling.predict_time"),
    ]
    write_notebook(path, new_notebook(cells))  # from accelerando.grading.notebooks
"""

import ast
import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from .. import catalog

NewKind = Literal["text", "setup", "solution", "test", "plain"]
TEST_PREFIX = "test-"
GRADE_ID_PATTERN = re.compile(r"[a-zA-Z0-9_\-]+")
BEGIN_SOLUTION, END_SOLUTION = "BEGIN SOLUTION", "END SOLUTION"
SCHEMA_VERSION = 3  # of nbgrader's cell metadata
KERNEL = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}

Cell = dict[str, Any]
Notebook = dict[str, Any]


def solution_grade_id(question_id: str) -> str:
    """``scaling.predict_time`` -> ``scaling-predict_time``; tiers of one answer share its cell."""
    return catalog.answered_in(question_id).replace(".", "-")


def test_grade_id(question_id: str) -> str:
    """``scaling.predict_time`` -> ``test-scaling-predict_time``."""
    return TEST_PREFIX + question_id.replace(".", "-")


test_grade_id.__test__ = False  # type: ignore[attr-defined]  # pytest takes every test_… it meets for a test


def test_source(question_id: str) -> str:
    """The one line of a question's test cell, with the catalog's points as a comment."""
    points = catalog.question(question_id).points
    return f'check("{question_id}")  # {points} point{"" if points == 1 else "s"}'


test_source.__test__ = False  # type: ignore[attr-defined]


def checked_question(source: str) -> str | None:
    """The id in ``check("id")`` when the source is exactly that one call (comments aside), else None."""
    try:
        body = ast.parse(source).body
    except (SyntaxError, ValueError):
        return None
    match body:
        case [ast.Expr(ast.Call(ast.Name("check"), [ast.Constant(str(question_id))], []))]:
            return question_id
    return None


def new_cell(kind: NewKind, question: str = "", source: str = "", *, name: str = "") -> Cell:
    """A cell of a lab's source, with the metadata that nbgrader and our grader expect.

    Args:
        kind: ``text`` (markdown), ``plain`` (unmarked code), ``setup``, ``solution`` or ``test``.
        question: The question's id, for solutions and tests.
        source: What stands in the cell; may be left out for a test.
        name: The grade id of a setup cell; ``setup`` when left out.

    Returns:
        The cell as nbformat 4.5 stores it. Its id depends on its name or text only, so that a script that is run
        twice writes the same file.

    Raises:
        ValueError: If the question is not in the catalog, or is missing where it is needed.
    """
    marks: dict[str, Any] = {}
    if kind in ("solution", "test"):
        points = catalog.question(question).points
        grade_id = solution_grade_id(question) if kind == "solution" else test_grade_id(question)
        marks = _marks(grade_id, solution=kind == "solution", points=points if kind == "test" else None)
        source = source or (test_source(question) if kind == "test" else "")
    elif kind == "setup":
        marks = _marks(name or "setup", locked=True)
    source = source.strip("\n")
    identity = marks.get("grade_id") or hashlib.sha256(source.encode()).hexdigest()[:12]
    cell: Cell = {"cell_type": "markdown" if kind == "text" else "code", "id": identity[:64]}
    if kind != "text":
        cell |= {"execution_count": None, "outputs": []}
    return cell | {"metadata": {"nbgrader": marks} if marks else {}, "source": source}


def new_notebook(cells: Sequence[Cell]) -> Notebook:
    """A notebook of these cells for the course's Python kernel; repeated cell ids get a number."""
    seen: dict[str, int] = {}
    unique = []
    for cell in cells:
        count = seen[cell["id"]] = seen.get(cell["id"], 0) + 1
        unique.append(cell | {"id": f"{cell['id'][:60]}-{count}"} if count > 1 else cell)
    metadata = {"kernelspec": dict(KERNEL), "language_info": {"name": "python"}}
    return {"cells": unique, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}


def marks_of(cell: Mapping[str, Any]) -> Mapping[str, Any]:
    """The nbgrader metadata of a cell; empty when it has none, or none that can be understood."""
    marks = cell.get("metadata", {}).get("nbgrader")
    return marks if isinstance(marks, Mapping) else {}


def source_hash(source: str) -> str:
    """SHA-256 of a cell's source, blind to trailing blanks and line ends, which editors change on their own."""
    text = "\n".join(line.rstrip() for line in source.strip().splitlines())
    return hashlib.sha256(text.encode()).hexdigest()


def _marks(grade_id: str, *, solution: bool = False, locked: bool = False, points: int | None = None) -> dict:
    marks = {
        "grade": points is not None,
        "grade_id": grade_id,
        "locked": locked or points is not None,
        "schema_version": SCHEMA_VERSION,
        "solution": solution,
        "task": False,
    }
    return marks if points is None else marks | {"points": points}
