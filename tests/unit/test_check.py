"""`check` in a learner's kernel, and in nbgrader's, where an error is the only way to withhold points."""

import pytest

from accelerando import cards, catalog, logbook, submission
from accelerando.submission import Result, Status

QUESTION = catalog.find("1").questions[0]


@pytest.fixture(autouse=True)
def _no_card(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cards, "show", lambda result: None)
    monkeypatch.setattr(logbook, "record_practice", lambda result: True)


@pytest.mark.parametrize("status", ["failed", "undecided", "not measurable here", "ungradable"])
def test_nbgrader_gives_no_point_for_what_did_not_pass(monkeypatch: pytest.MonkeyPatch, status: Status) -> None:
    outcome = Result(QUESTION.id, status, 0, QUESTION.points, "so it is")
    monkeypatch.setattr(submission, "judge", lambda *_: outcome)
    monkeypatch.setenv("NBGRADER_EXECUTION", "autograde")
    with pytest.raises(submission.NotYet, match="so it is"):
        submission.check(QUESTION.id)
    monkeypatch.delenv("NBGRADER_EXECUTION")
    if status != "failed":  # a learner's cell goes on: the card says what to do
        submission.check(QUESTION.id)


def test_what_passed_passes_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    outcome = Result(QUESTION.id, "passed", QUESTION.points, QUESTION.points, "right")
    monkeypatch.setattr(submission, "judge", lambda *_: outcome)
    submission.check(QUESTION.id)
    monkeypatch.setenv("NBGRADER_EXECUTION", "autograde")
    submission.check(QUESTION.id)
