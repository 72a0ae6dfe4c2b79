"""Reader of host lists: Slurm, LSF and PBS environments, ``scontrol``, MPI host files, bracket expressions."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from accelerando.readers.text import Line, Pasted, Unreadable, clean, looks_like, other_kind

MAX_HOSTS = 100_000
MAX_SLOTS = 1_000_000
_EXPECTED = "hosts (Slurm, LSF or an MPI host file)"
_VARIABLE = re.compile(
    r"(?<![\w.])(?:export\s+|declare\s+-x\s+|setenv\s+)?"
    r"((?:SLURM|SLURMD|SRUN|LSB|LS|PBS|PMI|OMPI)_[A-Z0-9_]+)(?:\s*=\s*|\s+(?=[\w\"']))(.*)$"
)
_NAME = r"(?:[A-Za-z0-9_](?:[\w.-]*[A-Za-z0-9_])?|\[[0-9A-Fa-f:.]+\])"
_HOST_LINE = re.compile(rf"^(?:[\w.-]+@)?({_NAME})(?::(\d+))?((?:\s+[\w-]+\s*=\s*\S+)*)$")
_ATTRIBUTE = re.compile(r"([\w-]+)\s*=\s*(\S+)")
_EXPRESSION = re.compile(r"^[\w.,\[\]-]+$")


@dataclass
class _Answer:
    hosts: list[str]
    slots: dict[str, int | None] | None
    world_size: int | None
    rule: str
    warnings: list[str] = field(default_factory=list)


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
    pasted = clean(text)
    variables = _variables(pasted)
    if re.search(r"\bJobId=\d+|\bNodeList=\S", pasted.text):
        answer = _from_scontrol(pasted)
    elif any("NODELIST" in name for name in variables):
        answer = _from_slurm(variables)
    elif "LSB_MCPU_HOSTS" in variables or "LSB_HOSTS" in variables:
        answer = _from_lsf(variables)
    elif variables:
        first = next(iter(variables.values()))
        raise Unreadable(
            f"{', '.join(sorted(variables)[:3])}… name no hosts: SLURM_JOB_NODELIST is missing", first.number
        )
    elif re.search(r"\bNodeName=", pasted.text):
        answer = _from_node_names(pasted)
    else:
        answer = _from_lines(pasted)
    return {
        "hosts": answer.hosts,
        "slots": answer.slots,
        "world_size": answer.world_size,
        "rule": answer.rule,
        "warnings": [*pasted.warnings, *answer.warnings],
    }


def expand(expression: str, line: int | None = None) -> list[str]:
    """Expand a Slurm bracket expression: ``n[1-3,7],m5`` is n1 n2 n3 n7 m5.

    Raises:
        Unreadable: If it is malformed or stands for more than 100,000 hosts.
    """
    from hostlist import BadHostlist, expand_hostlist

    expression = expression.strip().strip("\"'").replace(" ", "")
    if expression.count("[") != expression.count("]"):
        raise Unreadable(f"a bracket stays open in {expression[:60]!r}: the end is cut off", line)
    if len(expression) > MAX_HOSTS * 10 or any(len(run) > 18 for run in re.findall(r"\d+", expression)):
        raise Unreadable("a host list this long is not believed", line)
    try:
        hosts = expand_hostlist(expression)
    except (BadHostlist, RecursionError, ValueError) as error:
        raise Unreadable(f"{expression[:60]!r} is no host list: {error}", line) from error
    if len(hosts) > MAX_HOSTS:
        raise Unreadable(f"{expression[:60]!r} means {len(hosts):,} hosts: at most {MAX_HOSTS:,} are believed", line)
    if not hosts or not all(re.fullmatch(_NAME, host) for host in hosts):
        raise Unreadable(f"{expression[:60]!r} is no host list", line)
    return list(hosts)


def expand_counts(text: str, line: int | None = None) -> list[int]:
    """Expand Slurm's counts for each node: ``2(x3),1`` is 2 2 2 1.

    Raises:
        Unreadable: If it is malformed or means more than 100,000 nodes.
    """
    counts: list[int] = []
    for part in text.strip().strip("\"'").replace(" ", "").split(","):
        match = re.fullmatch(r"(\d{1,7})(?:\(x(\d{1,7})\))?", part)
        times = int(match.group(2) or 1) if match else 0
        if not match or len(counts) + times > MAX_HOSTS:
            raise Unreadable(f"{text[:60]!r} are no counts for nodes: expected such as 2(x3),1", line)
        counts += [int(match.group(1))] * times
    return counts


def _variables(pasted: Pasted) -> dict[str, Line]:
    """Return the schedulers' variables; of one that comes twice (a label for each rank) the first."""
    found: dict[str, Line] = {}
    lines = list(pasted.lines)
    for place, line in enumerate(lines):
        match = _VARIABLE.search(line.text)
        if not match or match.group(1) in found:
            continue
        value = match.group(2).strip().rstrip(";")
        following = place + 1
        while value.count("[") > value.count("]") and following < len(lines):  # wrapped inside the brackets
            if not _EXPRESSION.match(lines[following].text.strip()):
                break
            value += lines[following].text.strip()
            following += 1
        found[match.group(1)] = Line(line.number, value.strip("\"'"))
    return found


