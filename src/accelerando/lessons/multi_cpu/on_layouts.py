"""What each rank does in the experiments of `layouts`: the same steps by few processes or many, on given cores."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from accelerando import counts, models, ranks, seeds
from accelerando.lessons.multi_cpu.on_teams import train_step

SIZES = models.CnnSizes(batch_norm=False, bias=True)
REST_S = 0.02
"""GNU's OpenMP threads spin for some milliseconds after their work: the next setting waits for that."""


def time_settings(settings: Sequence[Mapping[str, Any]], rounds: int, sample_s: float) -> dict[str, Any]:
    """Time a training step under every setting, in turns; a step is over when the last rank is done.

    Args:
        settings: ``{"processes", "threads", "cpus": a list for each of these ranks, or None, "batch"}`` each, ``batch``
            being the images of all ranks together. Ranks beyond ``processes`` wait.
        rounds: Of all settings, in random order; one more before them warms up.
        sample_s: A sample makes as many steps as fit, at least two.

    Returns:
        ``seconds``: for each setting the seconds of a step, one for each round; ``link``: latency (s) and bandwidth
        (bytes per second) between ranks 0 and 1; ``message_bytes``: of all gradients.
    """
    with ranks.joined(time_limit_s=120.0) as (rank, world_size):
        sizes = sorted({setting["processes"] for setting in settings} | {min(2, world_size)})
        groups = {size: dist.new_group(list(range(size))) for size in sizes}
        allowed = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
        model, optimizer, images, labels = _subject(max(setting["batch"] for setting in settings))
        found: list[list[float]] = [[] for _ in settings]
        steps = [2] * len(settings)
        order = np.random.default_rng(0)  # the same on every rank
        for number in range(rounds + 1):
            for place in order.permutation(len(settings)):
                setting = settings[place]
                processes, own = setting["processes"], setting["batch"] // setting["processes"]
                is_active = rank < processes
                torch.set_num_threads(setting["threads"])
                if allowed and is_active:
                    pin(setting["cpus"][rank] if setting["cpus"] else allowed)
                time.sleep(REST_S)
                dist.barrier()
                began_s = time.perf_counter()
                if is_active:
                    for _ in range(steps[place]):
                        train_step(model, optimizer, images[:own], labels[:own], processes, groups.get(processes))
                seconds = torch.tensor([(time.perf_counter() - began_s) / steps[place]], dtype=torch.float64)
                dist.all_reduce(seconds, op=dist.ReduceOp.MAX)
                if number:
                    found[place].append(float(seconds))
                else:  # the same number of steps on every rank, since all have the same seconds
                    steps[place] = int(min(50, max(2, sample_s // float(seconds))))
        if allowed:
            pin(allowed)
        message = counts.parameter_bytes(model)
        return {"seconds": found, "link": _link(message, groups, rank), "message_bytes": message}


def time_alone(threads: int, batch: int, repeats: int = 3) -> float:
    """Time a step in this process, without any rank: the shortest of a few, in seconds.

    Args:
        threads: Of torch, for this measurement only.
        batch: Images of the step.
        repeats: After one that warms up.
    """
    model, optimizer, images, labels = _subject(batch)
    before, taken = torch.get_num_threads(), []
    try:
        torch.set_num_threads(threads)
        for _ in range(repeats + 1):
            began_s = time.perf_counter()
            train_step(model, optimizer, images, labels, 1)
            taken.append(time.perf_counter() - began_s)
    finally:
        torch.set_num_threads(before)
    return min(taken[1:])


def message_bytes() -> int:
    """Bytes of all gradients."""
    return counts.parameter_bytes(models.build(SIZES))


def _subject(batch: int) -> tuple[nn.Module, torch.optim.Optimizer, torch.Tensor, torch.Tensor]:
    """Model, optimizer, images and labels of a step."""
    with seeds.preserved():
        seeds.seed(0)
        model = models.build(SIZES).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9, fused=True)
    draw = seeds.generator(3)
    images = torch.randn(batch, 1, 28, 28, generator=draw).contiguous(memory_format=torch.channels_last)
    return model, optimizer, images, torch.randint(10, (batch,), generator=draw)


def pin(cpus: Sequence[int]) -> None:
    """Let this process use only some CPUs: every thread that it has, and those that they will start (Linux)."""
    for task in Path("/proc/self/task").iterdir():
        try:
            os.sched_setaffinity(int(task.name), cpus)
        except ProcessLookupError:  # it has ended
            continue


def _link(message_bytes: int, groups: Mapping[int, dist.ProcessGroup], rank: int) -> tuple[float, float]:
    """Latency and bandwidth between two ranks, from all-reduces of a tiny and of a whole message; the same everywhere.

    A ring of two takes two steps of half a message: 2 * (latency + message / 2 / bandwidth).
    """
    answer = torch.tensor([1e-4, 1e9], dtype=torch.float64)
    torch.set_num_threads(1)
    if 2 in groups and rank < 2:
        short_s, long_s = (_all_reduce_s(size // 4, groups[2]) for size in (4, message_bytes))
        answer[0] = short_s / 2
        answer[1] = message_bytes / max(long_s - short_s, 1e-7)
    dist.broadcast(answer, 0)
    return float(answer[0]), float(answer[1])


def _all_reduce_s(numbers: int, group: dist.ProcessGroup, repeats: int = 15) -> float:
    message, taken = torch.zeros(numbers), []
    for _ in range(repeats + 2):
        began_s = time.perf_counter()
        dist.all_reduce(message, group=group)
        taken.append(time.perf_counter() - began_s)
    return min(taken[2:])  # what was disturbed says nothing about the link
