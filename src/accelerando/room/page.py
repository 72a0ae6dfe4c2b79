"""The landing page: the ten lessons, what each breaks, what was passed, the final, and the next step."""

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from .. import catalog, logbook, machine, work
from ..catalog import Lesson
from ..logbook import LabProgress

if TYPE_CHECKING:
    from jinja2 import Template


@dataclass(frozen=True)
class Row:
    """One lesson as the page shows it."""

    standing: LabProgress
    notebook: str | None  # path in the learner's folder, None when it is not there
    lab: str | None
    gaps: tuple[machine.Missing, ...]  # what this machine lacks for it
    newer: work.Newer | None  # what the course has newer than the learner's

    @property
    def lesson(self) -> Lesson:
        """The catalog's entry."""
        return self.standing.lesson

    @property
    def practised(self) -> int:
        """Points passed in the learner's kernel."""
        return self.standing.points("practised")

    @property
    def graded(self) -> int:
        """Points passed in the sandbox."""
        return self.standing.points("graded")


@dataclass(frozen=True)
class Step:
    """What to do next."""

    row: Row
    title: str
    sentence: str
    path: str | None  # what its button opens, a path in the learner's folder
    button: str


@dataclass(frozen=True)
class Page:
    """Everything the template needs."""

    rows: tuple[Row, ...]
    final: Row | None  # None while it is not built
    certificate: str | None  # path in the learner's folder, once the final is passed
    step: Step | None  # None when everything that is built is done
    machine: str
    damaged: tuple[str, ...]  # progress files that were set aside

    @property
    def points(self) -> int:
        """All points there are, in the lessons built so far."""
        return sum(row.lesson.points for row in self.rows)

    @property
    def graded(self) -> int:
        """Points graded so far."""
        return sum(row.graded for row in self.rows)

    @property
    def practised(self) -> int:
        """Points practised so far."""
        return sum(row.practised for row in self.rows)


def gather(here: machine.Machine) -> Page:
    """Read what the page shows: catalog, learner's folder, their record, this machine."""
    rows = tuple(_row(lab, here) for lab in logbook.progress())
    final = _row(logbook.final_progress(), here) if catalog.final().is_built else None
    passed = work.certificate()
    certificate = passed.relative_to(work.work_folder()).as_posix() if passed else None
    damaged = tuple(path.name for path in logbook.damaged_files())
    step = next_step(rows) or (final_step(final) if final and not certificate else None)
    return Page(rows, final, certificate, step, describe(here), damaged)


def next_step(rows: tuple[Row, ...]) -> Step | None:
    """The first built lesson in which something is left to win, and what to do there."""
    row = next((row for row in rows if row.lesson.is_built and not row.standing.is_settled), None)
    if row is None:
        return None
    lesson, left = row.lesson, row.lesson.points - row.graded
    if row.lab and row.graded:
        sentence = f"{left} of {lesson.points} points are still to win; `course check {lesson.number}` says how."
        return Step(row, f"Finish lab {lesson.number}: {lesson.title}", sentence, row.lab, "Open the lab")
    if row.lab and row.standing.is_practised:
        sentence = f"All practised. Now let the sandbox grade it: `course check {lesson.number}` in a terminal."
        return Step(row, f"Have lab {lesson.number} graded", sentence, row.lab, "Open the lab")
    if row.lab and row.practised:
        sentence = f"{row.practised} points practised, {lesson.points - row.practised} still to win."
        return Step(row, f"Go on with lab {lesson.number}: {lesson.title}", sentence, row.lab, "Open the lab")
    sentence = f"{lesson.minutes} minutes. A belief to test on this machine: “{lesson.belief}”"
    opens = row.notebook or row.lab
    return Step(row, lesson.title, sentence, opens, f"Open lesson {lesson.number}")


def final_step(final: Row) -> Step:
    """What to do when no lesson is left."""
    sentence = "Make a training run faster, and no worse. `course assess` in a terminal grades it."
    return Step(final, final.lesson.title, sentence, final.lab, "Open the final")


def describe(here: machine.Machine) -> str:
    """The machine in one line; what is unknown is left out."""
    parts = [here.model, f"{here.usable_cores} usable core{'s'[: here.usable_cores > 1]}", here.simd]
    if here.memory_bytes:
        parts.append(f"{here.memory_bytes / 2**30:.0f} GiB memory")
    count = len(here.gpus)
    parts.append(f"{count} GPU{'s' if count > 1 else ''}" if count else "no GPU")
    return " · ".join(part for part in parts if part)


def render(page: Page, base_url: str) -> str:
    """The page as HTML.

    Args:
        page: What to show.
        base_url: Of the Jupyter server, with slashes at both ends.
    """
    return _template().render(page=page, base_url=base_url)


def _row(lab: LabProgress, here: machine.Machine) -> Row:
    lesson = lab.lesson
    notebook = f"notebooks/{lesson.folder}.ipynb"
    sheet = f"{'labs' if lesson.number else 'assessment'}/{lesson.folder}/{lesson.folder}.ipynb"
    folder = work.work_folder()
    return Row(
        standing=lab,
        notebook=notebook if (folder / notebook).is_file() else None,
        lab=sheet if (folder / sheet).is_file() else None,
        gaps=machine.missing(here, lesson.needs),
        newer=work.find_newer(lesson),
    )


@cache
def _template() -> "Template":
    from jinja2 import Environment, PackageLoader

    environment = Environment(loader=PackageLoader(__package__, "."), autoescape=True, trim_blocks=True)
    environment.filters["ticks"] = _ticks
    return environment.get_template("page.html")


def _ticks(text: str) -> str:
    """Show what stands between backticks as code."""
    from markupsafe import Markup, escape

    pieces = str(escape(text)).split("`")
    return Markup("".join(f"<code>{piece}</code>" if index % 2 else piece for index, piece in enumerate(pieces)))
