"""Reads a learner's lab: which cell answers which question, whatever happened to the notebook on the way."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from .. import catalog
from ..catalog import Lesson
from .cells import Notebook, marks_of, source_hash
from .manifest import LockedCell, Manifest, ReleasedQuestion, load_manifest
from .notebooks import Unreadable, language, read_notebook

CellKind = Literal["setup", "solution", "test", "plain"]


@dataclass(frozen=True)
class LabCell:
    """A code cell of a learner's lab."""

    kind: CellKind
    question: str | None  # of solutions and tests
    name: str  # what a person calls it: "9", "9 (scaling.predict_time)", "setup"
    source: str
    index: int  # in the learner's notebook, from 0; -1 for a given cell that was put back


@dataclass(frozen=True)
class LabNotebook:
    """A learner's lab, ready to run: set-up cells first, then the rest in the learner's order."""

    path: Path
    cells: tuple[LabCell, ...]
    missing: tuple[str, ...]  # questions without a solution cell: each fails with "cell missing"
    warnings: tuple[str, ...]

    def solution(self, question_id: str) -> LabCell | None:
        """The cell that answers a question."""
        return next((c for c in self.cells if c.kind == "solution" and c.question == question_id), None)


def read_lab(path: Path | str, lesson: Lesson, manifest: Manifest | None = None) -> LabNotebook:
    """Read a learner's lab.

    Given cells come from the manifest, not from the learner's copy. Of repeated solution cells one counts: the last
    answered one above its test, as the learner saw it; the others stay as plain cells, and those that define the same
    name run before it.

    Args:
        path: The learner's notebook; only read.
        lesson: Whose lab it should be.
        manifest: What was released; read from ``labs/`` when left out.

    Returns:
        The cells in the order in which they are to be run.

    Raises:
        Unreadable: If it is no notebook, or another lab's, or another language's.
        NoManifest: If the lab was not generated.
    """
    path = Path(path)
    notebook, repairs = read_notebook(path)
    sorter = _Sorter(notebook, manifest or load_manifest(lesson), list(repairs))
    _refuse_foreign(path, notebook, lesson, sorter)
    before = list(sorter.warnings)
    cells = sorter.sort()
    is_foreign = not sorter.is_ours and len(sorter.missing) == len(sorter.manifest.questions)
    warnings = before if is_foreign else sorter.warnings  # that all is missing needs to be said once
    return LabNotebook(path, tuple(cells), tuple(sorter.missing), tuple(warnings))


def _refuse_foreign(path: Path, notebook: Notebook, lesson: Lesson, sorter: "_Sorter") -> None:
    is_ours = sorter.is_ours
    stamp = notebook["metadata"].get("accelerando")
    stamp = stamp if isinstance(stamp, dict) else {}
    other = stamp.get("lab", lesson.folder)
    if not is_ours and other != lesson.folder:
        raise Unreadable(f"{path}: is the lab {other}, not {lesson.folder}: run ./course check {other}")
    spoken = language(notebook)
    if spoken != "python":
        if not is_ours:
            raise Unreadable(f"{path}: is a notebook in {spoken}; lab {lesson.number} is answered in Python")
        sorter.warnings.append(
            f"the notebook is set to a {spoken} kernel; it was graded with Python. In JupyterLab: Kernel, Change Kernel"
        )
    if not is_ours:
        sorter.warnings.append(f"no cell of lab {lesson.number} is in this notebook: is it the right file?")
    version = stamp.get("lab_version", sorter.manifest.lab_version)
    if version != sorter.manifest.lab_version:
        sorter.warnings.append(
            f"it was made from version {version} of the lab and is graded by version {sorter.manifest.lab_version}"
        )


