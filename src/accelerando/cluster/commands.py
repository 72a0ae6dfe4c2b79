"""``./course cluster up | run | status | down``: says what it does, exit codes 0, 1 (it failed) and 2 (usage)."""

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TextIO

from accelerando import cluster, ranks
from accelerando.cluster.hosts import Link


def up_command(
    nodes: int, bandwidth: str | None, latency: str | None, with_slurm: bool, name: str, minutes: float, loopback: bool
) -> int:
    """Make a cluster that stays until `down`, or until its time is over."""

    def go() -> int:
        made = cluster.up(
            nodes,
            bandwidth=bandwidth,
            latency=latency,
            with_slurm=with_slurm,
            name=name,
            limit_s=minutes * 60,
            outlives_caller=True,
            as_loopback=loopback,
        )
        _print(f"cluster {name!r} is up: " + ", ".join(f"{node.name} {node.address}" for node in made.nodes))
        _print(f"link: {_describe(made.link)}")
        if made.why_loopback:
            _print(f"nodes are loopback addresses, because {made.why_loopback}")
        _print(f"it goes down with `./course cluster down`, or by itself in {minutes:g} minutes")
        return 0

    return _report(go)


def run_command(
    program: str,
    arguments: Sequence[str],
    launcher: str,
    on: str | None,
    ranks_per_node: int,
    threads: int,
    time_limit_s: float,
    name: str,
) -> int:
    """Show the commands, run the program, show each line with its rank."""

    def go() -> int:
        result = cluster.connect(name).run(
            Path(program) if program.endswith(".py") else program,
            arguments,
            launcher=launcher,
            on=on,
            ranks_per_node=ranks_per_node,
            threads_per_rank=threads,
            time_limit_s=time_limit_s,
            on_line=ranks.show,
        )
        _print(f"{result.reason} after {result.elapsed_s:.1f} s", sys.stderr)
        return 0

    return _report(go)


def status_command(name: str, as_json: bool) -> int:
    """Show what is up."""

    def go() -> int:
        status = cluster.connect(name).status()
        if as_json:
            _print(json.dumps(status))
            return 0
        for node in status["nodes"]:
            in_slurm = f", Slurm: {status['slurm'].get(node['name'], 'unknown')}" if status["slurm"] is not None else ""
            process = f", process {node['process']}" if node["process"] else ""
            _print(f"{node['name']}  {node['address']}  {node['state']}{process}{in_slurm}")
        _print(f"link: {_describe(Link(**status['link']))}; programs running: {status['runs']}")
        return 0

    return _report(go)


def down_command(name: str) -> int:
    """Take the cluster down."""

    def go() -> int:
        cluster.connect(name).down()
        _print(f"cluster {name!r} is down; nothing of it is left")
        return 0

    return _report(go)


def _describe(link: Link) -> str:
    speed = "not slowed down"
    if link.bandwidth_bytes_per_s is not None:
        speed = f"{link.bandwidth_bytes_per_s * 8 / 1e6:g} Mbit/s in each direction"
    latency = f", {link.latency_s * 1e3:g} ms one way" if link.latency_s else ""
    told = "" if link.is_enforced else " (simulated: programs are told, nothing holds them to it)"
    return f"{speed}{latency}{told}"


def _report(go: Callable[[], int]) -> int:
    try:
        return go()
    except ValueError as error:
        _print(f"course cluster: {error}", sys.stderr)
        return 2
    except ranks.RanksFailed as failure:
        _print(f"course cluster: {failure.result.reason}", sys.stderr)
        return 1
    except cluster.ClusterError as error:
        _print(f"course cluster: {error}", sys.stderr)
        return 1


def _print(text: str, stream: TextIO | None = None) -> None:
    print(text, file=stream or sys.stdout, flush=True)
