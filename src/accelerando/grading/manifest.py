"""What was released of a lab: question ids, points, and the given cells that a learner's copy may have lost."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from .. import work
from ..catalog import Lesson
from .cells import checked_question, solution_grade_id, source_hash, test_grade_id

SCHEMA = 1
MANIFEST_NAME = "manifest.json"


class NoManifest(ValueError):
    """A lab that was not generated, or whose manifest cannot be used; the message says what to run."""


@dataclass(frozen=True)
class ReleasedQuestion:
    """One question as released."""

    id: str
    points: int
    blank_sha256: str  # of the solution cell before anybody answers

    @property
    def solution(self) -> str:
        """The grade id of its solution cell."""
        return solution_grade_id(self.id)

    @property
    def test(self) -> str:
        """The grade id of its test cell."""
        return test_grade_id(self.id)


@dataclass(frozen=True)
class LockedCell:
    """A given cell."""

    grade_id: str
    kind: Literal["setup", "test"]
    question: str | None
    sha256: str
    source: str

    def is_same(self, source: str) -> bool:
        """Whether a learner's copy of it still says the same; comments after a check do not count."""
        if self.question is not None:
            return checked_question(source) == self.question
        return source_hash(source) == self.sha256


@dataclass(frozen=True)
class Manifest:
    """A released lab."""

    schema: int
    lab: str  # "01_scaling"
    lab_version: int
    points: int
    questions: tuple[ReleasedQuestion, ...]
    locked: tuple[LockedCell, ...]
    order: tuple[str, ...]  # the grade ids of all marked cells, from top to bottom

    def as_text(self) -> str:
        """The file's text."""
        return json.dumps(asdict(self), indent=1, ensure_ascii=False) + "\n"


def load_manifest(lesson: Lesson, labs: Path | None = None) -> Manifest:
    """The manifest of a lesson's lab.

    Args:
        lesson: Which lab.
        labs: The folder of generated labs; the checkout's when left out.

    Raises:
        NoManifest: If it is missing, damaged, or of another lab.
    """
    path = (labs or work.checkout() / "labs") / lesson.folder / MANIFEST_NAME
    cure = "run ./course build"
    try:
        manifest = _parse(json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        raise NoManifest(f"{path}: lab {lesson.number} has not been generated: {cure}") from None
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise NoManifest(f"{path}: the lab's manifest is damaged ({error}): {cure}") from None
    if manifest.lab != lesson.folder:
        raise NoManifest(f"{path}: is the manifest of {manifest.lab}, not of {lesson.folder}: {cure}")
    return manifest


def _parse(content: dict[str, Any]) -> Manifest:
    if content["schema"] != SCHEMA:
        raise ValueError(f"schema {content['schema']}, {SCHEMA} is known")
    questions = tuple(ReleasedQuestion(**row) for row in content["questions"])
    locked = tuple(LockedCell(**row) for row in content["locked"])
    for cell in locked:
        if source_hash(cell.source) != cell.sha256:
            raise ValueError(f"the cell {cell.grade_id} does not fit its checksum")
    return Manifest(**content | {"questions": questions, "locked": locked, "order": tuple(content["order"])})
