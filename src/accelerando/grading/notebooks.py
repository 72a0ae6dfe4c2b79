"""Reads notebooks as people really have them, and writes them as Jupyter does. The only door to nbformat.

`read_notebook` knows no lab: it gives a clean nbformat 4.5 notebook, made from a copy, with one sentence for each
thing that had to be repaired; or it raises `Unreadable`, which names the file, the place and the cure.
"""

import codecs
import json
import logging
import os
import re
import stat
import warnings as warnings_module
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from . import repair
from .cells import Notebook

MAX_NOTEBOOK_BYTES = 50 * 2**20
_CHECKPOINTS = ".ipynb_checkpoints"
_CONFLICT = re.compile(r"^(<{7}|\|{7}|={7}|>{7})(\s|$)", re.MULTILINE)
_ENCODINGS = (
    (codecs.BOM_UTF32_LE, "utf-32", "UTF-32"),
    (codecs.BOM_UTF32_BE, "utf-32", "UTF-32"),
    (codecs.BOM_UTF16_LE, "utf-16", "UTF-16"),
    (codecs.BOM_UTF16_BE, "utf-16", "UTF-16"),
)
_OTHER_FILES = (
    (b"PK\x03\x04", "a zip archive: unpack it and give the .ipynb inside"),
    (b"\x1f\x8b", "compressed with gzip: run gunzip on it first"),
    (b"%PDF", "a PDF: give the notebook that it was made from"),
)


class Unreadable(ValueError):
    """A notebook that cannot be repaired; the message names file, place and cure."""


def read_notebook(path: Path | str) -> tuple[Notebook, tuple[str, ...]]:
    """Read and repair a notebook.

    Args:
        path: The file; it is never written to.

    Returns:
        The notebook as plain dicts and lists in nbformat 4.5 (sources are strings), and what was repaired.

    Raises:
        Unreadable: If there is no notebook in it.
    """
    path = Path(path)
    data = _read_bytes(path)
    warnings: list[str] = []
    if path.parent.name == _CHECKPOINTS:
        original = path.parent.parent / path.name.replace("-checkpoint", "")
        warnings.append(f"this is a copy that Jupyter made on its own; the notebook itself is {original}")
    content = _parse(_decode(data, path, warnings), path)
    notebook = _upgrade(content, path, warnings)
    try:
        repair.clean(notebook, warnings)
    except repair.Hopeless as reason:
        raise Unreadable(f"{path}: {reason}") from None
    _validate(notebook, path, warnings)
    return notebook, tuple(dict.fromkeys(warnings))


def write_notebook(path: Path, notebook: Notebook) -> None:
    """Write a notebook the way Jupyter does: one space of indentation, sources as lists of lines."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        unfinished.write_text(as_text(notebook), encoding="utf-8")
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def as_text(notebook: Notebook) -> str:
    """The text that `write_notebook` writes."""
    import nbformat

    return nbformat.writes(nbformat.from_dict(json.loads(json.dumps(notebook)))) + "\n"


def language(notebook: Notebook) -> str:
    """The language of the notebook's kernel in small letters; ``python`` when it does not say."""
    metadata = notebook["metadata"]
    kernel = metadata.get("kernelspec") if isinstance(metadata.get("kernelspec"), dict) else {}
    info = metadata.get("language_info") if isinstance(metadata.get("language_info"), dict) else {}
    stated = kernel.get("language") or info.get("name")
    if not stated:
        name = str(kernel.get("name", "python")).lower()
        stated = {"ir": "R"}.get(name) or ("julia" if name.startswith("julia") else "python")
    stated = str(stated).lower()
    return "python" if stated.startswith(("python", "ipython")) else stated


