"""The report in a terminal: what a learner reads at 80 columns."""

import io

import pytest
from rich.console import Console

from accelerando import catalog
from accelerando.grading.report import print_report
from accelerando.grading.score import Report
from accelerando.submission import Result, Status

QUESTIONS = catalog.find("scaling").questions
HINT = "Expected the cores [4, 5] for rank 1, found [4, 5, 6]. Do the shares overlap? " * 3


def printed(width: int, *outcomes: tuple[Status, str]) -> list[str]:
    results = tuple(
        Result(question.id, status, question.points if status == "passed" else 0, question.points, message)
        for question, (status, message) in zip(QUESTIONS, outcomes, strict=False)
    )
    stream = io.StringIO()
    console = Console(file=stream, width=width, highlight=False)
    print_report(Report("01_scaling", "Lab 1", "lab.ipynb", results, (), "isolated by bubblewrap", 3.0), console)
    return [line.rstrip() for line in stream.getvalue().splitlines()]


@pytest.mark.parametrize(("width", "used"), [(80, 70), (200, 85)])
def test_a_hint_has_the_width_of_the_terminal_and_no_line_is_too_long_to_read(width: int, used: int) -> None:
    lines = printed(width, ("failed", HINT))
    hint = [line for line in lines if line.startswith("  ")]
    assert " ".join(" ".join(hint).split()) == HINT.strip()
    assert all(used <= len(line) <= min(width, 100) for line in hint[:-1])


def test_each_question_stands_on_a_line_with_its_points() -> None:
    lines = printed(80, ("passed", "right"), ("failed", "not answered yet"), ("undecided", "grade again"))
    titles = [question.title for question in QUESTIONS[:3]]
    heads = [next(line for line in lines if title in line) for title in titles]
    assert [line[0] for line in heads] == ["✓", "✗", "…"]
    assert [line.split()[-1] for line in heads] == ["3/3", "0/3", "open"]
    assert heads[2].split()[-3:] == ["undecided", "3", "open"]
    assert lines[-1].startswith("3 of 9 points, 3 still open")
    assert lines[lines.index(heads[1]) + 1] == "  not answered yet"
    assert "right" not in [line.strip() for line in lines]  # the sign says so
