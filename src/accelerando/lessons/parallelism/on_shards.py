"""What each of two ranks does in the experiments of `shards`: one model dealt out in five ways."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from accelerando import counts, ranks, seeds

WIDTH, BLOCKS, BATCH, MICRO_BATCHES = 256, 4, 384, 4
RATE = 1e-3
Step = Callable[[], float]
"""One training step; returns the loss of the whole batch before it."""


class Block(nn.Module):
    """Wider, ReLU, narrow again, added to the input: (N, WIDTH) to (N, WIDTH)."""

    def __init__(self) -> None:
        super().__init__()
        self.widen = nn.Linear(WIDTH, 4 * WIDTH, bias=False)
        self.narrow = nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Map (N, WIDTH) to (N, WIDTH)."""
        answer: torch.Tensor = inputs + self.narrow(torch.relu(self.widen(inputs)))
        return answer


def stack() -> nn.Sequential:
    """The model, the same in every process."""
    with seeds.preserved():
        seeds.seed(3)
        return nn.Sequential(*(Block() for _ in range(BLOCKS)))


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and targets of the whole batch."""
    draw = seeds.generator(4)
    return torch.randn(BATCH, WIDTH, generator=draw), torch.randn(BATCH, WIDTH, generator=draw)


class Kept:
    """Counts the bytes of activations that are kept for backward, by their number of rows: no weight has as many."""

    def __init__(self, rows: int) -> None:
        """Count tensors of so many rows."""
        self.rows, self.bytes = rows, 0
        self._seen: dict[int, torch.UntypedStorage] = {}

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Count during a forward."""
        with torch.autograd.graph.saved_tensors_hooks(self._keep, lambda tensor: tensor):
            yield

    def _keep(self, tensor: torch.Tensor) -> torch.Tensor:
        local = getattr(tensor, "_local_tensor", tensor)
        if local.dim() == 2 and local.shape[0] == self.rows:
            storage = local.untyped_storage()
            if storage.data_ptr() not in self._seen:
                self._seen[storage.data_ptr()] = storage
                self.bytes += storage.nbytes()
        return tensor

    def forget(self) -> None:
        """Begin anew."""
        self.bytes = 0
        self._seen.clear()


def tell() -> dict[str, Any]:
    """Train two steps by every strategy and look at what each rank holds and sends."""
    with ranks.joined(time_limit_s=45.0) as (rank, world_size):
        return {name: _look(make, rank, world_size) for name, make in STRATEGIES.items()}


def _look(make: Callable[[int, int], tuple[Step, nn.Module, Any, Kept]], rank: int, world_size: int) -> dict[str, Any]:
    try:
        step, model, optimizer, kept = make(rank, world_size)
        step()  # the optimizer's memory is there after the first one
        dist.barrier()
        kept.forget()
        before = counts.sent_bytes()
        step()
        after = counts.sent_bytes()
        return {
            "parameters": _bytes(model.parameters()),
            "gradients": _bytes(p.grad for p in model.parameters() if p.grad is not None),
            "optimizer": _bytes(
                value for state in optimizer.state.values() for value in state.values() if getattr(value, "ndim", 0)
            ),
            "activations": kept.bytes,
            "sent_bytes": None if before is None or after is None else after - before,
            "loss": step(),
        }
    except (RuntimeError, NotImplementedError, AttributeError, TypeError, ValueError) as error:
        return {"error": f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"}


def _bytes(tensors: Iterable[torch.Tensor]) -> int:
    local = [getattr(tensor, "_local_tensor", tensor) for tensor in tensors]
    return sum(tensor.numel() * tensor.element_size() for tensor in local)


def _plain_step(model: nn.Module, optimizer: Any, kept: Kept, inputs: torch.Tensor, targets: torch.Tensor) -> Step:
    def step() -> float:
        optimizer.zero_grad()
        with kept.counting():
            found = model(inputs)
        loss = nn.functional.mse_loss(found, targets)
        loss.backward()
        optimizer.step()
        return float(loss.detach())

    return step


def _mean_over_ranks(step: Step) -> Step:
    def mean() -> float:
        loss = torch.tensor([step()], dtype=torch.float64)
        dist.all_reduce(loss)
        return float(loss) / dist.get_world_size()

    return mean


def _alone(rank: int, world_size: int) -> tuple[Step, nn.Module, Any, Kept]:
    model, kept = stack(), Kept(BATCH)
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE)
    return _plain_step(model, optimizer, kept, *batch()), model, optimizer, kept


