"""What each rank of a `teams.Team` does: trains a small net together with the others, as often as it is told to."""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from accelerando import datasets, models, seeds
from accelerando.lessons.multi_cpu import teams
from accelerando.recipes import Recipe, learning_rate_at

SIZES = models.CnnSizes(channels=(8, 16, 32), batch_norm=False, bias=True)
"""Without BatchNorm, whose statistics would be those of each rank's own images."""
MOMENTUM = 0.9


def prepare(
    rank: int, world_size: int, folder: str, backend: str, train_images: int, test_images: int
) -> Callable[[], dict[str, Any]]:
    """Join the others, load the images, and return what trains by the order that stands in the folder.

    Args:
        rank: Own number.
        world_size: Of the team.
        folder: Where ranks meet and orders stand.
        backend: "gloo" or "ccl".
        train_images: To train on.
        test_images: To judge by.
    """
    join(rank, world_size, folder, backend)
    data = datasets.fashion_mnist(embedded_only=True, train_images=train_images, test_images=test_images)
    _warm_up(world_size)

    def run() -> dict[str, Any]:
        return train(data, rank, world_size, **teams.read_order(folder))

    return run


def join(rank: int, world_size: int, folder: str, backend: str) -> None:
    """Meet the other ranks at a file, so that no port is needed."""
    if backend == "ccl":
        from accelerando.backends import oneccl

        oneccl.register()
    dist.init_process_group(
        backend,
        store=dist.FileStore(str(Path(folder) / "meeting"), world_size),
        rank=rank,
        world_size=world_size,
        timeout=datetime.timedelta(seconds=60),
    )


def train(
    data: datasets.Dataset,
    rank: int,
    world_size: int,
    *,
    batch: int,
    learning_rate: float,
    epochs: int,
    seed: int,
    images: int | None = None,
    is_judged: bool = True,
) -> dict[str, Any]:
    """Train with ``batch`` images of each rank in every step; incomplete batches are left out.

    Args:
        data: Of which the first ``images`` are trained on; None: all.
        rank: Own number.
        world_size: Of the team.
        batch: Images of each rank.
        learning_rate: The highest one of a one-cycle schedule.
        epochs: Times that the images are gone through.
        seed: Of the weights and the order.
        images: See ``data``.
        is_judged: Classify the held-out images afterwards.

    Returns:
        ``seconds`` of the training, the slowest rank's; on rank 0 ``predictions``, int64 (N,), if it is judged.
    """
    with seeds.preserved():
        seeds.seed(seed)
        model = models.build(SIZES).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    pixels, labels = _as_input(data.train.images[:images]), torch.as_tensor(data.train.labels[:images])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0, momentum=MOMENTUM, fused=True)
    recipe = Recipe(learning_rate=learning_rate, schedule="one_cycle")
    whole, step = batch * world_size, 0
    total = epochs * (len(labels) // whole)
    dist.barrier()
    began_s = time.perf_counter()
    for epoch in range(epochs):
        order = torch.from_numpy(np.random.default_rng([seed, epoch]).permutation(len(labels)))
        for start in range(0, len(labels) - whole + 1, whole):
            own = order[start + rank : start + whole : world_size]
            for group in optimizer.param_groups:
                group["lr"] = learning_rate_at(recipe, step, total)
            train_step(model, optimizer, pixels[own], labels[own], world_size)
            step += 1
    seconds = torch.tensor([time.perf_counter() - began_s])
    dist.all_reduce(seconds, op=dist.ReduceOp.MAX)
    answer: dict[str, Any] = {"seconds": float(seconds)}
    if is_judged and rank == 0:
        with torch.inference_mode():
            held_out = _as_input(data.test.images).split(500)
            answer["predictions"] = torch.cat([model(part) for part in held_out]).argmax(1).numpy()
    return answer


def train_step(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    images: torch.Tensor,
    labels: torch.Tensor,
    world_size: int,
    group: dist.ProcessGroup | None = None,
    *,
    is_silent: bool = False,
) -> None:
    """One step of data parallelism: own gradients, one message with all of them, the same update everywhere.

    Args:
        model: Whose gradients are averaged.
        optimizer: Makes the step.
        images: Own part of the batch.
        labels: Likewise.
        world_size: Ranks that train together.
        group: Those ranks; None: all.
        is_silent: Pack and divide the message as always and do not send it; the ranks then train apart.
    """
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(images), labels).backward()
    if world_size > 1:
        gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
        message = torch.cat([gradient.reshape(-1) for gradient in gradients])
        if not is_silent:
            dist.all_reduce(message, group=group)
        message /= world_size
        for gradient, part in zip(gradients, message.split([g.numel() for g in gradients]), strict=True):
            gradient.copy_(part.view_as(gradient))
    optimizer.step()


def _warm_up(world_size: int) -> None:
    model = models.build(SIZES).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0, momentum=MOMENTUM, fused=True)
    for _ in range(3):
        images = torch.zeros(8, 1, datasets.PIXELS, datasets.PIXELS).contiguous(memory_format=torch.channels_last)
        train_step(model, optimizer, images, torch.zeros(8, dtype=torch.int64), world_size)


def _as_input(images: Any) -> torch.Tensor:
    return datasets.as_batch(images).contiguous(memory_format=torch.channels_last)