def _whole(variables: dict[str, Line], *names: str) -> int | None:
    for name in names:
        if name in variables and re.fullmatch(r"\d{1,9}", variables[name].text):
            return int(variables[name].text)
    return None


def _from_slurm(variables: dict[str, Line]) -> _Answer:
    name = next((n for n in ("SLURM_JOB_NODELIST", "SLURM_NODELIST", "SLURM_STEP_NODELIST") if n in variables), None)
    if name is None:
        raise Unreadable("no SLURM_JOB_NODELIST in this environment", next(iter(variables.values())).number)
    hosts = expand(variables[name].text, variables[name].number)
    warnings: list[str] = []
    said = _whole(variables, "SLURM_JOB_NUM_NODES", "SLURM_NNODES")
    if said is not None and said != len(hosts):
        warnings.append(f"{name} has {len(hosts)} hosts, but the number of nodes is {said}")
    world = _whole(variables, "SLURM_NTASKS", "SLURM_NPROCS")
    slots, rule = _slurm_slots(variables, hosts, world, warnings)
    total = sum(slots.values()) if slots else None
    if world is None and total is not None:
        world = total
        warnings.append("no SLURM_NTASKS: the world size is the sum of the tasks of all nodes")
    elif total is not None and total != world:
        warnings.append(f"SLURM_NTASKS is {world}, the tasks of all nodes add up to {total}")
    return _Answer(hosts, dict(slots) if slots else None, world, f"hosts from {name}; {rule}", warnings)


def _slurm_slots(
    variables: dict[str, Line], hosts: list[str], world: int | None, warnings: list[str]
) -> tuple[dict[str, int] | None, str]:
    for name in ("SLURM_TASKS_PER_NODE", "SLURM_STEP_TASKS_PER_NODE"):
        if name in variables:
            counts = expand_counts(variables[name].text, variables[name].number)
            if len(counts) == len(hosts):
                return dict(zip(hosts, counts, strict=True)), f"slots from {name}"
            warnings.append(f"{name} counts {len(counts)} nodes, not {len(hosts)}: not used")
    each = _whole(variables, "SLURM_NTASKS_PER_NODE")
    if each is not None:
        return dict.fromkeys(hosts, each), "slots from SLURM_NTASKS_PER_NODE"
    if world is not None and len(hosts) == 1:
        return {hosts[0]: world}, "one host takes all tasks"
    return None, "how the tasks are spread over the hosts is not said"


