"""Joins the lines of a log that a terminal broke at its right edge."""

from __future__ import annotations

import re
from collections import Counter

_NARROWEST = 60
_USUAL = (80, 100, 120, 132, 140, 150, 160, 180, 200, 240)
# How lines of NCCL, launchers and Python begin; what begins otherwise may be the rest of the line before.
_START = re.compile(
    r"\s*(?:[\w.-]+:\d+(?::\d+)? ?\[|[\w.-]+: |[\w.-]+\s+\| |[#\[(>│|]"
    r"|\d{4}-\d\d-\d\d|\d\d:\d\d:\d\d|[A-Z][a-z]{2}\s+\d{1,2} \d\d:|\d+: |\d+ [\w.-]+:\d"
    r"|[NR]CCL\b|(?:HIP|ROCm) version|nccl\w+:|Last error|Cuda failure|Failed, |Fatal |terminate called"
    r"|Traceback|File \"|[\w.]*(?:Error|Exception)\b|$)"
)


def unwrapped(text: str) -> tuple[str, bool]:
    """Join what was broken; the lines that were joined to another stay, empty, so that numbers fit.

    Returns:
        The text, and whether anything was joined.
    """
    lines = text.split("\n")
    lengths = Counter(map(len, lines))
    width = max(lengths)
    if width < _NARROWEST or (lengths[width] < 2 and width not in _USUAL):
        return text, False
    joined = False
    whole, last = 0, len(lines[0])  # the line that is being completed, the length of the piece before
    for place, line in enumerate(lines[1:], start=1):
        if line and last in (width, width - 1) and not _START.match(line):
            lines[whole] += line if last == width else f" {line}"
            lines[place] = ""
            joined = True
        else:
            whole = place
        last = len(line)
    return "\n".join(lines), joined
