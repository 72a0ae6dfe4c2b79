"""Reader of ``lscpu`` (text and ``--json``) and ``/proc/cpuinfo``: which CPU, how many of what, which SIMD level."""

from __future__ import annotations

import re
from typing import Any

from accelerando.readers import cpuinfo
from accelerando.readers.caches import read_caches
from accelerando.readers.isa import features, mend
from accelerando.readers.lscpu_fields import Fields, read_json, read_text
from accelerando.readers.text import clean, cpu_list


def parse(text: str) -> dict[str, Any]:
    """Read ``lscpu``, ``lscpu --json`` or ``/proc/cpuinfo``.

    Args:
        text: The dump, as it was pasted.

    Returns:
        The keys of the contract's ``lscpu`` line; None where the dump does not say.

    Raises:
        Unreadable: If the text is something else, or too little of it is left.
    """
    pasted = clean(text)
    if re.search(r'"lscpu"\s*:|"field"\s*:\s*"', pasted.text):
        fields = read_json(pasted)
    elif cpuinfo.is_cpuinfo(pasted.text):
        return cpuinfo.parse(pasted)
    else:
        fields = read_text(pasted)
    return _summary(fields, list(pasted.warnings))


def _summary(fields: Fields, warnings: list[str]) -> dict[str, Any]:
    warnings += fields.warnings
    flags, was_broken = mend(fields.flag_lines)
    if was_broken:
        warnings.append("flags were wrapped inside words: joined again")
    if fields.is_cut:
        warnings.append("the list of flags is cut: a flag that is not in it may still be there")
    skills = features(flags, is_complete=not fields.is_cut)
    online, installed = _logical(fields, warnings)
    sockets, cores, threads = _topology(fields, online, warnings)
    caches, cache_warnings = read_caches(
        {label.removesuffix(" cache"): values[0] for label, values in fields.values.items() if values},
        cores=cores,
        is_hybrid=_kinds_of_core(fields) > 1
        or bool(threads and threads > 1 and cores and online and cores * threads > online and cores < online),
    )
    return {
        "vendor": fields.first("Vendor ID"),
        "model": _model(fields),
        "sockets": sockets,
        "cores": cores,
        "logical_online": online,
        "logical_installed": installed,
        "threads_per_core": threads,
        "numa_nodes": _numa(fields, warnings),
        "caches": caches,
        "simd": skills.simd,
        "bf16": skills.has_bf16,
        "fp16": skills.has_fp16,
        "warnings": warnings + cache_warnings,
    }


def _kinds_of_core(fields: Fields) -> int:
    return len(fields.values.get("Model name", []))


def _model(fields: Fields) -> str | None:
    names = [name for name in fields.values.get("Model name", []) if name and name != "-"]
    return " + ".join(dict.fromkeys(names)) or None


def _logical(fields: Fields, warnings: list[str]) -> tuple[int | None, int | None]:
    installed = fields.number("CPU(s)")
    online = _count(fields, "On-line CPU(s)")
    offline = _count(fields, "Off-line CPU(s)")
    if installed is None and online is not None and offline is not None:
        installed = online + offline
    if online is None and installed is not None and offline is not None:
        online = installed - offline
    if online is not None and installed is not None and online < installed:
        warnings.append(f"{installed - online} of {installed} logical CPUs are switched off")
    if online is not None and installed is not None and online > installed:
        warnings.append(f"the list of on-line CPUs has {online} entries, but CPU(s) says {installed}")
    return online, installed


def _count(fields: Fields, label: str) -> int | None:
    listed = fields.first(f"{label} list")
    if listed is not None:
        cpus = cpu_list(listed)
        return len(cpus) if cpus is not None else None
    mask = fields.first(f"{label} mask")
    if mask and re.fullmatch(r"(0x)?[0-9a-fA-F,]{1,4096}", mask):
        return int(mask.replace(",", ""), 16).bit_count()
    return None


def _topology(fields: Fields, online: int | None, warnings: list[str]) -> tuple[int | None, int | None, int | None]:
    """Sockets, cores and threads per core; two kinds of core are added up."""
    sockets = fields.number("Socket(s)", "CPU socket(s)")
    books, per_book = fields.number("Book(s)"), fields.number("Socket(s) per book")
    drawers, per_drawer = fields.number("Drawer(s)"), fields.number("Book(s) per drawer")
    if sockets is None and per_book and (books or (drawers and per_drawer)):
        sockets = per_book * (drawers * per_drawer if drawers and per_drawer else books or 0)
    per_socket = [int(v) for v in fields.values.get("Core(s) per socket", []) if v.isdecimal()]
    per_cluster, clusters = fields.number("Core(s) per cluster"), fields.number("Cluster(s)")
    if len(per_socket) > 1 and len(per_socket) == _kinds_of_core(fields):
        counts = [int(v) if v.isdecimal() else 1 for v in fields.values.get("Socket(s)", [])] or [1] * len(per_socket)
        cores: int | None = sum(c * s for c, s in zip(per_socket, counts, strict=False))
        warnings.append(f"{len(per_socket)} kinds of core: their numbers are added up")
        sockets = None if len(set(counts)) > 1 else counts[0]
    elif per_socket and sockets:
        cores = per_socket[0] * sockets
    elif per_cluster and clusters:
        cores = per_cluster * clusters
    else:
        cores = None
    kinds = {int(v) for v in fields.values.get("Thread(s) per core", []) if v.isdecimal()}
    threads = kinds.pop() if len(kinds) == 1 else None
    if cores and threads and online and cores * threads != online:
        fast = online - cores
        if threads == 2 and 0 < fast < cores and sockets == 1:
            warnings.append(
                f"hybrid: {fast} cores have 2 threads, {cores - fast} have 1; threads_per_core is the larger one"
            )
        elif online > cores * threads:
            warnings.append(f"{cores} cores with {threads} threads do not make {online} logical CPUs: cores unknown")
            cores = None
    return sockets, cores, threads


def _numa(fields: Fields, warnings: list[str]) -> dict[str, list[int]] | None:
    nodes: dict[str, list[int]] = {}
    for label, values in fields.values.items():
        match = re.fullmatch(r"NUMA node(\d{1,6}) CPU\(s\)", label)
        if not match:
            continue
        cpus = cpu_list(values[0])
        if cpus is None:
            warnings.append(f"{label}: {values[0][:40]!r} is no list of CPUs")
            return None
        nodes[match.group(1)] = cpus
    said = fields.number("NUMA node(s)")
    if nodes and said is not None and said != len(nodes):
        warnings.append(f"NUMA node(s) says {said}, but {len(nodes)} are listed: the list is incomplete")
        return None
    empty = sum(not cpus for cpus in nodes.values())
    if empty:
        warnings.append(f"{empty} of {len(nodes)} NUMA nodes have memory but no CPUs")
    return nodes or None
