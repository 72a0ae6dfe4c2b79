"""The learner's places: their own copies of notebooks and labs in ``work/``, and how they get there.

Files have owners. ``notebooks/``, ``labs/`` and ``solutions/`` belong to the course; everything in ``work/`` belongs to
the learner. When the course has a newer version, a copy that nobody touched is renewed; a learner's own stays, and a
sentence says so. `reset` brings the newer one and keeps a dated copy of what was there.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Literal

from . import catalog, copies
from .catalog import Lesson

ENVIRONMENT_NAME = "ACCELERANDO_WORK"
Part = Literal["lesson", "lab"]
PARTS: tuple[Part, ...] = ("lesson", "lab")
_SKIPPED = {"__pycache__", ".ipynb_checkpoints", "manifest.json"}  # the grader reads the course's own manifest


class WorkError(ValueError):
    """Something about the learner's folder needs a person: what, and what to do."""


@dataclass(frozen=True)
class Newer:
    """What the course has newer than the learner's own copies of a lesson."""

    lesson: Lesson
    parts: tuple[Part, ...]

    def sentence(self, program: str = "course") -> str:
        """What there is, and the command that brings just that."""
        is_one = len(self.parts) == 1
        only = f" --{self.parts[0]}" if is_one and self.lesson.number else ""
        return (
            f"The course has a newer {' and '.join(self.parts)}; yours {'was' if is_one else 'were'} left alone. "
            f"`{program} reset {self.lesson.number or self.lesson.slug}{only}` brings {'it' if is_one else 'them'} and "
            "keeps a dated copy of yours."
        )


@dataclass(frozen=True)
class Prepared:
    """What `prepare` did: paths are relative to the learner's folder."""

    folder: Path
    copied: tuple[str, ...]  # new in the learner's folder
    renewed: tuple[str, ...]  # the course had a newer version, and the learner had not touched theirs
    newer: tuple[Newer, ...]  # the course has a newer version, and the learner has worked on theirs


def checkout() -> Path:
    """The folder that holds notebooks/, labs/, solutions/ and work/: the one this package was installed from."""
    return Path(__file__).resolve().parents[2]


def work_folder() -> Path:
    """The learner's folder: ``work/`` in the checkout, or what the variable ``ACCELERANDO_WORK`` names."""
    named = os.environ.get(ENVIRONMENT_NAME, "").strip()
    return Path(named).expanduser().resolve() if named else checkout() / "work"


def results_folder() -> Path:
    """Where the learner finds what came of each run of the final: a folder for each."""
    return work_folder() / "results"


def certificate() -> Path | None:
    """The newest certificate that the final has given, if it was passed."""
    found = sorted(results_folder().glob("final-*/certificate.html"))
    return found[-1] if found else None


def is_learners(path: Path) -> bool:
    """Whether a path lies in the learner's folder."""
    return path.resolve().is_relative_to(work_folder().resolve())


def prepare() -> Prepared:
    """Copy notebooks and labs into the learner's folder; what they have worked on is never touched.

    Raises:
        WorkError: If the folder cannot be written.
    """
    folder = work_folder()
    try:
        receipt = copies.read_receipt(folder)
        copied, renewed = [], []
        for lesson in (*catalog.lessons(), catalog.final()):
            for name, source in _course_files(lesson):
                own, now = folder / name, copies.fingerprint(source)
                if not own.exists():
                    copies.hand_out(source, own)
                    copied.append(name)
                elif copies.fingerprint(own) != now:
                    if receipt.get(name) == now or not copies.is_untouched(own, receipt.get(name)):
                        continue  # the learner's
                    copies.hand_out(source, own)
                    renewed.append(name)
                receipt[name] = now
        copies.write_receipt(folder, receipt)
    except OSError as error:
        raise _explained(folder, error) from error
    newer = (find_newer(lesson) for lesson in (*catalog.lessons(), catalog.final()))
    return Prepared(folder, tuple(copied), tuple(renewed), tuple(found for found in newer if found))


def find_newer(lesson: Lesson) -> Newer | None:
    """What of a lesson has changed in the course since the learner's copies were made."""
    folder = work_folder()
    receipt = copies.read_receipt(folder)

    def is_newer(name: str, source: Path) -> bool:
        if name not in receipt or not (folder / name).exists():
            return False  # never copied by us, or about to be: nothing to compare with
        return copies.fingerprint(source) not in (receipt[name], copies.fingerprint(folder / name))

    parts = tuple(part for part in PARTS if any(is_newer(*file) for file in _course_files(lesson, (part,))))
    return Newer(lesson, parts) if parts else None


