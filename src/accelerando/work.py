"""The learner's places: their own copies of notebooks and labs in ``work/``, and how they get there.

Files have owners. ``notebooks/``, ``labs/`` and ``solutions/`` belong to the course; everything in ``work/`` belongs to
the learner and is written there once. When the course has a newer version, the learner's stays and a sentence says
so; `reset` brings the newer one and keeps a dated copy of what was there.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from tempfile import NamedTemporaryFile

from . import catalog
from .catalog import Lesson

ENVIRONMENT_NAME = "ACCELERANDO_WORK"
_RECEIPT = ".copied.json"  # which course version each of the learner's files was copied from
_RECEIPT_SCHEMA = 1
_SKIPPED = {"__pycache__", ".ipynb_checkpoints", "manifest.json"}  # the grader reads the course's own manifest


class WorkError(ValueError):
    """Something about the learner's folder needs a person: what, and what to do."""


@dataclass(frozen=True)
class Prepared:
    """What `prepare` did: paths are relative to the learner's folder."""

    folder: Path
    copied: tuple[str, ...]  # new in the learner's folder
    newer: tuple[Lesson, ...]  # the course has a newer version of these than the learner's copy


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
    """Copy notebooks and labs into the learner's folder; what is there already is never touched.

    Raises:
        WorkError: If the folder cannot be written.
    """
    folder = work_folder()
    try:
        receipt = _read_receipt(folder)
        copied = []
        for lesson in (*catalog.lessons(), catalog.final()):
            for name, source in _course_files(lesson):
                own = folder / name
                if not own.exists():
                    _copy(source, own)
                    copied.append(name)
                elif name in receipt or _fingerprint(own) != _fingerprint(source):
                    continue  # the learner's
                receipt[name] = _fingerprint(source)
        _write_receipt(folder, receipt)
    except OSError as error:
        raise _explained(folder, error) from error
    newer = (lesson for lesson in (*catalog.lessons(), catalog.final()) if has_newer(lesson))
    return Prepared(folder, tuple(copied), tuple(newer))


def has_newer(lesson: Lesson) -> bool:
    """Whether the course's files of a lesson have changed since the learner's copies were made."""
    folder = work_folder()
    receipt = _read_receipt(folder)
    for name, source in _course_files(lesson):
        if name not in receipt or not (folder / name).exists():
            continue  # never copied by us, or about to be: nothing to compare with
        now = _fingerprint(source)
        if now not in (receipt[name], _fingerprint(folder / name)):
            return True
    return False


def reset(lesson: Lesson) -> Path | None:
    """Give the learner fresh copies of a lesson's notebook and lab; what was there is kept in a dated folder.

    Returns:
        The folder with what was there, or None when there was nothing but the course's own text.

    Raises:
        WorkError: If the course has nothing to copy, or the folder cannot be written.
    """
    folder = work_folder()
    files = list(_course_files(lesson))
    if not files:
        raise WorkError(f"lesson {lesson.number} ({lesson.slug}) has no notebook and no lab in the course yet")
    kept = free_name(folder / "kept" / f"{lesson.folder}-{datetime.now():%Y-%m-%d-%H%M%S}")
    try:
        moved = [_keep(folder, path, kept) for path in _learners_files(folder, lesson)]
        receipt = _read_receipt(folder)
        for name, source in files:
            _copy(source, folder / name)
            receipt[name] = _fingerprint(source)
        _write_receipt(folder, receipt)
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


def _course_files(lesson: Lesson) -> Iterator[tuple[str, Path]]:
    """A lesson's files in the course, with the names they get in the learner's folder."""
    root = checkout()
    notebook = root / "notebooks" / f"{lesson.folder}.ipynb"
    lab = root / _place(lesson)
    for path in [notebook, *sorted(lab.rglob("*"))]:
        if path.is_file() and not _SKIPPED.intersection(path.parts):
            yield path.relative_to(root).as_posix(), path