def _from_scontrol(pasted: Pasted) -> _Answer:
    jobs = re.findall(r"\bJobId=(\d+)", pasted.text)
    warnings = [f"{len(jobs)} jobs: only the first was read"] if len(jobs) > 1 else []
    fields: dict[str, Line] = {}
    for line in pasted.lines:
        if "JobId=" in line.text and "JobId" in fields:
            break
        for match in re.finditer(r"(?<![\w/:])([A-Za-z][\w/:]*)=(\S*)", line.text):
            fields.setdefault(match.group(1), Line(line.number, match.group(2)))
    listed = fields.get("NodeList")
    world = _whole(fields, "NumTasks")
    per_task = _whole(fields, "CPUs/Task")
    resources = " ".join(
        fields[key].text for key in ("TRES", "AllocTRES", "ReqTRES", "TresPerNode", "Gres") if key in fields
    )
    gpus = re.search(r"gres/gpu(?::[\w.-]+)?=(\d+)|gpu(?::[\w.-]+)?:(\d+)", resources)
    facts = [f"{world if world is not None else 'unknown'} tasks"]
    if per_task is not None:
        facts.append(f"{per_task} CPU{'s' * (per_task != 1)} each")
    facts.append(f"{gpus.group(1) or gpus.group(2)} GPUs" if gpus else "no GPUs named")
    if listed is None or listed.text in ("", "(null)", "None"):
        state = fields["JobState"].text if "JobState" in fields else "unknown"
        warnings.append(f"the job has no nodes (state {state})")
        return _Answer([], None, world, f"hosts from NodeList; {', '.join(facts)}", warnings)
    hosts = expand(listed.text, listed.number)
    nodes = fields.get("NumNodes")
    if nodes and nodes.text.isdigit() and int(nodes.text) != len(hosts):
        warnings.append(f"NodeList has {len(hosts)} hosts, but NumNodes is {nodes.text}")
    each = fields.get("NtasksPerN:B:S:C")
    count = each.text.split(":")[0] if each else ""
    slots: dict[str, int | None] | None = None
    if count.isdigit() and int(count):
        slots = dict.fromkeys(hosts, int(count))
        how = "slots from NtasksPerN"
    elif world is not None and len(hosts) == 1:
        slots, how = {hosts[0]: world}, "one host takes all tasks"
    else:
        how = "how the tasks are spread over the hosts is not said"
    return _Answer(hosts, slots, world, f"hosts from NodeList; {how}; {', '.join(facts)}", warnings)


def _from_node_names(pasted: Pasted) -> _Answer:
    hosts: dict[str, None] = {}
    for line in pasted.lines:
        for match in re.finditer(r"\bNodeName=(\S+)", line.text):
            hosts.update(dict.fromkeys(expand(match.group(1), line.number)))
    return _Answer(list(hosts), None, None, "hosts from NodeName (scontrol show node); no tasks are named")


def _from_lsf(variables: dict[str, Line]) -> _Answer:
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
    hosts = list(slots)
    if len(hosts) > 1 and slots[hosts[0]] == 1 and min(slots[host] for host in hosts[1:]) > 1:
        warnings.append(f"{hosts[0]} has 1 slot and the others more: it may be the launch node, which runs no ranks")
    return _Answer(hosts, dict(slots), sum(slots.values()), rule, warnings)


def _from_lines(pasted: Pasted) -> _Answer:
    """Read host files and bare lists; prose around a host file is passed over where the file is plain to see."""
    filled = [Line(line.number, line.text.split("#")[0].strip()) for line in pasted.lines]
    filled = [line for line in filled if line.text]
    if not filled:
        raise Unreadable("only comments and blank lines: no hosts", 1)
    seems = looks_like(pasted.text)
    if seems and not seems.startswith("hosts"):
        raise other_kind(_EXPECTED, pasted.text)
    if all(_EXPRESSION.match(line.text) for line in filled) and any(re.search(r"[\[,]", line.text) for line in filled):
        hosts = expand("".join(line.text for line in filled), filled[0].number)
        return _Answer(hosts, None, None, "a Slurm host list; it names no tasks")
    if len(filled) == 1 and re.fullmatch(rf"(?:{_NAME} \d{{1,6}}\s*)+", filled[0].text):
        return _from_lsf({"LSB_MCPU_HOSTS": filled[0]})
    if len(filled) == 1 and len(filled[0].text.split()) > 1 and not re.search(r"[=:]", filled[0].text):
        return _from_words(filled[0])
    return _from_host_file(filled)


