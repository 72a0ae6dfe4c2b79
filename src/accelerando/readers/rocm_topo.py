"""Reader of ``rocm-smi --showtopo`` and ``amd-smi topology``. Called by `topo.parse`."""

from __future__ import annotations

import re
from typing import Any

from accelerando.readers.rings import describe_islands, describe_ring
from accelerando.readers.text import Pasted, Unreadable

_SECTION = re.compile(r"(?:=+\s*|^\s*(?=[A-Z ]+ TABLE:\s*$))(Weight|Hops|Link Type|Numa Nodes|Numa BW|Access)\b", re.I)
_ADDRESS = re.compile(r"\b[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]\b", re.I)
_NUMA = re.compile(r"^\s*GPU\[(\d{1,3})\]\s*:.*Numa Node:\s*(-?\d+)\s*$", re.I)
_CELL = re.compile(r"\d{1,6}(?:-\d{1,6})?|XGMI|PCIE|PCIe|SELF|ENABLED|DISABLED|True|False|N/A|UNKNOWN|Unknown", re.I)
_PIECE = re.compile(r"[\w/-]{1,16}")
_MOST_BREAKS = 6
_RANK = {"XGMI": 2, "PCIE": 1}


def is_rocm(text: str) -> bool:
    """True when a text has the section titles of ``rocm-smi``'s topology."""
    return bool(
        re.search(
            r"(?:Weight|Hops|Link Type) between two GPUs|\(Topology\)\s+Numa Node|^\s*LINK TYPE TABLE:",
            text,
            re.I | re.M,
        )
    )


def parse(pasted: Pasted) -> dict[str, Any]:
    """Read link types, weights and NUMA nodes; XGMI counts as the direct link that NVLink is elsewhere.

    Raises:
        Unreadable: If no section has a matrix of GPUs.
    """
    warnings = list(pasted.warnings)
    addresses: dict[str, str] = {}
    sections = _sections(pasted, addresses, warnings)
    if addresses:
        names = ", ".join(f"{number} is {address}" for number, address in enumerate(addresses))
        warnings.append(f"amd-smi names GPUs by address, numbered here in their order: {names}")
    numa: dict[str, int | None] = {}
    for line in pasted.lines:
        match = _NUMA.match(line.text)
        if match:
            numa[match.group(1)] = int(match.group(2)) if int(match.group(2)) >= 0 else None
    counts = {len(rows) for rows in sections.values()} | ({len(numa)} if numa and not sections else set())
    if not counts:
        raise Unreadable("no matrix of GPUs under any title of rocm-smi --showtopo", 1)
    count = max(counts)
    types, weights = sections.get("link type"), sections.get("weight")
    links = []
    if types:
        for a in range(count):
            for b in range(a + 1, count):
                name = _cell(types, a, b)
                if name in _RANK:
                    links.append((a, b, name))
    else:
        warnings.append("no section on link types: which links are XGMI is unknown")
    is_complete = bool(types) and len(links) == count * (count - 1) // 2
    if types and not is_complete:
        warnings.append("some pairs of GPUs are unknown: no islands and no ring are given")
    lengths = {_weight(weights, a, b) for a, b, name in links if name == "XGMI"}
    if len(lengths) > 1:
        said = ", ".join(map(str, sorted(lengths)))
        warnings.append(f"XGMI pairs have different weights ({said}): those with more are reached through other GPUs")
    xgmi = {(a, b): 1.0 for a, b, name in links if name == "XGMI"}
    ring = None
    if is_complete and count >= 2:
        speed = {(a, b): (_RANK[name] - _weight(weights, a, b) / 10_000, name) for a, b, name in links}
        ring = describe_ring(count, speed, warnings)
    return {
        "gpus": count,
        "links": [list(link) for link in links],
        "nvlink_islands": describe_islands(count, xgmi, warnings) if is_complete else None,
        "best_ring": ring,
        "numa": numa or None,
        "nearest_nics": None,
        "warnings": warnings,
    }


def _sections(pasted: Pasted, addresses: dict[str, str], warnings: list[str]) -> dict[str, list[list[str]]]:
    """Return the matrix below each title, a list of cells for each GPU; fill in which address is which GPU."""
    found: dict[str, _Matrix] = {}
    current: _Matrix | None = None
    for line in pasted.lines:
        heading = _SECTION.search(line.text)
        text = _ADDRESS.sub(lambda found: addresses.setdefault(found.group(0), f"GPU{len(addresses)}"), line.text)
        if heading:
            title = heading.group(1).lower()
            current = found.setdefault(title, _Matrix()) if title != "numa nodes" else None
        elif current is not None:
            current.take(text.split())
    sections = {}
    for title, matrix in found.items():
        rows = matrix.read()
        if rows:
            sections[title] = rows
        elif matrix.rows or matrix.header:
            warnings.append(f"the matrix under {title!r} is damaged: not read")
    return sections


class _Matrix:
    """The lines of one matrix as they come, wrapped or not: a header, then a row for each GPU, both in pieces."""

    def __init__(self) -> None:
        self.header: list[list[str]] = []
        self.rows: list[list[list[str]]] = []
        self._is_open = False

    def take(self, tokens: list[str]) -> None:
        is_row = len(tokens) > 1 and tokens[0] == f"GPU{len(self.rows)}" and bool(_CELL.fullmatch(tokens[1]))
        if not tokens:
            self._is_open = self._is_open and not self.rows
        elif is_row and self.header:
            self.rows.append([tokens[1:]])
            self._is_open = True
        elif self.rows:
            self._is_open = self._is_open and all(_PIECE.fullmatch(token) for token in tokens)
            if self._is_open:
                self.rows[-1].append(tokens)
        elif all(re.fullmatch(r"GPU\d+|G|GP|GPU|P?U\d+|\d+", token) for token in tokens):
            self.header.append(tokens)

    def read(self) -> list[list[str]]:
        """Return the cells of each row; [] where the header does not name GPU0, GPU1… in order."""
        width = sum(1 for tokens in self.header for token in tokens if token.startswith("G"))
        names = [f"GPU{number}" for number in range(width)]
        if not width or not self.rows or list(_joined(self.header, width, re.compile(r"GPU\d+"))) != [names]:
            return []
        rows = []
        for pieces in self.rows[:width]:
            whole = _joined(pieces, width, _CELL)
            rows.append(whole[0] if len(whole) == 1 else pieces[0] if sum(map(len, pieces)) < width else [])
        return rows + [[] for _ in range(width - len(rows))]


def _joined(pieces: list[list[str]], width: int, cell: re.Pattern[str]) -> list[list[str]]:
    """Return every way to close the breaks between pieces, inside a word or not, that gives ``width`` cells."""
    ways = [pieces[0]] if len(pieces) <= _MOST_BREAKS else []
    for piece in pieces[1:]:
        ways = [
            way for before in ways for way in ([*before, *piece], [*before[:-1], before[-1] + piece[0], *piece[1:]])
        ]
    return [way for way in ways if len(way) == width and all(cell.fullmatch(word) for word in way)]


def _cell(rows: list[list[str]], a: int, b: int) -> str | None:
    for one, other in ((a, b), (b, a)):
        if one < len(rows) and other < len(rows[one]):
            return rows[one][other].upper()
    return None


def _weight(rows: list[list[str]] | None, a: int, b: int) -> int:
    cell = _cell(rows, a, b) if rows else None
    return int(cell) if cell and re.fullmatch(r"\d{1,4}", cell) else 0
