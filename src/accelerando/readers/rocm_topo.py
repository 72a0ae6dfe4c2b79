"""Reader of ``rocm-smi --showtopo`` and ``amd-smi topology``. Called by `topo.parse`."""

from __future__ import annotations

import re
from typing import Any

from accelerando.readers.text import Pasted, Unreadable

_SECTION = re.compile(r"(?:=+\s*|^\s*(?=[A-Z ]+ TABLE:\s*$))(Weight|Hops|Link Type|Numa Nodes|Numa BW|Access)\b", re.I)
_ADDRESS = re.compile(r"\b[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]\b", re.I)
_NUMA = re.compile(r"^\s*GPU\[(\d{1,3})\]\s*:.*Numa Node:\s*(-?\d+)\s*$", re.I)
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
    from accelerando.readers.topo import describe_islands, describe_ring

    warnings = list(pasted.warnings)
    addresses: dict[str, str] = {}
    sections = _sections(pasted, addresses)
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


def _sections(pasted: Pasted, addresses: dict[str, str]) -> dict[str, list[list[str]]]:
    """Return the matrix below each title, a list of cells for each GPU; fill in which address is which GPU."""
    sections: dict[str, list[list[str]]] = {}
    title = width = None
    for line in pasted.lines:
        heading = _SECTION.search(line.text)
        text = _ADDRESS.sub(lambda found: addresses.setdefault(found.group(0), f"GPU{len(addresses)}"), line.text)
        tokens = text.split()
        if heading:
            title, width = heading.group(1).lower(), None
        elif title and title != "numa nodes" and tokens and all(re.fullmatch(r"GPU\d+", token) for token in tokens):
            width = len(tokens)
        elif title and width and tokens and re.fullmatch(r"GPU\d+", tokens[0]):
            rows = sections.setdefault(title, [])
            if tokens[0] == f"GPU{len(rows)}" and len(rows) < width:
                rows.append(tokens[1 : width + 1])
    return {name: _square(rows) for name, rows in sections.items()}


def _square(rows: list[list[str]]) -> list[list[str]]:
    """Add empty rows where the text was cut, so that the number of GPUs is that of the header."""
    width = max(map(len, rows), default=0)
    return rows + [[] for _ in range(width - len(rows))]


def _cell(rows: list[list[str]], a: int, b: int) -> str | None:
    for one, other in ((a, b), (b, a)):
        if one < len(rows) and other < len(rows[one]):
            return rows[one][other].upper()
    return None


def _weight(rows: list[list[str]] | None, a: int, b: int) -> int:
    cell = _cell(rows, a, b) if rows else None
    return int(cell) if cell and re.fullmatch(r"\d{1,4}", cell) else 0
