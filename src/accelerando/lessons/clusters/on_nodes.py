"""What each node does in `launching` and `failures`: one training that can be broken off and taken up again.

All that decides what comes next is in the checkpoint: weights, the optimizer's memory, the schedule, and where in which
epoch the run stands. The order of the images belongs to the run and not to a rank, so any number of ranks can go on.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from accelerando import datasets, models, ranks, seeds
from accelerando.lessons.clusters import checkpoints, slow_wire

IMAGES, GLOBAL_BATCH = 2000, 100
SEED = 10
CHECKPOINT = "checkpoint.pt"


def train(steps: int, folder: str = "", save_every: int = 0, pause_s: float = 0.0) -> dict[str, Any]:
    """Train to step ``steps``, from the checkpoint in ``folder`` if one is there.

    Args:
        steps: Optimizer steps of a whole run.
        folder: Where checkpoints go; on a file system that all nodes see. Empty: none.
        save_every: Steps between checkpoints; 0: none.
        pause_s: Added to each step, so that somebody can pull a plug.

    Returns:
        ``loss`` over all images afterwards, ``first_step``, ``losses`` (step -> loss of its global batch), ``host``.
    """
    with ranks.joined(time_limit_s=60.0) as (rank, world_size):
        data = datasets.fashion_mnist(embedded_only=True, train_images=IMAGES, test_images=100)
        images, labels = datasets.as_batch(data.train.images), torch.from_numpy(data.train.labels)
        parts = _parts(steps)
        path = Path(folder) / CHECKPOINT
        first = checkpoints.load(path, parts)["step"] if folder and path.exists() else 0
        ddp, wait = DistributedDataParallel(parts["model"]), slow_wire.told()
        slow_wire.attach(ddp, wait)
        losses = {}
        _say(rank, f"process {os.getpid()} begins at step {first}")
        with slow_wire.slowed(wait):
            for step in range(first, steps):
                losses[str(step)] = _step(ddp, parts, images, labels, _own(step, rank, world_size))
                if save_every and (step + 1) % save_every == 0 and rank == 0:
                    checkpoints.save(path, parts, {"step": step + 1, "seed": SEED})
                _say(rank, f"step {step + 1}")
                time.sleep(pause_s)
        with torch.inference_mode():
            loss = nn.functional.cross_entropy(parts["model"](images), labels).item()
        return {"loss": loss, "first_step": first, "losses": losses, "host": socket.gethostname()}


def _parts(steps: int) -> dict[str, Any]:
    with seeds.preserved():
        seeds.seed(SEED)
        model = models.build(models.MlpSizes(hidden=(64,)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, total_iters=steps)
    return {"model": model, "optimizer": optimizer, "schedule": schedule}


def _own(step: int, rank: int, world_size: int) -> torch.Tensor:
    """Choose a rank's part of the global batch of a step: the batch is the same however many ranks share it."""
    epoch, place = divmod(step, IMAGES // GLOBAL_BATCH)
    order = torch.randperm(IMAGES, generator=seeds.generator(SEED, epoch))
    return order[place * GLOBAL_BATCH : (place + 1) * GLOBAL_BATCH][rank::world_size]


def _step(
    ddp: nn.Module, parts: dict[str, Any], images: torch.Tensor, labels: torch.Tensor, own: torch.Tensor
) -> float:
    """One step; returns the loss of the global batch."""
    parts["optimizer"].zero_grad()
    loss = nn.functional.cross_entropy(ddp(images[own]), labels[own])
    loss.backward()
    parts["optimizer"].step()
    parts["schedule"].step()
    mean = loss.detach() / dist.get_world_size()
    dist.all_reduce(mean)
    return float(mean)


def _say(rank: int, words: str) -> None:
    sys.stdout.write(f"{words}\n")
    sys.stdout.flush()
