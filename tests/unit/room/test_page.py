"""The landing page: ten lessons, the learner's points, the next step, what this machine lacks."""

import dataclasses
import html
import re
from pathlib import Path

import pytest

from accelerando import catalog, logbook, machine, work
from accelerando.room import page
from accelerando.submission import Result, Status

LESSON = catalog.find("scaling")
TIMED = next(question for question in LESSON.questions if question.is_timed)


@pytest.fixture(scope="module")
def here() -> machine.Machine:
    return machine.probe()


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A learner's folder with lesson 1 and its lab in it."""
    monkeypatch.setenv(work.ENVIRONMENT_NAME, str(tmp_path))
    monkeypatch.delenv("NBGRADER_EXECUTION", raising=False)
    monkeypatch.chdir(tmp_path)
    for name in (f"notebooks/{LESSON.folder}.ipynb", f"labs/{LESSON.folder}/{LESSON.folder}.ipynb"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text("{}")
    return tmp_path


def result(question: catalog.Question, status: Status = "passed") -> Result:
    return Result(question.id, status, question.points, question.points, "")


def practise(*questions: catalog.Question, status: Status = "passed") -> None:
    for question in questions:
        assert logbook.record_practice(result(question, status))


def grade(*questions: catalog.Question, status: Status = "passed") -> None:
    logbook.record_graded([result(question, status) for question in questions])


def step(here: machine.Machine) -> page.Step:
    found = page.gather(here).step
    assert found is not None
    return found


def row_of(text: str, number: int) -> str:
    found = re.search(rf'<li id="lesson-{number}".*?</li>', text, re.DOTALL)
    assert found is not None
    return html.unescape(found[0])


def test_every_lesson_is_there_with_title_belief_and_minutes(here: machine.Machine) -> None:
    text = page.render(page.gather(here), "/")
    for lesson in catalog.lessons():
        row = row_of(text, lesson.number)
        assert lesson.title in row
        assert lesson.belief in row
        assert f"{lesson.minutes} min" in row
        assert ("in preparation" in row) is not lesson.is_built


def test_links_open_in_jupyterlab_under_the_servers_base_address(here: machine.Machine) -> None:
    row = row_of(page.render(page.gather(here), "/user/ada/"), 1)
    assert f'href="/user/ada/lab/tree/notebooks/{LESSON.folder}.ipynb"' in row
    assert f'href="/user/ada/lab/tree/labs/{LESSON.folder}/{LESSON.folder}.ipynb"' in row


def test_what_is_not_in_the_learners_folder_is_not_linked(here: machine.Machine, folder: Path) -> None:
    (folder / "notebooks" / f"{LESSON.folder}.ipynb").unlink()
    row = row_of(page.render(page.gather(here), "/"), 1)
    assert "notebooks/" not in row
    assert "labs/" in row


def test_points_practised_and_graded_are_shown_apart(here: machine.Machine) -> None:
    first, second = LESSON.questions[:2]
    practise(first, second)
    grade(first)
    row = row_of(page.render(page.gather(here), "/"), 1)
    assert f"<b>{first.points + second.points}</b> practised" in row
    assert f"<b>{first.points}</b> graded of {LESSON.points}" in row


def test_the_way_through_a_lab(here: machine.Machine) -> None:
    assert step(here).button == "Open lesson 1"
    practise(LESSON.questions[0])
    assert step(here).title.startswith("Go on with lab 1")
    practise(*(question for question in LESSON.questions if question is not TIMED))
    assert step(here).title.startswith("Go on with lab 1")
    practise(TIMED, status="undecided")
    assert step(here).title == "Have lab 1 graded"
    assert "course check 1" in step(here).sentence
    grade(*LESSON.questions)
    grade(TIMED, status="failed")
    found = page.gather(here)
    assert found.step is None or found.step.row.lesson is not LESSON, "a pass is kept"


def test_some_points_missing_after_grading_means_finish(here: machine.Machine) -> None:
    grade(*LESSON.questions[:2])
    grade(*LESSON.questions[2:], status="failed")
    assert step(here).title.startswith("Finish lab 1")


def test_a_question_that_cannot_be_measured_here_does_not_hold_the_learner_back(here: machine.Machine) -> None:
    grade(*(question for question in LESSON.questions if question is not TIMED))
    grade(TIMED, status="not measurable here")
    found = page.gather(here)
    assert found.step is None or found.step.row.lesson is not LESSON


def test_done_is_said_when_nothing_is_left(here: machine.Machine) -> None:
    whole = page.gather(here)
    text = page.render(dataclasses.replace(whole, step=None), "/")
    assert "graded in full" in text
    assert "is-next" not in re.sub(r"<style>.*?</style>", "", text, flags=re.DOTALL)


def test_the_next_row_is_marked_and_no_other(here: machine.Machine) -> None:
    text = page.render(page.gather(here), "/")
    assert re.findall(r'id="lesson-(\d+)" class="is-next"', text) == ["1"]


def test_what_the_machine_lacks_stands_at_the_lesson_that_needs_it(here: machine.Machine) -> None:
    text = page.render(page.gather(dataclasses.replace(here, mpi=(), gpus=())), "/")
    for lesson in catalog.lessons():
        lacks = machine.missing(dataclasses.replace(here, mpi=(), gpus=()), lesson.needs)
        assert row_of(text, lesson.number).count("On this machine:") == len(lacks)
    assert "mpirun" in row_of(text, 10)


def test_the_machine_is_described_by_what_is_known_of_it(here: machine.Machine) -> None:
    known = dataclasses.replace(here, model="A <CPU>", usable_cores=2, simd="AVX2", memory_bytes=8 * 2**30, gpus=())
    assert page.describe(known) == "A <CPU> · 2 usable cores · AVX2 · 8 GiB memory · no GPU"
    assert "A &lt;CPU&gt;" in page.render(page.gather(known), "/")
    unknown = dataclasses.replace(known, model=None, simd=None, memory_bytes=None, usable_cores=1)
    assert page.describe(unknown) == "1 usable core · no GPU"


def test_a_damaged_record_is_told(here: machine.Machine, folder: Path) -> None:
    (folder / "progress.json").write_text("{]")
    practise(LESSON.questions[0])
    assert "progress.damaged-" in page.render(page.gather(here), "/")


def test_the_page_asks_nothing_of_the_network(here: machine.Machine) -> None:
    text = page.render(page.gather(here), "/")
    outside = [found for found in re.findall(r"https?://[^\s'\"<>]+", text) if "www.w3.org" not in found]
    assert outside == []


def put_final(folder: Path) -> None:
    (folder / "assessment/final").mkdir(parents=True)
    (folder / "assessment/final/final.ipynb").write_text("{}")


def put_certificate(folder: Path) -> str:
    name = "results/final-2026-01-02-030405/certificate.html"
    (folder / name).parent.mkdir(parents=True)
    (folder / name).write_text("<p>passed</p>")
    return name


def final_of(text: str) -> str:
    found = re.search(r'<li id="final".*?</li>', text, re.DOTALL)
    assert found is not None
    return html.unescape(found[0])


def test_the_final_stands_below_the_lessons_with_its_notebook_and_its_points(
    here: machine.Machine, folder: Path
) -> None:
    final = catalog.final()
    assert "course lab" in final_of(page.render(page.gather(here), "/"))
    put_final(folder)
    practise(final.questions[3])
    grade(final.questions[3], final.questions[4])
    row = final_of(page.render(page.gather(here), "/user/ada/"))
    assert 'href="/user/ada/lab/tree/assessment/final/final.ipynb"' in row
    assert f"<b>{final.questions[3].points}</b> practised" in row
    assert f"<b>{final.questions[3].points + final.questions[4].points}</b> graded of {final.points}" in row
    assert "passed" not in row


def test_a_certificate_is_shown_and_leads_to_its_page(here: machine.Machine, folder: Path) -> None:
    name = put_certificate(folder)
    row = final_of(page.render(page.gather(here), "/user/ada/"))
    assert f'href="/user/ada/files/{name}"' in row
    assert "✓ passed" in row


def test_the_final_is_the_next_step_once_no_lesson_is_left_and_until_it_is_passed(
    here: machine.Machine, folder: Path
) -> None:
    put_final(folder)
    assert step(here).row.lesson is not catalog.final()
    for lesson in catalog.lessons():
        grade(*lesson.questions)
    assert step(here).path == "assessment/final/final.ipynb"
    assert 'id="final" class="is-next"' in page.render(page.gather(here), "/")
    put_certificate(folder)
    assert page.gather(here).step is None
