"""What each rank does in the experiments of `rings`, `imitation` and `overlap`."""

import contextlib
import queue
import statistics
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from accelerando import collectives, costs, ranks
from accelerando.lessons.multi_gpu import norms, overlap, placement, rings

IMAGES, INPUTS, CLASSES, STEPS, LONGEST = 8, 20, 5, 3, 0.5
"""Images of each rank and step, numbers of an image, classes, steps, and the length to which gradients are clipped."""
Batch = tuple[torch.Tensor, torch.Tensor]
_Message = tuple[torch.Tensor, torch.futures.Future[torch.Tensor]]


def pace(cases: Mapping[str, Sequence[Any]], repeats: int) -> dict[str, Any]:
    """Time all-reduces by hand whose messages are held back as long as their link would take.

    Args:
        cases: Label -> algorithm, bytes, ranks whose link to the right is slow.
        repeats: Times that each is run.
    """
    with ranks.joined(time_limit_s=60.0) as (rank, world_size):
        seconds: dict[str, list[float]] = {label: [] for label in cases}
        is_right = True
        for _ in range(repeats):
            for label, (algorithm, size, slow) in cases.items():
                message = torch.full((size // 4,), float(rank))
                schedule = collectives.ALGORITHMS[algorithm](world_size)
                dist.barrier()
                started_s = time.perf_counter()
                paced_all_reduce(message, schedule, rings.links_of(slow))
                seconds[label].append(time.perf_counter() - started_s)
                is_right &= bool((message == sum(range(world_size))).all())
        return {"seconds": seconds, "is_right": is_right}


def paced_all_reduce(
    message: torch.Tensor, schedule: collectives.Schedule, links: Mapping[tuple[int, int], costs.Link]
) -> None:
    """Sum over all ranks, in place; a message counts as arrived when its link would have carried it."""
    rank = dist.get_rank()
    pieces = message.tensor_split(schedule.pieces)
    for step in schedule.steps:
        sent = [dist.isend(pieces[one.piece], one.target) for one in step if one.source == rank]
        for one in step:
            if one.target == rank:
                arriving = torch.empty_like(pieces[one.piece])
                dist.recv(arriving, one.source)
                link = links[one.source, rank]
                time.sleep(link.latency_s + arriving.nbytes / link.bandwidth_bytes_per_s)
                pieces[one.piece].add_(arriving) if one.adds else pieces[one.piece].copy_(arriving)
        for work in sent:
            assert work is not None
            work.wait()


def imitate(backend: str) -> dict[str, Any]:
    """Train in every way of `imitation.WAYS`, alone and together."""
    device = placement.take(backend)
    with ranks.joined(backend) as (rank, world_size):
        batches = [[_batch(step, other, device) for other in range(world_size)] for step in range(STEPS)]
        ways = ("plain", "halves", "own", "synced", "clip before", "clip after")
        found = {way: _errors(way, batches, rank, device) for way in ways}
        norm, mean_norm = _norms(batches[0], rank, device)
        return {
            "errors": found,
            "norm": norm,
            "mean_norm": mean_norm,
            "longest": LONGEST,
            "sync_said": _try_sync_batch_norm(device),
        }


def _batch(step: int, rank: int, device: torch.device) -> Batch:
    """A rank's images; those of higher ranks are larger, so that gradients differ in length."""
    draw = torch.Generator().manual_seed(100 * step + rank)
    images = torch.randn(IMAGES, INPUTS, generator=draw) * (1 + rank)
    return images.to(device), torch.randint(CLASSES, (IMAGES,), generator=draw).to(device)


def network(norm: type[nn.Module] | None, device: torch.device) -> nn.Module:
    """The same start on every rank, with a norm between its layers or without."""
    torch.manual_seed(0)
    first, last = nn.Linear(INPUTS, 32), nn.Linear(32, CLASSES)
    return nn.Sequential(first, norm(32) if norm else nn.Identity(), nn.ReLU(), last).to(device)


def _errors(way: str, batches: Sequence[Sequence[Batch]], rank: int, device: torch.device) -> tuple[float, float]:
    start = _flat(network(None if way not in ("own", "synced") else nn.BatchNorm1d, device))
    together = _train_together(way, [step[rank] for step in batches], device)
    whole = [
        [(torch.cat([images for images, _ in step]), torch.cat([labels for _, labels in step]))] for step in batches
    ]
    every: list[Sequence[Sequence[Batch]]] = [whole, batches]
    alone = [_train_alone(way, parts, device) for parts in every]
    return tuple(float((together - one).abs().max() / (one - start).abs().max()) for one in alone)  # type: ignore[return-value]


def _train_together(way: str, own: Sequence[Batch], device: torch.device) -> torch.Tensor:
    synced = nn.SyncBatchNorm if device.type == "cuda" else norms.SyncedBatchNorm
    kind = {"own": nn.BatchNorm1d, "synced": synced}.get(way)
    plain = network(kind, device)
    ddp = None if way == "clip before" else DistributedDataParallel(plain)
    model: nn.Module = plain if ddp is None else ddp
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for images, labels in own:
        optimizer.zero_grad()
        parts = 2 if way == "halves" else 1
        for place, (some, theirs) in enumerate(zip(images.chunk(parts), labels.chunk(parts), strict=True), 1):
            with ddp.no_sync() if ddp is not None and place < parts else contextlib.nullcontext():
                (nn.functional.cross_entropy(model(some), theirs) / parts).backward()
        if way.startswith("clip"):
            nn.utils.clip_grad_norm_(model.parameters(), LONGEST)
        if way == "clip before":
            _average(model)
        optimizer.step()
    return _flat(plain)


def _train_alone(way: str, steps: Sequence[Sequence[Batch]], device: torch.device) -> torch.Tensor:
    """One process: the batches of a step one after the other, their gradients added up, clipped where the way clips."""
    model = network(nn.BatchNorm1d if way in ("own", "synced") else None, device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batches in steps:
        optimizer.zero_grad()
        for images, labels in batches:
            (nn.functional.cross_entropy(model(images), labels) / len(batches)).backward()
        if way.startswith("clip"):
            nn.utils.clip_grad_norm_(model.parameters(), LONGEST)
        optimizer.step()
    return _flat(model)


def _norms(batches: Sequence[Batch], rank: int, device: torch.device) -> tuple[float, float]:
    model = network(None, device)
    images, labels = batches[rank]
    nn.functional.cross_entropy(model(images), labels).backward()
    own = float(_gradient(model).norm())
    _average(model)
    return own, float(_gradient(model).norm())


def _average(model: nn.Module) -> None:
    for parameter in model.parameters():
        assert parameter.grad is not None
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()


def _gradient(model: nn.Module) -> torch.Tensor:
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters() if parameter.grad is not None])


def _flat(model: nn.Module) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()]).cpu()


