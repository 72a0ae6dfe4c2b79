"""What each of two ranks does in the experiments of `replicas`: data parallelism from hand-made to DDP."""

import datetime
import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

from accelerando import counts, models, ranks, seeds
from accelerando.lessons.parallelism import by_hand, on_wires

SIZES = models.MlpSizes(hidden=(640, 640, 640, 640))
BATCH = 64
"""Images of each rank and step."""
RATE = 0.1
ALONE, SILENT, LEFT_OUT = "one rank, the whole batch", "no messages", "left out"
ACCUMULATIONS = ("every time", "no_sync", "no_sync around backward only")
Way = tuple[nn.Module, Callable[[], None]]
"""The module to call, and what to do between backward and the optimizer."""


def tell(rounds: int, steps: int) -> dict[str, Any]:
    """Run all experiments of the lesson's data-parallel part in one launch."""
    with ranks.joined(time_limit_s=60.0) as (rank, world_size):
        parameters = counts.parameters(_model())
        return {
            "parameters": parameters,
            "link": on_wires.ping(4 * parameters),
            "ways": {name: _correctness(make, rank, world_size) for name, make in WAYS.items()},
            "seconds": _seconds(rounds, steps, rank, world_size),
            "buckets": {LEFT_OUT if cap is None else str(cap): _buckets(cap) for cap in (0.5, 4, 25, None)},
            "accumulation": {name: _accumulate(name, rank, world_size) for name in ACCUMULATIONS},
            "unused": _unused(),
            "uneven": _uneven(rank, world_size),
        }


def _model(seed: int = 0) -> nn.Module:
    with seeds.preserved():
        seeds.seed(seed)
        return models.build(SIZES)


def _images(step: int, world_size: int, batch: int = BATCH) -> tuple[torch.Tensor, torch.Tensor]:
    """The global batch of a step, the same on every rank."""
    draw = seeds.generator(5, step)
    count = batch * world_size
    return torch.randn(count, 1, 28, 28, generator=draw), torch.randint(10, (count,), generator=draw)


def _own(tensor: torch.Tensor, rank: int, world_size: int) -> torch.Tensor:
    return tensor.chunk(world_size)[rank]


def _step(way: Way, optimizer: torch.optim.Optimizer, images: torch.Tensor, labels: torch.Tensor) -> None:
    model, after_backward = way
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(images), labels).backward()
    after_backward()
    optimizer.step()


def _nothing() -> None:
    pass


def _after_broadcast(model: nn.Module, average: Callable[[nn.Module], None]) -> Way:
    by_hand.broadcast_start(model)
    return model, lambda: average(model)


def _overlapped(model: nn.Module) -> Way:
    by_hand.broadcast_start(model)
    return model, by_hand.Overlapped(model).wait


def _inner(model: nn.Module) -> Way:
    return DistributedDataParallel(model).module, _nothing


WAYS: dict[str, Callable[[nn.Module], Way]] = {
    SILENT: lambda model: (model, _nothing),
    "average from different starts": lambda model: (model, lambda: by_hand.average_each(model)),
    "average each gradient": lambda model: _after_broadcast(model, by_hand.average_each),
    "average in one message": lambda model: _after_broadcast(model, by_hand.average_flat),
    "average while backward runs": _overlapped,
    "DDP": lambda model: (DistributedDataParallel(model), _nothing),
    "inner module of DDP": _inner,
}


def _correctness(make: Callable[[nn.Module], Way], rank: int, world_size: int) -> dict[str, float | None]:
    """Three steps from different starts: how far ranks are apart, and from one process with the whole batch."""
    alone, own = _model(), _model(seed=rank)
    start = _flat(alone)
    way = make(own)
    sides = [((alone, _nothing), 1), (way, world_size)]
    before = counts.sent_bytes()
    for (model, after), parts in sides:
        optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
        for step in range(3):
            images, labels = _images(step, world_size)
            if parts > 1:
                images, labels = _own(images, rank, world_size), _own(labels, rank, world_size)
            _step((model, after), optimizer, images, labels)
    sent = _since(before)
    reached = _flat(own)
    everyones = [torch.empty_like(reached) for _ in range(world_size)]
    dist.all_gather(everyones, reached)
    moved = (_flat(alone) - start).abs().max()
    return {
        "apart": float(max((other - everyones[0]).abs().max() for other in everyones) / moved),
        "error": float(max((other - _flat(alone)).abs().max() for other in everyones) / moved),
        "sent_bytes": None if sent is None else sent / 3,
    }


def _since(before: int | None) -> int | None:
    after = counts.sent_bytes()
    return None if before is None or after is None else after - before