def reset(lesson: Lesson, parts: tuple[Part, ...] = PARTS) -> Path | None:
    """Give the learner fresh copies of a lesson's notebook and lab; what was there is kept in a dated folder.

    Args:
        lesson: Whose.
        parts: The notebook ("lesson"), the lab, or both.

    Returns:
        The folder with what was there, or None when there was nothing but the course's own text.

    Raises:
        WorkError: If the course has nothing to copy, or the folder cannot be written.
    """
    folder = work_folder()
    files = list(_course_files(lesson, parts))
    if not files:
        what = " and ".join(f"no {'notebook' if part == 'lesson' else part}" for part in parts)
        raise WorkError(f"lesson {lesson.number} ({lesson.slug}) has {what} in the course yet")
    kept = copies.free_name(folder / "kept" / f"{lesson.folder}-{datetime.now():%Y-%m-%d-%H%M%S}")
    try:
        receipt = copies.read_receipt(folder)
        moved = [_keep(folder, path, kept, receipt) for path in _learners_files(folder, lesson, parts)]
        for name, source in files:
            copies.hand_out(source, folder / name)
            receipt[name] = copies.fingerprint(source)
        copies.write_receipt(folder, receipt)
    except OSError as error:
        raise _explained(folder, error) from error
    return kept if any(moved) else None


def find_notebook(lesson: Lesson, given: Path | None = None) -> Path:
    """The learner's file for a lab: the given one, else their copy in ``work/``, else the untouched lab.

    Args:
        lesson: Whose lab.
        given: A notebook, or a folder that holds one.

    Raises:
        WorkError: If there is none; says where it was looked for.
    """
    if given is not None:
        if given.is_dir():
            return _notebook_in(given, lesson) or _refuse(f"{given} holds no notebook; name the file itself")
        return given if given.exists() else _refuse(f"there is no file {given}")
    looked_in = [work_folder() / _place(lesson), checkout() / _place(lesson)]
    for folder in looked_in:
        if notebook := _notebook_in(folder, lesson):
            return notebook
    places = " or ".join(str(folder) for folder in looked_in)
    return _refuse(f"lab {lesson.number} ({lesson.slug}) has no notebook in {places}; `./course lab` copies it there")


def _refuse(message: str) -> Path:
    raise WorkError(message)


def _notebook_in(folder: Path, lesson: Lesson) -> Path | None:
    """The folder's notebook named as the lesson, else the only one there."""
    own = folder / f"{lesson.folder}.ipynb"
    if own.is_file():
        return own
    found = sorted(path for path in folder.glob("*.ipynb") if path.is_file())
    return found[0] if len(found) == 1 else None


def _place(lesson: Lesson) -> Path:
    """Where a lab stands, in the course and in the learner's folder."""
    return Path("labs" if lesson.number else "assessment") / lesson.folder


def _places(lesson: Lesson, parts: tuple[Part, ...]) -> list[Path]:
    """Where a lesson's parts stand: a notebook, a folder."""
    where = {"lesson": Path("notebooks") / f"{lesson.folder}.ipynb", "lab": _place(lesson)}
    return [where[part] for part in parts]


def _course_files(lesson: Lesson, parts: tuple[Part, ...] = PARTS) -> Iterator[tuple[str, Path]]:
    """A lesson's files in the course, with the names they get in the learner's folder."""
    root = checkout()
    for place in (root / place for place in _places(lesson, parts)):
        for path in [place, *sorted(place.rglob("*"))]:
            if path.is_file() and not _SKIPPED.intersection(path.parts):
                yield path.relative_to(root).as_posix(), path


def _learners_files(folder: Path, lesson: Lesson, parts: tuple[Part, ...]) -> list[Path]:
    """Everything the learner has of a lesson, whatever they added."""
    return [folder / place for place in _places(lesson, parts) if (folder / place).exists()]


def _keep(folder: Path, path: Path, kept: Path, receipt: dict[str, str]) -> bool:
    """Move a file or folder of the learner's under ``kept``, unless it holds nothing but the course's own text."""
    files = [p for p in ([path] if path.is_file() else path.rglob("*")) if p.is_file()]
    own = [p for p in files if not _SKIPPED.intersection(p.parts)]
    if all(_is_of_the_course(p, p.relative_to(folder), receipt) for p in own):
        return False
    target = kept / path.relative_to(folder)
    target.parent.mkdir(parents=True, exist_ok=True)
    path.rename(target)
    return True


def _is_of_the_course(own: Path, name: Path, receipt: dict[str, str]) -> bool:
    course = checkout() / name
    is_current = course.is_file() and copies.fingerprint(own) == copies.fingerprint(course)
    return is_current or copies.is_untouched(own, receipt.get(name.as_posix()))


def _explained(folder: Path, error: OSError) -> WorkError:
    reason = error.strerror or str(error)
    return WorkError(
        f"your folder {folder} cannot be written ({reason}: {error.filename or folder}); free some space or its "
        f"permissions, or name another folder in the variable {ENVIRONMENT_NAME}"
    )
