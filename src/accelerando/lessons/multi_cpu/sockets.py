"""Which cores belong together: sockets, NUMA nodes, and the cores that each rank should get."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from accelerando import readers

if TYPE_CHECKING:
    from accelerando.machine import Machine

EXAMPLE_NAME = "a server with two Intel Xeon Platinum 8481C"
EXAMPLE = """\
Architecture:                       x86_64
CPU(s):                             224
On-line CPU(s) list:                0-223
Vendor ID:                          GenuineIntel
Model name:                         Intel(R) Xeon(R) Platinum 8481C
Thread(s) per core:                 2
Core(s) per socket:                 56
Socket(s):                          2
L1d cache:                          5.3 MiB (112 instances)
L2 cache:                           224 MiB (112 instances)
L3 cache:                           210 MiB (2 instances)
NUMA node(s):                       2
NUMA node0 CPU(s):                  0-55,112-167
NUMA node1 CPU(s):                  56-111,168-223
"""
"""What ``lscpu`` says there, without the flags; from a public report."""

Nodes = Sequence[Sequence[int]]


def read_example() -> dict[str, Any]:
    """Read the example as `./course inspect lscpu` would."""
    return readers.parse("lscpu", EXAMPLE)


def example_cores() -> tuple[tuple[int, ...], ...]:
    """For each node of the example one CPU of each core: the second half of its list are their other halves."""
    nodes = read_example()["numa_nodes"]
    return tuple(tuple(cpus[: len(cpus) // 2]) for _, cpus in sorted(nodes.items(), key=lambda item: int(item[0])))


def usable_nodes(here: Machine) -> tuple[tuple[int, ...], ...]:
    """For each NUMA node of this machine the CPUs that may be used; one node where the system names none."""
    nodes = [tuple(cpu for cpu in cpus if cpu in here.cpus) for _, cpus in sorted(here.numa_nodes.items())]
    return tuple(cpus for cpus in nodes if cpus) or (here.cpus,)


def table(here: Machine) -> str:
    """Markdown: this machine beside the example."""
    other = read_example()
    nodes = usable_nodes(here)
    rows: list[tuple[str, object, object, str]] = [
        ("sockets", here.sockets, other["sockets"], "chips, each in a holder of its own"),
        ("cores", here.physical_cores, other["cores"], "what computes"),
        ("CPUs", here.logical_cores, other["logical_online"], "what the system counts: hardware threads"),
        ("usable here", here.usable_cores, "", "what this process may keep busy"),
        ("NUMA nodes", len(nodes), len(other["numa_nodes"]), "cores with memory of their own"),
        ("L3 caches", _instances(here.caches.get("L3")), other["caches"]["L3"]["instances"], "shared by some cores"),
    ]
    for number, (cpus, theirs) in enumerate(zip(_padded(nodes, 2), other["numa_nodes"].values(), strict=False)):
        rows.append((f"CPUs of node {number}", _ranges(cpus) or "—", _ranges(theirs), ""))
    lines = [f"| {name} | {_said(own)} | {theirs} | {what} |" for name, own, theirs, what in rows]
    return "\n".join([f"| | this machine | {EXAMPLE_NAME} | |", "|---|---|---|---|", *lines])


def _said(fact: object) -> object:
    return "unknown" if fact is None else fact


def _padded(nodes: Nodes, count: int) -> list[Sequence[int]]:
    return [*nodes, *([()] * count)][:count]


def _instances(cache: Any) -> int | None:
    return None if cache is None else int(cache.instances)


def _ranges(cpus: Sequence[int]) -> str:
    """Write ``0-55,112-167``."""
    parts: list[list[int]] = []
    for cpu in sorted(cpus):
        if parts and cpu == parts[-1][1] + 1:
            parts[-1][1] = cpu
        else:
            parts.append([cpu, cpu])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in parts)


def sentence(here: Machine) -> str:
    """What this machine is in this respect."""
    nodes = usable_nodes(here)
    if len(nodes) == 1:
        one = f"This process may use {here.usable_cores} core(s) of one NUMA node"
        return (
            f"{one}, so all memory is equally near and there is nothing to measure about distance here. The second "
            f"column is {EXAMPLE_NAME}, read from what its `lscpu` printed (and not measured by us)."
        )
    sizes = " and ".join(str(len(cpus)) for cpus in nodes)
    return f"This process may use {len(nodes)} NUMA nodes, with {sizes} CPUs. Look at how their ids are dealt out."


def cpus_of_ranks(nodes: Nodes, world_size: int) -> tuple[tuple[int, ...], ...]:
    """Choose CPUs for every rank of a machine: none has two owners, no rank sits on two nodes if it need not.

    Ranks are dealt to nodes in a row and as evenly as possible, and each node's CPUs to its ranks likewise. With fewer
    ranks than nodes, nodes are dealt to ranks.

    Args:
        nodes: For each NUMA node its CPUs; at least as many CPUs as ranks on each.
        world_size: Ranks of this machine, at least 1.
    """
    if world_size < len(nodes):
        return tuple(
            tuple(cpu for node in part for cpu in nodes[node]) for part in _parts(range(len(nodes)), world_size)
        )
    found: list[tuple[int, ...]] = []
    for cpus, own in zip(nodes, _parts(range(world_size), len(nodes)), strict=True):
        found += _parts(cpus, len(own))
    return tuple(found)


def _parts(things: Sequence[int], count: int) -> list[tuple[int, ...]]:
    """Cut into ``count`` parts in a row, as even as possible."""
    return [tuple(things[part * len(things) // count : (part + 1) * len(things) // count]) for part in range(count)]


def owners(cpus: Sequence[Sequence[int]]) -> Mapping[int, list[int]]:
    """CPU -> the ranks that may use it."""
    found: dict[int, list[int]] = {}
    for rank, own in enumerate(cpus):
        for cpu in own:
            found.setdefault(cpu, []).append(rank)
    return found