def _part(rank: int, world_size: int) -> list[torch.Tensor]:
    return [tensor.chunk(world_size)[rank].clone() for tensor in batch()]  # a view would keep the whole batch


def _data(rank: int, world_size: int) -> tuple[Step, nn.Module, Any, Kept]:
    from torch.nn.parallel import DistributedDataParallel

    model, kept = DistributedDataParallel(stack()), Kept(BATCH // world_size)
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE)
    step = _plain_step(model, optimizer, kept, *_part(rank, world_size))
    return _mean_over_ranks(step), model, optimizer, kept


def _optimizer_sharded(rank: int, world_size: int) -> tuple[Step, nn.Module, Any, Kept]:
    from torch.distributed.optim import ZeroRedundancyOptimizer
    from torch.nn.parallel import DistributedDataParallel

    model, kept = DistributedDataParallel(stack()), Kept(BATCH // world_size)
    optimizer = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.Adam, lr=RATE)
    step = _plain_step(model, optimizer, kept, *_part(rank, world_size))
    return _mean_over_ranks(step), model, optimizer.optim, kept


def _fully_sharded(rank: int, world_size: int) -> tuple[Step, nn.Module, Any, Kept]:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (world_size,))
    model, kept = stack(), Kept(BATCH // world_size)
    for block in model:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE)
    step = _plain_step(model, optimizer, kept, *_part(rank, world_size))
    return _mean_over_ranks(step), model, optimizer, kept


def _tensor(rank: int, world_size: int) -> tuple[Step, nn.Module, Any, Kept]:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = init_device_mesh("cpu", (world_size,))
    model, kept = stack(), Kept(BATCH)
    for block in model:
        parallelize_module(block, mesh, {"widen": ColwiseParallel(), "narrow": RowwiseParallel()})
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE)
    inputs, targets = batch()
    inputs.requires_grad_()  # as if it came from a layer before: else the first block sends nothing back
    return _plain_step(model, optimizer, kept, inputs, targets), model, optimizer, kept


class _Counted(nn.Module):
    """A stage whose forwards are counted."""

    def __init__(self, inner: nn.Module, kept: Kept) -> None:
        super().__init__()
        self.inner, self.kept = inner, kept

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """What the inner module does."""
        with self.kept.counting():
            answer: torch.Tensor = self.inner(inputs)
        return answer


def _pipeline(rank: int, world_size: int) -> tuple[Step, nn.Module, Any, Kept]:
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

    kept = Kept(BATCH // MICRO_BATCHES)
    each = BLOCKS // world_size
    model = _Counted(stack()[rank * each : (rank + 1) * each], kept)
    stage = PipelineStage(model, rank, world_size, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, MICRO_BATCHES, loss_fn=nn.functional.mse_loss)
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE)
    inputs, targets = batch()
    is_last = rank == world_size - 1

    def step() -> float:
        optimizer.zero_grad()
        losses: list[torch.Tensor] = []
        schedule.step(
            *([inputs] if rank == 0 else []),
            target=targets if is_last else None,
            losses=losses if is_last else None,
        )
        optimizer.step()
        loss = torch.stack([one.detach() for one in losses]).mean().view(1) if is_last else torch.zeros(1)
        dist.broadcast(loss, world_size - 1)
        return float(loss)

    return step, model, optimizer, kept


STRATEGIES: dict[str, Callable[[int, int], tuple[Step, nn.Module, Any, Kept]]] = {
    "alone": _alone,
    "data": _data,
    "optimizer sharded": _optimizer_sharded,
    "fully sharded": _fully_sharded,
    "tensor": _tensor,
    "pipeline": _pipeline,
}
