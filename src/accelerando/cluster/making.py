"""Makes a virtual cluster, on Linux: as root or an ordinary user with namespaces, else with loopback addresses."""

import json
import os
import secrets
import select
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from accelerando.cluster import hosts, network, places, slurm
from accelerando.cluster.places import ClusterError
from accelerando.cluster.virtual import SCHEMA, Cluster, connect, own_variables

_START_LIMIT_S = 90.0


def up(
    nodes: int = 2,
    *,
    bandwidth: str | None = None,
    latency: str | None = None,
    with_slurm: bool = False,
    name: str = "default",
    limit_s: float = 4 * 3600.0,
    outlives_caller: bool = False,
    as_loopback: bool = False,
) -> Cluster:
    """Make a cluster.

    Args:
        nodes: 1 to 16.
        bandwidth: Of each node's link and direction, such as ``"200mbit"``; None: not slowed down.
        latency: Added one way, such as ``"1ms"``; None: nothing. Needs a kernel with netem.
        with_slurm: Start Slurm's daemons too.
        name: Of the cluster: small letters, digits, hyphens, at most 16.
        limit_s: Afterwards it goes down by itself.
        outlives_caller: It stays when this process ends.
        as_loopback: Do without namespaces even where they are allowed.

    Raises:
        ValueError: If an argument makes no sense.
        ClusterError: If it cannot be made.
    """
    if sys.platform != "linux":
        raise ClusterError("virtual clusters need Linux: on Windows use WSL2, on macOS a virtual machine or container")
    if not places.NAME.fullmatch(name):
        raise ValueError(f"name is {name!r}: use small letters, digits and hyphens, at most 16")
    if not 0 < limit_s <= 7 * 86400:
        raise ValueError(f"the cluster's time limit is {limit_s:g} s: it must be above 0 and at most 7 days")
    speed = _parse(bandwidth, hosts.parse_bandwidth)
    delay_s = _parse(latency, hosts.parse_latency) or 0.0
    hosts.make_nodes(nodes)
    with places.tools_on_path():
        why, as_user = _what_is_allowed(as_loopback)
        if with_slurm and why:
            raise ClusterError(f"Slurm needs nodes with their own addresses, and {why}")
        if with_slurm and (absent := slurm.missing()):
            raise ClusterError(f"Slurm is not installed ({', '.join(absent)} not found): `apt install slurm-wlm munge`")
        spec = {
            "schema": SCHEMA,
            "id": secrets.token_hex(8),
            "name": name,
            "nodes": [asdict(node) for node in hosts.make_nodes(nodes, has_own_addresses=why is None)],
            "link": asdict(hosts.Link(speed, delay_s, is_enforced=why is None)),
            "slurm": with_slurm,
            "why_loopback": why,
            "is_root": not as_user,
            "unshare": [] if why else [network.UNSHARE[0], *as_user, *network.UNSHARE[1:]],
            "limit_s": limit_s,
        }
        with places.locked() as root:
            folder = root / name
            if not places.is_gone(folder, has_lock=True):
                raise ClusterError(
                    f"a cluster named {name!r} is already up: take it down first, or choose another name"
                )
            folder.mkdir(mode=0o700)
            (folder / "cluster.json").write_text(json.dumps(spec), encoding="utf-8")
            _start(folder, outlives_caller)
    return connect(name)


def _parse(text: str | None, reader: Callable[[str], float]) -> float | None:
    """Read an option that may be absent."""
    return None if text is None else reader(text)


def _what_is_allowed(as_loopback: bool) -> tuple[str | None, tuple[str, ...]]:
    """Return why namespaces cannot be made (None: they can), and what unshare needs to make them."""
    if as_loopback:
        return "loopback addresses were asked for", ()
    if os.geteuid() == 0 and network.why_not(()) is None:
        return None, ()
    as_user = ("--user", "--map-root-user")
    return network.why_not(as_user), as_user


def _start(folder: Path, outlives_caller: bool) -> None:
    """Start the keeper and wait for the cluster to be ready."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
        server.bind(places.address(folder))
        server.listen(16)
        package = str(Path(__file__).parents[2])
        paths = os.pathsep.join(filter(None, (package, os.environ.get("PYTHONPATH"))))
        keeper = subprocess.Popen(
            [sys.executable, "-P", "-m", "accelerando.cluster.keeper", str(folder), str(server.fileno())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            pass_fds=(server.fileno(),),
            start_new_session=True,
            env=own_variables() | {"PYTHONPATH": paths},
        )
    assert keeper.stdin is not None
    assert keeper.stdout is not None
    (folder / "keeper.pid").write_text(str(keeper.pid), encoding="ascii")
    said = ""
    try:
        if select.select([keeper.stdout], [], [], _START_LIMIT_S)[0]:
            said = keeper.stdout.readline().decode(errors="replace").strip()
    except BaseException:  # Ctrl-C: without its input the keeper ends, and all that it has made
        keeper.stdin.close()
        keeper.wait(places.LIMIT_S)
        raise
    if said == "ready":
        if outlives_caller:
            keeper.stdin.write(b"keep\n")
            keeper.stdin.close()
        places.KEPT.append(keeper)  # its input closes, and the cluster ends, with this process
        return
    log = folder / "holder.log"
    last = log.read_text(errors="replace").strip().splitlines()[-1:] if log.exists() else []
    keeper.stdin.close()
    keeper.wait(places.LIMIT_S)
    why = said.removeprefix("error: ") or (last or [f"it was not ready after {_START_LIMIT_S:g} s"])[0]
    raise ClusterError(f"the cluster could not be made: {why}")
