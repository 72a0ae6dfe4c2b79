"""The list of lessons: reads ``catalog.toml``, which alone holds numbers, titles, minutes and points."""

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import PurePath


@dataclass(frozen=True)
class Question:
    """One graded question of a lab: all or nothing."""

    id: str  # "scaling.predict_time"
    title: str
    points: int
    time_limit_s: float = 30.0
    threshold: float | None = None  # announced speed-up, for timed questions
    margin: float | None = None  # accuracy that may be lost, as a fraction (0.01 = one percentage point)
    is_timed: bool = False
    answered_in: str | None = None  # the question whose answer is this one's too: one cell, several tiers

    @property
    def function(self) -> str:
        """The name the learner defines: the part after the dot."""
        return self.id.partition(".")[2]


@dataclass(frozen=True)
class Lesson:
    """One lesson with its lab; the final assessment is number 0."""

    number: int
    slug: str
    title: str
    belief: str  # what the lesson's measurement breaks
    minutes: int
    needs: tuple[str, ...]  # names that `machine.missing` knows
    is_built: bool
    questions: tuple[Question, ...] = ()
    masked: tuple[str, ...] = ()  # modules that the learner's worker does not see
    lab_version: int = 1
    pass_points: int | None = None  # what the final's certificate needs

    @property
    def folder(self) -> str:
        """The name of the lab's folder and of the notebook: ``01_scaling``, or ``final``."""
        return f"{self.number:02d}_{self.slug}" if self.number else self.slug

    @property
    def points(self) -> int:
        """The sum over the lab's questions."""
        return sum(question.points for question in self.questions)


class UnknownLab(ValueError):
    """No lesson goes by that name."""


@cache
def lessons() -> tuple[Lesson, ...]:
    """All lessons in order, built or not."""
    return tuple(_lesson(row) for row in _file()["lesson"])


@cache
def final() -> Lesson:
    """The final assessment, as if it were a lesson; it is not among `lessons`."""
    return _lesson(_file()["final"])


@cache
def _file() -> dict:
    return tomllib.loads(resources.files(__package__).joinpath("catalog.toml").read_text(encoding="utf-8"))


def find(lab: str) -> Lesson:
    """The lesson that a user means by ``1``, ``01``, ``scaling``, ``01_scaling``, ``final`` or a path that ends so.

    Raises:
        UnknownLab: With the names that exist.
    """
    name = PurePath(lab.strip().rstrip("/")).name.removesuffix(".ipynb").lower()
    for lesson in (*lessons(), final()):
        names = {str(lesson.number), f"{lesson.number:02d}", lesson.slug, lesson.folder}
        if name in names:
            return lesson
    known = ", ".join(f"{lesson.number} ({lesson.slug})" for lesson in lessons())
    raise UnknownLab(f"there is no lab {lab!r}; say one of {known}")


def question(question_id: str) -> Question:
    """The question with this id.

    Raises:
        ValueError: If there is none; the message lists the lesson's own ids.
    """
    for lesson in (*lessons(), final()):
        for candidate in lesson.questions:
            if candidate.id == question_id:
                return candidate
    slug = question_id.partition(".")[0]
    known = [q.id for lesson in (*lessons(), final()) for q in lesson.questions if lesson.slug == slug]
    raise ValueError(f"there is no question {question_id!r}; lesson {slug!r} has {', '.join(known) or 'none'}")


def answered_in(question_id: str) -> str:
    """The question whose cell answers this one: itself, unless the catalog says otherwise."""
    for candidate in final().questions:
        if candidate.id == question_id:
            return candidate.answered_in or question_id
    return question_id


def _lesson(row: dict) -> Lesson:
    questions = tuple(Question(**fields) for fields in row.get("question", ()))
    rest = {key: value for key, value in row.items() if key not in ("question", "needs", "masked")}
    return Lesson(**rest, questions=questions, needs=tuple(row["needs"]), masked=tuple(row.get("masked", ())))
