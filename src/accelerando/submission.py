"""How a check calls learner code, and what comes of it.

A check is a trusted function that never imports learner code: it calls it, through a `Submission`. There are two:
`LocalSubmission` lives in the learner's own kernel and gives instant feedback; the sandboxed one (``grading.sandbox``)
asks a worker process over a pipe. The same check serves both, and neither shows a held-back input.

A lab's test cell is one line, ``check("scaling.predict_time")``. A lesson's checks are declared like this::

    @grades("scaling.predict_time", wrong=[WrongAnswer("serial and parallel part exchanged", "def predict_time…")])
    def predict_time(sub: Submission, rng: np.random.Generator) -> None:
        found = sub.predict_time(8.0, 5.0, 2, 4)
        if not close(found, expected): raise Wrong("Expected 3.50 s on 4 cores, found 2.00 s. …")
"""

import importlib
import io
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal, NoReturn

import numpy as np

from . import cards, catalog, logbook, wire

if TYPE_CHECKING:
    from .workers import Experiment

Status = Literal["passed", "failed", "undecided", "not measurable here", "ungradable"]
PUBLIC_SEED = 20260  # local feedback draws its inputs from this seed; graded runs from one the learner has not seen


class Wrong(Exception):
    """The answer is wrong; the message is for the learner: symptom, one question, one place to look."""


class NotAnswered(Wrong):
    """The blank is still blank."""

    def __init__(self) -> None:
        super().__init__("not answered yet")


class NotMeasurableHere(Exception):
    """The machine lacks what the question needs; the message says what."""


class Undecided(Exception):
    """What was measured does not tell right from wrong; the message says between what, and what to do."""


class Ungradable(Exception):
    """Something that is not the learner's fault kept the question from being graded."""


@dataclass(frozen=True)
class WrongAnswer:
    """A plausible mistake, kept beside its check: it must lose that question and no other."""

    mistake: str
    code: str  # replaces the source of the question's solution cell


@dataclass(frozen=True)
class LearnerCall:
    """A call of the learner's own function, timed from outside its process, sending and receiving included."""

    function: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    takes_seed: bool = False  # every run gets another ``seed``, so that no answer can be kept for the next one
    is_probe: bool = False  # ``function`` names a probe, ``lesson.name``, which drives the learner's function


@dataclass(frozen=True)
class SpeedTask:
    """What a timed question asks the grader to run; returned by its check once the untimed part is right.

    Both sides run interleaved on equal cores. A trusted `Experiment` returns ``{"seconds": float, "predictions":
    int64 (N,)}`` and takes a ``seed`` argument that the grader varies; one that prepares returns such a function, and
    what it starts stays up between the runs. A `LearnerCall` returns the predictions and is timed by the grader's
    clock. The announced threshold and the accuracy margin stand in the catalog.
    """

    baseline: "Experiment | LearnerCall"
    candidate: "Experiment | LearnerCall"
    labels: np.ndarray | None = (
        None  # int64 (N,): the right classes of the held-out images; None: accuracy plays no part
    )
    summary: str = ""  # what the learner chose, in a few words, for the report
    examine: Callable[[Any, int], None] | None = None
    """Told what each timed call of the candidate returned, and its seed; raises `Wrong` when that is no answer."""


@dataclass(frozen=True)
class Result:
    """What came of one question."""

    question: str
    status: Status
    points: int
    maximum: int
    message: str
    evidence: Mapping[str, Any] = field(default_factory=dict)


CheckFunction = Callable[["Submission", np.random.Generator], SpeedTask | None]


@dataclass(frozen=True)
class Check:
    """A registered check with the wrong answers it must catch."""

    question: str
    function: CheckFunction
    wrong: tuple[WrongAnswer, ...]


_checks: dict[str, Check] = {}


def grades(question_id: str, *, wrong: Sequence[WrongAnswer] = ()) -> Callable[[CheckFunction], CheckFunction]:
    """Declare the decorated function the check of a catalog question, with the mistakes it must catch."""

    def register(function: CheckFunction) -> CheckFunction:
        catalog.question(question_id)
        _checks[question_id] = Check(question_id, function, tuple(wrong))
        return function

    return register


