"""The check that every lab's quiz shares."""

from accelerando import quizzes
from accelerando.submission import NotAnswered, Submission, Wrong, is_same


def judge_quiz(sub: Submission, lesson: str) -> None:
    """Let every answer right pass; else say how many are, and where to read again, never which choice it is.

    Args:
        sub: Holds the dictionary ``quiz``.
        lesson: As `quizzes.read` takes it.

    Raises:
        Wrong: If an answer is missing or wrong.
    """
    answers = sub.value("quiz")
    if not isinstance(answers, dict):
        kind = type(answers).__name__
        raise Wrong(f"`quiz` is of type {kind}. It should be the dictionary that the lesson's quiz writes.")
    questions = quizzes.read(lesson)
    if not answers:
        raise NotAnswered
    missing = [question.id for question in questions if answers.get(question.id) is None]
    if missing:
        raise Wrong(f"{len(missing)} of {len(questions)} questions have no answer yet: {', '.join(missing)}.")
    wrong = [question for question in questions if not is_same(answers[question.id], question.right)]
    if wrong:
        raise Wrong(
            f"{len(questions) - len(wrong)} of {len(questions)} are right. Look again at {wrong[0].id!r}: "
            f"the lesson's section *{wrong[0].section}* measures it."
        )
