"""Reader of host lists: Slurm, LSF and PBS environments, ``scontrol``, MPI host files, bracket expressions."""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import Any

from accelerando.readers import job_tables, slurm
from accelerando.readers.slurm import EXPRESSION, MAX_HOSTS, NAME, HostList, expand
from accelerando.readers.text import Line, Pasted, Unreadable, clean, looks_like, other_kind

MAX_SLOTS = 1_000_000
MAX_LINES = 200_000
_EXPECTED = "hosts (Slurm, LSF or an MPI host file)"
_HOST_LINE = re.compile(rf"^(?:[\w.-]+@)?({NAME})(?::(\d+))?((?:\s+[\w-]+\s*=\s*\S+)*)$")
_IPV6_LINE = re.compile(r"^((?:[0-9A-Fa-f]{0,4}:){2,7}[0-9A-Fa-f]{0,4})((?:\s+[\w-]+\s*=\s*\S+)*)$")
_RANK_LINE = re.compile(rf"^rank\s+\d{{1,7}}\s*=\s*({NAME})(?:\s+slots?\s*=.*)?$")
_COUNTED = rf"{NAME}(?::\d{{1,7}})?"
_HOST_OPTION = re.compile(
    rf"\b(?:mpi(?:run|exec)\S*|prun|horovodrun)\s.*?(?:-H|--?hosts?)[ =]({_COUNTED}(?:,{_COUNTED})*)(?=\s|$)"
)
_PROMPT = re.compile(r"^(?:[\w.~/-]*[$%]|\[?[\w.-]+@[\w.-]+.*[$#%>])\s")
_ATTRIBUTE = re.compile(r"([\w-]+)\s*=\s*(\S+)")


def parse(text: str) -> dict[str, Any]:
    """Read a list of hosts, however it is written.

    Args:
        text: A Slurm, LSF or PBS environment, the output of ``scontrol show job`` or ``show hostnames``, a host file of
            Open MPI, MPICH, LSF or PBS, or a Slurm expression such as ``n[177,180]``.

    Returns:
        The keys of the contract's ``hosts`` line. ``slots`` (ranks for each host) and ``world_size`` are None where the
        text does not say them; ``rule`` says how they were read.

    Raises:
        Unreadable: If there is no host list, a bracket stays open, or more than 100,000 hosts are meant.
    """
    if text.count("\n") > MAX_LINES:
        raise Unreadable(f"{text.count(chr(10)):,} lines: a list of more than {MAX_LINES:,} is not believed")
    pasted = clean(re.sub(r"\\[ \t]*\n\s*", " ", _without_json(text)))
    variables = slurm.read_variables(pasted)
    if re.search(r"\bJobId=\d+|\bNodeList=\S", pasted.text):
        answer = slurm.from_scontrol(pasted)
    elif any("NODELIST" in name for name in variables):
        answer = slurm.from_environment(variables, pasted.lines)
    elif "LSB_MCPU_HOSTS" in variables or "LSB_HOSTS" in variables:
        answer = _from_lsf(variables)
    elif variables:
        first = next(iter(variables.values()))
        raise Unreadable(
            f"{', '.join(sorted(variables)[:3])}… name no hosts: the list itself (SLURM_JOB_NODELIST, LSB_HOSTS or the "
            "file that PBS_NODEFILE names) is missing",
            first.number,
        )
    elif re.search(r"\bNodeName=", pasted.text):
        answer = slurm.from_node_names(pasted)
    else:
        answer = job_tables.read(pasted) or _from_lines(pasted)
    if not pasted.ends_with_newline and not pasted.lines[-1].text.endswith("]"):
        answer.warnings.append(f"line {pasted.lines[-1].number} has no line end: it may be cut")
    return {
        "hosts": answer.hosts,
        "slots": answer.slots,
        "world_size": answer.world_size,
        "rule": answer.rule,
        "warnings": [*pasted.warnings, *answer.warnings],
    }


def _without_json(text: str) -> str:
    """Write an environment that was printed as one JSON object as lines."""
    if not text.lstrip().startswith("{"):
        return text
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return "".join(f"{name}={value}\n" for name, value in found.items() if not isinstance(value, dict | list))


