"""Makes ``labs/`` and ``assessment/`` from ``solutions/``: nbgrader takes solutions out, a manifest says what remains.

The only door to nbgrader's generation. Nothing in ``labs/`` changes before everything was made and found in order.
"""

import json
import logging
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .. import catalog, work
from ..catalog import Lesson
from .cells import Notebook, checked_question, marks_of, solution_grade_id, source_hash
from .manifest import MANIFEST_NAME, SCHEMA, LockedCell, Manifest, ReleasedQuestion
from .marks import kind_of
from .notebooks import Unreadable, as_text, read_notebook, write_notebook
from .quiz_answers import with_right_answers
from .sources import find_leaks, find_problems, prepare, strings_of
from .starters import with_starters

CONFIG_NAME = "nbgrader_config.py"


class NotReleasable(ValueError):
    """A source that must not become a lab; the message lists file, cell and reason."""


def build(check: bool = False, *, root: Path | None = None, lessons: Sequence[Lesson] | None = None) -> list[str]:
    """Generate the labs of all built lessons.

    Args:
        check: Change nothing; only say what differs.
        root: The checkout; that of this package when left out.
        lessons: Which ones; the built ones of the catalog when left out.

    Returns:
        What was written and removed, or with ``check`` what would be; empty when ``labs/`` is up to date.

    Raises:
        NotReleasable: If a source is not in order, with every reason. Nothing was changed then.
    """
    root = root or work.checkout()
    chosen = [lesson for lesson in catalog.lessons() if lesson.is_built] if lessons is None else list(lessons)
    places = {"labs": chosen}
    if lessons is None and catalog.final().is_built:
        places["assessment"] = [catalog.final()]
    found: dict[str, dict[str, str]] = {}
    with tempfile.TemporaryDirectory(prefix="accelerando-build-") as scratch:
        for place, wanted in places.items():
            generate(wanted, root, Path(scratch) / place)
            found[place] = _differences(Path(scratch) / place, root / place)
        for place, changes in found.items():
            if not check:
                _publish(Path(scratch) / place, root / place, changes)
    told = _refresh_quiz(root / "solutions" / "final" / "final.ipynb", check) if "assessment" in places else []
    return told + [f"{place}/{name}: {what}" for place, changes in found.items() for name, what in changes.items()]


def _refresh_quiz(path: Path, check: bool) -> list[str]:
    """Bring the reference's quiz answers up to date: all that is not written by hand in ``solutions/``."""
    source, _ = read_notebook(path)
    fresh = with_right_answers(source)
    if fresh == source:
        return []
    if not check:
        write_notebook(path, fresh)
    return ["solutions/final/final.ipynb: its quiz answers are those of other lessons than the built ones"]


def generate(lessons: Sequence[Lesson], root: Path, output: Path, db_url: str | None = None) -> None:
    """Generate labs into a folder.

    Args:
        lessons: Which ones.
        root: The checkout with ``solutions/`` and nbgrader's configuration.
        output: Gets one folder for each lesson.
        db_url: nbgrader's gradebook that shall know the labs; none when left out.

    Raises:
        NotReleasable: If a source is not in order.
    """
    sources = {lesson.folder: _read_source(lesson, root / "solutions" / lesson.folder) for lesson in lessons}
    with tempfile.TemporaryDirectory(prefix="accelerando-build-") as scratch:
        course = Path(scratch)
        for lesson in lessons:
            prepared = course / "solutions" / lesson.folder
            shutil.copytree(root / "solutions" / lesson.folder, prepared, ignore=shutil.ignore_patterns(".*", "*.pyc"))
            write_notebook(prepared / f"{lesson.folder}.ipynb", prepare(sources[lesson.folder], lesson))
        (course / "labs").mkdir()
        _run_nbgrader(lessons, course, root / CONFIG_NAME, db_url)
        for lesson in lessons:
            _finish(lesson, sources[lesson.folder], course / "labs" / lesson.folder)
        shutil.copytree(course / "labs", output, dirs_exist_ok=True)


def _read_source(lesson: Lesson, folder: Path) -> Notebook:
    path = folder / f"{lesson.folder}.ipynb"
    try:
        source, repairs = read_notebook(path)
    except Unreadable as error:
        raise NotReleasable(str(error)) from None
    problems = [*repairs, *find_problems(source, lesson)]
    others = sorted(other.name for other in folder.rglob("*.ipynb") if other != path and other.parent == folder)
    problems.extend(f"{name}: a lab has one notebook, {path.name}" for name in others)
    if (folder / MANIFEST_NAME).exists():
        problems.append(f"{MANIFEST_NAME}: is generated, not written by hand: remove it")
    if problems:
        place = f"solutions/{lesson.folder}/{path.name}"
        raise NotReleasable("\n".join(f"{place}, {problem}" for problem in problems))
    return source


def nbgrader_config(course: Path, config_file: Path, db_url: str | None) -> Any:
    """Take nbgrader's settings as the course has them, for a course folder somewhere else."""
    from traitlets.config import PyFileConfigLoader

    config = PyFileConfigLoader(config_file.name, path=str(config_file.parent)).load_config()
    config.CourseDirectory.root = str(course)
    if db_url is not None:
        config.CourseDirectory.db_url = db_url
    return config


