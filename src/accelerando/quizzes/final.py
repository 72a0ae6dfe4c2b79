"""The final's quiz: questions of the lessons that exist, with their choices in another order, and no hints."""

import hashlib

from accelerando import catalog
from accelerando.quizzes import QuizQuestion, read

QUESTIONS = 10


def draw(questions: int = QUESTIONS) -> tuple[QuizQuestion, ...]:
    """Draw the final's questions, in turn from each lesson that is built; it grows with the course.

    Everybody gets the same. The letters are dealt out anew, so that "b" of the lesson is not the answer here.

    Args:
        questions: How many at most.

    Returns:
        Questions whose id names the lesson too, such as ``scaling.cores``.
    """
    pools = [
        sorted((_relettered(lesson.slug, question) for question in read(lesson.slug)), key=lambda q: _order(q.id))
        for lesson in catalog.lessons()
        if lesson.is_built
    ]
    longest = max(map(len, pools), default=0)
    in_turn = [pool[place] for place in range(longest) for pool in pools if place < len(pool)]
    return tuple(in_turn[:questions])


def text(questions: tuple[QuizQuestion, ...] | None = None) -> str:
    """Write the questions as a person reads them."""
    parts = []
    for question in draw() if questions is None else questions:
        choices = [f"   {letter}) {choice.text}" for letter, choice in question.choices.items()]
        parts.append("\n".join([f'"{question.id}": {question.text}', *choices]))
    return "\n\n".join(parts)


def _relettered(slug: str, question: QuizQuestion) -> QuizQuestion:
    name = f"{slug}.{question.id}"
    old = sorted(question.choices, key=lambda letter: _order(f"{name} {letter}"))
    letters = dict(zip(old, sorted(question.choices), strict=True))
    choices = {letters[letter]: question.choices[letter] for letter in old}
    return QuizQuestion(name, question.text, question.section, choices, letters[question.right])


def _order(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()
