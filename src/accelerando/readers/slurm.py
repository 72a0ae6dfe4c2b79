"""Host lists of Slurm: its environment, ``scontrol``, bracket expressions. Called by `hosts.parse`."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from accelerando.readers.text import Line, Pasted, Unreadable

MAX_HOSTS = 100_000
_VARIABLE = re.compile(
    r"(?<![\w.])(?:export\s+|declare\s+-x\s+|setenv\s+)?"
    r"((?:SLURM|SLURMD|SRUN|LSB|LS|PBS|PMI|OMPI)_[A-Z0-9_]+)(?:\s*=\s*|\s*:\s+|\s+(?=[\w\"']))(.*)$"
)
_ECHO = re.compile(r"(?<!\w)echo\s+[\"']?\$\{?((?:SLURM|LSB|PBS)_[A-Z0-9_]+)\}?[\"']?\s*$")
NAME = r"(?:[A-Za-z0-9_](?:[\w.-]*[A-Za-z0-9_])?|\[[0-9A-Fa-f:.]+\])"
EXPRESSION = re.compile(r"^[\w.,\[\]-]+$")


@dataclass
class HostList:
    hosts: list[str]
    slots: dict[str, int | None] | None
    world_size: int | None
    rule: str
    warnings: list[str] = field(default_factory=list)


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
    if not hosts or not all(re.fullmatch(NAME, host) for host in hosts):
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


def read_variables(pasted: Pasted) -> dict[str, Line]:
    """Return the schedulers' variables; of one that comes twice (a label for each rank) the first."""
    found: dict[str, Line] = {}
    lines = list(pasted.lines)
    for place, line in enumerate(lines):
        if "_" not in line.text:
            continue
        match = _VARIABLE.search(line.text)
        echo = _ECHO.search(line.text)
        if echo and place + 1 < len(lines) and lines[place + 1].text.strip():
            found.setdefault(echo.group(1), Line(lines[place + 1].number, lines[place + 1].text.strip()))
        value = match.group(2).strip().rstrip(";") if match else ""
        if not match or echo or match.group(1) in found or value.lstrip("\"'").startswith("$"):
            continue
        following = place + 1
        while match.group(1) in ("LSB_HOSTS", "LSB_MCPU_HOSTS") and following < len(lines):  # wrapped between words
            if not value or not re.fullmatch(rf"{NAME}(?:\s+{NAME})*\s*[\"']?", lines[following].text.strip()):
                break
            value += " " + lines[following].text.strip()
            following += 1
        while value.count("[") > value.count("]") and following < len(lines):  # wrapped inside the brackets
            if not EXPRESSION.match(lines[following].text.strip()):
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


def _het_groups(variables: dict[str, Line]) -> list[dict[str, Line]]:
    """Split the variables of a heterogeneous job (``…_HET_GROUP_0``, once ``…_PACK_GROUP_0``) by component."""
    groups: dict[int, dict[str, Line]] = {}
    for name, line in variables.items():
        match = re.fullmatch(r"(\w+?)_(?:HET|PACK)_GROUP_(\d{1,4})", name)
        if match:
            groups.setdefault(int(match.group(2)), {})[match.group(1)] = line
    return [groups[number] for number in sorted(groups) if any("NODELIST" in name for name in groups[number])]


def from_environment(variables: dict[str, Line], lines: tuple[Line, ...] = ()) -> HostList:
    if groups := _het_groups(variables):
        return _joined([from_environment(group) for group in groups], variables)
    name = next((n for n in ("SLURM_JOB_NODELIST", "SLURM_NODELIST", "SLURM_STEP_NODELIST") if n in variables), None)
    if name is None:
        raise Unreadable("no SLURM_JOB_NODELIST in this environment", next(iter(variables.values())).number)
    hosts = expand(variables[name].text, variables[name].number)
    warnings: list[str] = []
    others = (_VARIABLE.search(line.text) for line in lines)
    lists = {match.group(2).strip(" ;\"'") for match in others if match and match.group(1) == name}
    if len(lists) > 1 and variables[name].text in lists and not any("$" in text for text in lists):
        warnings.append(f"{name} stands there with different values: only the first was read")
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
    return HostList(hosts, dict(slots) if slots else None, world, f"hosts from {name}; {rule}", warnings)