def _flat(model: nn.Module) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def _seconds(rounds: int, steps: int, rank: int, world_size: int) -> dict[str, list[float]]:
    """Seconds of a step of every way, in turns; a step is over when the last rank is done."""
    timed = [name for name in WAYS if name not in ("inner module of DDP", "average from different starts")]
    ways = {name: WAYS[name](_model()) for name in timed} | {ALONE: (_model(), _nothing)}
    optimizers = {name: torch.optim.SGD(model.parameters(), lr=1e-4) for name, (model, _) in ways.items()}
    whole = _images(0, world_size)
    part = tuple(_own(tensor, rank, world_size) for tensor in whole)
    found: dict[str, list[float]] = {name: [] for name in ways}
    order = np.random.default_rng(0)  # the same on every rank
    for number in range(rounds + 1):
        for place in order.permutation(len(ways)):
            name = list(ways)[place]
            dist.barrier()
            began_s = time.perf_counter()
            if name != ALONE or rank == 0:
                for _ in range(steps if number else 2):
                    _step(ways[name], optimizers[name], *(whole if name == ALONE else part))
            seconds = torch.tensor([(time.perf_counter() - began_s) / steps], dtype=torch.float64)
            dist.all_reduce(seconds, op=dist.ReduceOp.MAX)
            if number:  # the first round warms up
                found[name].append(float(seconds))
    return found


def _buckets(cap_mib: float | None) -> list[int]:
    """Bytes of each bucket, in the order in which they leave, once DDP has arranged them."""
    own = _model()
    model = DistributedDataParallel(own) if cap_mib is None else DistributedDataParallel(own, bucket_cap_mb=cap_mib)
    seen: list[int] = []

    # DDP looks at these annotations, so this module must not turn them into text.
    def hook(state: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        seen.append(bucket.buffer().nbytes)
        return allreduce_hook(None, bucket)  # type: ignore[arg-type]

    model.register_comm_hook(None, hook)
    for _ in range(2):  # the second time in the order in which gradients came the first time
        seen.clear()
        model(torch.zeros(2, 1, 28, 28)).sum().backward()
    return seen


def _accumulate(how: str, rank: int, world_size: int, batches: int = 4) -> dict[str, float | None]:
    """One optimizer step from several batches: what it sends, and how far it is from one big batch."""
    alone, model = _model(), DistributedDataParallel(_model())
    images, labels = _images(0, world_size)
    nn.functional.cross_entropy(alone(images), labels).backward()
    own = [_own(tensor, rank, world_size).chunk(batches) for tensor in (images, labels)]
    dist.barrier()
    before = counts.sent_bytes()
    for number, (some, theirs) in enumerate(zip(*own, strict=True)):
        is_last = number == batches - 1
        with nullcontext() if how != "no_sync" or is_last else model.no_sync():
            loss = nn.functional.cross_entropy(model(some), theirs) / batches
        with nullcontext() if how == "every time" or is_last else model.no_sync():
            loss.backward()
    sent = _since(before)
    right, found = (torch.cat([p.grad.flatten() for p in m.parameters() if p.grad is not None]) for m in (alone, model))
    return {"sent_bytes": sent, "error": float((right - found).abs().max() / right.abs().max())}


class TwoHeads(nn.Module):
    """A model of which every step uses one head only."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 1), nn.Linear(4, 1)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Map (N, 4) to (N, 1) by the first head."""
        answer: torch.Tensor = self.first(self.body(inputs))
        return answer


def _unused() -> dict[str, str]:
    """What DDP says when a parameter gets no gradient, and whether finding such parameters helps."""
    told = {}
    for name, is_searched in {"as it is": False, "find_unused_parameters=True": True}.items():
        model = DistributedDataParallel(TwoHeads(), find_unused_parameters=is_searched)
        told[name] = "two steps went well"
        try:
            for _ in range(2):
                model(torch.ones(2, 4)).sum().backward()
        except RuntimeError as error:
            told[name] = str(error).split(". ")[0].splitlines()[0]
    return told


def _uneven(rank: int, world_size: int) -> dict[str, Any]:
    """Rank 0 has four batches, the others two: first without help and with a short patience, then with `Join`."""
    patience = dist.new_group(timeout=datetime.timedelta(seconds=1))
    waited = ""
    if rank == 0:
        try:
            dist.all_reduce(torch.zeros(1), group=patience)
        except RuntimeError as error:
            waited = str(error).splitlines()[0].rpartition("] ")[2]  # not where in gloo's source
    dist.barrier()
    model = DistributedDataParallel(nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    steps = 0
    with Join([model]):
        for _ in range(4 if rank == 0 else 2):
            _step_of(model, optimizer)
            steps += 1
    own = _flat(model)
    lowest = own.clone()
    dist.all_reduce(lowest, op=dist.ReduceOp.MIN)
    return {"waited": waited, "steps": steps, "apart": float((own - lowest).abs().max())}


def _step_of(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    model(torch.ones(2, 4)).square().mean().backward()
    optimizer.step()