def find_check(question_id: str) -> Check:
    """The check of a catalog question; imports the lesson's checks when they are first asked for.

    Raises:
        ValueError: If the catalog has no such question.
    """
    catalog.question(question_id)
    importlib.import_module(f"{__package__}.checks.{question_id.partition('.')[0]}")
    return _checks[question_id]


def import_probe(name: str) -> Callable[..., Any]:
    """The trusted probe ``lesson.function`` of the package ``probes``, which runs beside the learner's code.

    Raises:
        Ungradable: If there is none, which is the course's fault and not the learner's.
    """
    module, _, function = name.partition(".")
    try:
        return getattr(importlib.import_module(f"{__package__}.probes.{module}"), function)
    except (ImportError, AttributeError) as error:
        raise Ungradable(f"the course has no probe {name!r}: {error}") from None


class Submission(ABC):
    """The learner's answers as a check sees them. ``sub.predict_time(8.0, 5.0)`` calls the learner's function."""

    @abstractmethod
    def call(self, function: str, *arguments: Any, **named: Any) -> Any:
        """Call a learner's function. Arguments and result are limited to what `wire` can carry.

        Raises:
            NotAnswered: If it raises NotImplementedError, as every blank does.
            Wrong: If it is missing, raises, takes too long, or returns what cannot be sent.
        """

    @abstractmethod
    def value(self, name: str) -> Any:
        """The learner's variable of that name; raises as `call` does."""

    @abstractmethod
    def probe(self, name: str, **arguments: Any) -> Any:
        """Run the trusted probe ``lesson.function`` inside the learner's process; raises as `call` does.

        A probe counts what cannot be sent (hooks, parameters, bytes saved for backward). Code in the same process can
        lie to it, so a check that uses one compares values too.
        """

    def __getattr__(self, function: str) -> Callable[..., Any]:
        """Make ``sub.name(…)`` mean ``sub.call("name", …)``."""
        if function.startswith("_"):
            raise AttributeError(function)
        return lambda *arguments, **named: self.call(function, *arguments, **named)


class LocalSubmission(Submission):
    """The answers in the learner's own kernel."""

    def __init__(self, namespace: Mapping[str, Any]) -> None:
        """Look names up in ``namespace``, the kernel's globals."""
        self._namespace = namespace

    def call(self, function: str, *arguments: Any, **named: Any) -> Any:
        return run_learner_code(self._namespace, function, list(arguments), named)

    def value(self, name: str) -> Any:
        return through_wire(look_up(self._namespace, name), name)

    def probe(self, name: str, **arguments: Any) -> Any:
        return run_probe(self._namespace, name, arguments)


def look_up(namespace: Mapping[str, Any], name: str) -> Any:
    """The learner's object of that name.

    Raises:
        Wrong: If it is not there.
    """
    if name not in namespace:
        raise Wrong(f"`{name}` is not defined. Was its cell deleted, renamed, or did it stop with an error?")
    return namespace[name]


def look_up_function(namespace: Mapping[str, Any], name: str) -> Callable[..., Any]:
    """The learner's function of that name.

    Raises:
        Wrong: If it is not there, or cannot be called.
    """
    found = look_up(namespace, name)
    if not callable(found):
        raise Wrong(f"`{name}` should be a function, but is of type {type(found).__name__}.")
    return found


def run_learner_code(namespace: Mapping[str, Any], function: str, arguments: list, named: dict) -> Any:
    """Call a learner's function with copies of the arguments; shared by the kernel and the sandboxed worker.

    Raises:
        NotAnswered: If it raises NotImplementedError.
        Wrong: If it is missing, not callable, raises, or returns what cannot be sent.
    """
    target = look_up_function(namespace, function)
    arguments, named = through_wire([arguments, named], "the arguments")
    try:
        value = target(*arguments, **named)
    except Exception as error:
        _explain(function, error)
    return through_wire(value, f"the result of `{function}`")


