"""A slow link inside a process: where nothing enforces it, every all-reduce of the program waits as long as it would.

`torch.distributed.all_reduce` is replaced for the time of a block. Hooks and averagers of torch call it by that name,
so they feel the link too. Nothing travels while something is computed then: a real link would allow that.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

from accelerando import cluster, costs
from accelerando.cluster.hosts import SIMULATED_LINK_VARIABLE

Wait = Callable[[float, float], float]
"""Bytes that this rank sent, and seconds that it took -> seconds that are still missing."""


class _Delivered:
    """Stands in for the handle of a message that has arrived."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor

    def wait(self, *_: Any) -> bool:
        return True

    def is_completed(self) -> bool:
        return True

    def get_future(self) -> torch.futures.Future[list[torch.Tensor]]:
        future: torch.futures.Future[list[torch.Tensor]] = torch.futures.Future()
        future.set_result([self._tensor])
        return future


def told() -> Wait | None:
    """The wait of a cluster whose link is only told; None where the system enforces it, or there is none."""
    return cluster.simulated_wait_s if SIMULATED_LINK_VARIABLE in os.environ else None


def of(link: costs.Link) -> Wait:
    """The wait of a link of this latency and bandwidth."""
    return lambda sent_bytes, elapsed_s: max(0.0, link.latency_s + sent_bytes / link.bandwidth_bytes_per_s - elapsed_s)


def attach(ddp: DistributedDataParallel, wait: Wait | None) -> None:
    """Let DDP send through `torch.distributed.all_reduce`, where it can be made to wait; None changes nothing."""
    if wait is not None:
        ddp.register_comm_hook(None, default_hooks.allreduce_hook)


@contextlib.contextmanager
def slowed(wait: Wait | None) -> Iterator[None]:
    """Let every all-reduce in the block last as long as ``wait`` says; None changes nothing."""
    if wait is None:
        yield
        return
    real = dist.all_reduce

    def all_reduce(tensor: torch.Tensor, *arguments: Any, async_op: bool = False, **named: Any) -> Any:
        began_s = time.perf_counter()
        real(tensor, *arguments, **named)
        sent_bytes = costs.ring_all_reduce_sent_bytes(tensor.nbytes, dist.get_world_size())
        time.sleep(wait(sent_bytes, time.perf_counter() - began_s))
        return _Delivered(tensor) if async_op else None

    dist.all_reduce = all_reduce
    try:
        yield
    finally:
        dist.all_reduce = real
