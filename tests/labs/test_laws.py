"""The six laws that every lab keeps. Timed questions run by a fake clock."""

import inspect
import sys
import types
from collections.abc import Iterator
from pathlib import Path

import pytest
from lab_kit import BUILT, SEEDS, blank, fake_speed, grade, grade_one, run_cells, solution, wrong_answers

from accelerando import cards, logbook, submission, work
from accelerando.catalog import Lesson, Question
from accelerando.grading import score
from accelerando.grading.cells import checked_question
from accelerando.grading.labs import LabCell, LabNotebook
from accelerando.grading.notebooks import read_notebook
from accelerando.grading.release import build
from accelerando.grading.sandbox import Limits, Sandbox
from accelerando.submission import Result, WrongAnswer, find_check

by_slug = pytest.mark.parametrize("lesson", BUILT, ids=lambda lesson: lesson.slug)


def _name(value: object) -> str | None:
    """The mistake's own words are the name of its test."""
    return value.mistake if isinstance(value, WrongAnswer) else getattr(value, "slug", "") or value.function


def messages(results: dict[str, Result]) -> dict[str, str]:
    return {question: f"{result.status}: {result.message}" for question, result in results.items()}


# 1 The solution earns every point, silently.


@by_slug
@pytest.mark.parametrize("seed", SEEDS)
def test_the_solution_earns_every_point(lesson: Lesson, seed: int) -> None:
    results = grade(lesson, run_cells(solution(lesson)), seed)
    assert {result.status for result in results.values()} == {"passed"}, messages(results)
    assert sum(result.points for result in results.values()) == lesson.points


