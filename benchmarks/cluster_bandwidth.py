"""A 10 MB all-reduce between two virtual nodes at several link speeds: predicted, then measured.

    python benchmarks/cluster_bandwidth.py [--speeds 100mbit 200mbit 1gbit] [--repeats 7]

The prediction is the ring all-reduce of `costs`, from the link's speed alone; latency is taken as 0. Headers of TCP and
Ethernet (about 5 % of the bytes) and the sums themselves are not in it, so measured times lie a little above.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from accelerando import cluster, costs, ledger, machine, ranks

RESULT = Path(__file__).parent / "results" / "cluster_bandwidth.json"
MESSAGE_BYTES = 10_000_000
TOLERANCE = 0.20


def measure_on_rank(repeats: int) -> list[float]:
    """On each rank: all-reduce again and again; the seconds of each."""
    import torch
    import torch.distributed as dist

    with ranks.joined():
        message = torch.ones(MESSAGE_BYTES // 4)
        seconds = []
        for _ in range(repeats + 1):
            dist.barrier()
            began_s = time.perf_counter()
            dist.all_reduce(message)
            seconds.append(time.perf_counter() - began_s)
    return seconds[1:]  # the first one connects


def measure(speed: str, repeats: int) -> dict[str, Any]:
    """Make two nodes with this link, and compare."""
    with cluster.up(2, bandwidth=speed, name=f"bench-{os.getpid() % 10**6}") as made:
        if made.why_loopback:
            sys.exit(f"no link can be enforced here: {made.why_loopback}")
        result = made.run(measure_on_rank, payload={"repeats": repeats}, launcher="mpirun", time_limit_s=300.0)
    seconds = result.values[0]
    link = costs.Link(0.0, cluster.parse_bandwidth(speed))
    predicted_s = costs.predict_ring_all_reduce_s(MESSAGE_BYTES, 2, link)
    measured_s = statistics.median(seconds)
    return {
        "predicted_s": predicted_s,
        "measured_median_s": measured_s,
        "measured_s": seconds,
        "off_by": measured_s / predicted_s - 1,
        "is_within_20_percent": abs(measured_s / predicted_s - 1) <= TOLERANCE,
    }


def main() -> int:
    """Measure every speed, print a table, write the results file; status 1 if one is off by more than 20 %."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--speeds", nargs="+", default=["100mbit", "200mbit", "1gbit"])
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--output", type=Path, default=RESULT)
    options = parser.parse_args()
    with machine.watch() as watch:
        rows = {speed: measure(speed, options.repeats) for speed in options.speeds}
    for speed, row in rows.items():
        predicted_ms, measured_ms = row["predicted_s"] * 1e3, row["measured_median_s"] * 1e3
        print(f"{speed:>8}: predicted {predicted_ms:6.0f} ms, measured {measured_ms:6.0f} ms, {row['off_by']:+.1%}")
    record = {
        "schema": 1,
        **ledger.origin(),
        "message_bytes": MESSAGE_BYTES,
        "ranks": 2,
        "all_reduce": rows,
        "machine_state": asdict(watch.state),
    }
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(record, indent=1, default=str) + "\n", encoding="utf-8")
    return 0 if all(row["is_within_20_percent"] for row in rows.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
