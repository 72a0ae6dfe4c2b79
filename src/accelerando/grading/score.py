"""Grades one notebook: a sandboxed worker holds the learner's code, the checks ask it, and the result is a `Report`.

Correctness comes first; timed questions follow, one at a time, while this machine's speed lane is held alone.
"""

import contextlib
import importlib
import math
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from .. import catalog
from ..catalog import Lesson, Question
from ..submission import Result, SpeedTask, Status, Ungradable, find_check, judge
from . import speed
from .isolation import Choice
from .labs import LabNotebook, read_lab
from .lane import Mode, lane
from .sandbox import CellFailure, Limits, Sandbox, clean

SCHEMA = 1
EXIT_ALL, EXIT_SOME_MISSING, EXIT_UNGRADABLE, EXIT_UNDECIDED, EXIT_STOPPED = 0, 1, 2, 3, 130
_MESSAGE = 1000  # longest sentence of a report; what a check found in an answer may stand in it
_START_S, _QUESTION_S, _TIMED_S = 5.0, 1.0, 45.0  # what each usually takes, for the time left


class Progress(Protocol):
    """Told what is being done."""

    def __call__(self, doing: str, left_s: float) -> None:
        """``doing`` in a few words, and about how many seconds are left."""


RunSpeed = Callable[..., Result]
"""Decides a timed question: `speed.run`, or a test's stand-in with a fake clock."""


@dataclass(frozen=True)
class Report:
    """What came of one notebook."""

    lab: str  # "01_scaling"
    title: str
    notebook: str
    results: tuple[Result, ...]  # one for each question of the catalog, in its order
    warnings: tuple[str, ...]  # about the notebook and its cells; they cost nothing by themselves
    isolation: str
    seconds: float  # without the waiting for the machine to be free
    output: str = ""  # what the learner's code printed: beginning and end

    @property
    def points(self) -> int:
        """The sum of what was earned."""
        return sum(result.points for result in self.results)

    @property
    def maximum(self) -> int:
        """The sum of what there was to earn."""
        return sum(result.maximum for result in self.results)

    @property
    def exit_code(self) -> int:
        """0 all points, 1 some missing, 2 something could not be graded, 3 nothing failed but not all is decided."""
        found = {result.status for result in self.results}
        if "failed" in found:
            return EXIT_SOME_MISSING
        if "ungradable" in found:
            return EXIT_UNGRADABLE
        return EXIT_ALL if self.points == self.maximum else EXIT_UNDECIDED

    def as_json(self) -> dict[str, Any]:
        """Plain numbers, text, lists and dicts, with a ``schema`` number."""
        results = [
            {
                "question": result.question,
                "title": catalog.question(result.question).title,
                "status": result.status,
                "points": result.points,
                "maximum": result.maximum,
                "message": result.message,
                "evidence": plain(result.evidence),
            }
            for result in self.results
        ]
        return {
            "schema": SCHEMA,
            "lab": self.lab,
            "title": self.title,
            "notebook": self.notebook,
            "points": self.points,
            "maximum": self.maximum,
            "exit_code": self.exit_code,
            "isolation": self.isolation,
            "seconds": round(self.seconds, 2),
            "warnings": list(self.warnings),
            "results": results,
        }


def grade(
    notebook: Path,
    lesson: Lesson,
    *,
    seed: int | None = None,
    progress: Progress = lambda doing, left_s: None,
    choice: Choice = "auto",
    limits: Limits | None = None,
    run_speed: RunSpeed = speed.run,
    read: Callable[[Path, Lesson], LabNotebook] = read_lab,
    afterwards: Callable[[Sandbox], None] = lambda sandbox: None,
) -> Report:
    """Grade a notebook.

    Args:
        notebook: The file; only read.
        lesson: Whose lab it answers.
        seed: Draws the inputs; a fresh secret one when left out.
        progress: Told what is being done and about how long it will still take.
        choice: ``plain`` does without bubblewrap even where it works.
        limits: For the worker.
        run_speed: Decides timed questions.
        read: Reads the notebook.
        afterwards: Asks the worker more when all is checked; nothing has been timed by then.

    Raises:
        ValueError: If the notebook cannot be read (`notebooks.Unreadable`) or the lab was never generated.
    """
    started_s = time.monotonic()
    progress("reading the notebook", _expected_s(lesson.questions))
    lab = read(notebook, lesson)
    session = _Session(lesson, lab, secrets.randbits(62) if seed is None else seed, progress, run_speed)
    with Sandbox(lab.cells, masked=lesson.masked, limits=limits, choice=choice, on_step=session.tell) as sandbox:
        found = session.run(sandbox, afterwards)
        failures = sandbox.failures
        output = sandbox.output
    results = [replace(result, message=clean(result.message, _MESSAGE)) for result in found]
    told = {result.message for result in results}
    notes = [_tell(failure) for failure in failures if not _is_blank(failure) and _tell(failure) not in told]
    warnings = [clean(warning, _MESSAGE) for warning in (*lab.warnings, *notes)]
    return Report(
        lesson.folder, lesson.title, str(notebook), tuple(results), tuple(warnings), sandbox.isolation,
        time.monotonic() - started_s - session.waited_s, output,
    )  # fmt: skip


