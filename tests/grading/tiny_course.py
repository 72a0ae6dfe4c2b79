"""A course folder with the tiny lab in ``solutions/``, and what nbgrader really makes of it."""

import copy
import json
import shutil
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tiny_lab import TINY

from accelerando import catalog, work
from accelerando.grading.cells import Cell, Notebook, marks_of, new_cell, new_notebook
from accelerando.grading.labs import LabNotebook, read_lab
from accelerando.grading.manifest import Manifest, load_manifest
from accelerando.grading.notebooks import read_notebook, write_notebook
from accelerando.grading.release import CONFIG_NAME, build

SETUP = "import math\n\nfrom accelerando.submission import check"
ANSWERS = {
    "tiny.double": "return 2 * x  # the very answer",
    "tiny.total": "return sum(values)  # the very answer",
    "tiny.quick": "return n  # the very answer",
}
ARGUMENTS = {"tiny.double": "x", "tiny.total": "values", "tiny.quick": "n"}


def solution(question_id: str) -> str:
    name = question_id.partition(".")[2]
    return (
        f'def {name}({ARGUMENTS[question_id]}):\n    """What to do."""\n'
        f"    ### BEGIN SOLUTION\n    {ANSWERS[question_id]}\n    ### END SOLUTION"
    )


def source_notebook() -> Notebook:
    """The tiny lab as its author wrote it."""
    cells: list[Cell] = [new_cell("text", source="# A tiny lab"), new_cell("setup", source=SETUP)]
    for question in TINY.questions:
        cells += [
            new_cell("text", source=f"## {question.title}"),
            new_cell("solution", question.id, solution(question.id)),
            new_cell("test", question.id),
        ]
    return json.loads(json.dumps(new_notebook(cells)))


@dataclass(frozen=True)
class Course:
    """A folder that looks like a checkout."""

    root: Path
    lesson: catalog.Lesson = TINY

    @property
    def source(self) -> Path:
        return self.root / "solutions" / TINY.folder / f"{TINY.folder}.ipynb"

    @property
    def lab(self) -> Path:
        return self.root / "labs" / TINY.folder / f"{TINY.folder}.ipynb"

    @property
    def manifest(self) -> Manifest:
        return load_manifest(TINY, self.root / "labs")

    def write_source(self, notebook: Notebook) -> None:
        write_notebook(self.source, notebook)

    def build(self, check: bool = False) -> list[str]:
        return build(check, root=self.root, lessons=[TINY])


@dataclass(frozen=True)
class Learner:
    """Edits a copy of the generated lab and reads it as the grader does."""

    course: Course
    path: Path

    def blank(self) -> Notebook:
        return read_notebook(self.course.lab)[0]

    def answered(self) -> Notebook:
        notebook = self.blank()
        for question_id in ANSWERS:
            self.cell(notebook, question_id.replace(".", "-"))["source"] = answer(question_id)
        return notebook

    @staticmethod
    def cell(notebook: Notebook, grade_id: str) -> Cell:
        return next(cell for cell in notebook["cells"] if marks_of(cell).get("grade_id") == grade_id)

    @staticmethod
    def place(notebook: Notebook, grade_id: str) -> int:
        return next(i for i, cell in enumerate(notebook["cells"]) if marks_of(cell).get("grade_id") == grade_id)

    def read(self, notebook: Notebook) -> LabNotebook:
        self.path.write_text(json.dumps(notebook), encoding="utf-8")
        return read_lab(self.path, TINY, self.course.manifest)


def answer(question_id: str) -> str:
    name = question_id.partition(".")[2]
    return f"def {name}({ARGUMENTS[question_id]}):\n    {ANSWERS[question_id]}"


def sketch(lab: LabNotebook) -> list[tuple[str, str | None]]:
    return [(cell.kind, cell.question) for cell in lab.cells]


def copied(cell: Cell, **changes: Any) -> Cell:
    """A pasted copy: JupyterLab gives it a cell id of its own, but nbgrader's mark stays."""
    return copy.deepcopy(cell) | {"id": uuid.uuid4().hex[:8]} | changes


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Course]:
    """The tiny course with its lab generated; shared by a module's tests, which must not change it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(catalog, "lessons", lambda: (TINY,))
        course = Course(tmp_path_factory.mktemp("course"))
        shutil.copy(work.checkout() / CONFIG_NAME, course.root)
        course.write_source(source_notebook())
        course.build()
        yield course


@pytest.fixture
def learner(built: Course, tmp_path: Path) -> Learner:
    return Learner(built, tmp_path / "mine.ipynb")
