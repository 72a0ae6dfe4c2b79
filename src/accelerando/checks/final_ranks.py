"""The training that judges a recipe for many ranks: real ranks, one thread each, the course's own code.

The sizes are such that the answer is clear. With 6,000 images one rank reaches 83.6 and 84.1 % (two seeds). Four ranks
with its rate reach 77.2 and 74.7 %, with four times the rate 82.9 and 82.6 %, with a quarter of it 66.9 and 65.8 %.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from accelerando import ranks

WORLD_SIZE = 4
BATCH = 16
"""Images per rank and step."""
EPOCHS = 3
LEARNING_RATE = 0.01
"""Good for one rank; on `WORLD_SIZE` ranks, left as it is, it learns too slowly in as many epochs."""
MOMENTUM = 0.9


def steps_of(images: int, world_size: int) -> int:
    """Optimizer steps of a whole run; incomplete batches are left out."""
    return EPOCHS * (images // (BATCH * world_size))


def network(classes: int = 10) -> nn.Module:
    """A very small CNN: the question is about steps and rates, not about the model."""
    layers: list[nn.Module] = []
    inputs = 1
    for outputs in (8, 16, 32):
        layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.MaxPool2d(2), nn.ReLU(inplace=True)]
        inputs = outputs
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(inputs * 9, classes))


def predictions(
    data: Mapping[str, Any], recipe: Mapping[str, Any], world_size: int, seed: int, limit_s: float
) -> np.ndarray:
    """Train on ``world_size`` ranks and classify the held-out images.

    Args:
        data: "images", "labels", "held_out": uint8 and int64 arrays.
        recipe: "learning_rate" and "warmup_steps"; after the warm-up the rate falls evenly to 0.
        world_size: Ranks, one thread each.
        seed: Of weights and order.
        limit_s: Longest time.

    Returns:
        int64, one class for each held-out image.

    Raises:
        ranks.RanksFailed: If the machine does not get there in time.
    """
    payload = {"data": dict(data), "recipe": dict(recipe), "seed": seed}
    found = ranks.run(f"{__name__}:on_one_rank", world_size, payload=payload, time_limit_s=limit_s)
    answers: np.ndarray = found.values[0]
    return answers


def on_one_rank(data: Mapping[str, Any], recipe: Mapping[str, Any], seed: int) -> np.ndarray | None:
    """Train together with the other ranks; rank 0 classifies."""
    with ranks.joined(time_limit_s=60.0) as (rank, world_size):
        torch.manual_seed(seed)
        model = network().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        images, held_out = (_as_input(data[name], data["images"]) for name in ("images", "held_out"))
        labels = torch.as_tensor(data["labels"])
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0, momentum=MOMENTUM)
        global_batch, step = BATCH * world_size, 0
        for epoch in range(EPOCHS):
            order = torch.from_numpy(np.random.default_rng([seed, epoch]).permutation(len(labels)))
            for start in range(0, len(labels) - global_batch + 1, global_batch):
                step += 1
                own = order[start + rank : start + global_batch : world_size]
                rate = recipe["learning_rate"] * min(1.0, step / max(1, recipe["warmup_steps"]))
                rate *= 1 - (step - 1) / steps_of(len(labels), world_size)
                _step(model, optimizer, images[own], labels[own], rate)
        if rank:
            return None
        with torch.inference_mode():
            answers: np.ndarray = torch.cat([model(batch) for batch in held_out.split(500)]).argmax(1).numpy()
        return answers


def _step(
    model: nn.Module, optimizer: torch.optim.Optimizer, images: torch.Tensor, labels: torch.Tensor, rate: float
) -> None:
    for group in optimizer.param_groups:
        group["lr"] = rate
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(images), labels).backward()
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    message = torch.cat([gradient.reshape(-1) for gradient in gradients]) / dist.get_world_size()
    dist.all_reduce(message)
    for gradient, part in zip(gradients, message.split([g.numel() for g in gradients]), strict=True):
        gradient.copy_(part.view_as(gradient))
    optimizer.step()


def _as_input(images: np.ndarray, like: np.ndarray) -> torch.Tensor:
    pixels = (torch.as_tensor(images).unsqueeze(1).float() - float(like.mean())) / float(like.std())
    return pixels.contiguous(memory_format=torch.channels_last)