def _joined(parts: list[HostList], variables: dict[str, Line]) -> HostList:
    """Put the components of a heterogeneous job together."""
    hosts = list(dict.fromkeys(host for part in parts for host in part.hosts))
    slots: dict[str, int | None] | None = None
    if all(part.slots is not None for part in parts):
        slots = dict.fromkeys(hosts, 0)
        for part in parts:
            for host, count in (part.slots or {}).items():
                slots[host] = (slots[host] or 0) + (count or 0)
    sizes = [part.world_size for part in parts]
    world = sum(size for size in sizes if size is not None) if None not in sizes else None
    warnings = list(dict.fromkeys(warning for part in parts for warning in part.warnings))
    said = _whole(variables, "SLURM_HET_SIZE", "SLURM_PACK_SIZE")
    if said is not None and said != len(parts):
        warnings.append(f"the job has {said} components, but {len(parts)} are named")
    return HostList(hosts, slots, world, f"heterogeneous job of {len(parts)} components; {parts[0].rule}", warnings)


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


def from_scontrol(pasted: Pasted) -> HostList:
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
    gpus = _gpus(fields)
    facts = [f"{world if world is not None else 'unknown'} tasks"]
    if per_task is not None:
        facts.append(f"{per_task} CPU{'s' * (per_task != 1)} each")
    facts.append(gpus or "no GPUs named")
    if listed is None or listed.text in ("", "(null)", "None"):
        state = fields["JobState"].text if "JobState" in fields else "unknown"
        warnings.append(f"the job has no nodes (state {state})")
        return HostList([], None, world, f"hosts from NodeList; {', '.join(facts)}", warnings)
    hosts = expand(listed.text, listed.number)
    nodes = fields.get("NumNodes")
    if nodes and nodes.text.isdecimal() and int(nodes.text) != len(hosts):
        warnings.append(f"NodeList has {len(hosts)} hosts, but NumNodes is {nodes.text}")
    each = fields.get("NtasksPerN:B:S:C")
    count = each.text.split(":")[0] if each else ""
    slots: dict[str, int | None] | None = None
    if count.isdecimal() and int(count) and world not in (None, int(count) * len(hosts)):
        warnings.append(f"{count} tasks on each of {len(hosts)} nodes are not {world} tasks: slots unknown")
        how = "how the tasks are spread over the hosts is not said"
    elif count.isdecimal() and int(count):
        slots = dict.fromkeys(hosts, int(count))
        how = "slots from NtasksPerN"
    elif world is not None and len(hosts) == 1:
        slots, how = {hosts[0]: world}, "one host takes all tasks"
    else:
        how = "how the tasks are spread over the hosts is not said"
    return HostList(hosts, slots, world, f"hosts from NodeList; {how}; {', '.join(facts)}", warnings)


def _gpus(fields: dict[str, Line]) -> str | None:
    """Say how many GPUs a job has in all, else on each node; None if it names none."""
    gpu = r"gpu(?::[A-Za-z][\w.-]*)?[:=](\d+)"
    for key in ("AllocTRES", "TRES", "ReqTRES", "JOB_GRES", "TresPerJob"):
        found = re.search(gpu, fields[key].text) if key in fields else None
        if found:
            return f"{found.group(1)} GPUs"
    for key, place in (("TresPerNode", "node"), ("Gres", "node"), ("GRES", "node"), ("TresPerTask", "task")):
        found = re.search(gpu, fields[key].text) if key in fields else None
        if found:
            return f"{found.group(1)} GPUs for each {place}"
    return None


def from_node_names(pasted: Pasted) -> HostList:
    hosts: dict[str, None] = {}
    for line in pasted.lines:
        for match in re.finditer(r"\bNodeName=(\S+)", line.text):
            hosts.update(dict.fromkeys(expand(match.group(1), line.number)))
    return HostList(list(hosts), None, None, "hosts from NodeName (scontrol show node); no tasks are named")
