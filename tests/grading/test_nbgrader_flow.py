"""Nbgrader's own flow on our labs: generate, validate, autograde, feedback. Honest submissions get the same points."""

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from accelerando import catalog, work
from accelerando.catalog import Lesson
from accelerando.grading.cells import Notebook, marks_of, solution_grade_id, test_grade_id
from accelerando.grading.notebooks import read_notebook, write_notebook
from accelerando.grading.release import CONFIG_NAME, generate, nbgrader_config, programs_on_path
from accelerando.submission import find_check

LESSON = catalog.find("1")
WRONG = LESSON.questions[0]
UNTIMED = [question for question in LESSON.questions if not question.is_timed]


@dataclass(frozen=True)
class Class:
    """A course folder with a gradebook, in which three people have handed in lab 1."""

    root: Path
    config: Any
    db_url: str

    def points(self, student: str) -> dict[str, float]:
        """Question id -> what nbgrader gave."""
        from nbgrader.api import Gradebook

        with Gradebook(self.db_url) as gradebook:
            grades = gradebook.find_submission_notebook(LESSON.folder, LESSON.folder, student).grades
            found = {grade.name: grade.score for grade in grades}
        return {question.id: found[test_grade_id(question.id)] for question in LESSON.questions}

    def run(self, converter: str, student: str) -> None:
        import nbgrader.converters
        from nbgrader.coursedir import CourseDirectory

        directory = CourseDirectory(config=self.config)
        directory.assignment_id, directory.student_id = LESSON.folder, student
        with programs_on_path():
            getattr(nbgrader.converters, converter)(coursedir=directory, config=self.config).start()

    def hand_in(self, student: str, notebook: Notebook) -> None:
        write_notebook(self.root / "classroom" / "submitted" / student / LESSON.folder / _name(LESSON), notebook)


def _name(lesson: Lesson) -> str:
    return f"{lesson.folder}.ipynb"


def _answered(lab: Notebook, replace: dict[str, str] | None = None) -> Notebook:
    """The released lab with the course's answers in it."""
    source, _ = read_notebook(work.checkout() / "solutions" / LESSON.folder / _name(LESSON))
    answers = {marks_of(cell).get("grade_id"): cell["source"] for cell in source["cells"]}
    notebook = json.loads(json.dumps(lab))
    for cell in notebook["cells"]:
        grade_id = marks_of(cell).get("grade_id")
        if marks_of(cell).get("solution"):
            cell["source"] = (replace or {}).get(str(grade_id), answers[grade_id])
    return notebook


@pytest.fixture(scope="module")
def graded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Class]:
    """Right, blank and wrong submissions, autograded with this course's nbgrader_config.py."""
    root = tmp_path_factory.mktemp("class")
    checkout = work.checkout()
    shutil.copy(checkout / CONFIG_NAME, root)
    shutil.copytree(checkout / "solutions" / LESSON.folder, root / "solutions" / LESSON.folder)
    db_url = f"sqlite:///{root / 'gradebook.db'}"
    course = Class(root, nbgrader_config(root, root / CONFIG_NAME, db_url), db_url)
    generate([LESSON], checkout, root / "labs", db_url)
    lab, _ = read_notebook(root / "labs" / LESSON.folder / _name(LESSON))
    mistake = {solution_grade_id(WRONG.id): find_check(WRONG.id).wrong[0].code}
    chatty = "import sys, warnings\nwarnings.warn('old')\nprint('careful', file=sys.stderr)\n"
    right = _answered(lab)
    next(cell for cell in right["cells"] if marks_of(cell).get("solution"))["source"] += f"\n{chatty}"
    course.hand_in("right", right)
    course.hand_in("blank", lab)
    course.hand_in("wrong", _answered(lab, mistake))
    course.run("Autograde", "*")
    yield course
    assert not (checkout / "gradebook.db").exists()


def test_honest_answers_get_every_untimed_point(graded: Class) -> None:
    points = graded.points("right")
    assert {q.id: points[q.id] for q in UNTIMED} == {q.id: float(q.points) for q in UNTIMED}


def test_no_point_is_given_for_a_speed_that_nobody_measured(graded: Class) -> None:
    for student in ("right", "blank", "wrong"):
        assert sum(graded.points(student)[q.id] for q in LESSON.questions if q.is_timed) == 0


def test_a_blank_gets_nothing(graded: Class) -> None:
    assert set(graded.points("blank").values()) == {0.0}


def test_a_mistake_costs_its_own_question_only(graded: Class) -> None:
    points = graded.points("wrong")
    expected = {q.id: float(q.points) for q in UNTIMED} | {WRONG.id: 0.0}
    assert {q.id: points[q.id] for q in UNTIMED} == expected


def test_feedback_names_the_mistake_without_a_traceback(graded: Class) -> None:
    graded.run("GenerateFeedback", "wrong")
    pages = list((graded.root / "classroom" / "feedback" / "wrong").rglob("*.html"))
    assert len(pages) == 1
    page = pages[0].read_text(encoding="utf-8")
    assert "Not yet: " in page
    assert "Traceback (most recent call last)" not in page
    assert "accelerando/checks" not in page


def test_validate_passes_on_the_solution_except_for_speed(graded: Class) -> None:
    from nbgrader.validator import Validator

    validator = Validator(config=graded.config)
    path = graded.root / "solutions" / LESSON.folder / _name(LESSON)
    with programs_on_path():
        found = validator.validate(str(path))
    assert found.get("failed", []) == []
