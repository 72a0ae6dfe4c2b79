"""What any notebook's nbgrader marks say, and the instructor's errors in them."""

import json
from pathlib import Path
from typing import Any

import pytest

from accelerando.grading.cells import checked_question, new_notebook
from accelerando.grading.marks import Mark, list_marks
from accelerando.grading.notebooks import read_notebook


def cell(kind: str = "code", source: str = "x = 1", **marks: Any) -> dict[str, Any]:
    plain: dict[str, Any] = {"cell_type": kind, "id": "a", "metadata": {"nbgrader": marks} if marks else {}}
    return plain | {"source": source} | ({"outputs": [], "execution_count": None} if kind == "code" else {})


def marked(grade_id: str = "q", **marks: Any) -> dict[str, Any]:
    return {"grade_id": grade_id, "grade": False, "solution": False, "locked": False, "schema_version": 3} | marks


def errors(*cells: dict[str, Any]) -> tuple[str, ...]:
    return list_marks(new_notebook(cells))[1]


def test_marks_are_listed_in_order_with_their_points() -> None:
    notebook = new_notebook(
        [
            cell("markdown"),
            cell(**marked("setup", locked=True)),
            cell(**marked("a", solution=True)),
            cell(**marked("test-a", grade=True, locked=True, points=2)),
            cell("markdown", **marked("b", grade=True, solution=True, points=1.5)),
            cell("markdown", **marked("c", task=True, points=0)),
        ]
    )
    assert list_marks(notebook) == (
        (
            Mark(2, "setup", "readonly", None),
            Mark(3, "a", "solution", None),
            Mark(4, "test-a", "test", 2.0),
            Mark(5, "b", "manual", 1.5),
            Mark(6, "c", "task", 0.0),
        ),
        (),
    )


def test_a_repeated_grade_id_is_named_with_cells_and_points(tmp_path: Path) -> None:
    # The shape of a real one: no cell ids, format 4.1, one id on a code cell and on a text cell.
    cells = [
        cell(**marked("id1", grade=True, points=1.0)),
        cell("markdown", **marked("id1", grade=True, solution=True, points=2.0)),
    ]
    for made in cells:
        del made["id"]
    path = tmp_path / "source.ipynb"
    path.write_text(json.dumps(new_notebook([]) | {"cells": cells, "nbformat_minor": 1}))
    notebook, warnings = read_notebook(path)
    found = list_marks(notebook)[1]
    assert warnings == ()
    assert len(found) == 1
    assert found[0].startswith("the grade id 'id1' stands in cells 1 (1 point) and 2 (2 points)")


@pytest.mark.parametrize("points", [None, -1, "many", True, float("nan"), float("inf"), [1]])
def test_impossible_points_are_an_error(points: object) -> None:
    (error,) = errors(cell(**marked(grade=True, points=points)))
    assert error.startswith("cell 1: it is graded but its points are")


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (cell(**marked("", solution=True)), "no grade id"),
        (cell(**marked("scaling.predict", solution=True)), "'scaling.predict' has other characters"),
        (cell(**marked(solution=True, schema_version=7)), "schema 7 is newer"),
        (cell("markdown", **marked(grade=True, points=1)), "a text cell cannot be a test cell"),
        (cell("markdown", **marked(solution=True)), "a text cell cannot be a solution cell"),
        (cell(**marked(task=True, points=1)), "a task must be a text cell"),
        (cell(**marked(solution=True, cell_type="markdown")), "released as a markdown cell"),
        (cell(source="### BEGIN SOLUTION\nx\n### END SOLUTION"), "not marked as a solution"),
        (cell(source="### BEGIN SOLUTION\nx", **marked(solution=True)), "without END SOLUTION"),
        (cell(source="x\n### END SOLUTION", **marked(solution=True)), "without BEGIN SOLUTION"),
        (
            cell(source="### BEGIN SOLUTION\n### BEGIN SOLUTION\n### END SOLUTION", **marked(solution=True)),
            "a second BEGIN SOLUTION",
        ),
        (cell(source="### BEGIN HIDDEN TESTS\n### END HIDDEN TESTS"), "learners would see them"),
        ({**cell(), "metadata": {"nbgrader": "yes"}}, "of type str"),
    ],
)
def test_an_instructors_error_is_named_with_its_cell(made: dict[str, Any], words: str) -> None:
    (error,) = errors(made)
    assert error.startswith("cell 1: ")
    assert words in error


@pytest.mark.parametrize("version", [None, 0, 1, 2, 3])
def test_marks_of_older_schemas_are_understood(version: int | None) -> None:
    marks = {"grade_id": "q", "grade": True, "points": "2"} | ({} if version is None else {"schema_version": version})
    assert list_marks(new_notebook([cell(**marks)])) == ((Mark(1, "q", "test", 2.0),), ())


@pytest.mark.parametrize(
    ("source", "question"),
    [
        ('check("a.b")', "a.b"),
        ("check('a.b')  # 3 points\n", "a.b"),
        ('# first\ncheck("a.b")', "a.b"),
        ('check("a.b"); x = 1', None),
        ('x = check("a.b")', None),
        ('check("a.b", 1)', None),
        ('check(f"a.b")', None),
        ('check("a.b").y', None),
        ('if True: check("a.b")', None),
        ("check(", None),
        ("", None),
        ("check('\0')", None),
    ],
)
def test_a_test_cell_is_exactly_one_check(source: str, question: str | None) -> None:
    assert checked_question(source) == question
