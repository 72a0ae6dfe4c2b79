"""What holds for the checks of every lab: messages point to places that exist, and quizzes give nothing away."""

import importlib.util
import inspect
import json
import re

import pytest

from accelerando import catalog, quizzes, work
from accelerando.catalog import Lesson
from accelerando.submission import LocalSubmission, SpeedTask, judge

BUILT = [lesson for lesson in catalog.lessons() if lesson.is_built]


def by_slug(lesson: Lesson) -> str:
    return lesson.slug


def named_in(module: str) -> set[str]:
    if importlib.util.find_spec(module) is None:  # not every lab needs probes
        return set()
    text = re.sub(r'"\s+f?"', "", inspect.getsource(importlib.import_module(module)))  # a text over several lines
    return set(re.findall(r"See \*(.+?)\*", text))


def answer_quiz(lesson: Lesson, answers: dict[str, str]) -> tuple[str, str]:
    result = judge(f"{lesson.slug}.quiz", LocalSubmission({"quiz": answers}), 0)
    assert not isinstance(result, SpeedTask)
    return result.status, result.message


@pytest.mark.parametrize("lesson", BUILT, ids=by_slug)
def test_every_place_that_a_message_points_to_is_a_heading_of_the_lesson(lesson: Lesson) -> None:
    in_messages = named_in(f"accelerando.checks.{lesson.slug}") | named_in(f"accelerando.probes.{lesson.slug}")
    notebook = work.checkout() / "notebooks" / f"{lesson.folder}.ipynb"
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    lines = "".join("".join(cell["source"]) + "\n" for cell in cells if cell["cell_type"] == "markdown").splitlines()
    headings = {line.lstrip("#").strip() for line in lines if line.startswith("#")}
    assert len(in_messages) >= 3
    assert in_messages <= headings


@pytest.mark.parametrize("lesson", BUILT, ids=by_slug)
def test_the_quiz_counts_and_names_the_section_and_not_the_choice(lesson: Lesson) -> None:
    right = {question.id: question.right for question in quizzes.read(lesson.slug)}
    assert answer_quiz(lesson, right)[0] == "passed"
    assert answer_quiz(lesson, {}) == ("failed", "not answered yet")
    for question in quizzes.read(lesson.slug):
        wrong = next(key for key in question.choices if key != question.right)
        status, said = answer_quiz(lesson, {**right, question.id: wrong})
        assert status == "failed"
        assert "7 of 8 are right" in said
        assert question.section in said
        assert question.choices[question.right].text not in said
