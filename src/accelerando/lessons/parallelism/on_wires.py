"""What each rank does in the experiments of `wires`: every collective once, and all-reduce by hand on a clock."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from accelerando import collectives, counts, ranks
from accelerando.lessons.parallelism import by_hand

OWN = "gloo's own"
SHORT_BYTES, TIMES_SHORT, ROUNDS_SHORT = 4096, 20, 3
"""So short a message is sent so many times in a row: ranks do not leave a barrier at quite the same moment. And its
turn comes so many times as often as a long one's: it scatters more, and takes less time."""


def count(message_bytes: int) -> dict[str, Any]:
    """Run every collective once over a tensor of ``message_bytes``, cut into one piece for each rank.

    Returns:
        Name -> bytes that this rank sent, or the sentence with which gloo refused; ``is_right``: the sums were right.
    """
    with ranks.joined(time_limit_s=30.0) as (rank, world_size):
        whole = torch.arange(message_bytes // 4, dtype=torch.float32) + rank
        found: dict[str, Any] = {}
        for name, run in _collectives(whole, rank, world_size).items():
            dist.barrier()
            before = counts.sent_bytes()
            try:
                run()
            except (RuntimeError, NotImplementedError) as error:
                found[name] = str(error).splitlines()[0]
                continue
            after = counts.sent_bytes()
            found[name] = None if before is None or after is None else after - before
        total = torch.ones(5) * rank
        dist.all_reduce(total)
        return {"sent": found, "is_right": total[0].item() == sum(range(world_size))}


def _collectives(whole: torch.Tensor, rank: int, world_size: int) -> dict[str, Callable[[], object]]:
    pieces = [piece.clone() for piece in whole.chunk(world_size)]
    own, room, is_root = pieces[rank].clone(), whole.clone(), rank == 0
    rooms = [torch.empty_like(piece) for piece in pieces]

    def talk() -> None:
        if rank == 0:
            dist.send(whole, 1)
        elif rank == 1:
            dist.recv(room, 0)

    return {
        "send and receive": talk,
        "broadcast": lambda: dist.broadcast(room, 0),
        "scatter": lambda: dist.scatter(own, pieces if is_root else None, 0),
        "gather": lambda: dist.gather(own, rooms if is_root else None, 0),
        "reduce": lambda: dist.reduce(room, 0),
        "all-gather": lambda: dist.all_gather(rooms, own),
        "reduce-scatter": lambda: dist.reduce_scatter_tensor(own, whole),
        "all-reduce": lambda: dist.all_reduce(room),
        "all-to-all": lambda: dist.all_to_all_single(room, whole),
        "barrier": lambda: dist.barrier(),
    }


def time_all_reduce(sizes_bytes: Sequence[int], repeats: int) -> dict[str, Any]:
    """Time an all-reduce by hand, by every algorithm, and gloo's own, in turns.

    Returns:
        ``latency_s`` (a message of 4 bytes, one way), ``bandwidth_bytes_per_s`` (a long one), ``is_right``, and
        ``seconds``: algorithm -> for each size the seconds of each repeat, on this rank; of a short message there are
        ``ROUNDS_SHORT`` times as many.
    """
    with ranks.joined(time_limit_s=60.0) as (rank, world_size):
        schedules = {name: make(world_size) for name, make in collectives.ALGORITHMS.items()}
        runs: dict[str, Callable[[torch.Tensor], object]] = {
            name: lambda message, schedule=schedule: by_hand.all_reduce(message, schedule)  # type: ignore[misc]
            for name, schedule in schedules.items()
        }
        runs[OWN] = lambda message: dist.all_reduce(message)
        seconds: dict[str, list[list[float]]] = {name: [[] for _ in sizes_bytes] for name in runs}
        is_right = True
        expected = world_size * (world_size - 1) / 2
        for place, size in enumerate(sizes_bytes):
            times, rounds = (TIMES_SHORT, ROUNDS_SHORT * repeats) if size <= SHORT_BYTES else (1, repeats)
            for repeat in range(rounds + 1):
                for name, run in runs.items():
                    messages = [torch.full((max(world_size, size // 4),), float(rank)) for _ in range(times)]
                    dist.barrier()
                    began_s = time.perf_counter()
                    for message in messages:
                        run(message)
                    if repeat:  # the first one connects
                        seconds[name][place].append((time.perf_counter() - began_s) / times)
                    is_right = is_right and all(bool((message == expected).all()) for message in messages)
        latency_s, bandwidth = ping(max(sizes_bytes))
        return {"latency_s": latency_s, "bandwidth_bytes_per_s": bandwidth, "is_right": is_right, "seconds": seconds}


def ping(long_bytes: int) -> tuple[float, float]:
    """Send there and back between ranks 0 and 1, and tell every rank latency (s) and bandwidth (bytes per second)."""
    rank, found = dist.get_rank(), torch.zeros(2, dtype=torch.float64)
    dist.barrier()
    if rank < 2:
        short_s, long_s = (_round_trip_s(rank, torch.zeros(size // 4)) / 2 for size in (4, long_bytes))
        found[:] = torch.tensor([short_s, long_bytes / max(long_s - short_s, 1e-9)])
    dist.broadcast(found, 0)
    return float(found[0]), float(found[1])


def _round_trip_s(rank: int, message: torch.Tensor, repeats: int = 5) -> float:
    taken = []
    for _ in range(repeats + 1):
        began_s = time.perf_counter()
        if rank == 0:
            dist.send(message, 1)
            dist.recv(message, 1)
        else:
            dist.recv(message, 0)
            dist.send(message, 0)
        taken.append(time.perf_counter() - began_s)
    return sorted(taken[1:])[repeats // 2]
