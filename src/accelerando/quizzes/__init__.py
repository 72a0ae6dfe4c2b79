"""The quizzes, one file per lesson: questions, choices, and why each choice is right or wrong."""

import tomllib
from dataclasses import dataclass
from importlib import resources

from accelerando import catalog


@dataclass(frozen=True)
class Choice:
    """One possible answer with the sentence that follows it."""

    text: str
    why: str  # why it is right, or what speaks against it


@dataclass(frozen=True)
class QuizQuestion:
    """One question with exactly one right choice."""

    id: str
    text: str
    section: str  # of the lesson, where it is measured
    choices: dict[str, Choice]  # "a", "b", … in the order shown
    right: str


def read(lesson: str) -> tuple[QuizQuestion, ...]:
    """Read a lesson's quiz.

    Args:
        lesson: As `catalog.find` takes it: ``1``, ``scaling`` …

    Raises:
        ValueError: If the lesson is unknown, has no quiz, or its file is inconsistent; names the question.
    """
    number = catalog.find(lesson).number
    file = resources.files(__package__).joinpath(f"{number:02d}.toml")
    if not file.is_file():
        raise ValueError(f"lesson {number} has no quiz yet")
    questions = tuple(_question(row) for row in tomllib.loads(file.read_text(encoding="utf-8"))["question"])
    if len({question.id for question in questions}) < len(questions):
        raise ValueError(f"quiz {number} uses an id twice")
    return questions


def _question(row: dict) -> QuizQuestion:
    choices = {key: Choice(**choice) for key, choice in row["choice"].items()}
    if row["right"] not in choices:
        raise ValueError(f"quiz question {row['id']!r}: the right choice {row['right']!r} is not among {list(choices)}")
    return QuizQuestion(row["id"], row["text"], row["section"], choices, row["right"])