@by_slug
def test_the_solution_is_silent(
    lesson: Lesson, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    answers = run_cells(solution(lesson))
    assert answers.said == ""
    assert solution(lesson).warnings == ()
    monkeypatch.setattr(cards, "show", lambda result: None)
    _in_kernel(monkeypatch, answers.namespace)
    for question in lesson.questions:
        assert submission.check(question.id) is None
    assert capfd.readouterr() == ("", "")


# 2 The blank lab earns exactly 0, each question saying "not answered yet".


@by_slug
def test_the_blank_lab_earns_nothing_and_says_so(lesson: Lesson) -> None:
    results = grade(lesson, run_cells(blank(lesson)))
    assert messages(results) == dict.fromkeys((q.id for q in lesson.questions), "failed: not answered yet")
    assert sum(result.points for result in results.values()) == 0


# 1 and 2 as a learner meets them: the same verdicts from the sandbox.


@by_slug
@pytest.mark.parametrize("read", [solution, blank], ids=["solution", "blank"])
def test_the_sandbox_agrees_with_the_kernel(lesson: Lesson, read: object) -> None:
    lab: LabNotebook = read(lesson)  # type: ignore[operator]
    report = score.grade(lab.path, lesson, run_speed=fake_speed, seed=SEEDS[1], read=lambda path, lesson: lab)
    local = grade(lesson, run_cells(lab), SEEDS[1])
    assert {result.question: result.status for result in report.results} == {
        question: result.status for question, result in local.items()
    }


# 3 labs/ equals what solutions/ generates.


def test_labs_are_what_solutions_generate() -> None:
    assert build(check=True) == [], "run ./course build"


# 4 Every wrong answer listed beside a check loses that question and no other.


@by_slug
def test_every_question_lists_mistakes(lesson: Lesson) -> None:
    assert [q.id for q in lesson.questions if not find_check(q.id).wrong] == []


@pytest.mark.parametrize(
    ("lesson", "question", "wrong"),
    wrong_answers(),
    ids=lambda value: getattr(value, "mistake", getattr(value, "id", "")),
)
def test_a_wrong_answer_loses_its_question_and_no_other(lesson: Lesson, question: Question, wrong: WrongAnswer) -> None:
    results = grade(lesson, run_cells(solution(lesson), {question.id: wrong.code}))
    lost = {name: result.message for name, result in results.items() if result.status != "passed"}
    assert set(lost) == {question.id}, lost
    assert results[question.id].status == "failed"
    assert len(lost[question.id]) > 20, "a sentence that helps"


# 5 A test cell is one check(…), which returns None.


@by_slug
@pytest.mark.parametrize("folder", ["labs", "solutions"])
def test_every_test_cell_is_one_check(lesson: Lesson, folder: str) -> None:
    notebook, _ = read_notebook(Path(work.checkout(), folder, lesson.folder, f"{lesson.folder}.ipynb"))
    tests = [cell["source"] for cell in notebook["cells"] if cell["metadata"].get("nbgrader", {}).get("grade")]
    assert [checked_question(source) for source in tests] == [question.id for question in lesson.questions]
    others = [
        cell["source"] for cell in notebook["cells"] if cell["cell_type"] == "code" and cell["source"] not in tests
    ]
    assert not any("check(" in source for source in others)


@by_slug
def test_a_failing_check_ends_the_cell_in_one_line(lesson: Lesson, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cards, "show", lambda result: None)
    _in_kernel(monkeypatch, run_cells(blank(lesson)).namespace)
    for question in lesson.questions:
        with pytest.raises(submission.NotYet, match="not answered yet") as error:
            submission.check(question.id)
        assert error.value._render_traceback_() == ["Not yet: the card above says why."]


def _in_kernel(monkeypatch: pytest.MonkeyPatch, namespace: dict[str, object]) -> None:
    main = types.ModuleType("__main__")
    vars(main).update(namespace)
    monkeypatch.setitem(sys.modules, "__main__", main)
    monkeypatch.setattr(logbook, "record_practice", lambda result: None)


# 6 No question is answered by calling the package.

FORWARDER = """
import functools, importlib, inspect, pkgutil
import accelerando

@functools.cache
def _modules():
    found = []
    for info in pkgutil.walk_packages(accelerando.__path__, "accelerando.", onerror=lambda name: None):
        if info.name.split(".")[1] in ("bandwidth", "cli", "doctor", "measure", "room", "testing", "workers"):
            continue  # they start programs and take their time, and compute nothing that a question asks for
        try:
            found.append(importlib.import_module(info.name))
        except BaseException:
            continue
    return found

@functools.cache
def _public(count):
    found = {}
    for module in _modules():
        for name, thing in dict(vars(module)).items():
            if name.startswith("_") or not inspect.isfunction(thing) or not thing.__module__.startswith("accelerando"):
                continue
            try:
                inspect.signature(thing).bind(*range(count))
            except (TypeError, ValueError):
                continue
            found[f"{thing.__module__}.{thing.__qualname__}"] = thing
    return found

def _list(count):
    return sorted(_public(count))

def _choose(name, function, count):
    globals()[function] = _public(count)[name]
"""
IMPORT_LIMIT_S, HARMLESS_LIMIT_S = 120.0, 4.0


@by_slug
def test_no_question_is_answered_by_calling_the_package(lesson: Lesson) -> None:
    setup = [cell for cell in solution(lesson).cells if cell.kind == "setup"]
    forwarder = LabCell("plain", None, "forwarder", FORWARDER, -1)
    passed, tried = [], 0
    with Sandbox([*setup, forwarder], masked=lesson.masked, limits=Limits(total_s=600)) as sandbox:
        for question, count in _functions(lesson):
            sandbox.begin(question, IMPORT_LIMIT_S)
            for name in sandbox.submission.call("_list", count):
                tried += 1
                sandbox.begin(question, IMPORT_LIMIT_S)
                sandbox.submission.call("_choose", name, question.function, count)
                sandbox.begin(question, HARMLESS_LIMIT_S)
                if grade_one(question, sandbox.submission, SEEDS[1]).status != "failed":
                    passed.append(f"{question.id} by {name}")
    assert passed == []
    assert tried >= 20, "nothing was tried: is the package visible at all?"


@by_slug
def test_a_worker_sees_neither_checks_nor_answers(lesson: Lesson) -> None:
    prying = """
import importlib
def pry(name):
    try:
        importlib.import_module(name)
    except ImportError:
        return False
    return True
"""
    hidden = ["accelerando.checks", "accelerando.grading.score", "accelerando.quizzes", *lesson.masked]
    with Sandbox([LabCell("plain", None, "pry", prying, -1)], masked=lesson.masked) as sandbox:
        sandbox.begin(None)
        assert {name for name in hidden if sandbox.submission.call("pry", name)} == set()
        assert sandbox.submission.call("pry", "accelerando.models") is True


def _functions(lesson: Lesson) -> Iterator[tuple[Question, int]]:
    """The questions that are answered by a function, and with how many arguments it is called."""
    namespace = run_cells(blank(lesson)).namespace
    for question in lesson.questions:
        blank_function = namespace.get(question.function)
        if inspect.isfunction(blank_function):
            yield question, len(inspect.signature(blank_function).parameters)
