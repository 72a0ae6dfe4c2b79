"""What each rank does in the experiment of `efficiency`: steps with messages and without."""

from __future__ import annotations

import time
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from accelerando import counts, models, ranks, seeds
from accelerando.lessons.clusters import slow_wire

SIZES = models.CnnSizes(channels=(16, 32), hidden=64, batch_norm=False, bias=True)
BATCH = 64
BUCKET_MB = 0.1
"""So small that the last layer's gradients leave while backward still works; at DDP's 25 MB this net is one bucket."""
_WARM_UP = 4


def measure(steps: int) -> dict[str, Any]:
    """Time ``steps`` steps without messages and as many with DDP, the same images on every rank.

    Returns:
        ``alone``: (forward, rest) seconds of each step; ``step_s``: of each step with messages; ``processor_s``: in
        which this rank's threads computed meanwhile; ``sent_bytes`` in one of them; ``message_bytes``: of all
        gradients.
    """
    with ranks.joined(time_limit_s=60.0) as (rank, _):
        with seeds.preserved():
            seeds.seed(0)
            model = models.build(SIZES)
        draw = seeds.generator(0, rank)
        images, labels = torch.randn(BATCH, 1, 28, 28, generator=draw), torch.randint(10, (BATCH,), generator=draw)
        ddp, wait = DistributedDataParallel(model, bucket_cap_mb=BUCKET_MB), slow_wire.told()
        slow_wire.attach(ddp, wait)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
        with slow_wire.slowed(wait):
            alone, together, processor_s, sent = [], [], [], []
            for _ in range(_WARM_UP + steps):  # in turns: how busy the machine is changes from second to second
                alone.append(_step(model, optimizer, images, labels))
                dist.barrier()
                before, began_s = counts.sent_bytes(), time.process_time()
                together.append(_step(ddp, optimizer, images, labels))
                processor_s.append(time.process_time() - began_s)
                after = counts.sent_bytes()
                sent.append(None if before is None or after is None else after - before)
    message_bytes = 4 * counts.parameters(model)
    return {
        "alone": alone[_WARM_UP:],
        "step_s": [sum(one) for one in together[_WARM_UP:]],
        "processor_s": processor_s[_WARM_UP:],
        "sent_bytes": sent[-1],
        "message_bytes": message_bytes,
    }


def _step(
    model: nn.Module, optimizer: torch.optim.Optimizer, images: torch.Tensor, labels: torch.Tensor
) -> list[float]:
    began_s = time.perf_counter()
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(images), labels)
    middle_s = time.perf_counter()
    loss.backward()
    optimizer.step()
    return [middle_s - began_s, time.perf_counter() - middle_s]
