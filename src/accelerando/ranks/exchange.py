"""The folder through which a caller and its ranks exchange: the payload in, a status and a value of each rank out."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from accelerando import wire
from accelerando.ranks import functions

Program = Path | str | Callable[..., Any]

_MODULE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*(:[A-Za-z_]\w*)?")


def pack(folder: Path, program: Program, arguments: Sequence[str], payload: Mapping[str, Any] | None) -> list[str]:
    """Write what the ranks need into a folder.

    Args:
        folder: Exists, and nobody else can enter it.
        program: As `run` takes it.
        arguments: Its command line.
        payload: For every rank.

    Returns:
        The words that name the program to `rank_entry`, and its arguments.

    Raises:
        ValueError: If the program cannot be, or something cannot be sent.
    """
    target = functions.write(program, folder) if callable(program) else _target(program)
    if ":" in target and arguments:
        raise ValueError("a function has no command line: give its arguments as payload")
    with (folder / "payload").open("wb") as stream:
        wire.write_message(stream, dict(payload or {}))
    return [target, *map(str, arguments)]


def statuses(folder: Path, ranks: int) -> list[dict[str, Any]]:
    """Return what each rank wrote of itself; {} where it has not begun."""
    return [_status(folder / f"{rank}.status") for rank in range(ranks)]


def values(folder: Path, ranks: int) -> tuple[Any, ...]:
    """Return what each rank gave; None where nothing came."""
    return tuple(_value(folder / f"{rank}.value") for rank in range(ranks))


def _target(program: Path | str) -> str:
    if isinstance(program, Path) or str(program).endswith(".py"):
        path = Path(program).resolve()
        if path.suffix != ".py" or not path.is_file():
            raise ValueError(f"{program}: there is no such Python file")
        return str(path)
    if not isinstance(program, str) or not _MODULE.fullmatch(program):
        raise ValueError(
            f"program is {program!r}: give a function, a .py file, 'package.module' or 'package.module:function'"
        )
    return program


def _status(path: Path) -> dict[str, Any]:
    try:
        status: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return status


def _value(path: Path) -> Any:
    try:
        with path.open("rb") as stream:
            return wire.read_message(stream)
    except FileNotFoundError:
        return None
