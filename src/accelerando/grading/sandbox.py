"""The grader's side of a learner's worker: starts it, runs the notebook's cells in it, asks it, and ends it.

Everything here assumes that the other side may loop, print without end, eat the memory, fork, die or lie. Each of these
ends as a sentence about one cell or one question. Use it from the main thread, as `process` says.
"""

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol, Self

from .. import catalog, wire
from ..submission import NotAnswered, Submission, Ungradable, Wrong
from . import isolation
from .process import Gone, Limits, WorkerProcess

__all__ = ["Cell", "CellFailure", "Limits", "Sandbox", "SandboxedSubmission", "clean"]


class Cell(Protocol):
    """What the sandbox needs of a notebook's cell; see `notebooks.LabCell`."""

    @property
    def kind(self) -> str:
        """``setup``, ``solution``, ``test`` or ``plain``."""

    @property
    def question(self) -> str | None:
        """The question that a solution cell answers."""

    @property
    def name(self) -> str:
        """What a person calls the cell."""

    @property
    def source(self) -> str:
        """Its code."""


@dataclass(frozen=True)
class CellFailure:
    """Why a cell did not come to its end."""

    cell: str
    question: str | None
    message: str  # a sentence without the cell's name
    is_slow: bool = False  # it was ended at its limit


class SandboxedSubmission(Submission):
    """The answers in a worker process. Calls cost the question's time, the grader's own thinking does not."""

    def __init__(self, sandbox: "Sandbox") -> None:
        """Ask through ``sandbox``, which knows the question at hand."""
        self._sandbox = sandbox

    def call(self, function: str, *arguments: Any, **named: Any) -> Any:
        return self._sandbox._ask(function, "call", arguments=list(arguments), named=named)

    def value(self, name: str) -> Any:
        return self._sandbox._ask(name, "value")

    def probe(self, name: str, **arguments: Any) -> Any:
        return self._sandbox._ask(name, "probe", named=arguments)