def _learners_files(folder: Path, lesson: Lesson) -> list[Path]:
    """Everything the learner has of a lesson, whatever they added."""
    places = [folder / "notebooks" / f"{lesson.folder}.ipynb", folder / _place(lesson)]
    return [place for place in places if place.exists()]


def _keep(folder: Path, path: Path, kept: Path) -> bool:
    """Move a file or folder of the learner's under ``kept``, unless it holds nothing but the course's own text."""
    pairs = [(p, checkout() / p.relative_to(folder)) for p in ([path] if path.is_file() else path.rglob("*"))]
    files = [(own, course) for own, course in pairs if own.is_file() and not _SKIPPED.intersection(own.parts)]
    if all(course.is_file() and _fingerprint(own) == _fingerprint(course) for own, course in files):
        return False
    target = kept / path.relative_to(folder)
    target.parent.mkdir(parents=True, exist_ok=True)
    path.rename(target)
    return True


def free_name(path: Path) -> Path:
    """``path``, or with a number behind it when two fall into one second."""
    number, free = 1, path
    while free.exists():
        number += 1
        free = path.with_name(f"{path.name}-{number}")
    return free


def _copy(source: Path, target: Path) -> None:
    """Copy one file so that it is there wholly or not at all, and may be written by its new owner.

    A notebook comes without its outputs: a learner guesses first, and the stored figures would tell.
    """
    content = source.read_bytes()
    replace_with_bytes(target, _without_outputs(content) if source.suffix == ".ipynb" else content)


def _without_outputs(content: bytes) -> bytes:
    try:
        notebook = json.loads(content)
        shown = [cell for cell in notebook["cells"] if cell.get("outputs")]
        for cell in shown:
            cell["outputs"], cell["execution_count"] = [], None
    except (ValueError, KeyError, TypeError):
        return content  # a damaged notebook goes as it is; opening it says what is wrong
    return (json.dumps(notebook, ensure_ascii=False, indent=1) + "\n").encode() if shown else content


def replace_with_bytes(target: Path, content: bytes) -> None:
    """Write a file in one step: a reader, or a crash, sees the old content or the new one.

    Raises:
        OSError: If the folder cannot be made or written; nothing is left behind.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    with NamedTemporaryFile(dir=target.parent, prefix=f".{target.name}.", delete=False) as partial:
        try:
            partial.write(content)
            partial.close()
            shutil.copymode(target, partial.name) if target.exists() else Path(partial.name).chmod(0o644)
            os.replace(partial.name, target)
        except BaseException:  # Ctrl-C too leaves no half-written file
            Path(partial.name).unlink(missing_ok=True)
            raise


def _fingerprint(path: Path) -> str:
    """A hash of what a person wrote: a notebook's cells without outputs and counters, another file's bytes."""
    content = path.read_bytes()
    if path.suffix == ".ipynb":
        try:
            cells = [[cell["cell_type"], "".join(cell["source"])] for cell in json.loads(content)["cells"]]
            content = json.dumps(cells).encode()
        except (ValueError, KeyError, TypeError):
            pass  # a damaged notebook is compared byte by byte
    return hashlib.sha256(content).hexdigest()


def _read_receipt(folder: Path) -> dict[str, str]:
    """What was copied from which version; empty when there is no readable receipt, which loses only the notice."""
    try:
        receipt = json.loads((folder / _RECEIPT).read_bytes())
        return dict(receipt["files"]) if receipt["schema"] == _RECEIPT_SCHEMA else {}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def _write_receipt(folder: Path, files: dict[str, str]) -> None:
    text = json.dumps({"schema": _RECEIPT_SCHEMA, "files": dict(sorted(files.items()))}, indent=1)
    replace_with_bytes(folder / _RECEIPT, text.encode())


def _explained(folder: Path, error: OSError) -> WorkError:
    reason = error.strerror or str(error)
    return WorkError(
        f"your folder {folder} cannot be written ({reason}: {error.filename or folder}); free some space or its "
        f"permissions, or name another folder in the variable {ENVIRONMENT_NAME}"
    )
