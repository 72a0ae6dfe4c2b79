"""What each of two ranks does in the experiments of `backends`: the same messages through gloo and through oneCCL."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from accelerando import counts, machine, models, ranks, seeds
from accelerando.backends import oneccl
from accelerando.lessons.multi_cpu.on_teams import train_step

MODELS: dict[str, models.Sizes] = {
    "small CNN": models.CnnSizes(batch_norm=False, bias=True),
    "wide MLP": models.MlpSizes(hidden=(640, 640, 640, 640)),
}
BATCH = 64
"""Images of each rank and step."""


def tell(sizes_bytes: Sequence[int], pairs: int, rounds: int, shared_file: str) -> dict[str, Any]:
    """Run all experiments of this part in one launch.

    Args:
        sizes_bytes: Of the messages.
        pairs: Times that both backends send each of them, in an order drawn anew.
        rounds: Of training steps.
        shared_file: A file of float32 numbers in memory that processes share.
    """
    choice = oneccl.choose()
    with ranks.joined(time_limit_s=60.0) as (rank, world_size):
        groups: dict[str, Any] = {"gloo": dist.group.WORLD}
        if choice.reason is None:
            groups["ccl"] = dist.new_group(backend="ccl")
        return {
            "reason": choice.reason,
            "version": oneccl.version() if choice.reason is None else None,
            "seconds": {str(size): _messages(size, groups, pairs) for size in sizes_bytes},
            "sent": {name: _sent(max(sizes_bytes), group) for name, group in groups.items()},
            "steps": {name: _steps(sizes, groups, rounds, rank, world_size) for name, sizes in MODELS.items()},
            "memory": _memory(Path(shared_file)),
        }


def _slowest(began_s: float) -> float:
    seconds = torch.tensor([time.perf_counter() - began_s], dtype=torch.float64)
    dist.all_reduce(seconds, op=dist.ReduceOp.MAX)
    return float(seconds)


def _messages(size_bytes: int, groups: dict[str, Any], pairs: int) -> dict[str, list[float]]:
    """Seconds of an all-reduce through each backend, in turns; the slowest rank's."""
    draw = random.Random(size_bytes)  # the same order on each rank
    message = torch.ones(size_bytes // 4)
    found: dict[str, list[float]] = {name: [] for name in groups}
    for number in range(pairs + 2):
        for name in draw.sample(sorted(groups), len(groups)):
            message.fill_(1.0)
            dist.barrier()
            began_s = time.perf_counter()
            dist.all_reduce(message, group=groups[name])
            seconds = _slowest(began_s)
            if number >= 2:  # connections and buffers are made on first use
                found[name].append(seconds)
    return found


def _sent(size_bytes: int, group: Any) -> int | None:
    """Bytes that this rank hands to its sockets for one all-reduce."""
    message = torch.ones(size_bytes // 4)
    dist.all_reduce(message, group=group)
    dist.barrier()
    before = counts.sent_bytes()
    dist.all_reduce(message, group=group)
    after = counts.sent_bytes()
    dist.barrier()
    return None if before is None or after is None else after - before


def _steps(
    sizes: models.Sizes, groups: dict[str, Any], rounds: int, rank: int, world_size: int
) -> dict[str, list[float]]:
    """Seconds of a training step through each backend, and with a message that is packed and not sent, in turns."""
    with seeds.preserved():
        seeds.seed(0)
        model = models.build(sizes)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9, fused=True)
    draw = seeds.generator(rank)
    images, labels = torch.randn(BATCH, 1, 28, 28, generator=draw), torch.randint(10, (BATCH,), generator=draw)
    ways: dict[str, Any] = {"no message": None, **groups}
    found: dict[str, list[float]] = {name: [] for name in ways}
    order = np.random.default_rng(0)
    for number in range(rounds + 1):
        for place in order.permutation(len(ways)):
            name = list(ways)[place]
            dist.barrier()
            began_s = time.perf_counter()
            for _ in range(6):
                train_step(model, optimizer, images, labels, world_size, ways[name], is_silent=ways[name] is None)
            seconds = _slowest(began_s) / 6
            if number:
                found[name].append(seconds)
    return found


def _memory(shared_file: Path) -> dict[str, Any]:
    """What a rank has in memory before, with a copy of the file, and with the file itself mapped."""
    start = machine.process_memory(os.getpid())
    own = np.fromfile(shared_file, dtype=np.float32)
    own_sum = float(own.sum())
    dist.barrier()  # the others have theirs by now
    with_copy = machine.process_memory(os.getpid())
    dist.barrier()
    del own
    mapped = np.memmap(shared_file, dtype=np.float32, mode="r")
    is_same = float(mapped.sum()) == own_sum
    dist.barrier()
    with_map = machine.process_memory(os.getpid())
    dist.barrier()
    return {
        "start_bytes": start.uss_bytes,
        "copy_bytes": with_copy.uss_bytes - start.uss_bytes,
        "mapped_bytes": with_map.uss_bytes - start.uss_bytes,
        "is_same": is_same,
    }
