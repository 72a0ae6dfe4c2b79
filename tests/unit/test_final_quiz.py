"""The final's quiz is drawn from the lessons' own: same questions and choices, other letters, same right one."""

from accelerando import catalog, quizzes
from accelerando.quizzes import final


def originals() -> dict[str, quizzes.QuizQuestion]:
    return {
        f"{lesson.slug}.{question.id}": question
        for lesson in catalog.lessons()
        if lesson.is_built
        for question in quizzes.read(lesson.slug)
    }


def test_questions_come_from_built_lessons_once_each_and_not_too_many() -> None:
    drawn = [question.id for question in final.draw()]
    assert len(set(drawn)) == len(drawn) == min(final.QUESTIONS, len(originals()))
    assert set(drawn) <= set(originals())
    assert len(final.draw(3)) == 3


def test_letters_are_others_and_the_right_choice_is_the_same() -> None:
    moved = 0
    for question in final.draw(1000):
        original = originals()[question.id]
        assert question.choices[question.right] == original.choices[original.right]
        assert sorted(question.choices) == list(question.choices) == sorted(original.choices)
        assert set(map(str, question.choices.values())) == set(map(str, original.choices.values()))
        moved += question.right != original.right
    assert moved >= len(final.draw(1000)) // 2


def test_text_names_every_question_and_gives_no_reasons() -> None:
    shown = final.text()
    for question in final.draw():
        assert f'"{question.id}"' in shown
        for letter, choice in question.choices.items():
            assert f"{letter}) {choice.text}" in shown
            assert choice.why not in shown