def _from_lsf(variables: dict[str, Line]) -> HostList:
    warnings: list[str] = []
    pairs, listed = variables.get("LSB_MCPU_HOSTS"), variables.get("LSB_HOSTS")
    if pairs is not None:
        words = pairs.text.split()
        if len(words) % 2 or not all(re.fullmatch(r"\d{1,6}", word) for word in words[1::2]) or not words:
            raise Unreadable(
                "LSB_MCPU_HOSTS is not a list of name and number in turn: its end may be cut", pairs.number
            )
        slots: Counter[str] = Counter()
        for host, count in zip(words[::2], words[1::2], strict=True):
            slots[host] += int(count)
        rule = "LSB_MCPU_HOSTS: name and slots in turn"
        if listed is not None and Counter(listed.text.split()) != slots:
            warnings.append("LSB_HOSTS and LSB_MCPU_HOSTS differ: the second is used")
    else:
        assert listed is not None
        slots = Counter(listed.text.split())
        rule = "LSB_HOSTS: a host's name stands once for each slot"
    said = variables.get("LSB_DJOB_NUMPROC") or variables.get("LSB_MAX_NUM_PROCESSORS")
    if said is not None and said.text.isdecimal() and int(said.text) != sum(slots.values()):
        warnings.append(f"the hosts have {sum(slots.values())} slots, but the job has {said.text}: the list may be cut")
    hosts = list(slots)
    warnings += _launch_node(hosts, slots)
    return HostList(hosts, dict(slots), sum(slots.values()), rule, warnings)


def _launch_node(hosts: list[str], slots: Counter[str]) -> list[str]:
    if len(hosts) > 1 and slots[hosts[0]] == 1 and min(slots[host] for host in hosts[1:]) > 1:
        return [f"{hosts[0]} has 1 slot and the others more: it may be the launch node, which runs no ranks"]
    return []


def _from_lines(pasted: Pasted) -> HostList:
    """Read host files and bare lists; prose around a host file is passed over where the file is plain to see."""
    filled = [Line(line.number, line.text.split("#")[0].strip()) for line in pasted.inner]
    filled = [line for line in filled if line.text and not _PROMPT.match(line.text)]
    if not filled:
        raise Unreadable("only comments and blank lines: no hosts", 1)
    seems = looks_like(pasted.text)
    if seems and not seems.startswith("hosts"):
        raise other_kind(_EXPECTED, pasted.text)
    if all(EXPRESSION.match(line.text) for line in filled) and any(re.search(r"[\[,]", line.text) for line in filled):
        hosts = expand("".join(line.text for line in filled), filled[0].number)
        return HostList(hosts, None, None, "a Slurm host list; it names no tasks")
    if len(filled) == 1 and (answer := _from_option(filled[0])):
        return answer
    if all(_RANK_LINE.match(line.text) for line in filled):
        ranks = Counter(_RANK_LINE.sub(r"\1", line.text) for line in filled)
        return HostList(list(ranks), dict(ranks), len(filled), "rank file (Open MPI): one line for each rank")
    if len(filled) == 1 and re.fullmatch(rf"{NAME} \d{{1,6}}(?:\s+{NAME} \d{{1,6}})*", filled[0].text):
        return _from_lsf({"LSB_MCPU_HOSTS": filled[0]})
    if len(filled) == 1 and len(filled[0].text.split()) > 1 and not re.search(r"[=:]", filled[0].text):
        return _from_words(filled[0])
    return _from_host_file(filled)


def _from_option(line: Line) -> HostList | None:
    """Read ``node1:4,node2:4``, alone or behind ``mpirun -np 8 -H``; there ``-np`` is the world size."""
    option = _HOST_OPTION.search(line.text)
    counted = option.group(1) if option else line.text
    if not re.fullmatch(rf"{_COUNTED}(?:,{_COUNTED})*", counted) or (not option and "," not in counted):
        return None
    answer = _from_host_file([Line(line.number, part) for part in counted.split(",")])
    ranks = re.search(r"\s-?-np?[ =](\d{1,7})\b", line.text) if option else None
    if ranks:
        answer.world_size, answer.rule = int(ranks.group(1)), f"{answer.rule}; world size from -np"
    return answer


def _from_words(line: Line) -> HostList:
    """Read LSF's one-line forms: ``16*n1 16*n2``, or a name once for each slot."""
    words = line.text.split()
    slots: Counter[str] = Counter()
    for word in words:
        match = re.fullmatch(rf"(?:(\d{{1,6}})\*)?({NAME})", word)
        if not match or word.isdecimal():
            raise other_kind(_EXPECTED, line.text)
        slots[match.group(2)] += int(match.group(1) or 1)
    if max(slots.values()) == 1 and not any(char.isdecimal() for char in line.text):
        raise other_kind(_EXPECTED, line.text)  # words of a sentence
    return HostList(list(slots), dict(slots), sum(slots.values()), "LSF: a host's name stands once for each slot")


