"""What the learner has passed so far: ``progress.json`` in their folder, written by checks, shown by the landing page.

Two records per question: *practised* (``check(…)`` in the learner's own kernel, on inputs they may see) and *graded*
(``./course check``, in the sandbox, on inputs they have not seen). Several kernels may write at once, a disk may be
full or read-only, the file may be damaged: none of that may ever fail a learner's cell.
"""

import fcntl
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from . import catalog
from .catalog import Lesson, Question
from .copies import replace_with_bytes
from .work import is_learners, work_folder

if TYPE_CHECKING:
    from .submission import Result

SCHEMA = 1
Kind = Literal["practised", "graded"]
_FILE = "progress.json"
_DAMAGED = "progress.damaged"
_PATIENCE_S = 2.0  # how long a cell waits for another kernel's write before it goes on without a record


@dataclass(frozen=True)
class Standing:
    """How a question stands: what came of it last, and when it was first passed."""

    status: str  # of the latest run
    at: str  # UTC, ISO 8601
    passed_at: str | None  # a pass is kept: a later experiment does not take it away
    lab_version: int


@dataclass(frozen=True)
class QuestionProgress:
    """A question with what came of it, None where it was never run."""

    question: Question
    practised: Standing | None
    graded: Standing | None

    def has_passed(self, kind: Kind) -> bool:
        """Whether it was ever passed in that way."""
        standing: Standing | None = getattr(self, kind)
        return standing is not None and standing.passed_at is not None


@dataclass(frozen=True)
class LabProgress:
    """A lab with its questions in order."""

    lesson: Lesson
    questions: tuple[QuestionProgress, ...]

    def points(self, kind: Kind) -> int:
        """Points of the questions passed in that way."""
        return sum(item.question.points for item in self.questions if item.has_passed(kind))

    @property
    def is_practised(self) -> bool:
        """Whether the learner's kernel can say no more: all passed, timed questions at least valid."""
        return bool(self.questions) and all(
            item.has_passed("practised")
            or (item.question.is_timed and item.practised is not None and item.practised.status == "undecided")
            for item in self.questions
        )

    @property
    def is_settled(self) -> bool:
        """Whether nothing is left to win on this machine: all graded as passed or as not measurable here."""
        return bool(self.questions) and all(
            item.has_passed("graded") or (item.graded is not None and item.graded.status == "not measurable here")
            for item in self.questions
        )


def record_practice(result: "Result") -> bool:
    """Remember what a check said in the learner's own kernel.

    Only runs from the learner's folder count: not those of nbgrader, of the tests or of a lesson built headless.

    Returns:
        Whether it was written. Nothing is raised: a record is worth less than the learner's cell.
    """
    try:
        if os.environ.get("NBGRADER_EXECUTION") or not is_learners(Path.cwd()):
            return False
        _record("practised", [result])
    except (OSError, ValueError, TypeError, KeyError):
        return False
    return True


def record_graded(results: Iterable["Result"]) -> None:
    """Remember what ``./course check`` said of the learner's own file.

    Raises:
        OSError: If it cannot be written, or another process keeps the file locked.
    """
    _record("graded", list(results))


def progress() -> tuple[LabProgress, ...]:
    """How every lab of the catalog stands, in order."""
    questions = _read()
    return tuple(_progress_of(lesson, questions) for lesson in catalog.lessons())


def final_progress() -> LabProgress:
    """How the final stands; its points may come from several sessions, those of its certificate do not."""
    return _progress_of(catalog.final(), _read())


def _progress_of(lesson: Lesson, questions: dict[str, dict[str, Any]]) -> LabProgress:
    def standing(question: Question, kind: Kind) -> Standing | None:
        fields = questions.get(question.id, {}).get(kind)
        return Standing(**fields) if fields else None

    each = (QuestionProgress(item, standing(item, "practised"), standing(item, "graded")) for item in lesson.questions)
    return LabProgress(lesson, tuple(each))


def damaged_files() -> tuple[Path, ...]:
    """Records that could not be read and were set aside, for a person to look at."""
    return tuple(sorted(work_folder().glob(f"{_DAMAGED}*")))


def _record(kind: Kind, results: list["Result"]) -> None:
    now = datetime.now(UTC).isoformat(timespec="seconds")
    with _locked():
        questions = _read(set_aside=True)
        for result in results:
            before = questions.setdefault(result.question, {}).get(kind) or {}
            passed_at = before.get("passed_at") or (now if result.status == "passed" else None)
            version = catalog.find(result.question.partition(".")[0]).lab_version
            questions[result.question][kind] = asdict(Standing(result.status, now, passed_at, version))
        text = json.dumps({"schema": SCHEMA, "questions": questions}, indent=1, sort_keys=True)
        replace_with_bytes(work_folder() / _FILE, text.encode())


@contextmanager
def _locked(clock: Callable[[], float] = time.monotonic) -> Iterator[None]:
    """Hold the record's lock; a crash frees it.

    Raises:
        TimeoutError: If another process holds it for longer than a cell should wait.
    """
    folder = work_folder()
    folder.mkdir(parents=True, exist_ok=True)
    deadline = clock() + _PATIENCE_S
    with open(folder / ".progress.lock", "w") as lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if clock() >= deadline:
                    raise TimeoutError("the progress record is locked by another process") from None
                time.sleep(0.02)
        yield


def _read(set_aside: bool = False) -> dict[str, dict[str, Any]]:
    """The record by question id; empty when there is none, or none that can be read.

    Args:
        set_aside: Move a damaged file out of the way, so that writing does not destroy it.
    """
    path = work_folder() / _FILE
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return {}
    try:
        return _validated(json.loads(content))
    except (ValueError, TypeError, KeyError, AttributeError):
        if set_aside:
            path.rename(path.with_name(f"{_DAMAGED}-{datetime.now():%Y-%m-%d-%H%M%S}.json"))
        return {}


def _validated(record: Any) -> dict[str, dict[str, Any]]:
    """The questions of a record, each entry of the right shape; raises what a wrong shape raises."""
    if record["schema"] != SCHEMA:
        raise ValueError(f"schema {record['schema']!r} is not {SCHEMA}")
    for kinds in record["questions"].values():
        for kind, fields in kinds.items():
            if kind not in get_args(Kind) or not isinstance(Standing(**fields).status, str):
                raise ValueError(f"unknown entry {kind!r}")
    return record["questions"]
