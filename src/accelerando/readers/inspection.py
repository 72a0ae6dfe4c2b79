"""``./course inspect``: one dump read and shown, as JSON or for people."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from accelerando import readers
from accelerando.readers.text import MAX_BYTES, Unreadable, decode

_LONG = 100


def inspect_command(kind: str, file: Path, as_json: bool) -> int:
    """Read a dump and print what it says.

    Args:
        kind: One of `readers.KINDS`.
        file: The file, or ``-`` for standard input.
        as_json: Print one JSON object and nothing else.

    Returns:
        0 when it was read (with warnings, perhaps), 1 when it was refused, 2 for an unknown kind.
    """
    try:
        if str(file) == "-":
            data = sys.stdin.buffer.read(MAX_BYTES + 1)
            if len(data) > MAX_BYTES:
                raise Unreadable(f"standard input is larger than {MAX_BYTES >> 20} MiB: keep the part that matters")
            answer = readers.parse(kind, decode(data, "standard input"))
        else:
            answer = readers.read(kind, file)
    except Unreadable as refusal:
        if as_json:
            _print(json.dumps({"error": str(refusal), "line": refusal.line}))
        else:
            where = f"{file}, line {refusal.line}" if refusal.line else str(file)
            print(f"{where}: {refusal}", file=sys.stderr)  # noqa: T201
        return 1
    except ValueError as error:
        print(error, file=sys.stderr)  # noqa: T201
        return 2
    _print(json.dumps(answer, ensure_ascii=False) if as_json else describe(answer))
    return 0


def describe(answer: dict[str, Any]) -> str:
    """Write an answer for people: one line a fact, "unknown" where the dump does not say, then the warnings."""
    width = max(map(len, answer))
    lines = []
    for key, value in answer.items():
        if key == "warnings":
            continue
        parts = value.items() if isinstance(value, dict) and value else [("", value)]
        for place, (name, part) in enumerate(parts):
            label = key if place == 0 else ""
            written = " -> ".join(map(str, part)) if name == "order" else _write(part)
            text = f"{name}: {written}" if name else written
            lines.append(f"{label.replace('_', ' '):{width}}  {text}")
    return "\n".join(lines + [f"warning: {warning}" for warning in answer.get("warnings", [])])


def _write(value: Any) -> str:
    if value is None:
        return "unknown"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        return ", ".join(f"{name} {_write(part)}" for name, part in value.items())
    if isinstance(value, list):
        if value and all(isinstance(item, int) for item in value) and len(value) > 1:
            return _ranges(value)
        text = " ".join(_write(item) if not isinstance(item, list) else "-".join(map(str, item)) for item in value)
        return "none" if not value else text if len(text) <= _LONG else f"{text[:_LONG]}… ({len(value)} in all)"
    return str(value)


def _ranges(numbers: list[int]) -> str:
    """Write ascending numbers 0 1 2 3 8 as 0-3,8."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


def _print(text: str) -> None:
    sys.stdout.write(text + "\n")