def _read_bytes(path: Path) -> bytes:
    try:
        found = path.stat()
    except FileNotFoundError:
        raise Unreadable(f"{path}: there is no such file{_nearby(path.parent)}") from None
    except (OSError, ValueError) as error:
        raise Unreadable(f"{path}: cannot be read: {error}") from None
    if stat.S_ISDIR(found.st_mode):
        raise Unreadable(f"{path}: is a folder, not a notebook{_nearby(path)}")
    if not stat.S_ISREG(found.st_mode):
        raise Unreadable(f"{path}: is not an ordinary file")
    if found.st_size > MAX_NOTEBOOK_BYTES:
        raise Unreadable(
            f"{path}: has {found.st_size / 2**20:.0f} MiB, at most {MAX_NOTEBOOK_BYTES / 2**20:.0f} MiB are read. "
            "Clear its outputs (in JupyterLab: Edit, Clear Outputs of All Cells; or in a terminal: jupyter nbconvert "
            "--clear-output --inplace FILE) and save"
        )
    try:
        return path.read_bytes()
    except OSError as error:
        raise Unreadable(f"{path}: cannot be read: {error.strerror}") from None


def _nearby(folder: Path) -> str:
    try:
        names = sorted(file.name for file in folder.iterdir() if file.suffix == ".ipynb")[:5]
    except OSError:
        return ""
    return f"; notebooks in {folder}: {', '.join(names)}" if names else f"; there are no notebooks in {folder}"


def _decode(data: bytes, path: Path, warnings: list[str]) -> str:
    if not data.strip():
        raise Unreadable(f"{path}: is empty ({len(data)} bytes). Take an older copy, or a new one with ./course reset")
    for start, what in _OTHER_FILES:
        if data.startswith(start):
            raise Unreadable(f"{path}: is not a notebook but {what}")
    encoding, name = "utf-8", "UTF-8"
    if data.startswith(codecs.BOM_UTF8):
        encoding = "utf-8-sig"
        warnings.append("the file starts with a UTF-8 byte order mark, which was skipped")
    for mark, candidate, label in _ENCODINGS:
        if encoding == "utf-8" and data.startswith(mark):
            encoding, name = candidate, label
            warnings.append(f"the file is stored as {name}, notebooks should be UTF-8: it was read all the same")
    if encoding == "utf-8" and b"\0" in data[:4]:
        encoding, name = ("utf-16-le" if data[1:2] == b"\0" else "utf-16-be"), "UTF-16"
        warnings.append("the file is stored as UTF-16, notebooks should be UTF-8: it was read all the same")
    try:
        return data.decode(encoding)
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise Unreadable(
            f"{path}, line {line}: byte {data[error.start]:#04x} is not {name}. Open the file in an editor, save it as "
            "UTF-8, and look at that line"
        ) from None


def _parse(text: str, path: Path) -> dict[str, Any]:
    try:
        content = json.loads(text)
    except json.JSONDecodeError as error:
        raise Unreadable(f"{path}{_explain(text, error)}") from None
    except (RecursionError, ValueError) as error:
        raise Unreadable(f"{path}: the JSON is not that of a notebook: {error}") from None
    if isinstance(content, dict) and isinstance(content.get("content"), dict) and content.get("type") == "notebook":
        content = content["content"]  # an answer of Jupyter's contents service, saved as a file
    if not isinstance(content, dict) or not ("cells" in content or "worksheets" in content):
        raise Unreadable(f"{path}: is JSON, but not a notebook: it has no cells")
    return content


def _explain(text: str, error: json.JSONDecodeError) -> str:
    marker = _CONFLICT.search(text)
    if marker and text.lstrip().startswith("{"):
        lines = [text.count("\n", 0, found.start()) + 1 for found in _CONFLICT.finditer(text)]
        return (
            f", line {lines[0]}: git left merge conflict markers in lines {', '.join(map(str, lines[:12]))}. Keep one "
            "side: git checkout --ours FILE (yours) or --theirs FILE; then check again"
        )
    start = text.lstrip()[:200].lower()
    if start.startswith(("<!doctype", "<html")):
        return ": is a web page, not a notebook. On GitHub use the Raw button to download a notebook"
    if not start.startswith("{"):
        return ", line 1: is not a notebook: a notebook is JSON and starts with {"
    if error.pos >= len(text.rstrip()) - 1 or error.msg.startswith("Unterminated string"):
        return (
            f", line {error.lineno}: the file ends in the middle: it was cut off while saving or copying. Take an "
            f"older copy (Jupyter keeps one in {_CHECKPOINTS})"
        )
    return (
        f", line {error.lineno}, column {error.colno}: is not valid JSON ({error.msg}). Open it in a text editor at "
        f"that line, or take an older copy (Jupyter keeps one in {_CHECKPOINTS})"
    )


