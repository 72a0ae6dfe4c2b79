"""Reader of ``NCCL_DEBUG=INFO`` logs: how ranks are connected, whether it worked, and the first cause if not."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from accelerando.readers.nccl_verdict import IS_LOG, find, judge
from accelerando.readers.text import Line, clean, other_kind
from accelerando.readers.wrapping import unwrapped

_VERSION = re.compile(r"\b[NR]CCL version\s*:?\s*v?(\d+\.\d+(?:\.\d+)?)", re.I)
_WHOLE_VERSION = r"\d+\.\d+\.\d+\S*\s*$"
_OWN_VERSION = re.compile(rf"^(?:.*NCCL INFO\s+)?{_VERSION.pattern}", re.I)
_NRANKS = re.compile(r"\bn[rR]anks (\d{1,7})\b")
_SIZE = re.compile(
    r"(?:\bworld[_ ]?size\b|\bLocal rank size\b|initialization options: size|\bnum(?:ber)?[_ ](?:of[_ ])?ranks)"
    r"\s*[:=]?\s*(\d{1,7})\b",
    re.I,
)
_VIA = re.compile(
    r"(?:\[(?:send|receive)\]\s+)?via (direct shared memory|[A-Za-z][A-Za-z0-9]*(?:/[A-Za-z][\w-]*(?: Libfabric)?)?)"
)
_CHANNEL_LIST = re.compile(r"NCCL INFO Channel (\d{1,3})(?:/(\d{1,3}))?\s*:((?:\s+\d+)+)\s*$")
_COLL_CHANNELS = re.compile(r"\b(\d{1,3}) coll channels, .*\b\d{1,3} p2p channels")
_AFTER_CHANNELS = re.compile(
    r"NCCL INFO (?:Ring|Trees?|Connected all|Using \d+ threads|comm .*Init COMPLETE|P2P Chunksize)|via "
)


def parse(text: str) -> dict[str, Any]:
    """Read an NCCL or RCCL log.

    Args:
        text: The log, of one rank or of many mixed, with whatever a launcher or an editor put before the lines.

    Returns:
        The keys of the contract's ``nccl-log`` line. ``line`` is that of the root cause. ``harmless`` names the lines
        that look alarming and are not.

    Raises:
        Unreadable: If no line comes from NCCL.
    """
    text, were_wrapped = unwrapped(text)
    pasted = clean(text)
    if not IS_LOG.search(pasted.text):
        raise other_kind("nccl-log (NCCL_DEBUG output)", pasted.text)
    lines = [line for line in pasted.lines if line.text.strip()]
    warnings = [*(["wrapped lines joined again"] if were_wrapped else []), *pasted.warnings]
    sure = lines if pasted.ends_with_newline else _without_cut_end(lines)
    versions = _versions(lines if re.search(_WHOLE_VERSION, lines[-1].text) else sure, warnings)
    nranks = _nranks(sure, warnings)
    found = find(lines)
    verdict, cause, line = judge(found, nranks, warnings)
    if verdict == "failed" and found.cause is None and len(versions) > 1:
        cause, line = "the ranks run different versions of NCCL (version mismatch)", versions[1].number
    return {
        "version": versions[0].text if versions else None,
        "nranks": nranks,
        "transports": _transports(sure, warnings) or None,
        "channels": _channels(sure),
        "verdict": verdict,
        "root_cause": cause,
        "line": line,
        "harmless": [
            f"{sentence} (line {places[0]}{f' and {len(places) - 1} more' if len(places) > 1 else ''})"
            for sentence, places in found.harmless.items()
        ],
        "warnings": warnings,
    }


def _without_cut_end(lines: list[Line]) -> list[Line]:
    """Leave out what may be half a number or a name: the last word, or a last line that is a list."""
    last = lines[-1]
    kept = "" if _CHANNEL_LIST.search(last.text) else re.sub(r"\S+$", "", last.text)
    return [*lines[:-1], Line(last.number, kept)]


def _versions(lines: Iterable[Line], warnings: list[str]) -> list[Line]:
    """Return each version once, with the line that names it first; what others say of NCCL only where it is silent."""
    found: dict[str, Line] = {}
    others: dict[str, Line] = {}
    for line in lines:
        for match in _VERSION.finditer(line.text):
            where = found if _OWN_VERSION.match(line.text) else others
            where.setdefault(match.group(1), Line(line.number, match.group(1)))
    found = found or others
    if len(found) > 1:
        warnings.append(f"several versions in one log: {', '.join(found)}; all ranks must run the same one")
    return list(found.values())


def _nranks(lines: list[Line], warnings: list[str]) -> int | None:
    """Return the largest communicator's size; without one, the ranks of the channel lists or of the launcher."""
    sizes = {int(m.group(1)) for line in lines for m in _NRANKS.finditer(line.text)}
    if sizes:
        if len(sizes) > 1:
            warnings.append(f"communicators of {', '.join(map(str, sorted(sizes)))} ranks: the largest is given")
        return max(sizes)
    listed = [m.group(3).split() for line in lines if (m := _CHANNEL_LIST.search(line.text))]
    if listed and all(sorted(map(int, ranks)) == list(range(len(listed[0]))) for ranks in listed):
        return len(listed[0])
    said = {int(m.group(1)) for line in lines for m in _SIZE.finditer(line.text)}
    return said.pop() if len(said) == 1 else None


def _transports(lines: list[Line], warnings: list[str]) -> list[str]:
    found: dict[str, None] = {}
    chosen = None
    for line in lines:
        if "NCCL INFO" not in line.text and " via " not in line.text:
            continue
        for match in _VIA.finditer(line.text) if " via " in line.text else ():
            name = _transport(match.group(1))
            if name:
                found[name] = None
        if "NVLS" in line.text and re.search(r"NVLS (?:Head|comm)|Connected NVLS tree", line.text):
            found["NVLS"] = None
        if re.search(r"Connected CollNet|COLLNET/", line.text):
            found["CollNet"] = None
        network = re.search(r"Using network (\S+)", line.text) if "Using network" in line.text else None
        chosen = network.group(1) if network else chosen
    if not found and chosen:
        warnings.append(f"the network {chosen} was chosen, but no connection over it is shown")
    return list(found)


def _transport(way: str) -> str | None:
    """Name a transport: what it goes over, not the details (``P2P/IPC/read`` is P2P, ``NET/IB/0/GDRDMA`` is NET/IB)."""
    if way == "direct shared memory":
        return "SHM"
    kind = way.split("/")[0]
    if kind == "NET":
        return way if "/" in way else "NET"
    return {"P2P": "P2P", "SHM": "SHM", "COLLNET": "CollNet", "NVLS": "NVLS"}.get(kind.upper())


def _channels(lines: list[Line]) -> int | None:
    """Return the number of channels (rings); None if the list of them may be cut."""
    for line in lines:
        match = _COLL_CHANNELS.search(line.text)
        if match and int(match.group(1)):
            return int(match.group(1))
    last, highest, total = -1, -1, None
    for place, line in enumerate(lines):
        match = _CHANNEL_LIST.search(line.text)
        if match:
            last, highest = place, max(highest, int(match.group(1)))
            total = int(match.group(2)) if match.group(2) else total
    if total is not None:
        return total
    is_whole = last >= 0 and any(_AFTER_CHANNELS.search(line.text) for line in lines[last + 1 :])
    return highest + 1 if is_whole else None
