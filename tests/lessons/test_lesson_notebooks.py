"""Every built lesson runs from its first cell to its last, and what it stores is of the code that stands there."""

import pytest

from accelerando import catalog
from accelerando.catalog import Lesson
from accelerando.grading.lesson_run import check_lesson, run_lesson

BUILT = [lesson for lesson in catalog.lessons() if lesson.is_built]


@pytest.mark.parametrize("lesson", BUILT, ids=lambda lesson: lesson.slug)
def test_stored_outputs_belong_to_the_code(lesson: Lesson) -> None:
    assert check_lesson(lesson) == []


@pytest.mark.parametrize("lesson", BUILT, ids=lambda lesson: lesson.slug)
def test_a_lesson_runs_through_in_miniature(lesson: Lesson) -> None:
    run = run_lesson(lesson, "smoke", store=False)
    assert [remark for remark in run.remarks if "stderr" in remark] == []
