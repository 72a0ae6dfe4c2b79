"""What each rank does under a plan of `plans`: real training, with torch's own hooks and averagers."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.algorithms.model_averaging.utils import average_parameters
from torch.nn.parallel import DistributedDataParallel

from accelerando import counts, datasets, models, ranks, seeds
from accelerando.lessons.clusters import slow_wire
from accelerando.lessons.clusters.plans import (
    BATCH,
    EPOCHS,
    HIDDEN,
    RANKS,
    TEST_IMAGES,
    TRAIN_IMAGES,
    Plan,
    check_plan,
)

MOMENTUM = 0.9
SKEW = 0.75
"""Each node keeps half of the images on its own disk. Of node 0's, this share shows classes 0 to 4; of node 1's, 5 to
9. Gradients that are averaged in every step never notice; ranks that step by themselves do."""


@dataclass(frozen=True)
class Images:
    """One rank's own images, and those that all are judged by.

    Args:
        own: float32 (N, 1, 28, 28), and ``labels`` int64 (N,).
        labels: Of ``own``.
        test: Likewise, held out.
        test_labels: Of ``test``.
    """

    own: torch.Tensor
    labels: torch.Tensor
    test: torch.Tensor
    test_labels: torch.Tensor


def load(rank: int) -> Images:
    """Read the images and keep this rank's half."""
    data = datasets.fashion_mnist(embedded_only=True, train_images=TRAIN_IMAGES, test_images=TEST_IMAGES)
    own = shares(data.train.labels)[rank]
    return Images(
        datasets.as_batch(data.train.images[own]),
        torch.from_numpy(data.train.labels[own]),
        datasets.as_batch(data.test.images),
        torch.from_numpy(data.test.labels),
    )


