"""All-reduce through oneCCL and through gloo on one host: milliseconds and bandwidth from 1 KB to 64 MB.

    python benchmarks/oneccl_bandwidth.py [--ranks 2] [--budget-s 2] [--save]

Both backends live in the same processes and take turns, in an order drawn anew for each pair, so whatever else the
machine does falls on both. A barrier precedes each call; its time is that of the slowest rank. `--save` writes
``results/oneccl_bandwidth.json`` and ``.md``; it is refused while the machine has other work.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import json
import os
import random
import sys
import time
from pathlib import Path
from typing import Any

from accelerando import ledger, machine, noise, ranks, stats

RESULTS = Path(__file__).parent / "results"
SIZES_BYTES = tuple(1024 * 4**power for power in range(9))  # 1 KB to 64 MB
BACKENDS = ("ccl", "gloo")
LEAST_PAIRS, MOST_PAIRS = 12, 200
QUIET_LOAD = 1.5


def compare(budget_s: float) -> dict[str, Any]:
    """On each rank: seconds of every call, by size and backend, each the longest of all ranks."""
    import torch
    import torch.distributed as dist

    from accelerando.backends import oneccl

    oneccl.register()
    dist.init_process_group("gloo")
    groups = {"ccl": dist.new_group(backend="ccl"), "gloo": dist.group.WORLD}
    draw = random.Random(0)  # the same order on each rank
    all_seconds: dict[str, Any] = {}
    for size_bytes in SIZES_BYTES:
        tensor = torch.ones(size_bytes // 4)

        def once(backend: str, tensor: torch.Tensor = tensor) -> float:
            tensor.fill_(1.0)
            dist.barrier()
            began_s = time.perf_counter()
            dist.all_reduce(tensor, group=groups[backend])
            elapsed = torch.tensor([time.perf_counter() - began_s])
            assert tensor[-1].item() == dist.get_world_size(), f"{backend} gave a wrong sum"
            dist.all_reduce(elapsed, op=dist.ReduceOp.MAX)
            return float(elapsed)

        for backend in BACKENDS * 3:
            once(backend)  # connections and buffers are made on first use
        seconds: dict[str, list[float]] = {backend: [] for backend in BACKENDS}
        spent_s, pairs = 0.0, 0
        while pairs < LEAST_PAIRS or (spent_s < budget_s and pairs < MOST_PAIRS):
            for backend in draw.sample(BACKENDS, 2):
                seconds[backend].append(once(backend))
                spent_s += seconds[backend][-1]  # the same number on each rank, so all stop together
            pairs += 1
        all_seconds[str(size_bytes)] = seconds
    dist.destroy_process_group()
    return {"seconds": all_seconds, "oneccl": oneccl.version()}


def summary(seconds: dict[str, dict[str, list[float]]]) -> list[dict[str, Any]]:
    """One row a size: median, its 95 % interval, and how many times faster ccl is, pair by pair."""
    rows = []
    for size, both in seconds.items():
        row: dict[str, Any] = {"message_bytes": int(size), "pairs": len(both["ccl"])}
        for backend in BACKENDS:
            middle, low, high = stats.median_interval(both[backend])
            row[backend] = {
                "ms": 1e3 * middle,
                "interval_ms": [1e3 * low, 1e3 * high],
                "bandwidth_mb_per_s": int(size) / middle / 1e6,
            }
        ratios = [gloo / ccl for gloo, ccl in zip(both["gloo"], both["ccl"], strict=True)]
        middle, low, high = stats.median_interval(ratios)
        rows.append({**row, "ratio": middle, "ratio_interval": [low, high]})
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    """The rows as Markdown."""
    lines = [
        "| size | oneCCL, ms | gloo, ms | oneCCL, MB/s | gloo, MB/s | gloo / oneCCL |",
        "|---:|---:|---:|---:|---:|---:|",
    ]
    for row in rows:
        kb = row["message_bytes"] // 1024
        times = [
            f"{row[name]['ms']:.3f} ({row[name]['interval_ms'][0]:.3f} to {row[name]['interval_ms'][1]:.3f})"
            for name in BACKENDS
        ]
        speeds = [f"{row[name]['bandwidth_mb_per_s']:,.0f}" for name in BACKENDS]
        ratio = f"{row['ratio']:.1f} ({row['ratio_interval'][0]:.1f} to {row['ratio_interval'][1]:.1f})"
        size = f"{kb} KB" if kb < 1024 else f"{kb // 1024} MB"
        lines.append("| " + " | ".join([size, *times, *speeds, ratio]) + " |")
    return "\n".join(lines)


def main() -> int:
    """Measure, print, and save if asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--budget-s", type=float, default=2.0, help="for each size")
    parser.add_argument("--save", action="store_true")
    options = parser.parse_args()
    load = os.getloadavg()[0]
    if options.save and load >= QUIET_LOAD:
        print(f"the machine is busy (load {load:.1f}, at most {QUIET_LOAD}): nothing would be worth saving")
        return 1
    sys.path.insert(0, str(Path(__file__).parent))  # for the ranks, which import this file
    with noise.watch() as watched:
        result = ranks.run(
            "oneccl_bandwidth:compare", options.ranks, time_limit_s=600, payload={"budget_s": options.budget_s}
        )
    found = result.values[0]
    rows = summary(found["seconds"])
    here = machine.probe()
    first = f"{here.model}, {here.usable_cores} cores, {options.ranks} ranks with one thread each, {found['oneccl']}"
    text = f"{first}, load before {load:.1f}\n\n{table(rows)}\n\nMedians with 95 % intervals; both backends took turns."
    print(text)
    if options.save:
        described = dataclasses.asdict(here)
        for program in (*described["mpi"], *described["compilers"]):
            program.pop("path")  # where somebody installed it is nobody's business
        results = {
            "schema": 1,
            "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "commit": ledger.commit(),
            "versions": {**ledger.versions(), "oneccl": found["oneccl"]},
            "machine": described,
            "state": dataclasses.asdict(watched.state),
            "load_before": load,
            "ranks": options.ranks,
            "rows": rows,
        }
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / "oneccl_bandwidth.json").write_text(
            json.dumps(results, indent=1, default=str) + "\n", encoding="utf-8"
        )
        (RESULTS / "oneccl_bandwidth.md").write_text(f"# All-reduce: oneCCL and gloo\n\n{text}\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
