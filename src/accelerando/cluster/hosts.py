"""The nodes of a cluster and what connects them: names, addresses, speeds as people write them."""

import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass

MOST_NODES = 16
LOGIN = "login"
SIMULATED_LINK_VARIABLE = "ACCELERANDO_SIMULATED_LINK"

_NETWORK = "10.77.0"
_UNITS = {"kbit": 10**3, "mbit": 10**6, "gbit": 10**9}
_SLOWEST_BIT_PER_S, _FASTEST_BIT_PER_S = 64 * 10**3, 100 * 10**9
_LONGEST_LATENCY_S = 1.0


@dataclass(frozen=True)
class Node:
    """One node: its host name and its address."""

    name: str
    address: str


@dataclass(frozen=True)
class Link:
    """The cable of every node.

    Attributes:
        bandwidth_bytes_per_s: In each direction; None: as fast as the machine copies.
        latency_s: Added to every message, one way.
        is_enforced: The system's traffic control holds the programs to it. If not, it is only told to them.
    """

    bandwidth_bytes_per_s: float | None
    latency_s: float = 0.0
    is_enforced: bool = True


def parse_bandwidth(text: str) -> float:
    """Read a speed such as ``200mbit``; returns bytes per second.

    Raises:
        ValueError: If it is no number with kbit, mbit or gbit, or outside 64 kbit to 100 gbit per second.
    """
    match = re.fullmatch(r"(\d{1,12}(?:\.\d{1,6})?)\s*([kmg]bit)(?:/s)?", text.strip().lower())
    if match is None:
        raise ValueError(f"bandwidth is {text!r}: write a number and kbit, mbit or gbit, for example 200mbit")
    bit_per_s = float(match[1]) * _UNITS[match[2]]
    if not _SLOWEST_BIT_PER_S <= bit_per_s <= _FASTEST_BIT_PER_S:
        raise ValueError(f"bandwidth is {text!r}: it must be from 64kbit to 100gbit, for example 200mbit")
    return bit_per_s / 8


def parse_latency(text: str) -> float:
    """Read a time such as ``1ms`` or ``200us``; returns seconds.

    Raises:
        ValueError: If it is no number with us, ms or s, or above one second.
    """
    match = re.fullmatch(r"(\d{1,9}(?:\.\d{1,6})?)\s*(us|ms|s)", text.strip().lower())
    latency_s = float(match[1]) * {"us": 1e-6, "ms": 1e-3, "s": 1.0}[match[2]] if match else -1.0
    if not 0 <= latency_s <= _LONGEST_LATENCY_S:
        raise ValueError(f"latency is {text!r}: write a number and us, ms or s, at most 1s, for example 1ms")
    return latency_s


def make_nodes(count: int, *, has_own_addresses: bool = True) -> tuple[Node, ...]:
    """Name ``count`` nodes, node1 to nodeN, in a private network, or on the machine's own loopback.

    Raises:
        ValueError: If ``count`` is not a whole number from 1 to 16.
    """
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= MOST_NODES:
        raise ValueError(f"nodes is {count!r}: it must be a whole number from 1 to {MOST_NODES}")
    first = f"{_NETWORK}." if has_own_addresses else "127.0.0."
    offset = 0 if has_own_addresses else 1  # 127.0.0.1 is everybody's
    return tuple(Node(f"node{number}", f"{first}{number + offset}") for number in range(1, count + 1))


def login_address() -> str:
    """Return the address, in the nodes' network, of the place where mpirun and srun are typed."""
    return f"{_NETWORK}.254"


def hosts_file(nodes: Sequence[Node]) -> str:
    """Write an /etc/hosts in which all nodes find each other by name."""
    rows = [("127.0.0.1", "localhost"), (login_address(), LOGIN), *((node.address, node.name) for node in nodes)]
    return "".join(f"{address}\t{name}\n" for address, name in rows)


def choose(nodes: Sequence[Node], names: str | None) -> tuple[Node, ...]:
    """Pick nodes by name, in the order given.

    Args:
        nodes: All of the cluster.
        names: ``"node2,node1"``; None: all.

    Raises:
        ValueError: If a name is unknown or stands twice.
    """
    if names is None:
        return tuple(nodes)
    by_name = {node.name: node for node in nodes}
    wanted = [name.strip() for name in names.split(",")]
    for name in wanted:
        if name not in by_name:
            raise ValueError(f"there is no node {name!r}; the cluster has {', '.join(by_name)}")
        if wanted.count(name) > 1:
            raise ValueError(f"node {name!r} is named twice")
    return tuple(by_name[name] for name in wanted)


def simulated_wait_s(sent_bytes: float, elapsed_s: float, messages: int = 1) -> float:
    """Say how much longer a transfer would have taken on the link that is only told, inside a program.

    Where no namespaces are allowed, nodes share the machine's loopback, which no cable slows down. A program that
    wants to feel the link sleeps this long after each transfer. On a cluster whose link is enforced it is 0.

    Args:
        sent_bytes: What this rank sent.
        elapsed_s: What that took.
        messages: How many messages, one after the other.
    """
    told = json.loads(os.environ.get(SIMULATED_LINK_VARIABLE, "null"))
    if told is None:
        return 0.0
    transfer_s = sent_bytes / told["bandwidth_bytes_per_s"] if told["bandwidth_bytes_per_s"] else 0.0
    return max(0.0, messages * float(told["latency_s"]) + transfer_s - elapsed_s)
