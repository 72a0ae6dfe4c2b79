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

__all__ = ["KINDS", "Unreadable", "read"]


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
    kind = kind.replace("_", "-")
    if kind not in KINDS:
        raise ValueError(f"unknown kind {kind!r}: choose one of {', '.join(KINDS)}")
    parse: Callable[[str], dict[str, Any]] = import_module(f"accelerando.readers.{KINDS[kind]}").parse
    return parse(load(path))
