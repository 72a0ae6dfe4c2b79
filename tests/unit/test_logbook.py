"""The record of what was passed: kept, shared by kernels, never in the way of a cell."""

import fcntl
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from accelerando import catalog, logbook, work
from accelerando.submission import Result, Status

LESSON = catalog.find("scaling")
QUESTION = LESSON.questions[0]
TIMED = next(question for question in LESSON.questions if question.is_timed)


def result(status: Status, question: catalog.Question = QUESTION) -> Result:
    return Result(question.id, status, question.points if status == "passed" else 0, question.points, "a sentence")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The learner's folder, in which the kernel stands."""
    monkeypatch.setenv(work.ENVIRONMENT_NAME, str(tmp_path))
    monkeypatch.delenv("NBGRADER_EXECUTION", raising=False)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    tmp_path.chmod(0o755)


def lab() -> logbook.LabProgress:
    return logbook.progress()[0]


def test_nothing_recorded_is_nothing_passed(folder: Path) -> None:
    progress = logbook.progress()
    assert [entry.lesson for entry in progress] == list(catalog.lessons())
    assert all(entry.points("practised") == entry.points("graded") == 0 for entry in progress)


def test_practice_and_grading_are_counted_apart(folder: Path) -> None:
    assert logbook.record_practice(result("passed"))
    assert (lab().points("practised"), lab().points("graded")) == (QUESTION.points, 0)
    logbook.record_graded([result("passed", question) for question in LESSON.questions])
    assert (lab().points("practised"), lab().points("graded")) == (QUESTION.points, LESSON.points)


def test_a_pass_is_kept_when_a_later_try_fails(folder: Path) -> None:
    logbook.record_practice(result("passed"))
    first = lab().questions[0].practised
    logbook.record_practice(result("failed"))
    later = lab().questions[0].practised
    assert first is not None
    assert later is not None
    assert (later.status, later.passed_at) == ("failed", first.passed_at)
    assert lab().points("practised") == QUESTION.points


def test_undecided_and_failed_give_no_points(folder: Path) -> None:
    for status in ("failed", "undecided", "not measurable here", "ungradable"):
        logbook.record_practice(result(status))  # type: ignore[arg-type]
        assert lab().points("practised") == 0


def test_a_valid_timed_answer_is_all_a_kernel_can_say(folder: Path) -> None:
    for question in LESSON.questions:
        logbook.record_practice(result("undecided" if question is TIMED else "passed", question))
    assert lab().is_practised
    logbook.record_practice(result("failed", TIMED))
    assert not lab().is_practised


def test_what_cannot_be_measured_here_is_settled_when_graded(folder: Path) -> None:
    logbook.record_graded(
        [result("not measurable here" if question is TIMED else "passed", question) for question in LESSON.questions]
    )
    assert lab().is_settled
    logbook.record_graded([result("undecided", TIMED)])
    assert not lab().is_settled


def test_nbgrader_and_other_folders_are_not_practice(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    monkeypatch.setenv("NBGRADER_EXECUTION", "autograde")
    assert not logbook.record_practice(result("passed"))
    monkeypatch.delenv("NBGRADER_EXECUTION")
    monkeypatch.chdir(tmp_path_factory.mktemp("classroom"))
    assert not logbook.record_practice(result("passed"))
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize(
    "damage",
    [
        "",
        "{]",
        "[]",
        "null",
        '{"schema": 99, "questions": {}}',
        '{"schema": 1}',
        '{"schema": 1, "questions": {"scaling.quiz": {"practised": {"status": "passed"}}}}',
        '{"schema": 1, "questions": {"scaling.quiz": {"guessed": {}}}}',
        '{"schema": 1, "questions": []}',
        "\udcff",
    ],
)
def test_a_damaged_record_is_set_aside_and_a_new_one_begun(folder: Path, damage: str) -> None:
    path = folder / "progress.json"
    path.write_bytes(damage.encode("utf-8", "surrogateescape"))
    assert lab().points("practised") == 0
    assert path.exists(), "reading moves nothing"
    assert logbook.record_practice(result("passed"))
    assert lab().points("practised") == QUESTION.points
    [aside] = logbook.damaged_files()
    assert aside.read_bytes() == damage.encode("utf-8", "surrogateescape")


def test_questions_the_catalog_no_longer_has_are_kept_and_not_shown(folder: Path) -> None:
    logbook.record_practice(result("passed"))
    record = json.loads((folder / "progress.json").read_text())
    record["questions"]["scaling.renamed"] = record["questions"][QUESTION.id]
    (folder / "progress.json").write_text(json.dumps(record))
    logbook.record_practice(result("passed"))
    assert "scaling.renamed" in json.loads((folder / "progress.json").read_text())["questions"]
    assert lab().points("practised") == QUESTION.points


def test_a_disk_that_cannot_be_written_fails_no_cell(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(logbook, "replace_with_bytes", refuse)
    assert not logbook.record_practice(result("passed"))
    with pytest.raises(OSError, match="No space"):
        logbook.record_graded([result("passed")])


def test_a_lock_held_by_another_process_delays_a_cell_and_fails_none(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logbook, "_PATIENCE_S", 0.05)
    with open(folder / ".progress.lock", "w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        assert not logbook.record_practice(result("passed"))
    assert logbook.record_practice(result("passed"))


def test_kernels_that_write_at_once_lose_nothing(folder: Path) -> None:
    program = (
        "import sys\nfrom accelerando import catalog, logbook\nfrom accelerando.submission import Result\n"
        "q = catalog.question(sys.argv[1])\n"
        "for _ in range(20): assert logbook.record_practice(Result(q.id, 'passed', q.points, q.points, ''))"
    )
    writers = [
        subprocess.Popen([sys.executable, "-c", program, question.id], cwd=folder, env=dict(os.environ))
        for question in LESSON.questions
    ]
    assert [writer.wait(60) for writer in writers] == [0] * len(writers)
    assert lab().points("practised") == LESSON.points
    assert logbook.damaged_files() == ()
    assert sorted(path.name for path in folder.iterdir()) == [".progress.lock", "progress.json"]
