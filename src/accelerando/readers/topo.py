"""Reader of ``nvidia-smi topo -m``, ``rocm-smi --showtopo`` and ``amd-smi topology``: links, islands, the best ring."""

from __future__ import annotations

import re
from typing import Any

from accelerando.readers import rocm_topo
from accelerando.readers.rings import describe_islands, describe_ring
from accelerando.readers.text import clean
from accelerando.readers.topo_matrix import Matrix, link_speed, read_matrix


def parse(text: str) -> dict[str, Any]:
    """Read a topology matrix.

    Args:
        text: Output of ``nvidia-smi topo -m`` (or ``-mp``), or of ``rocm-smi --showtopo``, as pasted.

    Returns:
        The keys of the contract's ``topo`` line. Links of all pairs of GPUs; None where rows are missing.

    Raises:
        Unreadable: If there is no matrix, or one that contradicts itself.
    """
    pasted = clean(re.sub(r"(?m)^[ \t]*\|.*\|[ \t]*$", _without_bars, text))
    if rocm_topo.is_rocm(pasted.text):
        return rocm_topo.parse(pasted)
    matrix = read_matrix(pasted)
    links, is_complete = _links(matrix)
    warnings = [*pasted.warnings]
    count = len(matrix.gpus)
    nvlinks = {(a, b): link_speed(name) for a, b, name in links if name.startswith("NV")}
    ring = None
    if is_complete and count >= 2:
        ring = describe_ring(count, {(a, b): (link_speed(name), name) for a, b, name in links}, warnings)
    numa = _numa(matrix)
    return {
        "gpus": count,
        "links": [list(link) for link in links],
        "nvlink_islands": describe_islands(count, nvlinks, warnings) if is_complete else None,
        "best_ring": ring,
        "numa": numa,
        "nearest_nics": _nearest_nics(matrix),
        "warnings": warnings + list(dict.fromkeys(matrix.warnings)),
    }


def _without_bars(row: re.Match[str]) -> str:
    """Undo one row of a markdown table; its rule becomes a blank line."""
    text = row.group(0).strip().strip("|")
    return "" if not text.strip("|-: ") else "\t".join(cell.strip() for cell in text.split("|"))


def _links(matrix: Matrix) -> tuple[list[tuple[int, int, str]], bool]:
    gpus = matrix.gpus
    links, missing_rows = [], [gpu for gpu in gpus if gpu not in matrix.rows]
    for a, first in enumerate(gpus):
        for b in range(a + 1, len(gpus)):
            name = matrix.link(first, gpus[b])
            if name:
                links.append((a, b, name))
    is_complete = len(links) == len(gpus) * (len(gpus) - 1) // 2
    if missing_rows:
        matrix.warnings.append(f"no row for {', '.join(missing_rows)}")
    if not is_complete:
        matrix.warnings.append("some pairs of GPUs are unknown: no islands and no ring are given")
    return links, is_complete


def _tail_fields(matrix: Matrix, gpu: str) -> list[str] | None:
    """Return one field per title; None if spaces leave it open which is which."""
    tail = matrix.tails.get(gpu, "")
    if not tail.strip():
        return None
    if "\t" in tail.rstrip():
        fields = [piece.strip() for piece in tail.split("\t")]
        if len(fields) == len(matrix.titles) + 1 and "" in fields:  # newer drivers put an empty column in between
            fields.remove("")
        if len(fields) == len(matrix.titles):
            return fields
    fields = tail.split()
    return fields if len(fields) == len(matrix.titles) else None


def _numa(matrix: Matrix) -> dict[str, int | None] | None:
    if not any("numa affinity" in title or "numa node" in title for title in matrix.titles):
        groups: dict[str, list[str]] = {}
        for gpu in matrix.gpus:
            groups.setdefault(matrix.tails.get(gpu, "").strip(), []).append(gpu)
        if "" not in groups and "cpu affinity" in matrix.titles:
            sets = "; ".join(f"{', '.join(names)} at CPUs {cpus}" for cpus, names in groups.items())
            matrix.warnings.append(f"no NUMA column; by CPU affinity there are {len(groups)} groups: {sets}")
        return None
    place = next(i for i, title in enumerate(matrix.titles) if "numa affinity" in title or "numa node" in title)
    numa: dict[str, int | None] = {}
    for number, gpu in enumerate(matrix.gpus):
        fields = _tail_fields(matrix, gpu)
        value = fields[place] if fields and place < len(fields) else ""
        numa[str(number)] = int(value) if re.fullmatch(r"\d{1,4}", value) else None
        if value and numa[str(number)] is None:
            matrix.warnings.append(f"NUMA affinity of {gpu} is {value}: no single node")
    return numa if any(node is not None for node in numa.values()) else None


def _nearest_nics(matrix: Matrix) -> dict[str, list[str]] | None:
    nics = [device for device in matrix.devices if device not in matrix.gpus]
    if not nics:
        return None
    nearest: dict[str, list[str]] = {}
    for number, gpu in enumerate(matrix.gpus):
        links = {nic: name for nic in nics if (name := matrix.link(gpu, nic))}
        if len(links) == len(nics):
            best = max(map(link_speed, links.values()))
            nearest[str(number)] = [matrix.nic_names.get(nic, nic) for nic in nics if link_speed(links[nic]) == best]
    return nearest or None
