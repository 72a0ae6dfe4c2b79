"""A lab of three questions that needs no torch and no file of the course."""

import sys
import types
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from accelerando import catalog, submission
from accelerando.grading.labs import LabCell, LabNotebook
from accelerando.submission import LearnerCall, SpeedTask, Submission, Wrong

TINY = catalog.Lesson(
    number=99,
    slug="tiny",
    title="A tiny lab",
    belief="",
    minutes=1,
    needs=(),
    is_built=True,
    questions=(
        catalog.Question("tiny.double", "Twice", 2, time_limit_s=1.5),
        catalog.Question("tiny.total", "The sum", 3, time_limit_s=1.5),
        catalog.Question("tiny.quick", "Quickly", 4, time_limit_s=1.5, threshold=1.5, is_timed=True),
    ),
    masked=("accelerando.costs",),
)

SETUP = "import math\nfrom accelerando.submission import check\n"
DOUBLE = "def double(x):\n    return 2 * x\n"
TOTAL = "def total(values):\n    return sum(values)\n"
QUICK = "def quick(n):\n    return n\n"


def double(sub: Submission, rng: np.random.Generator) -> None:
    for x in rng.integers(100, size=3):
        if sub.double(int(x)) != 2 * x:
            raise Wrong("Expected twice the number.")


def total(sub: Submission, rng: np.random.Generator) -> None:
    values = [int(x) for x in rng.integers(100, size=3)]
    if sub.total(values) != sum(values):
        raise Wrong("Expected the sum of all.")


def quick(sub: Submission, rng: np.random.Generator) -> SpeedTask:
    if sub.quick(3) != 3:
        raise Wrong("Expected the number itself.")
    return SpeedTask(LearnerCall("double", {"x": 1}), LearnerCall("quick", {"n": 1}))


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> catalog.Lesson:
    """The tiny lesson, known to the catalog and to the checks while the test runs."""
    monkeypatch.setattr(catalog, "lessons", lambda: (TINY,))
    monkeypatch.setitem(sys.modules, "accelerando.checks.tiny", types.ModuleType("accelerando.checks.tiny"))
    for function in (double, total, quick):
        name = f"tiny.{function.__name__}"
        monkeypatch.setitem(submission._checks, name, submission.Check(name, function, ()))
    return TINY


def cells(
    double: str = DOUBLE, total: str = TOTAL, quick: str = QUICK, plain: Sequence[str] = (), setup: str = SETUP
) -> tuple[LabCell, ...]:
    """The lab's cells: set-up, plain ones, answers, a test."""
    sources = [("setup", None, "setup", setup), *(("plain", None, f"plain {n}", text) for n, text in enumerate(plain))]
    answers = {"tiny.double": double, "tiny.total": total, "tiny.quick": quick}
    sources += [("solution", question, question, text) for question, text in answers.items()]
    sources += [("test", "tiny.double", "test", "raise SystemError('test cells are not run')")]
    return tuple(LabCell(kind, question, name, text, i) for i, (kind, question, name, text) in enumerate(sources))  # type: ignore[arg-type]


def notebook(*made: LabCell) -> LabNotebook:
    """A notebook that was read from nowhere."""
    return LabNotebook(Path("tiny.ipynb"), made, (), ())