def _upgrade(content: dict[str, Any], path: Path, warnings: list[str]) -> Notebook:
    version = content.get("nbformat")
    if isinstance(version, str) and version.strip().isdecimal():
        version = int(version)
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        version = 4 if "cells" in content else 3
        warnings.append(f"the notebook does not say its format: taken for nbformat {version}")
    content["nbformat"] = version
    minor = content.get("nbformat_minor")
    if not isinstance(minor, int) or isinstance(minor, bool):
        content["nbformat_minor"] = 0
        if version == 4:
            warnings.append("the notebook does not say its minor format: taken for 4.0")
    if version > 4:
        raise Unreadable(
            f"{path}: is in nbformat {version}, from a newer Jupyter than this course's, which reads 2 to 4. Save it "
            "from JupyterLab of this course, or export it as an older format"
        )
    if version == 4 and "cells" not in content:
        version = content["nbformat"] = 3
        warnings.append("the notebook says nbformat 4 but is built like nbformat 3")
    if version == 4:
        return content
    try:
        repair.prepare_old(content, warnings)
        warnings.append(f"converted from nbformat {version}, which Jupyter left behind in 2015: save it anew")
        return _convert(content)
    except repair.Hopeless as reason:
        raise Unreadable(f"{path}: {reason}") from None
    except Exception as error:  # whatever nbformat stumbles over in a file that old
        raise Unreadable(
            f"{path}: is in nbformat {version} and cannot be converted ({type(error).__name__}: {error}). Open it in "
            "JupyterLab and save it"
        ) from None


def _convert(content: dict[str, Any]) -> Notebook:
    import nbformat

    with _quiet():
        node = nbformat.reads(json.dumps(content), as_version=4)
    notebook = json.loads(json.dumps(node))
    notebook["nbformat_minor"] = 4
    for key in ("orig_nbformat", "orig_nbformat_minor"):
        notebook["metadata"].pop(key, None)
    for cell in notebook["cells"]:
        cell.pop("id", None)  # nbformat draws these at random
    return notebook


def _validate(notebook: Notebook, path: Path, warnings: list[str]) -> None:
    """Ask nbformat whether the repaired notebook is one; give up what stands around a cell's source, not the cell."""
    with _quiet():
        for number, cell in enumerate(notebook["cells"], 1):
            for give_up in repair.CELL_SACRIFICES:
                if _fault(cell, f"{cell['cell_type']}_cell"):
                    warnings.extend(f"cell {number}: {what}" for what in give_up(cell))
            if fault := _fault(cell, f"{cell['cell_type']}_cell"):
                raise Unreadable(f"{path}, cell {number}: {fault}")
        if _fault(notebook):
            warnings.append("the notebook's metadata is damaged and was left out")
            repair.give_up_metadata(notebook)
        if fault := _fault(notebook):
            raise Unreadable(f"{path}: {fault}. Open it in JupyterLab and save it")


def _fault(part: dict[str, Any], kind: str | None = None) -> str:
    """What nbformat finds wrong with a cell, or with a notebook; empty when nothing is."""
    import nbformat

    try:
        nbformat.validate(nbformat.from_dict(part), ref=kind, version=4, version_minor=5)
    except nbformat.ValidationError as error:
        return _first_line(error)
    return ""


def _first_line(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)[:200]


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep nbformat's own complaints off the screen: ours say what to do."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings_module.catch_warnings(action="ignore"):
            yield
    finally:
        logging.disable(before)
