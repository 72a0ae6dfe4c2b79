"""A notebook's points, warnings and exit code, whatever stands in its cells."""

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tiny_lab import TINY, cells, notebook, tiny  # noqa: F401

from accelerando import catalog, submission
from accelerando.grading import command, score
from accelerando.grading.labs import LabCell
from accelerando.grading.sandbox import Limits
from accelerando.submission import Result, SpeedTask, Submission, Wrong

pytestmark = pytest.mark.usefixtures("tiny")
LIMITS = Limits(cell_s=1.5, total_s=60)


def fast_enough(task: SpeedTask, question: catalog.Question, *, seed: int, **more: Any) -> Result:
    return Result(
        question.id, "passed", question.points, question.points, "2.00 times as fast", {"ratio": float("nan")}
    )


def grade(*made: LabCell, run_speed: score.RunSpeed = fast_enough, seed: int | None = None) -> score.Report:
    return score.grade(
        Path("tiny.ipynb"),
        TINY,
        run_speed=run_speed,
        limits=LIMITS,
        read=lambda path, lesson: notebook(*made),
        seed=seed,
    )


def by_question(report: score.Report) -> dict[str, Result]:
    return {result.question: result for result in report.results}


def test_right_answers_earn_every_point() -> None:
    report = grade(*cells())
    assert [result.status for result in report.results] == ["passed"] * 3
    assert (report.points, report.maximum, report.exit_code) == (9, 9, 0)
    assert report.warnings == ()


def test_a_wrong_answer_loses_its_own_points_only() -> None:
    report = grade(*cells(total="def total(values):\n    return max(values)\n"))
    assert (report.points, report.maximum, report.exit_code) == (6, 9, 1)
    assert by_question(report)["tiny.total"].message == "Expected the sum of all."


def test_blanks_earn_nothing_and_say_so() -> None:
    blanks = {q: f"def {q}(x):\n    raise NotImplementedError()\n" for q in ("double", "total", "quick")}
    report = grade(*cells(**blanks))
    assert report.points == 0
    assert {result.message for result in report.results} == {"not answered yet"}


@pytest.mark.parametrize(
    ("total", "message"),
    [
        (
            "def total(values)\n    return sum(values)\n",
            "cell tiny.total stopped with SyntaxError in line 1: expected ':'",
        ),
        ("while True:\n    pass", "cell tiny.total took longer than 1.5 s"),
        ("import os\nos._exit(1)", "cell tiny.total ended its own process (exit code 1), as `os._exit` does"),
    ],
)
def test_a_cell_that_does_not_come_to_its_end_says_why_at_its_question(total: str, message: str) -> None:
    report = grade(*cells(total=total))
    assert by_question(report)["tiny.total"] == Result("tiny.total", "failed", 0, 3, message)
    assert report.points == 6
    assert report.warnings == ()  # said once, where it matters


def test_a_broken_plain_cell_is_a_note_and_costs_nothing() -> None:
    report = grade(*cells(plain=["1 / 0"]))
    assert report.points == 9
    assert report.warnings == ("cell plain 0 stopped with ZeroDivisionError in line 1: division by zero",)


def test_graded_inputs_differ_from_run_to_run_and_repeat_with_a_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []

    def look(sub: Submission, rng: Any) -> None:
        seen.append(int(rng.integers(2**62)))

    monkeypatch.setitem(submission._checks, "tiny.double", submission.Check("tiny.double", look, ()))
    for seed in (None, None, 7, 7):
        grade(*cells(), seed=seed)
    assert len(set(seen)) == 3
    assert seen[2] == seen[3]
    monkeypatch.setattr(submission, "PUBLIC_SEED", 7)


def test_a_mistake_of_a_check_is_ungradable_and_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(sub: Submission, rng: Any) -> None:
        raise KeyError("ours")

    monkeypatch.setitem(submission._checks, "tiny.double", submission.Check("tiny.double", broken, ()))
    report = grade(*cells())
    assert by_question(report)["tiny.double"].status == "ungradable"
    assert (report.points, report.exit_code) == (7, 2)


@pytest.mark.parametrize(
    ("statuses", "code"),
    [
        (("passed", "passed"), 0),
        (("passed", "failed"), 1),
        (("undecided", "failed"), 1),
        (("ungradable", "failed"), 1),
        (("ungradable", "undecided"), 2),
        (("passed", "undecided"), 3),
        (("passed", "not measurable here"), 3),
    ],
)
def test_exit_codes_follow_the_contract(statuses: tuple[Any, ...], code: int) -> None:
    results = tuple(Result("tiny.double", s, 2 if s == "passed" else 0, 2, "") for s in statuses)
    assert score.Report("99_tiny", "", "", results, (), "", 0.0).exit_code == code