@dataclass
class _Sorter:
    """Finds the cell of each question and puts all in the order in which they run."""

    notebook: Notebook
    manifest: Manifest
    warnings: list[str]
    missing: list[str] = field(default_factory=list)
    places: dict[str, list[int]] = field(default_factory=dict)  # grade id -> where it stands

    def __post_init__(self) -> None:
        for index, cell in enumerate(self.notebook["cells"]):
            grade_id = marks_of(cell).get("grade_id")
            if isinstance(grade_id, str) and grade_id:
                self.places.setdefault(grade_id, []).append(index)

    @property
    def is_ours(self) -> bool:
        """Whether any cell of the lab can be recognised by its mark."""
        return any(grade_id in self.places for grade_id in self.manifest.order)

    def sort(self) -> list[LabCell]:
        setup, tests, given = self._given()
        chosen: dict[int, str] = {}
        early: dict[int, list[int]] = {}  # plain copies that must run before the cell that counts
        skipped: set[int] = set(given)
        for question in self.manifest.questions:
            self._choose(question, chosen, early, skipped)
        moved = {index for group in early.values() for index in group}
        cells: list[LabCell] = []
        for index, cell in enumerate(self.notebook["cells"]):
            if index in chosen:
                cells.extend(self._plain(other) for other in early.get(index, ()))
                name = f"{index + 1} ({chosen[index]})"
                cells.append(LabCell("solution", chosen[index], name, cell["source"], index))
            elif cell["cell_type"] == "code" and index not in skipped | moved and cell["source"].strip():
                cells.append(self._plain(index))
        return [*setup, *cells, *tests]

    def _plain(self, index: int) -> LabCell:
        return LabCell("plain", None, str(index + 1), self.notebook["cells"][index]["source"], index)

    def _given(self) -> tuple[list[LabCell], list[LabCell], list[int]]:
        """The set-up and test cells as released, and where the learner's copies of them stand."""
        cells: dict[str, list[LabCell]] = {"setup": [], "test": []}
        places: list[int] = []
        for locked in self.manifest.locked:
            found = self.places.get(locked.grade_id, [])
            same = [i for i in found if locked.is_same(self.notebook["cells"][i]["source"])]
            index = (same or found or [-1])[0]
            self._report_given(locked, found, same)
            name = locked.grade_id if index < 0 else f"{index + 1} ({locked.question or locked.grade_id})"
            cells[locked.kind].append(LabCell(locked.kind, locked.question, name, locked.source, index))
            # A copy that says something else is the learner's own code, as long as the given cell is there as well.
            places.extend(i for i in found if i in same or i == index or locked.kind == "test")
        return cells["setup"], cells["test"], places

    def _report_given(self, locked: LockedCell, found: Sequence[int], same: Sequence[int]) -> None:
        what = f"the {'set-up' if locked.kind == 'setup' else 'test'} cell {locked.grade_id}"
        if not found:
            self.warnings.append(f"{what} was deleted: it was put back")
        elif not same:
            self.warnings.append(f"cell {found[0] + 1}: {what} was changed: the original was used")
        elif len(found) > 1:
            self.warnings.append(f"{_cells(found)}: {what} is there {len(found)} times: one was used")
        elif self.notebook["cells"][found[0]]["cell_type"] != "code":
            self.warnings.append(f"cell {found[0] + 1}: {what} was turned into text: the original was used")

    def _choose(
        self, question: ReleasedQuestion, chosen: dict[int, str], early: dict[int, list[int]], skipped: set[int]
    ) -> None:
        cells = self.notebook["cells"]
        found = self.places.get(question.solution, [])
        if not found:
            self._recover(question, chosen)
            return
        answered = [i for i in found if source_hash(cells[i]["source"]) != question.blank_sha256 or len(found) == 1]
        defining = [i for i in answered if _defines(cells[i]["source"], question.id)]
        candidates = defining or answered or found[:1]
        test = min(self.places.get(question.test, [len(cells)]))
        index = ([i for i in candidates if i < test] or candidates)[-1]
        chosen.setdefault(index, question.id)
        skipped.update(i for i in found if i not in answered and i != index)
        early[index] = [i for i in defining if i > index]
        if len(found) > 1:
            self.warnings.append(
                f"{_cells(found)}: the answer to {question.id} is there {len(found)} times (copied or split?): cell "
                f"{index + 1} counts"
            )
        if cells[index]["cell_type"] != "code":
            self.warnings.append(f"cell {index + 1}: the answer to {question.id} was turned into text: read as code")

    def _recover(self, question: ReleasedQuestion, chosen: dict[int, str]) -> None:
        """Look for an answer that lost its mark: written in a new cell, or merged into another one."""
        cells = self.notebook["cells"]
        defining = [i for i, c in enumerate(cells) if c["cell_type"] == "code" and _defines(c["source"], question.id)]
        if not defining:
            self.missing.append(question.id)
            self.warnings.append(
                f"cell missing: {question.id} has no answer cell. Take it from a fresh copy of the lab "
                f"(./course reset {question.id.partition('.')[0]} --lab)"
            )
            return
        index = defining[-1]
        self.warnings.append(f"cell {index + 1}: the answer to {question.id} lost its mark: recognised by its name")
        if index not in chosen and not marks_of(cells[index]).get("grade_id"):
            chosen[index] = question.id


def _defines(source: str, question_id: str) -> bool:
    name = re.escape(catalog.answered_in(question_id).partition(".")[2])
    return bool(
        re.search(rf"^(?:(?:async\s+)?def|class)\s+{name}\b|^{name}\s*(?::[^=\n]+)?=(?!=)", source, re.MULTILINE)
    )


def _cells(indices: Sequence[int]) -> str:
    return "cells " + ", ".join(str(index + 1) for index in indices)