def shares(labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Which images lie on which node's disk: halves of equal size, each with more of five classes than of the others.

    Args:
        labels: int64 (N,), balanced.
    """
    order = np.random.default_rng(0).permutation(len(labels))
    low, high = (order[is_low] for is_low in (labels[order] < 5, labels[order] >= 5))
    cut = round(SKEW * len(low)), len(high) - (len(labels) // 2 - round(SKEW * len(low)))
    first = np.concatenate([low[: cut[0]], high[cut[1] :]])
    second = np.concatenate([low[cut[0] :], high[: cut[1]]])
    return np.sort(first), np.sort(second)


def train(plan: Plan, seed: int, images: Images, wait: slow_wire.Wait | None = None) -> dict[str, Any]:
    """Train under a plan, all ranks together, and classify the held-out images.

    Args:
        plan: How, and what is sent when.
        seed: Of weights and order.
        images: This rank's.
        wait: For a link that nothing enforces.

    Returns:
        ``seconds`` of training; ``sent_bytes`` by the system's counters, None where it does not tell; and
        ``predictions``, int64 (`TEST_IMAGES`,), by rank 0's weights after a last average.
    """
    model = _model(seed)
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=plan.learning_rate, momentum=MOMENTUM)
    _compress(ddp, plan, is_waited_for=wait is not None)
    dist.barrier()
    before, began_s = counts.sent_bytes(), time.perf_counter()
    with slow_wire.slowed(wait):
        _run(ddp, optimizer, plan, seed, images)
        if plan.is_local:
            average_parameters(model.parameters(), None)  # type: ignore[arg-type]  # it means all ranks
    seconds, after = time.perf_counter() - began_s, counts.sent_bytes()
    with torch.inference_mode():
        predictions = model(images.test).argmax(1).numpy()
    sent = None if before is None or after is None else after - before
    return {"seconds": seconds, "sent_bytes": sent, "predictions": predictions}


def _model(seed: int) -> nn.Module:
    with seeds.preserved():
        seeds.seed(seed)
        return models.build(models.MlpSizes(hidden=HIDDEN))


def _compress(ddp: DistributedDataParallel, plan: Plan, *, is_waited_for: bool) -> None:
    """Register torch's hook for the plan's compression."""
    if plan.compression == "powersgd":
        state = powerSGD_hook.PowerSGDState(
            None, matrix_approximation_rank=plan.powersgd_rank, start_powerSGD_iter=max(2, plan.warmup_steps)
        )
        ddp.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
        return
    hooks = {"fp16": default_hooks.fp16_compress_hook, "bf16": default_hooks.bf16_compress_hook}
    chosen = hooks.get(plan.compression, default_hooks.allreduce_hook)
    if plan.compression != "none" or is_waited_for:  # DDP's own all-reduce does not pass through Python
        calls = 0

        # DDP looks at these annotations, so they must be types; this module's own are text.
        def hook(state: Any, bucket: Any) -> Any:
            nonlocal calls
            calls += bucket.index() == 0
            return (chosen if calls > plan.warmup_steps else default_hooks.allreduce_hook)(state, bucket)

        hook.__annotations__ = {"bucket": dist.GradBucket, "return": torch.futures.Future[torch.Tensor]}
        ddp.register_comm_hook(None, hook)


def _run(ddp: DistributedDataParallel, optimizer: torch.optim.Optimizer, plan: Plan, seed: int, images: Images) -> None:
    averager = PeriodicModelAverager(period=plan.average_every, warmup_steps=plan.average_every - 1)
    own_step, step, rank = BATCH * plan.accumulate, 0, dist.get_rank()
    for epoch in range(EPOCHS):
        order = torch.randperm(len(images.own), generator=seeds.generator(seed, epoch, rank))
        for start in range(0, len(order) - own_step + 1, own_step):
            for group in optimizer.param_groups:
                group["lr"] = plan.learning_rate * (1 - step / plan.steps)
            is_alone = plan.is_local and step >= plan.warmup_steps
            optimizer.zero_grad()
            batches = order[start : start + own_step].split(BATCH)
            for number, batch in enumerate(batches, 1):
                is_silent = is_alone or number < len(batches)
                with ddp.no_sync() if is_silent else contextlib.nullcontext():
                    loss = nn.functional.cross_entropy(ddp(images.own[batch]), images.labels[batch])
                    (loss / plan.accumulate).backward()
            optimizer.step()
            if is_alone:
                averager.average_parameters(ddp.parameters())
            step += 1


def compare(plans: Mapping[str, Mapping[str, Any]], seeds_of_runs: list[int]) -> dict[str, Any]:
    """Run every plan with every seed, in turns; what each rank does in the experiment of `recovery`.

    Returns:
        ``runs``: plan -> what `train` returned for each seed; ``labels``: of the held-out images; ``batch_s``: seconds
        of a batch without messages.
    """
    with ranks.joined(time_limit_s=120.0) as (rank, _):
        images, wait = load(rank), slow_wire.told()
        checked = {name: check_plan(dict(plan)) for name, plan in plans.items()}
        _warm_up(images)
        batch_s = _batch_s(images)
        found: dict[str, list[dict[str, Any]]] = {name: [] for name in plans}
        for seed in seeds_of_runs:
            for name, plan in checked.items():
                found[name].append(train(plan, seed, images, wait))
        return {"runs": found, "labels": images.test_labels.numpy(), "batch_s": batch_s}


def _warm_up(images: Images) -> None:
    """Connect, and let libraries do what they do only once."""
    ddp = DistributedDataParallel(_model(0))
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01, momentum=MOMENTUM)
    for _ in range(3):
        optimizer.zero_grad()
        nn.functional.cross_entropy(ddp(images.own[:BATCH]), images.labels[:BATCH]).backward()
        optimizer.step()
    dist.barrier()


def _batch_s(images: Images, times: int = 20) -> float:
    """Median seconds of forward, backward and optimizer without a message, all ranks at once."""
    model = _model(0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=MOMENTUM)
    seconds = []
    for _ in range(times):
        began_s = time.perf_counter()
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images.own[:BATCH]), images.labels[:BATCH]).backward()
        optimizer.step()
        seconds.append(time.perf_counter() - began_s)
    return float(np.median(seconds))


assert RANKS == 2, "shares() makes two halves"