@pytest.fixture
def tiny_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Path]:
    """Make ``check_lab`` find a tiny notebook with these cells."""

    def make(*made: LabCell) -> Path:
        real = score.grade
        options: dict[str, Any] = {
            "run_speed": fast_enough,
            "limits": LIMITS,
            "read": lambda p, lesson: notebook(*made),
        }
        monkeypatch.setattr(score, "grade", lambda path, lesson, **more: real(path, lesson, **more, **options))
        path = tmp_path / "tiny.ipynb"
        path.touch()
        return path

    return make


def test_the_command_prints_a_line_per_question(
    tiny_file: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    made = cells(total="def total(values):\n    raise ValueError('[bold]\\x1b[31m[/nonsense]')\n")
    assert command.check_lab("99", tiny_file(*made), False, False) == 1
    printed = capsys.readouterr().out
    assert "✗" in printed
    assert "[bold][/nonsense]" in printed
    assert "6 of 9 points" in printed
    assert "isolated" in printed


@pytest.mark.parametrize("as_json", [False, True])
def test_what_a_check_quotes_from_an_answer_cannot_write_to_the_terminal(
    as_json: bool, tiny_file: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, capsysbinary: Any
) -> None:
    def quotes(sub: Submission, rng: Any) -> None:
        raise Wrong(f"Expected 3, found {sub.double(1)}.")

    monkeypatch.setitem(submission._checks, "tiny.double", submission.Check("tiny.double", quotes, ()))
    made = cells(double="def double(x):\n    return '\\ud800\\x1b[2J' + 'x' * 10**6\n")
    assert command.check_lab("99", tiny_file(*made), False, as_json) == 1
    printed = capsysbinary.readouterr().out.decode("utf-8")
    assert "Expected 3, found xxx" in " ".join(printed.split())
    assert "\x1b" not in printed
    assert len(printed) < 20_000


def test_json_is_json_and_nothing_else(tiny_file: Callable[..., Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert command.check_lab("tiny", tiny_file(*cells(plain=["print('noise')"])), False, True) == 0
    content = json.loads(capsys.readouterr().out)
    assert (content["schema"], content["lab"], content["points"], content["exit_code"]) == (1, "99_tiny", 9, 0)
    assert [row["status"] for row in content["results"]] == ["passed"] * 3
    assert content["results"][2]["evidence"] == {"ratio": None}


@pytest.mark.parametrize("as_json", [False, True])
def test_what_cannot_be_graded_is_said_in_a_sentence(as_json: bool, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.check_lab("nonsense", None, False, as_json) == 2
    out, err = capsys.readouterr()
    assert "there is no lab 'nonsense'" in (json.loads(out)["error"] if as_json else err)
    assert "Traceback" not in out + err


def test_our_own_mistake_is_one_sentence(
    tiny_file: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tiny_file(*cells())
    monkeypatch.setattr(score, "grade", lambda *arguments, **named: 1 / 0)
    assert command.check_lab("99", path, False, False) == 2
    err = capsys.readouterr().err
    assert "ZeroDivisionError: division by zero (test_score.py, line" in err
    assert "Traceback" not in err


def test_only_the_learners_own_file_is_recorded(
    tiny_file: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    recorded: list[Any] = []
    monkeypatch.setattr(command.logbook, "record_graded", recorded.append)
    path = tiny_file(*cells())
    monkeypatch.setenv("ACCELERANDO_WORK", str(tmp_path / "elsewhere"))
    command.check_lab("99", path, False, False)
    assert recorded == []
    monkeypatch.setenv("ACCELERANDO_WORK", str(tmp_path))
    command.check_lab("99", path, False, False)
    assert [result.status for result in recorded[0]] == ["passed"] * 3


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_ends_the_command_with_its_code(
    tiny_file: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, number: signal.Signals, code: int
) -> None:
    def interrupted(sub: Submission, rng: Any) -> None:
        signal.raise_signal(number)

    monkeypatch.setitem(submission._checks, "tiny.double", submission.Check("tiny.double", interrupted, ()))
    before = signal.getsignal(signal.SIGTERM)
    assert command.check_lab("99", tiny_file(*cells()), False, False) == code
    assert signal.getsignal(signal.SIGTERM) is before
