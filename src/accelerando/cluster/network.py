"""Lays the cables: a bridge in the holder's network, and from it to each node a pair of shaped interfaces."""

import shutil
import subprocess
from collections.abc import Sequence

from accelerando.cluster.hosts import Link, Node, login_address

INTERFACE = "eth0"
_BRIDGE = "bridge0"
# Left alone, a bridge takes the address of one of its cables, and another one when that node is lost: the nodes that
# are left then send to nobody until their neighbour tables have aged, a minute or more.
_BRIDGE_MAC = "02:00:0a:4d:00:fe"
_PREFIX = 24
_LEAST_BURST_BYTES = 64 * 1024
_BURST_S = 0.004  # on a busy machine the kernel comes back to a queue only after milliseconds: let it catch up
_QUEUE = "50ms"
NAMESPACES = ("--net", "--uts", "--mount", "--ipc", "--pid")
UNSHARE = ("unshare", *NAMESPACES, "--fork", "--kill-child", "--mount-proc")


class NetworkError(RuntimeError):
    """A command of the system refused; the message says which and why."""


def command(*words: str) -> None:
    """Run a command of the system.

    Raises:
        NetworkError: If it fails.
    """
    done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines() or ["it said nothing"]
        raise NetworkError(f"`{' '.join(words)}` failed: {said[0][:200]}")


def inside(pid: int) -> tuple[str, ...]:
    """Return the words that start a command on the node whose first process is ``pid``."""
    return ("nsenter", f"--target={pid}", *NAMESPACES, "--")


def lay_bridge() -> None:
    """Make the switch, in the namespace of this process, with the login node on it."""
    command("ip", "link", "set", "lo", "up")
    command("ip", "link", "add", _BRIDGE, "address", _BRIDGE_MAC, "type", "bridge")
    command("ip", "address", "add", f"{login_address()}/{_PREFIX}", "dev", _BRIDGE)
    command("ip", "link", "set", _BRIDGE, "up")


def lay_cable(node: Node, pid: int, link: Link) -> None:
    """Connect a node to the switch; each direction of the cable has the link's speed."""
    ours = f"to-{node.name}"
    command("ip", "link", "add", ours, "type", "veth", "peer", "name", INTERFACE, "netns", str(pid))
    command("ip", "link", "set", ours, "master", _BRIDGE, "up")
    enter = inside(pid)
    command(*enter, "ip", "link", "set", "lo", "up")
    command(*enter, "ip", "address", "add", f"{node.address}/{_PREFIX}", "dev", INTERFACE)
    command(*enter, "ip", "link", "set", INTERFACE, "up")
    for place, name, latency_s in ((enter, INTERFACE, link.latency_s), ((), ours, 0.0)):
        for words in shaping(name, link.bandwidth_bytes_per_s, latency_s):
            try:
                command(*place, *words)
            except NetworkError as error:
                if "netem" in words and "unknown" in str(error):
                    raise NetworkError(
                        "this kernel cannot delay packets (it has no netem): leave the latency out"
                    ) from error
                raise


def shaping(interface: str, bandwidth_bytes_per_s: float | None, latency_s: float) -> list[tuple[str, ...]]:
    """Return the tc commands that give an interface this speed outwards; none if there is nothing to slow down."""
    commands: list[tuple[str, ...]] = []
    place: tuple[str, ...] = ("root", "handle", "1:")
    add = ("tc", "qdisc", "add", "dev", interface)
    if bandwidth_bytes_per_s is not None:
        rate = f"{bandwidth_bytes_per_s * 8:.0f}bit"
        burst = max(_LEAST_BURST_BYTES, round(bandwidth_bytes_per_s * _BURST_S))
        commands.append((*add, *place, "tbf", "rate", rate, "burst", str(burst), "latency", _QUEUE))
        place = ("parent", "1:1")
    if latency_s:
        commands.append((*add, *place, "netem", "delay", f"{latency_s * 1e6:.0f}us"))
    return commands


def why_not(as_user: Sequence[str]) -> str | None:
    """Try whether namespaces can be made here; returns the reason if not.

    Args:
        as_user: What an ordinary user has to add to unshare.
    """
    absent = [name for name in ("unshare", "nsenter", "ip", "tc") if shutil.which(name) is None]
    if absent:
        return f"{' and '.join(absent)} not found: on Debian and Ubuntu, `apt install iproute2 util-linux`"
    cable = "ip link add name trial0 type veth peer name trial1"
    shaped = f"tc qdisc add dev trial0 root tbf rate 1mbit burst 64kb latency {_QUEUE}"
    try:
        command(UNSHARE[0], *as_user, *UNSHARE[1:], "sh", "-c", f"mount -t tmpfs tmpfs /dev/shm && {cable} && {shaped}")
    except (NetworkError, OSError) as error:
        said = str(error).rpartition("failed: ")[2]
        if "No space left" in said:  # what unshare says when it may make none, or not one more
            said = "the limits in /proc/sys/user/max_*_namespaces are reached"
        return f"no namespaces may be made here ({said})"
    return None
