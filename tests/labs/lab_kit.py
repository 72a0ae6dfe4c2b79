"""Any answers to a built lab, graded in this process; timed questions run by a fake clock."""

import contextlib
import io
import linecache
import warnings
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import fakes
import numpy as np

from accelerando import catalog, noise, work
from accelerando.catalog import Lesson, Question
from accelerando.grading import speed
from accelerando.grading.labs import LabNotebook, read_lab
from accelerando.submission import (
    PUBLIC_SEED,
    LearnerCall,
    LocalSubmission,
    Result,
    SpeedTask,
    Submission,
    WrongAnswer,
    find_check,
    judge,
)
from accelerando.workers import Experiment

BUILT = tuple(lesson for lesson in catalog.lessons() if lesson.is_built)
SEEDS = (PUBLIC_SEED, 7)


@cache
def solution(lesson: Lesson) -> LabNotebook:
    """The course's own answers."""
    return read_lab(work.checkout() / "solutions" / lesson.folder / f"{lesson.folder}.ipynb", lesson)


@cache
def blank(lesson: Lesson) -> LabNotebook:
    """The lab as it is handed out."""
    return read_lab(work.checkout() / "labs" / lesson.folder / f"{lesson.folder}.ipynb", lesson)


@dataclass(frozen=True)
class Answers:
    """A lab's names after its cells ran, and what was said meanwhile."""

    namespace: dict[str, Any]
    said: str  # on stdout and stderr, warnings too


def run_cells(lab: LabNotebook, replace: dict[str, str] | None = None) -> Answers:
    """Run set-up and answers as a kernel would: a cell that raises does not stop the next one.

    Args:
        lab: Whose cells.
        replace: Question id -> source to run instead of its answer.
    """
    namespace: dict[str, Any] = {"__name__": "__main__"}
    with _overheard() as said:
        for cell in lab.cells:
            if cell.kind == "test":
                continue
            source = (replace or {}).get(cell.question or "", cell.source)
            with contextlib.suppress(Exception):
                file = f"<cell {cell.name}, {hash(source)}>"
                linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)  # as a kernel does
                exec(compile(source, file, "exec"), namespace)
    return Answers(namespace, said.getvalue())


def grade(lesson: Lesson, answers: Answers, seed: int = PUBLIC_SEED) -> dict[str, Result]:
    """Every question's result; timed ones by the fake clock."""
    submission = LocalSubmission(answers.namespace)
    return {question.id: grade_one(question, submission, seed) for question in lesson.questions}


def grade_one(question: Question, submission: Submission, seed: int) -> Result:
    """One question's result."""
    outcome = judge(question.id, submission, seed)
    return fake_speed(outcome, question, seed=seed) if isinstance(outcome, SpeedTask) else outcome


def fake_speed(task: SpeedTask, question: Question, *, seed: int, **more: Any) -> Result:
    """`speed.run` on a calm machine whose clock is what stands in ``fakes/``; what was predicted is real."""

    @contextmanager
    def open_side(
        what: Experiment | LearnerCall, seeds: Sequence[int], submission: Submission | None
    ) -> Iterator[speed.Side]:
        fake = fakes.runs()[question.id](what)
        predictions = None if task.labels is None else _predict(task.labels, fake.accuracy)

        def side(limit_s: float) -> speed.Run:
            nonlocal now_s
            now_s += fake.seconds
            return speed.Run(fake.seconds, predictions)

        yield side

    now_s = 0.0
    return speed.run(task, question, seed=seed, open_side=open_side, watch=_calm, clock=lambda: now_s)


def _predict(labels: np.ndarray, accuracy: float) -> np.ndarray:
    """Classes of which this share is right."""
    predictions = labels.copy()
    wrong = round(len(labels) * (1 - accuracy))
    predictions[:wrong] += 1
    return predictions


def _calm() -> AbstractContextManager[noise.Watch]:
    watch = noise.Watch()
    watch.state = noise.MachineState(0.0, 0.0, 0.0, False, None)
    return contextlib.nullcontext(watch)


@contextmanager
def _overheard() -> Iterator[io.StringIO]:
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said), warnings.catch_warnings():
        warnings.simplefilter("always")
        yield said


def wrong_answers() -> list[tuple[Lesson, Question, WrongAnswer]]:
    """Every mistake that is kept beside a check."""
    return [
        (lesson, question, wrong)
        for lesson in BUILT
        for question in lesson.questions
        for wrong in find_check(question.id).wrong
    ]
