"""Measures on a machine with GPUs what lesson 9 can only read and predict elsewhere, and writes it down with its label.

    python tests/device/measure_gpus.py [--out notebooks/reference/multi_gpu_NAME.json]

Not a test: its name keeps pytest away from it, so nothing is skipped. Where there is no GPU it says "not measured" and
ends with status 3, without a file. Every collective runs with NCCL, one process for each GPU.
"""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

SCHEMA = 1
NOT_MEASURED = 3
SIZES_BYTES = (1024, 2**20, 2**26, 2**28)
THIS = "measure_gpus"


def main(arguments: list[str] | None = None) -> int:
    """Measure, print one line for each part, and write the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="where the results go; printed when left out")
    options = parser.parse_args(arguments)
    import torch

    if not torch.cuda.is_available():
        say("not measured: no GPU that torch can use on this machine")
        return NOT_MEASURED
    found = measure()
    text = json.dumps(found, indent=1) + "\n"
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(text, encoding="utf-8")
    say(text)
    return 0 if all(part.get("is_right", True) for part in found["parts"].values()) else 1


def measure() -> dict[str, Any]:
    """Run every part; one that fails says so and stops none of the others."""
    import torch

    gpus = torch.cuda.device_count()
    parts: dict[str, Callable[[], dict[str, Any]]] = {
        "topology": topology,
        "copies": copies,
        "nccl": lambda: on_ranks("collectives", gpus),
        "proof": lambda: on_ranks("proof", gpus),
    }
    found: dict[str, Any] = {}
    for name, part in parts.items():
        started_s = time.perf_counter()
        try:
            found[name] = part()
        except Exception as error:
            found[name] = {"is_right": False, "error": f"{type(error).__name__}: {str(error)[:2000]}"}
        say(f"{name}: {time.perf_counter() - started_s:.0f} s")
    return {"schema": SCHEMA, "label": label(), "parts": found}


def label() -> dict[str, Any]:
    """Which machine, which versions, which day."""
    import torch

    return {
        "gpus": [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())],
        "system": platform.platform(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "nccl": ".".join(map(str, torch.cuda.nccl.version())),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }


def topology() -> dict[str, Any]:
    """The matrix of this machine, and what the course's reader makes of it."""
    from accelerando.lessons.multi_gpu import topologies

    text = subprocess.run(["nvidia-smi", "topo", "-m"], capture_output=True, text=True, check=True, timeout=60).stdout
    return {"matrix": text, "sentence": topologies.read(text).sentence()}


def copies() -> dict[str, Any]:
    """Bytes per second between host and GPU, pageable and pinned, and from GPU to GPU where there are two."""
    import torch

    device = torch.device("cuda", 0)
    size = 2**28
    there = torch.empty(size, dtype=torch.uint8, device=device)
    speeds = {}
    for name, is_pinned in (("pageable", False), ("pinned", True)):
        host = torch.empty(size, dtype=torch.uint8, pin_memory=is_pinned)
        speeds[f"host to GPU, {name}"] = size / median_s(lambda host=host: there.copy_(host, non_blocking=True))
    if torch.cuda.device_count() > 1:
        other = torch.empty(size, dtype=torch.uint8, device="cuda:1")
        speeds["GPU 0 to GPU 1"] = size / median_s(lambda: other.copy_(there))
    return {"bytes_per_s": speeds}


def median_s(call: Callable[[], object], repeats: int = 10) -> float:
    """Seconds of a call on the GPU, waited for."""
    import torch

    times = []
    for _ in range(3 + repeats):
        torch.cuda.synchronize()
        started_s = time.perf_counter()
        call()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - started_s)
    return statistics.median(times[3:])


def on_ranks(part: str, gpus: int) -> dict[str, Any]:
    """Run a part on one rank for each GPU, with NCCL's log beside it."""
    from accelerando import ranks

    result = ranks.run(f"{THIS}:{part}", gpus, time_limit_s=200.0, environment={"NCCL_DEBUG": "INFO"})
    found: dict[str, Any] = result.values[0]
    if part == "collectives":
        found |= read_log("\n".join(result.outputs))
    return found


def read_log(text: str) -> dict[str, Any]:
    """What the course's reader makes of the log of this very run."""
    from accelerando.lessons.multi_gpu import logs

    story = logs.read("this machine", text)
    return {"log": text[:20_000], "sentence": story.sentence(), "is_right": story.said["verdict"] == "ok"}


def collectives() -> dict[str, Any]:
    """On each rank: all-reduces of several sizes, and the bandwidth that they come to."""
    import torch
    import torch.distributed as dist

    from accelerando import ranks
    from accelerando.lessons.multi_gpu import placement

    device = placement.take("nccl")
    with ranks.joined("nccl") as (_, world_size):
        seconds = {}
        for size in SIZES_BYTES:
            tensor = torch.ones(size // 4, device=device)
            seconds[str(size)] = median_s(lambda tensor=tensor: dist.all_reduce(tensor))
        check = torch.ones(7, device=device)
        dist.all_reduce(check)
        return {"world_size": world_size, "all_reduce_s": seconds, "is_right": bool((check == world_size).all())}


def proof() -> dict[str, Any]:
    """On each rank: the lesson's six ways of averaging, on GPUs, with torch's own SyncBatchNorm."""
    from accelerando.lessons.multi_gpu import on_ranks as lesson

    found = lesson.imitate("nccl")
    same = ("plain", "synced", "clip after")
    return {**found, "is_right": all(found["errors"][way][0] < 1e-2 for way in same)}


def say(words: str) -> None:
    """Print at once."""
    sys.stdout.write(f"{words}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
