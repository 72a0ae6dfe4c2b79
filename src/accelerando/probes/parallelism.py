"""Probe of lab 7: runs the learner's `train` on two real ranks in the learner's sandbox, and counts what it sends."""

import inspect
import textwrap
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from accelerando import counts, ranks
from accelerando.submission import NotAnswered, Wrong, look_up

RANKS = 2
STEPS, MICRO_BATCHES, IMAGES = 3, 8, 4
"""Optimizer steps; batches of each rank in one step; images of each."""
LIMIT_S = 75.0
Batches = list[list[tuple[torch.Tensor, torch.Tensor]]]


def network(seed: int) -> nn.Module:
    """The net, the same in every process."""
    draw = torch.Generator().manual_seed(seed)
    model = nn.Sequential(nn.Linear(48, 192), nn.Tanh(), nn.Linear(192, 192), nn.Tanh(), nn.Linear(192, 5))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=draw) / 12)
    return model


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    """As everybody trains here."""
    return torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)


def steps_of(seed: int, rank: int) -> Batches:
    """One rank's batches, step by step."""
    draw = torch.Generator().manual_seed(seed * RANKS + rank + 1)

    def batch() -> tuple[torch.Tensor, torch.Tensor]:
        return torch.randn(IMAGES, 48, generator=draw), torch.randint(5, (IMAGES,), generator=draw)

    return [[batch() for _ in range(MICRO_BATCHES)] for _ in range(STEPS)]


def whole(seed: int) -> torch.Tensor:
    """The weights that one process reaches with the images of all ranks together: the reference, float32 (P,)."""
    model = network(seed)
    optimizer = optimizer_of(model)
    for own in zip(*(steps_of(seed, rank) for rank in range(RANKS)), strict=True):
        images, labels = (torch.cat([batch[part] for batches in own for batch in batches]) for part in (0, 1))
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
    return _flat(model)


def train(namespace: Mapping[str, Any], seed: int) -> list[dict[str, Any]]:
    """Let the learner's function train on two ranks.

    Args:
        namespace: The learner's names.
        seed: Of weights and images.

    Returns:
        For each rank: "weights", float32 (P,), "sent_bytes" and "plain_bytes", what the usual loop sends; None where
        the system does not count. "uses_no_sync": whether its text does.
    """
    function = look_up(namespace, "train")
    is_own = inspect.isfunction(function) and function.__module__.partition(".")[0] != "accelerando"
    try:
        source = textwrap.dedent(inspect.getsource(function)) if is_own else ""
    except (OSError, TypeError):
        source = ""
    if not source:
        raise Wrong("`train` should be a function written in its cell: its text is sent to the ranks.")
    if "raise NotImplementedError" in source:
        raise NotAnswered  # no need to start ranks to find that out
    return _run(source, seed)


@lru_cache(maxsize=32)
def _run(source: str, seed: int) -> list[dict[str, Any]]:
    """Two ranks take seconds to start, so the same answer is not tried twice on the same images."""
    target = f"{__name__}:on_one_rank"
    try:
        result = ranks.run(target, RANKS, payload={"source": source, "seed": seed}, time_limit_s=LIMIT_S)
    except ranks.RanksFailed as failure:
        raise _explained(failure.result) from None
    return list(result.values)


def on_one_rank(source: str, seed: int) -> dict[str, Any]:
    """What each rank does: the usual loop, then the learner's, from the same start."""
    names: dict[str, Any] = {"torch": torch, "dist": dist, "nn": nn, "DistributedDataParallel": DistributedDataParallel}
    exec(compile(source, "<train>", "exec"), names)
    with ranks.joined(time_limit_s=15.0) as (rank, _):
        plain_bytes = _sent(_usual, rank, seed)[1]
        weights, sent_bytes = _sent(names["train"], rank, seed)
        return {
            "weights": weights,
            "sent_bytes": sent_bytes,
            "plain_bytes": plain_bytes,
            "uses_no_sync": "no_sync" in source,
        }


def _sent(loop: Callable[..., object], rank: int, seed: int) -> tuple[torch.Tensor, int | None]:
    model = DistributedDataParallel(network(seed))
    dist.barrier()
    before = counts.sent_bytes()
    loop(model, steps_of(seed, rank), optimizer_of(model))
    after = counts.sent_bytes()
    dist.barrier()
    return _flat(model), None if before is None or after is None else after - before


def _usual(ddp: nn.Module, steps: Batches, optimizer: torch.optim.Optimizer) -> None:
    for batches in steps:
        optimizer.zero_grad()
        for images, labels in batches:
            (nn.functional.cross_entropy(ddp(images), labels) / len(batches)).backward()
        optimizer.step()


def _flat(model: nn.Module) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def _explained(result: ranks.RanksResult) -> Wrong:
    if "NotImplementedError" in result.reason:
        return NotAnswered()
    if "raised" in result.reason and not result.has_missed:
        return Wrong(f"On {result.ranks} ranks, {result.reason}.")
    return Wrong(
        f"On {result.ranks} ranks it did not come to an end ({result.reason}). Does every rank make the same "
        "collective calls in the same order? See *When ranks are not alike* in the lesson."
    )
