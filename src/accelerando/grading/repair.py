"""Makes a clean nbformat 4.5 notebook of a damaged one, in place; each repair leaves a sentence. Pure: no library."""

import re
from collections.abc import Mapping
from typing import Any

from .cells import Cell, Notebook

_CELL_ID = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_CELL_TYPES = ("code", "markdown", "raw")
_KEYS = {
    "code": {"cell_type", "id", "metadata", "source", "outputs", "execution_count"},
    "markdown": {"cell_type", "id", "metadata", "source", "attachments"},
    "raw": {"cell_type", "id", "metadata", "source", "attachments"},
}
_CONFLICT_IN_CELL = re.compile(r"^(<{7}|>{7}) ", re.MULTILINE)


class Hopeless(ValueError):
    """What cannot be repaired, in words."""


def prepare_old(content: dict[str, Any], warnings: list[str]) -> None:
    """Add to an nbformat 1 to 3 notebook what its conversion cannot do without."""
    if not isinstance(content.get("metadata"), dict):
        content["metadata"] = {}
        warnings.append("the notebook's metadata is missing: an empty one was put in its place")
    if content["nbformat"] == 1:
        content["cells"] = [cell for cell in _as_list(content, "cells") if isinstance(cell, dict)]
        return
    if "worksheets" not in content and "cells" in content:
        content["worksheets"] = [{"cells": content.pop("cells")}]
    sheets = [sheet for sheet in _as_list(content, "worksheets") if isinstance(sheet, dict)]
    content["worksheets"] = sheets
    for sheet in sheets:
        sheet["metadata"] = sheet["metadata"] if isinstance(sheet.get("metadata"), dict) else {}
        sheet["cells"] = [cell for cell in _as_list(sheet, "cells") if isinstance(cell, dict)]
        for cell in sheet["cells"]:
            _prepare_old_cell(cell)


def _as_list(owner: dict[str, Any], key: str) -> list[Any]:
    value = owner.get(key, [])
    if not isinstance(value, list):
        raise Hopeless(f"its {key} are not a list but of type {type(value).__name__}")
    return value


def _prepare_old_cell(cell: dict[str, Any]) -> None:
    if not isinstance(cell.get("metadata"), dict):
        cell["metadata"] = {}
    if cell.get("cell_type") == "code":
        cell["input"] = _as_source(cell.pop("input", cell.pop("source", "")))
        cell["outputs"] = [output for output in _outputs(cell) if isinstance(output, dict)]
    else:
        cell["source"] = _as_source(cell.get("source", ""))
        if cell.get("cell_type") == "html":
            cell["cell_type"] = "markdown"


def clean(notebook: Notebook, warnings: list[str]) -> None:
    """Bring an nbformat 4 notebook of any minor version, or what is left of one, to 4.5.

    Args:
        notebook: Changed in place.
        warnings: Gets one sentence for each kind of repair.

    Raises:
        Hopeless: If it has no list of cells.
    """
    minor = notebook.get("nbformat_minor", 0)
    if minor > 5:
        warnings.append(f"the notebook is in nbformat 4.{minor}, newer than this course's 4.5: read as 4.5")
    notebook["nbformat"], notebook["nbformat_minor"] = 4, 5
    if not isinstance(notebook.get("metadata"), dict):
        notebook["metadata"] = {}
        warnings.append("the notebook's metadata is missing: an empty one was put in its place")
    _clean_metadata(notebook["metadata"])
    for key in set(notebook) - {"cells", "metadata", "nbformat", "nbformat_minor"}:
        del notebook[key]
    lost: dict[str, list[int]] = {}
    cells: list[Cell] = []
    for number, cell in enumerate(_as_list(notebook, "cells"), 1):
        if isinstance(cell, dict):
            cells.append(_clean_cell(cell, number, warnings, lost))
        else:
            warnings.append(f"cell {number} is not a cell and was left out")
    for what, numbers in lost.items():
        warnings.append(f"{_cells(numbers)}: {what}")
    _clean_ids(cells, minor, warnings)
    notebook["cells"] = cells


def _give_up_outputs(cell: Cell) -> list[str]:
    if not cell.get("outputs"):
        return []
    cell["outputs"] = []
    return ["its outputs are damaged and were left out"]


def _give_up_surroundings(cell: Cell) -> list[str]:
    cell.pop("attachments", None)
    give_up_metadata(cell)
    return ["its metadata or attachments are damaged and were left out"]


CELL_SACRIFICES = (_give_up_outputs, _give_up_surroundings)  # the cheapest first; each tells what it left out