class Sandbox:
    """A notebook's worker, made anew when a cell or a call kills it. A context manager: nothing is left behind."""

    def __init__(
        self,
        cells: Sequence[Cell],
        *,
        masked: Sequence[str] = (),
        limits: Limits | None = None,
        choice: isolation.Choice = "auto",
        on_step: Callable[[str], None] = lambda doing: None,
    ) -> None:
        """Prepare; nothing is started yet.

        Args:
            cells: Of the notebook, in order; test cells are not run, set-up cells come first.
            masked: Modules that the learner's code must not reach.
            limits: Of time, memory and output.
            choice: ``plain`` does without bubblewrap even where it works.
            on_step: Told what is being done, in a few words.
        """
        runnable = [cell for cell in cells if cell.kind != "test" and cell.source.strip()]
        self._cells = sorted(runnable, key=lambda cell: cell.kind != "setup")
        self._masked, self._limits, self._choice, self._on_step = masked, limits or Limits(), choice, on_step
        self._worker: WorkerProcess | None = None
        self._failures: dict[int, CellFailure] = {}
        self._deadly: set[int] = set()
        self._left_s = 0.0
        self._ends_s: float | None = None  # of the notebook's time, which begins with the first question
        self._output = ""
        self.isolation = isolation.describe(choice)
        self.submission = SandboxedSubmission(self)

    def __enter__(self) -> Self:
        """The sandbox itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End whatever still runs."""
        self.close()

    @property
    def failures(self) -> tuple[CellFailure, ...]:
        """Cells that did not come to their end, in order."""
        return tuple(self._failures[place] for place in sorted(self._failures))

    @property
    def output(self) -> str:
        """What the learner's code printed: the beginning and the end."""
        return self._worker.output if self._worker else self._output

    def begin(self, question: catalog.Question | None, limit_s: float | None = None) -> None:
        """Get ready for a question: a running worker that holds the notebook's names, and a full clock.

        Raises:
            Ungradable: If no worker can be had, or the notebook's total time is used up.
        """
        if self._ends_s is None:
            self._ends_s = time.monotonic() + self._limits.total_s
        if self._worker is None:
            self._worker = self._run_cells()
        self._left_s = limit_s if limit_s is not None else question.time_limit_s if question else self._limits.cell_s
        if limit_s is not None:  # what is timed may have waited for its turn, which is no time of the notebook's
            self._ends_s = max(self._ends_s, time.monotonic() + limit_s)

    def failure_of(self, question_id: str) -> CellFailure | None:
        """What went wrong in the cell that answers this question, if something did."""
        return next((failure for failure in self.failures if failure.question == question_id), None)

    def close(self) -> None:
        """End the worker; a later `begin` would start another."""
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.close()
            self._output = worker.output

    def _run_cells(self) -> WorkerProcess:
        """Start workers until one has run every cell that does not kill it."""
        starts_left = 2
        while True:
            worker = None
            try:
                worker = WorkerProcess(self._masked, self._limits, self._choice)
                place = self._run_cells_in(worker)
            except BaseException:
                if worker is not None:
                    worker.close()
                raise
            if place is None:
                return worker
            starts_left -= place < 0
            if not starts_left:
                why = f"the worker did not start: it {self._failures.pop(-1).message}"
                raise Ungradable(f"{why}. It said: {clean(worker.output[-300:]) or 'nothing'}")

    def _run_cells_in(self, worker: WorkerProcess) -> int | None:
        """None when all is done, else the place of the cell that killed the worker; -1 when it did not even start."""
        self._on_step("starting the worker")
        try:
            worker.exchange({"do": "cell", "name": "start", "source": ""}, self._limits.start_s)
        except Gone as gone:
            self._failures[-1] = CellFailure("start", None, str(gone))
            return -1
        for place, cell in enumerate(self._cells):
            if place in self._deadly:
                continue
            self._on_step(f"running cell {cell.name}")
            try:
                reply = worker.exchange({"do": "cell", "name": cell.name, "source": cell.source}, self._limit_of(cell))
            except Gone as gone:
                self._deadly.add(place)
                self._fail(place, cell, str(gone), is_slow=gone.is_slow)
                return place
            if "error" in reply:
                where = f" in line {reply['line']}" if isinstance(reply.get("line"), int) else ""
                said = f": {clean(reply.get('message', ''))}" if reply.get("message") else ""
                self._fail(place, cell, f"stopped with {clean(reply['error'])}{where}{said}")
            else:
                self._failures.pop(place, None)
        return None

    def _fail(self, place: int, cell: Cell, message: str, *, is_slow: bool = False) -> None:
        if cell.kind == "setup":
            raise Ungradable(f"the lab's own set-up cell {cell.name} {message}")
        self._failures[place] = CellFailure(cell.name, cell.question, message, is_slow)

    def _limit_of(self, cell: Cell) -> float:
        own_s = self._limits.cell_s
        if cell.question:
            own_s = self._limits.answer_s or catalog.question(cell.question).time_limit_s
        return min(own_s, self._total_left_s())

    def _total_left_s(self) -> float:
        left_s = self._limits.total_s if self._ends_s is None else self._ends_s - time.monotonic()
        if left_s > 0:
            return left_s
        slow = ", ".join(failure.cell for failure in self.failures if failure.is_slow)
        hint = f" Look at {slow} first." if slow else ""
        raise Ungradable(f"not reached: the notebook used up its {self._limits.total_s:.3g} s.{hint}")

    def _ask(self, name: str, do: str, **more: Any) -> Any:
        """One request of a check.

        Raises:
            NotAnswered: As the learner's function does.
            Wrong: Whatever else went wrong on the other side.
            Ungradable: If the total time is used up.
        """
        what = f"`{name.partition('.')[2] or name}`"
        if self._worker is None:
            raise Wrong(f"{what} could not be asked: an earlier call had ended the worker.")
        total_left_s = self._total_left_s()
        started_s = time.monotonic()
        try:
            reply = self._worker.exchange({"do": do, "name": name, **more}, max(0.05, min(self._left_s, total_left_s)))
        except wire.WireError as error:
            raise Ungradable(f"the check sent what cannot be sent: {error}") from None
        except Gone as gone:
            self.close()
            kind = TookTooLong if gone.is_slow else Wrong
            raise kind(f"{what} {gone}. {_advice(gone)}".strip()) from None
        self._left_s -= time.monotonic() - started_s
        if reply.get("not_answered"):
            raise NotAnswered
        if "value" in reply:
            return reply["value"]
        raise Wrong(clean(reply.get("wrong", f"{what} gave no answer.")))


class TookTooLong(Wrong):
    """A call did not end in time: the learner's mistake, unless others kept the machine busy."""


_CONTROL = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]|[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)


def clean(text: object, most: int = 600) -> str:
    """Text from the other side, fit for a terminal: no control characters or half surrogates, one line, not endless."""
    plain = " ".join(_CONTROL.sub("", str(text)[: 4 * most]).split())
    return plain if len(plain) <= most else f"{plain[:most]} …"


def _advice(gone: Gone) -> str:
    if gone.is_slow:
        return "Is there a loop that does not end?"
    if "memory" in str(gone):
        return "What does it keep that it no longer needs?"
    return ""