def _from_words(line: Line) -> _Answer:
    """Read LSF's one-line forms: ``16*n1 16*n2``, or a name once for each slot."""
    words = line.text.split()
    slots: Counter[str] = Counter()
    for word in words:
        match = re.fullmatch(rf"(?:(\d{{1,6}})\*)?({_NAME})", word)
        if not match:
            raise other_kind(_EXPECTED, line.text)
        slots[match.group(2)] += int(match.group(1) or 1)
    if max(slots.values()) == 1 and not any(char.isdigit() for char in line.text):
        raise other_kind(_EXPECTED, line.text)  # words of a sentence
    return _Answer(list(slots), dict(slots), sum(slots.values()), "LSF: a host's name stands once for each slot")


def _from_host_file(lines: list[Line]) -> _Answer:
    warnings: list[str] = []
    entries: list[tuple[str, int | None]] = []
    strange: list[Line] = []
    for line in lines:
        match = _HOST_LINE.match(line.text)
        grid_engine = re.fullmatch(rf"({_NAME})\s+(\d{{1,6}})\s+\S+@\S+.*", line.text)
        if grid_engine:
            entries.append((grid_engine.group(1), int(grid_engine.group(2))))
        elif match:
            entries.append((match.group(1).strip("[]"), _slots_of(match, line, warnings)))
        else:
            strange.append(line)
    named = [entry for entry in entries if entry[1] is not None]
    if strange and not named:
        raise (
            other_kind(_EXPECTED, "\n".join(line.text for line in lines))
            if not entries
            else Unreadable(f"{strange[0].text[:60]!r} is no host: expected such as node1 slots=2", strange[0].number)
        )
    if not entries:
        raise Unreadable("no hosts in it", lines[0].number)
    if strange:
        if any("slots" in line.text for line in strange):
            bad = next(line for line in strange if "slots" in line.text)
            raise Unreadable(f"{bad.text[:60]!r}: expected such as node1 slots=2 max_slots=4", bad.number)
        warnings.append(
            f"{len(strange)} lines that name no host were passed over, the first is line {strange[0].number}"
        )
        entries = named
    if len(entries) > MAX_HOSTS * 10:
        raise Unreadable(f"{len(entries):,} lines of hosts are not believed")
    return _count_entries(entries, warnings)


def _slots_of(match: re.Match[str], line: Line, warnings: list[str]) -> int | None:
    attributes = {key.lower().replace("-", "_"): value for key, value in _ATTRIBUTE.findall(match.group(3))}
    text = attributes.get("slots") or attributes.get("cpus") or attributes.get("count") or match.group(2)
    if text is None:
        return None
    if not re.fullmatch(r"\d{1,9}", text) or int(text) > MAX_SLOTS:
        raise Unreadable(f"slots={text} is no number of ranks: expected 0 to {MAX_SLOTS:,}", line.number)
    most = attributes.get("max_slots", "")
    if most.isdigit() and int(most) < int(text):
        warnings.append(f"line {line.number}: max_slots={most} is below slots={text}")
    return int(text)


def _count_entries(entries: list[tuple[str, int | None]], warnings: list[str]) -> _Answer:
    hosts = list(dict.fromkeys(host for host, _ in entries))
    bare = Counter(host for host, count in entries if count is None)
    if all(count is None for _, count in entries):
        if max(bare.values()) > 1:
            rule = "one line for each slot: a host's slots are its lines (LSF, PBS, Open MPI)"
            return _Answer(hosts, {host: bare[host] for host in hosts}, len(entries), rule, warnings)
        return _Answer(hosts, None, None, "host names only; no slots are named", warnings)
    slots: dict[str, int | None] = {}
    for host in hosts:
        counts = [count for name, count in entries if name == host and count is not None]
        slots[host] = sum(counts) if counts else None
        if len(counts) > 1:
            warnings.append(f"{host} stands {len(counts)} times: its slots are added up")
    unknown = [host for host, count in slots.items() if count is None]
    known = sum(count for count in slots.values() if count is not None)
    rule = "slots as written"
    if unknown:
        rule += (
            f"; {', '.join(unknown[:5])} without slots=: since Open MPI 1.8 that means its number of cores, which"
            f" the file does not say (unknown); by the older rule it means 1 (world size {known + len(unknown)})"
        )
    return _Answer(hosts, slots, None if unknown else known, rule, warnings)
