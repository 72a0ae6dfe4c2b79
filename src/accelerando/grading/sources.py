"""What a lab's hand-written source must be like before it is released, and what may not be seen in the release."""

import copy
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ..catalog import Lesson
from .cells import (
    BEGIN_SOLUTION,
    END_SOLUTION,
    KERNEL,
    Notebook,
    checked_question,
    marks_of,
    solution_grade_id,
    test_grade_id,
    test_source,
)
from .marks import Mark, list_marks
from .notebooks import language

_LEAST_LEAK_CHARACTERS = 12  # shorter lines ("return x") stand in any text
_VOLATILE = ("execution", "ExecuteTime", "scrolled", "collapsed")


def prepare(source: Notebook, lesson: Lesson) -> Notebook:
    """A copy of the source as nbgrader is to see it: points and kernel as the catalog and the course have them.

    Args:
        source: The lab as its author saved it; its points may be stale or missing.
        lesson: The catalog's entry.
    """
    notebook = copy.deepcopy(source)
    stamp = {"lab": lesson.folder, "lab_version": lesson.lab_version}
    notebook["metadata"] = {"accelerando": stamp, "kernelspec": dict(KERNEL), "language_info": {"name": "python"}}
    questions = {test_grade_id(question.id): question for question in lesson.questions}
    for cell in notebook["cells"]:
        for key in _VOLATILE:
            cell["metadata"].pop(key, None)
        question = questions.get(str(marks_of(cell).get("grade_id")))
        if question is not None:
            cell["metadata"]["nbgrader"]["points"] = question.points
            if checked_question(cell["source"]) == question.id:
                cell["source"] = test_source(question.id)
    return notebook


def find_problems(source: Notebook, lesson: Lesson) -> list[str]:
    """What keeps a lab's source from being released, one sentence each; empty when nothing does."""
    prepared = prepare(source, lesson)
    marks, errors = list_marks(prepared)
    problems = list(errors)
    if language(source) != "python":
        problems.append(f"its kernel speaks {language(source)}, not Python")
    for number, cell in enumerate(source["cells"], 1):
        if cell.get("outputs"):
            problems.append(f"cell {number}: outputs were left in: clear all outputs and save")
    solutions = {solution_grade_id(question.id): question.id for question in lesson.questions}
    tests = {test_grade_id(question.id): question.id for question in lesson.questions}
    for mark in marks:
        text = prepared["cells"][mark.number - 1]["source"]
        problems.extend(f"cell {mark.number}: {problem}" for problem in _mark_problems(mark, text, solutions, tests))
    problems.extend(_gaps(marks, lesson))
    return problems


def _mark_problems(mark: Mark, text: str, solutions: Mapping[str, str], tests: Mapping[str, str]) -> Iterator[str]:
    match mark.kind:
        case "solution" if mark.grade_id not in solutions:
            yield f"the catalog has no question for the solution {mark.grade_id!r}; it has {', '.join(solutions)}"
        case "solution" if BEGIN_SOLUTION not in text:
            yield f"the solution {mark.grade_id!r} has no ### {BEGIN_SOLUTION} … ### {END_SOLUTION}"
        case "test" if mark.grade_id not in tests:
            yield f"the catalog has no question for the test {mark.grade_id!r}; it has {', '.join(tests)}"
        case "test" if checked_question(text) != tests[mark.grade_id]:
            yield f'the test {mark.grade_id!r} must be exactly check("{tests[mark.grade_id]}")'
        case "manual" | "task":
            yield f"{mark.grade_id!r} would have to be graded by a person: a lab's questions are graded by checks"


def _gaps(marks: Iterable[Mark], lesson: Lesson) -> Iterator[str]:
    places = {mark.grade_id: mark.number for mark in marks}
    if not any(mark.kind == "readonly" for mark in marks):
        yield "it has no set-up cell (read-only, with `from accelerando.submission import check`)"
    for question in lesson.questions:
        solution, test = solution_grade_id(question.id), test_grade_id(question.id)
        for grade_id in (solution, test):
            if grade_id not in places:
                yield f"the question {question.id} of the catalog has no cell {grade_id!r}"
        if places.get(solution, 0) > places.get(test, len(places) + 10**6):
            yield f"the test of {question.id} stands above its solution"


def find_leaks(source: Notebook, released: Mapping[str, str]) -> list[str]:
    """Solution text that can be seen in what learners get.

    Args:
        source: The lab with its solutions.
        released: Text of every released file, by name; of notebooks, their strings one below the other.

    Returns:
        One sentence for each line of a solution, or marker, that was found.
    """
    hidden, shown = _split(source)
    leaks = []
    for name, text in released.items():
        squeezed = _squeeze(text)
        for number, line in hidden:
            if line not in shown and line in squeezed:
                leaks.append(f"{name}: shows a line of the solution in cell {number} of the source")
        leaks.extend(f"{name}: still says {marker}" for marker in (BEGIN_SOLUTION, END_SOLUTION) if marker in text)
    return list(dict.fromkeys(leaks))


def _split(source: Notebook) -> tuple[list[tuple[int, str]], str]:
    """The lines inside solution regions that are long enough to be told apart, and all the other text."""
    hidden: list[tuple[int, str]] = []
    shown: list[str] = []
    for number, cell in enumerate(source["cells"], 1):
        inside = False
        for line in cell["source"].splitlines():
            if BEGIN_SOLUTION in line or END_SOLUTION in line:
                inside = BEGIN_SOLUTION in line
            elif not inside:
                shown.append(line)
            elif len(_squeeze(line)) >= _LEAST_LEAK_CHARACTERS:
                hidden.append((number, _squeeze(line)))
    return hidden, _squeeze("\n".join(shown))


def _squeeze(text: str) -> str:
    return "".join(text.split())


def strings_of(value: Any) -> str:
    """All the strings in a nested value, one below the other."""
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping):
        return "\n".join(f"{key}\n{strings_of(item)}" for key, item in value.items())
    return "\n".join(map(strings_of, value)) if isinstance(value, list | tuple) else ""
