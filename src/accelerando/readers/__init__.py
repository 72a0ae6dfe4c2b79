"""Readers of other people's dumps: a file in, a plain dictionary out.

`read(kind, path)` is what ``./course inspect KIND FILE`` calls. The keys of each kind are fixed in the course's
contracts; what a file does not say is None, and what was repaired stands in ``warnings``.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from accelerando.readers.text import Unreadable, load

KINDS = {
    "lscpu": "lscpu",
    "topo": "topo",
    "topo-xml": "topo_xml",
    "nccl-log": "nccl_log",
    "hosts": "hosts",
}

__all__ = ["KINDS", "Unreadable", "inspect_command", "parse", "read"]


def read(kind: str, path: Path | str) -> dict[str, Any]:
    """Read one dump.

    Args:
        kind: One of `KINDS`.
        path: File to read.

    Returns:
        A dictionary that is ready for JSON, with None for all that the file does not say.

    Raises:
        Unreadable: If the file is missing, empty, binary, of another kind or damaged beyond repair.
        ValueError: If the kind is unknown.
    """
    reader = _reader(kind)
    return reader(load(path))


def parse(kind: str, text: str) -> dict[str, Any]:
    """Read a dump that is already text; as `read` otherwise."""
    return _reader(kind)(text)


def inspect_command(kind: str, file: Path, as_json: bool) -> int:
    """Run ``./course inspect``; see `inspection.inspect_command`."""
    from accelerando.readers import inspection

    return inspection.inspect_command(kind, file, as_json)


def _reader(kind: str) -> Callable[[str], dict[str, Any]]:
    name = KINDS.get(kind.replace("_", "-"))
    if name is None:
        raise ValueError(f"unknown kind {kind!r}: choose one of {', '.join(KINDS)}")
    reader: Callable[[str], dict[str, Any]] = import_module(f"accelerando.readers.{name}").parse
    return reader
