"""Host lists in what schedulers and mpirun print for people: tables, jobs, maps. Called by `hosts.parse`."""

from __future__ import annotations

import re
from collections import Counter

from accelerando.readers.slurm import EXPRESSION, NAME, HostList, expand
from accelerando.readers.text import Pasted, Unreadable

_EXEC_HOST = re.compile(r"\bexec_host\s*=\s*(\S+)")
_RUN = r"(\d{1,6})(?:-(\d{1,6}))?"
_EXEC_VNODE = re.compile(r"\bexec_vnode\s*=\s*(\S+)")


def read(pasted: Pasted) -> HostList | None:
    """Read a table of ``sinfo``, ``squeue`` or ``sacct``, a job of LSF or PBS, or a map of Open MPI; else None."""
    head = next((place for place, line in enumerate(pasted.lines) if _is_head(line.text.split())), None)
    if head is not None:
        return _from_table(pasted, head)
    granted = re.search(r"^salloc: Nodes (\S+) are ready", pasted.text, re.M)
    if granted:
        return HostList(expand(granted.group(1)), None, None, "hosts from salloc; no tasks are named")
    return _from_bjobs(pasted) or _from_map(pasted) or _from_qstat(pasted)


def _from_bjobs(pasted: Pasted) -> HostList | None:
    """Read LSF's jobs: ``on Host(s) <4*a> <4*b>`` of the long form, else the column or line EXEC_HOST."""
    counted = rf"(?:\d{{1,6}}\*)?{NAME}"
    whole = " ".join(pasted.text.split())
    told = re.search(
        rf"[Ss]tarted .{{0,60}}?on (?:\d+ )?(?:Host\(s\)|Hosts/Processors|Hosts?)((?:\s*<{counted}>)+)", whole
    )
    words: list[str] = re.findall(counted, told.group(1)) if told else []
    place = next((i for i, line in enumerate(pasted.lines) if "EXEC_HOST" in line.text), None)
    if not words and place is not None:
        head = pasted.lines[place].text
        column = head.index("EXEC_HOST")
        named = re.match(r"\s*EXEC_HOSTS?\s*[:=]?\s+(\S.*)", head)
        rows = [named.group(1).split()] if named and "*" in head else []
        for line in () if rows else pasted.lines[place + 1 :]:
            if rows and line.text[:1].strip():
                break  # the next job
            rows.append(line.text[column:].split()[:1])
        cells = [cell for row in rows for word in row for cell in word.split(":") if cell]
        words = cells if all(re.fullmatch(counted, cell) for cell in cells) else []
    if not words:
        return None
    slots: Counter[str] = Counter()
    for word in words:
        count, _, host = word.rpartition("*")
        slots[host] += int(count or 1)
    return HostList(list(slots), dict(slots), sum(slots.values()), "LSF: the hosts that bjobs names, with their slots")


def _from_map(pasted: Pasted) -> HostList | None:
    """Read what Open MPI prints with ``--display-map``: the ranks that it puts on each node."""
    found = re.findall(rf"Data for node: ({NAME})\b[^\n]{{0,120}}?Num procs: (\d{{1,6}})", pasted.text)
    slots = {host: int(count) for host, count in found}
    if not slots:
        return None
    return HostList(list(slots), dict(slots), sum(slots.values()), "Open MPI's job map: the ranks on each node")


def _is_head(words: list[str]) -> bool:
    if not {"PARTITION", "JOBID", "STATE"} & {word.upper() for word in words}:
        return False
    return words[0] == "NODELIST" or words[-1].upper() in ("NODELIST", "NODELIST(REASON)")


def _from_table(pasted: Pasted, head: int) -> HostList:
    """Read the first or last column; of ``squeue`` only the first job that has nodes, for each job has its own."""
    is_queue = "REASON" in pasted.lines[head].text or "JOBID" in pasted.lines[head].text.upper()
    column = 0 if pasted.lines[head].text.split()[0] == "NODELIST" else -1
    hosts: dict[str, None] = {}
    jobs = 0
    for line in pasted.lines[head + 1 :]:
        words = line.text.split()
        if len(words) < 3 or not EXPRESSION.match(words[column]) or set(words[column]) == {"-"}:
            continue
        jobs += 1
        if not is_queue or jobs == 1:
            hosts.update(dict.fromkeys(expand(words[column], line.number)))
    command = "sacct" if "NodeList" in pasted.lines[head].text else "squeue" if is_queue else "sinfo"
    if not hosts:
        raise Unreadable(f"{command} lists no nodes", pasted.lines[head].number)
    what = "rows" if command == "sacct" else "jobs"
    warnings = [f"{jobs} {what} have nodes: only the first was read"] if is_queue and jobs > 1 else []
    if not is_queue:
        warnings.append("sinfo lists the nodes of partitions, in any state: they are no job's")
    return HostList(
        list(hosts), None, None, f"hosts from the NODELIST column of {command}; no tasks are named", warnings
    )


def _from_qstat(pasted: Pasted) -> HostList | None:
    """Read ``exec_host``: Torque lists a host's slots one by one, PBS Pro says CPUs, and ranks in ``exec_vnode``."""
    text = _unwrapped(pasted)
    found = _EXEC_HOST.search(text)
    if found is None:
        return None
    slots: Counter[str] = Counter()
    is_pro = "*" in found.group(1)
    for part in found.group(1).split("+"):
        match = re.fullmatch(rf"({NAME})(?:/{_RUN}((?:,{_RUN})*)(?:\*\d{{1,6}})?)?", part)
        if not match:
            raise Unreadable(f"exec_host: {part[:60]!r} is no host, or its end is cut off")
        host, first, last, more = match.groups()[:4]
        runs = [(first, last), *re.findall(r",(\d+)(?:-(\d+))?", more or "")]
        slots[host] += sum(int(end or start or 0) - int(start or 0) + 1 for start, end in runs)
    if not is_pro and "/" in found.group(1):
        return HostList(list(slots), dict(slots), sum(slots.values()), "exec_host (Torque): one entry for each slot")
    ranks: Counter[str] = Counter()
    vnodes = _EXEC_VNODE.search(text)
    for chunk in re.findall(r"\(([^()]*)\)", vnodes.group(1)) if vnodes else ():
        for vnode in chunk.split("+"):
            name, *resources = vnode.split(":")
            ranks[name] += sum(int(count) for count in re.findall(r"mpiprocs=(\d{1,6})\b", ":".join(resources)))
    if set(ranks) == set(slots) and all(ranks.values()):
        return HostList(
            list(slots), {host: ranks[host] for host in slots}, sum(ranks.values()), "exec_host; slots from mpiprocs"
        )
    return HostList(list(slots), None, None, "exec_host (PBS Pro): it names CPUs, not how many ranks run on them")


def _unwrapped(pasted: Pasted) -> str:
    """Join what ``qstat`` breaks: a line that starts with a tab, or a name that goes on, continues the one before."""
    lines: list[str] = []
    for line in pasted.lines:
        if (
            lines
            and line.text.strip()
            and "=" not in line.text.split("(")[0]
            and re.match(r"\s*[\w.+/*(-]+$", line.text)
        ):
            lines[-1] += line.text.strip()
        else:
            lines.append(line.text)
    return "\n".join(lines)