def run_probe(namespace: Mapping[str, Any], name: str, arguments: dict) -> Any:
    """Run a probe over the learner's namespace; errors are told as the learner's own."""
    probe = import_probe(name)
    try:
        return probe(namespace, **arguments)
    except Wrong:
        raise
    except Exception as error:
        _explain(name.partition(".")[2], error)


def through_wire(value: Any, what: str) -> Any:
    """A copy of ``value`` as it looks on the other side of a pipe, so that local and graded runs agree.

    Raises:
        Wrong: If it cannot be sent; says what was found.
    """
    stream = io.BytesIO()
    try:
        wire.write_message(stream, value)
        stream.seek(0)
        return wire.read_message(stream)
    except wire.WireError as error:
        raise Wrong(f"{what} cannot be read: {error}") from None


def _explain(function: str, error: Exception) -> NoReturn:
    if isinstance(error, NotImplementedError):
        raise NotAnswered from None
    place, trace = "", error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_name == function:
            place = f" in line {trace.tb_lineno - trace.tb_frame.f_code.co_firstlineno + 1} of `{function}`"
        trace = trace.tb_next
    text = str(error).splitlines()[0][:200] if str(error) else ""
    raise Wrong(f"{type(error).__name__}{place}: {text}" if text else f"{type(error).__name__}{place}.") from None


def is_same(found: Any, expected: Any) -> bool:
    """Whether a learner's value equals a plain expected one; an array, without one answer to ``==``, does not."""
    try:
        return bool(found == expected)
    except Exception:  # numpy and torch raise different ones
        return False


def judge(question_id: str, submission: Submission, seed: int) -> Result | SpeedTask:
    """Run a question's check.

    Args:
        question_id: As in the catalog.
        submission: Whose answers.
        seed: Of the inputs drawn; secret in graded runs.

    Returns:
        The result, or the `SpeedTask` still to be run when everything but the speed is right.
    """
    question = catalog.question(question_id)

    def result(status: Status, message: str) -> Result:
        points = question.points if status == "passed" else 0
        return Result(question_id, status, points, question.points, message)

    try:
        task = find_check(question_id).function(submission, np.random.default_rng(seed))
    except Wrong as wrong:
        return result("failed", str(wrong))
    except NotMeasurableHere as reason:
        return result("not measurable here", str(reason))
    except Undecided as reason:
        return result("undecided", str(reason))
    except Ungradable as reason:
        return result("ungradable", str(reason))
    return task if isinstance(task, SpeedTask) else result("passed", "right")


class NotYet(Exception):
    """Ends a test cell whose question is not answered. The card has said why, so one line stands for the traceback."""

    def _render_traceback_(self) -> list[str]:
        return ["Not yet: the card above says why."]


def check(question_id: str) -> None:
    """Grade one question in this kernel and show a card; the last line of a lab's test cell.

    Raises:
        NotYet: If points are missing, so that nbgrader sees it too. It shows as one line.
    """
    main: ModuleType = sys.modules["__main__"]
    outcome = judge(question_id, LocalSubmission(vars(main)), PUBLIC_SEED)
    if isinstance(outcome, SpeedTask):
        outcome = _untimed(question_id)
    logbook.record_practice(outcome)
    cards.show(outcome)
    # nbgrader knows points and errors only: what is not decided, or not measured here, must not earn a point there.
    is_graded = os.environ.get("NBGRADER_EXECUTION") == "autograde"
    if outcome.status == "failed" or (is_graded and outcome.status != "passed"):
        raise NotYet(outcome.message)


def _untimed(question_id: str) -> Result:
    """What a kernel can say of a timed question: speed is judged by ``./course``, on a quiet machine."""
    question = catalog.question(question_id)
    lab = catalog.find(question_id.partition(".")[0]).number
    command = f"check {lab}" if lab else "assess"
    how = f"`./course {command}` in a terminal measures it"
    return Result(question_id, "undecided", 0, question.points, f"Valid. Its speed is not measured here: {how}.")