@dataclass
class _Session:
    """One notebook being graded."""

    lesson: Lesson
    lab: LabNotebook
    seed: int
    progress: Progress
    run_speed: RunSpeed
    left: Sequence[Question] = ()
    waited_s: float = 0.0

    def tell(self, doing: str) -> None:
        self.progress(doing, _expected_s(self.left))

    def run(self, sandbox: Sandbox, afterwards: Callable[[Sandbox], None]) -> list[Result]:
        self.left = self.lesson.questions
        found: dict[str, Result | SpeedTask] = {}
        with self._lane("shared"):
            # The checks and torch load here while the worker loads them there: seconds saved on every grading.
            threading.Thread(target=_load_checks, args=(self.lesson, self.lab), daemon=True).start()
            for place, question in enumerate(self.lesson.questions):
                self.left = [q for q in self.lesson.questions[place:] if q.id not in found]
                found[question.id] = self._judge(sandbox, question)
            afterwards(sandbox)
        tasks = {
            question: task for question in self.lesson.questions if isinstance(task := found[question.id], SpeedTask)
        }
        if tasks and not any(speed.needs_learner(task) for task in tasks.values()):
            sandbox.close()  # an idle worker is quiet, none at all is quieter
        for place, (question, task) in enumerate(tasks.items()):
            self.left = list(tasks)[place:]
            found[question.id] = self._time(sandbox, question, task)
        return [_answer for _answer in found.values() if isinstance(_answer, Result)]

    @contextlib.contextmanager
    def _lane(self, mode: Mode) -> Iterator[None]:
        asked_s = time.monotonic()
        with lane(mode, on_wait=self.tell):
            self.waited_s += time.monotonic() - asked_s
            yield

    def _judge(self, sandbox: Sandbox, question: Question) -> Result | SpeedTask:
        self.tell(f"checking {question.title}")
        try:
            sandbox.begin(question)
            outcome = judge(question.id, sandbox.submission, _seed_of(self.seed, question))
        except Ungradable as reason:
            return _result(question, "ungradable", str(reason))
        except Exception as error:  # our own mistake must not cost the learner points, nor end the grading
            return _result(question, "ungradable", own_mistake(error))
        if isinstance(outcome, Result) and outcome.status == "failed":
            return self._explain(question, outcome, sandbox.failure_of(question.id))
        return outcome

    def _explain(self, question: Question, result: Result, failure: CellFailure | None) -> Result:
        """Why a name is not there is more helpful than that it is not."""
        if question.id in self.lab.missing:
            fresh = f"`./course reset {question.id.partition('.')[0]} --lab`"
            return _result(question, "failed", f"its answer cell is missing: copy it from a fresh lab ({fresh})")
        if failure is not None and "is not defined" in result.message:
            return _result(question, "failed", _tell(failure))
        return result

    def _time(self, sandbox: Sandbox, question: Question, task: SpeedTask) -> Result:
        self.tell(f"timing {question.title}")

        def on_pair(spent_s: float, doing: str) -> None:
            left_s = max(0.0, speed.BUDGET_S - spent_s) + _expected_s(self.left[1:])
            self.progress(f"timing {question.title}: {doing}", left_s)

        try:
            with self._lane("exclusive"):
                if speed.needs_learner(task):
                    sandbox.begin(question, speed.LEARNERS_S)
                return self.run_speed(
                    task, question, seed=_seed_of(self.seed, question), submission=sandbox.submission, on_pair=on_pair
                )
        except Ungradable as reason:
            return _result(question, "ungradable", str(reason))
        except Exception as error:
            return _result(question, "ungradable", own_mistake(error))


def _tell(failure: CellFailure) -> str:
    return f"cell {failure.cell} {failure.message}"


def _is_blank(failure: CellFailure) -> bool:
    """A question that is answered by data stops its cell while it is blank; its result says so already."""
    return failure.question is not None and failure.message.startswith("stopped with NotImplementedError")


def _load_checks(lesson: Lesson, lab: LabNotebook) -> None:
    with contextlib.suppress(Exception):  # what is wrong with them is told where they are used
        for question in lesson.questions:
            find_check(question.id)
        if any("import torch" in cell.source for cell in lab.cells):
            importlib.import_module("torch")


def _seed_of(seed: int, question: Question) -> int:
    """Each question draws for itself, so that the order of the questions changes nothing."""
    return (seed + int.from_bytes(question.id.encode(), "big")) % 2**63


def _expected_s(questions: Sequence[Question]) -> float:
    if not questions:
        return 0.0
    return _START_S + sum(_QUESTION_S + (_TIMED_S if question.is_timed else 0.0) for question in questions)


def _result(question: Question, status: Status, message: str) -> Result:
    return Result(question.id, status, 0, question.points, message)


def own_mistake(error: Exception) -> str:
    """What a person reads where the course itself has made a mistake."""
    what = f"{type(error).__name__}: {clean(error, 200)}"
    return f"the check itself stopped with {what}. Please report this; it costs you nothing."


def plain(value: Any) -> Any:
    """Evidence as JSON can hold it: NaN and infinities become null."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)