def _from_host_file(lines: list[Line]) -> HostList:
    warnings: list[str] = []
    entries: dict[int, tuple[str, int | None]] = {}  # by place in `lines`
    strange: list[Line] = []
    for place, line in enumerate(lines):
        if re.match(r"^\S+:\s+.*\bslots=", line.text):  # Open MPI's --display-allocation
            line = Line(line.number, re.sub(r":(?=\s)|\bmax_slots=0\b", "", line.text))
        match = _HOST_LINE.match(line.text)
        address = _IPV6_LINE.match(line.text)
        grid_engine = re.fullmatch(rf"({NAME})\s+(\d{{1,6}})\s+\S+@\S+.*", line.text)
        if grid_engine:
            entries[place] = grid_engine.group(1), int(grid_engine.group(2))
        elif address:
            attributes = dict(_ATTRIBUTE.findall(address.group(2)))
            entries[place] = (
                address.group(1),
                int(attributes["slots"]) if attributes.get("slots", "").isdecimal() else None,
            )
        elif match:
            entries[place] = match.group(1).strip("[]"), _slots_of(match, line, warnings)
        else:
            strange.append(line)
    if strange:
        wrong = next((line for line in strange if "slots" in line.text), None)
        if wrong is not None:
            raise Unreadable(f"{wrong.text[:60]!r}: expected such as node1 slots=2 max_slots=4", wrong.number)
        entries = _without_prose(entries, lines)
        if not entries:
            raise Unreadable(f"{strange[0].text[:60]!r} is no host: expected such as node1 slots=2", strange[0].number)
        count = len(lines) - len(entries)
        warnings.append(f"{count} lines that name no host were passed over, the first is line {strange[0].number}")
    if len({host for host, _ in entries.values()}) > MAX_HOSTS:
        raise Unreadable(f"more than {MAX_HOSTS:,} hosts: not believed")
    is_mpich = not any("slots" in line.text for line in lines)
    return _count_entries(list(entries.values()), warnings, is_mpich=is_mpich)


def _without_prose(entries: dict[int, tuple[str, int | None]], lines: list[Line]) -> dict[int, tuple[str, int | None]]:
    """Keep the lines with slots, and bare names that touch them: other single words may belong to a sentence."""
    named = [place for place, (_, slots) in entries.items() if slots is not None]
    if not named:
        return {}
    first, last = named[0], named[-1]
    while first - 1 in entries and lines[first - 1].number == lines[first].number - 1:
        first -= 1
    while last + 1 in entries and lines[last + 1].number == lines[last].number + 1:
        last += 1
    return {place: entry for place, entry in entries.items() if first <= place <= last}


def _slots_of(match: re.Match[str], line: Line, warnings: list[str]) -> int | None:
    attributes = {key.lower().replace("-", "_"): value for key, value in _ATTRIBUTE.findall(match.group(3))}
    said = (attributes[name] for name in ("slots", "np", "ppn", "cpus", "count") if name in attributes)
    text = next(said, match.group(2))
    if text is None:
        return None
    if not re.fullmatch(r"\d{1,9}", text) or int(text) > MAX_SLOTS:
        raise Unreadable(f"slots={text} is no number of ranks: expected 0 to {MAX_SLOTS:,}", line.number)
    most = attributes.get("max_slots", "")
    if most.isdecimal() and int(most) < int(text):
        warnings.append(f"line {line.number}: max_slots={most} is below slots={text}")
    return int(text)


def _count_entries(entries: list[tuple[str, int | None]], warnings: list[str], *, is_mpich: bool) -> HostList:
    hosts = list(dict.fromkeys(host for host, _ in entries))
    bare = Counter(host for host, count in entries if count is None)
    if all(count is None for _, count in entries):
        if max(bare.values()) > 1:
            rule = "one line for each slot: a host's slots are its lines (LSF, PBS, Open MPI)"
            warnings += _launch_node(hosts, bare)
            return HostList(hosts, {host: bare[host] for host in hosts}, len(entries), rule, warnings)
        return HostList(hosts, None, None, "host names only; no slots are named", warnings)
    slots: dict[str, int | None] = dict.fromkeys(hosts)
    for host, count in entries:
        if count is None:
            continue
        before = slots[host]
        if before is not None:
            warnings.append(f"{host} stands there more than once: its slots are added up")
        slots[host] = count + (before or 0)
    unknown = [host for host, count in slots.items() if count is None]
    known = sum(count for count in slots.values() if count is not None)
    rule = "slots as written"
    if unknown and is_mpich:
        rule += (
            f"; {', '.join(unknown[:5])} without a number: what that means the file does not say (unknown); by MPICH's"
            f" rule it means 1 (world size {known + len(unknown)})"
        )
    elif unknown:
        rule += (
            f"; {', '.join(unknown[:5])} without slots=: since Open MPI 1.8 that means its number of cores, which"
            f" the file does not say (unknown); by the older rule it means 1 (world size {known + len(unknown)})"
        )
    return HostList(hosts, slots, None if unknown else known, rule, list(dict.fromkeys(warnings)))
