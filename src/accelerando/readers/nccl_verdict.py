"""The verdict on an NCCL log: whether the ranks came together, and the first cause if they did not."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from accelerando.readers.nccl_causes import ANOTHER_TIMED_OUT, CAUSES, CONSEQUENCES, HANGS, HARMLESS, Meaning
from accelerando.readers.text import Line

IS_LOG = re.compile(
    r"\b[NR]CCL (?:INFO|WARN|ERROR|TRACE|ABORT|version|failure|error)|\bnccl(?:\w*Error|InvalidUsage)|ProcessGroupNCCL"
    r"|\b[NR]CCL\b.*(?:error|version)|(?:^|\s)\S+:\d+ (?:NCCL )?WARN ",
    re.I,
)
_COMPLETE = re.compile(r"rank (\d+) n[rR]anks (\d+).*Init COMPLETE|Init COMPLETE")
_WARN = re.compile(r"(?:NCCL )?WARN\b:?\s*(.*)")
_TESTS_HEAD = re.compile(r"^#\s+size\s+count\s+type\s+redop")
_TESTS_ROW = re.compile(r"^\s*\d+\s+\d+\s+(?:float|half|double|u?int|bfloat|fp8|f8)\w*\s")
# Nearly all lines of a healthy log have none of these words: they are not held against every pattern.
_REMARKABLE = (
    "plugin", "fail", "not ", "no ", "could", "missing", "set by", "set to", "retrying", "guess", "auto balanc",
    "mismatch", "hang", "error", "warn", "async event", "dmabuf", "dma-buf", "call to", "returned", "abort",
    "timed out", "timeout", "disabled", "below", "older",
)  # fmt: skip


@dataclass
class Findings:
    """What lines said, each kind with the line that said it first."""

    cause: tuple[str, int] | None = None
    hang: tuple[str, int] | None = None
    unknown_warning: tuple[str, int] | None = None
    consequence: tuple[str, int] | None = None
    harmless: dict[str, list[int]] = field(default_factory=dict)
    complete: set[int] = field(default_factory=set)
    completions: int = 0
    last_complete_line: int = 0
    is_connected: bool = False
    tests_head_line: int | None = None
    tests_rows: int = 0


def find(lines: list[Line]) -> Findings:
    """Go through a log once and keep what may decide the verdict."""
    found = Findings()
    for place, line in enumerate(lines):
        text = line.text
        complete = _COMPLETE.search(text) if "Init COMPLETE" in text else None
        if complete:
            found.completions += 1
            found.last_complete_line = line.number
            if complete.group(1):
                found.complete.add(int(complete.group(1)))
        if re.search(r"Connected all (?:rings|trees)|Using \d+ threads, Min Comp Cap", text):
            found.is_connected = True
        if _TESTS_HEAD.match(text):
            found.tests_head_line = line.number
        found.tests_rows += bool(_TESTS_ROW.match(text))
        warn = _WARN.search(text) if "WARN" in text else None
        is_info = "NCCL INFO" in text
        message = f"{warn.group(1)} {_rest_of_wrapped(lines, place)}" if warn else text
        if is_info and not _is_remarkable(text):
            continue
        noise = _first(HARMLESS, f"{message} {text}" if warn else text)
        if noise is not None and (warn or is_info or "[W" in text or "Warning" in text):
            if noise:
                found.harmless.setdefault(noise, []).append(line.number)
            continue
        if is_info and not re.search(r"retrying|Call to|Got async|Cuda failure|fail|error", text, re.I):
            continue
        hang = _first(HANGS, text)
        if hang:
            if found.hang is None or (ANOTHER_TIMED_OUT in found.hang[0] and hang != ANOTHER_TIMED_OUT):
                found.hang = (_with_rank(hang, text), line.number)
            continue
        cause = _first(CAUSES, message)
        if cause:
            found.cause = found.cause or (cause, line.number)
        elif warn and not _first(CONSEQUENCES, message):
            found.unknown_warning = found.unknown_warning or (warn.group(1).strip() or text.strip(), line.number)
        elif not is_info and (consequence := _first(CONSEQUENCES, message)):
            found.consequence = found.consequence or (consequence, line.number)
    return found


def _first(meanings: Iterable[Meaning], text: str) -> str | None:
    return next((sentence for meaning in meanings if (sentence := meaning.match(text)) is not None), None)


def _is_remarkable(text: str) -> bool:
    lower = text.lower()
    return any(word in lower for word in _REMARKABLE)


def _rest_of_wrapped(lines: list[Line], place: int) -> str:
    """Return the line after a warning where a terminal may have wrapped it: it does not look like a line of its own."""
    following = lines[place + 1].text if place + 1 < len(lines) else ""
    return "" if IS_LOG.search(following) else following


def _with_rank(sentence: str, text: str) -> str:
    rank = re.search(r"\[?Rank (\d+)\]?", text, re.I)
    return f"{sentence} (reported by rank {rank.group(1)})" if rank else sentence


def judge(found: Findings, nranks: int | None, warnings: list[str]) -> tuple[str, str | None, int | None]:
    """Weigh the findings: a real cause first, then a hang, then warnings nobody explained, then consequences."""
    if found.cause:
        return "failed", *found.cause
    if found.hang and not ("again and again" in found.hang[0] and found.last_complete_line > found.hang[1]):
        return "hang", *found.hang
    if found.unknown_warning and (found.consequence or not found.completions):
        return "failed", *found.unknown_warning
    if found.consequence:
        return "failed", *found.consequence
    if found.unknown_warning:
        warnings.append(f"line {found.unknown_warning[1]} warns: {found.unknown_warning[0][:100]}")
    if found.tests_head_line is not None and not found.tests_rows:
        why = "nccl-tests printed the head of its table and not one result: the first collective never ended"
        return "hang", why, found.tests_head_line
    if found.completions:
        if nranks and len(found.complete) < nranks and found.complete:
            warnings.append(
                f"{len(found.complete)} of {nranks} ranks are shown to be ready; the others may log elsewhere"
            )
        return "ok", None, None
    if found.is_connected:
        warnings.append("as far as the log goes: the ranks are connected, but no 'Init COMPLETE' is shown")
        return "ok", None, None
    warnings.append("the log ends before the ranks are connected: it was cut, or they still wait for each other")
    return "unknown", None, None
