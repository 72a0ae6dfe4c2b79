"""Every quiz file is complete, and the reader of it refuses what is not."""

import pytest

from accelerando import catalog, quizzes

BUILT = [lesson.slug for lesson in catalog.lessons() if lesson.is_built]


@pytest.mark.parametrize("slug", BUILT)
def test_every_choice_has_its_reason_and_rights_are_not_all_one_letter(slug: str) -> None:
    questions = quizzes.read(slug)
    assert len(questions) >= 5
    for question in questions:
        assert len(question.choices) >= 3
        assert all(len(choice.why) > 20 and choice.text for choice in question.choices.values())
    assert len({question.right for question in questions}) > 1


@pytest.mark.parametrize("slug", BUILT)
def test_sections_are_headings_of_the_lesson(slug: str) -> None:
    import json

    from accelerando import work

    path = work.checkout() / "notebooks" / f"{catalog.find(slug).folder}.ipynb"
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    lines = "".join("".join(cell["source"]) + "\n" for cell in cells if cell["cell_type"] == "markdown").splitlines()
    headings = {line.lstrip("#").strip() for line in lines if line.startswith("#")}
    assert {question.section for question in quizzes.read(slug)} <= headings


def test_what_has_no_quiz_of_its_own_says_so() -> None:
    with pytest.raises(ValueError, match="no quiz yet"):
        quizzes.read("final")
