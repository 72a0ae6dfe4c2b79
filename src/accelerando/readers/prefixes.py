"""What stands before every line of pasted text: quote marks, boxes, line numbers, ranks, host names, time stamps."""

from __future__ import annotations

import json
import re
from itertools import pairwise

_CLOCK = r"\d\d:\d\d:\d\d(?:[.,]\d+)?"
_LEVEL = r"(?:DEBUG|INFO|WARN(?:ING)?|ERROR|CRITICAL|[DIWEF])"
# What launchers, loggers and mail put before a line. Each is removed as often as it stands there.
_PREFIXES = re.compile(
    r"^\s*(?:"
    r"\[\d+,\d+\]<std(?:out|err|diag)>:?"  # Open MPI --tag-output
    rf"|\[?\d{{4}}-\d\d-\d\d[T ]{_CLOCK}(?:Z|[+-]\d\d:?\d\d)?\]?(?: ?[:|])?(?: std(?:out|err) [FP])?"
    rf"(?: {{1,3}}[-|]? ?\[?{_LEVEL}\]? {{0,3}}[-|:])?(?=\s|$)"
    rf"|\[{_CLOCK}\](?=\s|$)|{_CLOCK}(?: ?[|])?(?=\s|$)"
    rf"|{_LEVEL} \d\d-\d\d {_CLOCK}(?: \[?[\w.]+:\d+\])?(?=\s|$)"  # vLLM
    rf"|[A-Z][a-z]{{2}}\s+\d{{1,2}} {_CLOCK} [\w.-]+ [\w./-]+(?:\[\d+\])?:(?=\s|$)"  # syslog, journalctl
    r"|\[(?:default|rank|trainer|node)[-_]?\d+[^\]\n]*\]:?"  # torchrun
    r"|\((?:\w+ )?pid=\d+[^)\n]*\)"  # Ray
    r"|[\w.-]+\s+\|\s"  # docker compose
    r"|>(?=\s|[A-Z>])"  # mail, markdown quotes
    r")\s?"
)
_LINE_NUMBER = re.compile(r"^\s*(\d{1,7})(?:[:.|)]|(?=\s|$))[ \t]?")
_LABEL = re.compile(r"^\s*([\w.-]{1,63}):(?: |$)")
_RANK_LABEL = re.compile(r"^\s*\d{1,5}:(?: |$)")
_BOX = re.compile(r"^\s*[│┃║] ?|[│┃║]\s*$")
_QUOTED = re.compile(r'^\s*"(?:[^"\\\n]|\\.)*",?$')


def unescaped(text: str) -> str:
    r"""Undo what JSON and Python do to a text they show: a list of quoted lines, or ``\n`` and ``\t`` written out."""
    filled = [line for line in text.split("\n") if line.strip()]
    quoted = [line for line in filled if _QUOTED.match(line)]
    if len(quoted) >= 3 and len(quoted) >= 0.8 * len(filled):
        kept = [line if _QUOTED.match(line) else "" for line in text.split("\n")]
        return "\n".join(_unquoted(line) for line in kept)
    if len(filled) == 1 and _QUOTED.match(filled[0]):
        return _unquoted(filled[0])
    if len(filled) <= 2 and text.count("\\n") >= 3:
        text = text.strip().strip("\"'").replace("\\r", "").replace("\\n", "\n")
        filled = text.split("\n")
    if "\t" not in text and sum("\\t" in line for line in filled) >= 2:
        text = text.replace("\\t", "\t")
    return text


def _unquoted(line: str) -> str:
    line = line.strip().rstrip(",")
    try:
        return str(json.loads(line, strict=False)) if line else ""
    except (ValueError, RecursionError):  # an escape that JSON does not know
        return line[1:-1]


def removed(lines: list[str], warnings: list[str]) -> list[str]:
    """Take away what stands before the lines, and say so in ``warnings``."""
    steps = (
        (_without_quotes, "quote marks at the start of lines removed"),
        (_without_boxes, "a box around the lines removed"),
        (_without_line_numbers, "line numbers at the start of lines removed"),
        (_without_prefixes, "prefixes of a launcher or logger removed"),
    )
    for step, what in steps:
        before, lines = lines, step(lines)
        if lines != before:
            warnings.append(what)
    return lines


def _without_quotes(lines: list[str]) -> list[str]:
    filled = [line for line in lines if line.strip()]
    if sum(line.lstrip().startswith(">") for line in filled) > 0.8 * len(filled):
        return [re.sub(r"^\s*>\s?", "", line) for line in lines]
    return lines


def _without_boxes(lines: list[str]) -> list[str]:
    return [_BOX.sub("", line).rstrip() for line in lines] if any(_BOX.match(line) for line in lines) else lines


def _without_prefixes(lines: list[str]) -> list[str]:
    shorter = [_without_prefix(line) for line in lines]
    filled = [line for line in shorter if line.strip()]
    labels = [_LABEL.match(line) for line in filled]
    if len(filled) >= 3 and len({match.group(1) if match else None for match in labels} - {None}) == 1 and all(labels):
        return [_LABEL.sub("", line) for line in shorter]
    return shorter


def _without_prefix(line: str) -> str:
    for _ in range(4):
        shorter = _PREFIXES.sub("", line)
        if shorter == line:
            return line
        line = shorter
    return line


def _without_line_numbers(lines: list[str]) -> list[str]:
    """Remove them only where nearly all lines start with numbers that count up by one, or all with a rank label."""
    filled = [line for line in lines if line.strip()]
    matches = [_LINE_NUMBER.match(line) for line in filled]
    numbers = [int(match.group(1)) for match in matches if match]
    if len(filled) >= 3 and len(numbers) >= 0.9 * len(filled):
        steps = [after - before for before, after in pairwise(numbers)]
        if sum(1 <= step <= 3 for step in steps) >= 0.9 * len(steps):
            return [_LINE_NUMBER.sub("", line) for line in lines]
    if len(filled) >= 2 and all(_RANK_LABEL.match(line) for line in filled):
        return [_RANK_LABEL.sub("", line) for line in lines]
    return lines