def give_up_metadata(owner: dict[str, Any]) -> None:
    """Keep only the marks of nbgrader and of this course."""
    owner["metadata"] = {key: owner["metadata"][key] for key in ("nbgrader", "accelerando") if key in owner["metadata"]}


def _clean_metadata(metadata: dict[str, Any]) -> None:
    """Drop what nbformat would refuse the whole notebook for; `language` reads the rest."""
    kernel = metadata.get("kernelspec")
    if kernel is not None and not (isinstance(kernel, dict) and isinstance(kernel.get("name"), str)):
        del metadata["kernelspec"]
    elif kernel is not None and not isinstance(kernel.get("display_name"), str):
        kernel["display_name"] = kernel["name"]
    info = metadata.get("language_info")
    if info is not None and not (isinstance(info, dict) and isinstance(info.get("name"), str)):
        del metadata["language_info"]
    for key, kind in (("title", str), ("authors", list)):
        if key in metadata and not isinstance(metadata[key], kind):
            del metadata[key]


def _clean_cell(cell: dict[str, Any], number: int, warnings: list[str], lost: dict[str, list[int]]) -> Cell:
    kind = cell.get("cell_type")
    if kind not in _CELL_TYPES:
        found = kind
        if kind == "heading":
            kind = "markdown"
        else:
            kind = "code" if {"outputs", "execution_count", "input"} & set(cell) else "raw"
        warnings.append(f"cell {number} is of the unknown type {found!r}: taken for {kind}")
    result: Cell = {key: value for key, value in cell.items() if key in _KEYS[kind]}
    result["cell_type"] = kind
    source = cell.get("source", cell.get("input"))
    if source is None:
        lost.setdefault("has no source, taken for empty", []).append(number)
    result["source"] = _as_source(source)
    if _CONFLICT_IN_CELL.search(result["source"]):
        warnings.append(f"cell {number} holds git merge conflict markers: keep one side")
    if not isinstance(cell.get("metadata"), dict):
        lost.setdefault("has no metadata, taken for empty", []).append(number)
        result["metadata"] = {}
    else:
        _clean_cell_metadata(result["metadata"])
    if kind == "code":
        if "outputs" not in cell:
            lost.setdefault("has no list of outputs, taken for empty", []).append(number)
        result["outputs"] = [output for output in _outputs(cell) if isinstance(output, dict)]
        count = cell.get("execution_count")
        result["execution_count"] = count if type(count) is int and count >= 0 else None
    elif not isinstance(result.get("attachments", {}), dict):
        del result["attachments"]
    return result


def _clean_cell_metadata(metadata: dict[str, Any]) -> None:
    kinds = {"collapsed": bool, "scrolled": (bool, str), "name": str, "tags": list, "jupyter": dict, "execution": dict}
    for key, kind in kinds.items():
        if key in metadata and not isinstance(metadata[key], kind):  # type: ignore[arg-type]
            del metadata[key]


def _outputs(cell: Mapping[str, Any]) -> list[Any]:
    outputs = cell.get("outputs", [])
    return outputs if isinstance(outputs, list) else []


def _as_source(source: Any) -> str:
    """A cell's text: nbformat stores a string or a list of lines, some tools a list of lines without their ends."""
    if isinstance(source, list):
        lines = [line if isinstance(line, str) else str(line) for line in source]
        bare = len(lines) > 1 and not any(line.endswith(("\n", "\r")) for line in lines[:-1])
        text = ("\n" if bare else "").join(lines)
    else:
        text = source if isinstance(source, str) else "" if source is None else str(source)
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    return text.encode("utf-8", "replace").decode("utf-8")  # a lone surrogate cannot be stored


def _clean_ids(cells: list[Cell], minor: int, warnings: list[str]) -> None:
    seen: set[str] = set()
    repeated: list[int] = []
    missing: list[int] = []
    for number, cell in enumerate(cells, 1):
        cell_id = cell.get("id")
        if not (isinstance(cell_id, str) and _CELL_ID.fullmatch(cell_id)):
            missing.append(number)
        elif cell_id in seen:
            repeated.append(number)
        else:
            seen.add(cell_id)
            continue
        name = f"cell-{number}"
        while name in seen:
            name += "-"
        cell["id"] = name
        seen.add(name)
    if repeated:
        warnings.append(f"{_cells(repeated)}: repeats the id of an earlier cell, which harms nothing here")
    if missing and minor >= 5:
        warnings.append(f"{_cells(missing)}: has no valid cell id, got a new one")


def _cells(numbers: list[int]) -> str:
    shown = ", ".join(map(str, numbers[:8])) + (", …" if len(numbers) > 8 else "")
    return f"cell{'' if len(numbers) == 1 else 's'} {shown}"