def _try_sync_batch_norm(device: torch.device) -> str:
    try:
        nn.SyncBatchNorm(4).to(device)(torch.randn(8, 4, device=device))
    except (ValueError, RuntimeError) as error:
        return f'"{str(error).splitlines()[0]}".'
    return "it ran."


def hide(repeats: int) -> dict[str, Any]:
    """Time a rank that is alone: backward with messages on a link that needs no core.

    Args:
        repeats: Times that each step is timed.
    """
    with ranks.joined():
        return _time_overlap(repeats)


def _time_overlap(repeats: int) -> dict[str, Any]:
    images = torch.randn(192, 384)
    model = nn.Sequential(*(layer for _ in range(8) for layer in (nn.Linear(384, 384), nn.ReLU())))
    sent_bytes = sum(4 * parameter.numel() for parameter in model.parameters())

    def forward() -> None:
        model(images)

    def step() -> None:
        model.zero_grad()
        model(images).square().mean().backward()

    seconds = {"no messages": _times_s(step, repeats)}
    backward_s = statistics.median(seconds["no messages"]) - statistics.median(_times_s(forward, repeats))
    link = _PlayedLink(sent_bytes / backward_s)
    buckets = {}
    for name, cap in overlap.CAPS_MB.items():
        ddp = DistributedDataParallel(model, bucket_cap_mb=cap)
        ddp.register_comm_hook(None, link.hook)

        def sending(ddp: nn.Module = ddp) -> None:
            ddp.zero_grad()
            link.sizes.clear()
            ddp(images).square().mean().backward()

        seconds[name] = _times_s(sending, repeats)
        buckets[name] = list(link.sizes)
    link.close()
    return {
        "backward_s": backward_s,
        "bandwidth_bytes_per_s": link.bytes_per_s,
        "buckets": buckets,
        "seconds": seconds,
    }


def _times_s(call: Callable[[], object], repeats: int) -> list[float]:
    times = []
    for _ in range(3 + repeats):  # DDP settles its buckets in the first ones
        started_s = time.perf_counter()
        call()
        times.append(time.perf_counter() - started_s)
    return times[3:]


class _PlayedLink:
    """A link of known speed that carries one message after the other and needs no core: a thread that sleeps."""

    def __init__(self, bytes_per_s: float) -> None:
        self.bytes_per_s = bytes_per_s
        self.sizes: list[int] = []
        self._waiting: queue.SimpleQueue[_Message | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._carry, daemon=True)
        self._thread.start()

    def hook(self, _: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        """Take a bucket; its gradients count as arrived when the link has carried them."""
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        self.sizes.append(bucket.buffer().nbytes)
        self._waiting.put((bucket.buffer(), future))
        return future

    def _carry(self) -> None:
        while (message := self._waiting.get()) is not None:
            time.sleep(message[0].nbytes / self.bytes_per_s)
            message[1].set_result(message[0])

    def close(self) -> None:
        """Let the thread end."""
        self._waiting.put(None)
        self._thread.join()