def _run_nbgrader(lessons: Sequence[Lesson], course: Path, config_file: Path, db_url: str | None) -> None:
    from nbgrader.converters import GenerateAssignment
    from nbgrader.converters.base import NbGraderException
    from nbgrader.coursedir import CourseDirectory
    from nbgrader.preprocessors import SaveCells

    config = nbgrader_config(course, config_file, db_url)
    if db_url is None:
        steps = GenerateAssignment.preprocessors.default_args[0]
        config.GenerateAssignment.preprocessors = [step for step in steps if step is not SaveCells]
        config.GenerateAssignment.no_database = True
    with _collected_log() as (log, complaints), programs_on_path():
        for lesson in lessons:
            directory = CourseDirectory(config=config, log=log)
            directory.assignment_id = lesson.folder
            try:
                GenerateAssignment(coursedir=directory, config=config, log=log).start()
            except (NbGraderException, SystemExit, RuntimeError, ValueError) as error:
                reasons = complaints or [str(error)]
                raise NotReleasable(f"solutions/{lesson.folder}: nbgrader refused it: {' '.join(reasons)}") from None


@contextmanager
def programs_on_path() -> Iterator[None]:
    """Put this environment's programs first on PATH: nbgrader and Jupyter call each other, and alembic, by name."""
    before = os.environ.get("PATH", "")
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), before])
    try:
        yield
    finally:
        os.environ["PATH"] = before


@contextmanager
def _collected_log() -> Iterator[tuple[logging.Logger, list[str]]]:
    """A logger whose complaints are kept rather than shown."""
    complaints: list[str] = []

    class Collector(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines = record.getMessage().strip().splitlines()
            complaints.append(lines[-1] if lines else "")

    log = logging.Logger("accelerando.release", level=logging.ERROR)
    log.addHandler(Collector())
    yield log, complaints


def _finish(lesson: Lesson, source: Notebook, folder: Path) -> None:
    """Check the generated lab for leaks and write its manifest."""
    path = folder / f"{lesson.folder}.ipynb"
    released, _ = read_notebook(path)
    released = with_starters(released, source)
    texts = {file.name: _text_of(file) for file in sorted(folder.rglob("*")) if file.is_file() and file != path}
    leaks = find_leaks(source, texts | {path.name: strings_of(released)})
    if leaks:
        raise NotReleasable("\n".join(f"labs/{lesson.folder}/{leak}" for leak in leaks))
    path.write_text(as_text(released), encoding="utf-8")
    (folder / MANIFEST_NAME).write_text(make_manifest(released, lesson).as_text(), encoding="utf-8")


def make_manifest(released: Notebook, lesson: Lesson) -> Manifest:
    """Say what stands in a generated lab."""
    marked = {str(marks_of(cell)["grade_id"]): cell for cell in released["cells"] if kind_of(cell)}
    locked = []
    for grade_id, cell in marked.items():
        kind = kind_of(cell)
        if cell["cell_type"] != "code" or kind not in ("readonly", "test"):
            continue
        question = checked_question(cell["source"]) if kind == "test" else None
        sha256 = source_hash(cell["source"])
        locked.append(LockedCell(grade_id, "test" if kind == "test" else "setup", question, sha256, cell["source"]))
    questions = tuple(
        ReleasedQuestion(q.id, q.points, source_hash(marked[solution_grade_id(q.id)]["source"]))
        for q in lesson.questions
    )
    return Manifest(SCHEMA, lesson.folder, lesson.lab_version, lesson.points, questions, tuple(locked), tuple(marked))


def _text_of(file: Path) -> str:
    return file.read_bytes().decode("utf-8", "replace")


def _differences(made: Path, labs: Path) -> dict[str, str]:
    """What has to change in ``labs/``, by file."""
    changes: dict[str, str] = {}
    for file in sorted(made.rglob("*")):
        if not file.is_file():
            continue
        name, there = file.relative_to(made), labs / file.relative_to(made)
        if not there.is_file():
            changes[str(name)] = "missing"
        elif file.read_bytes() != there.read_bytes():
            changes[str(name)] = _how(file, there)
    folders = [folder for folder in sorted(labs.glob("*")) if (folder / MANIFEST_NAME).is_file()]
    for folder in folders:
        for file in sorted(folder.rglob("*")):
            name = file.relative_to(labs)
            is_hidden = any(part.startswith(".") for part in name.parts)
            if file.is_file() and not is_hidden and not (made / name).is_file():
                changes[str(name)] = "left over: nothing in solutions/ makes it"
    return changes


def _how(made: Path, there: Path) -> str:
    """Name the first cell that differs, where it is a notebook."""
    if made.suffix != ".ipynb":
        return "differs"
    try:
        new, old = (json.loads(file.read_text(encoding="utf-8"))["cells"] for file in (made, there))
    except (ValueError, KeyError, TypeError):
        return "cannot be read"
    for number, (mine, theirs) in enumerate(zip(new, old, strict=False), 1):
        if mine != theirs:
            parts = sorted(key for key in set(mine) | set(theirs) if mine.get(key) != theirs.get(key))
            return f"cell {number} differs ({', '.join(parts)})"
    return "differs" if len(new) == len(old) else f"has {len(old)} cells instead of {len(new)}"


def _publish(made: Path, labs: Path, changes: dict[str, str]) -> None:
    for name in changes:
        source, target = made / name, labs / name
        if not source.is_file():
            target.unlink()
            if not any(target.parent.iterdir()):
                target.parent.rmdir()
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        unfinished = target.with_name(f".{target.name}.{os.getpid()}")
        shutil.copyfile(source, unfinished)
        unfinished.replace(target)
