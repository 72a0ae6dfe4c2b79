"""Probe of the final: runs the learner's `average_gradients` on real ranks, inside the learner's sandbox."""

import inspect
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from accelerando import ranks
from accelerando.submission import NotAnswered, Wrong, look_up

RANKS_LIMIT_S = 75.0
Gradients = dict[str, torch.Tensor]


class Tied(nn.Module):
    """A small net with all that goes wrong in practice: a weight used twice, a frozen one, and one that nobody uses."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Linear(6, 5)
        self.again = nn.Linear(5, 5, bias=False)
        self.frozen = nn.Linear(5, 5)
        self.frozen.requires_grad_(False)
        self.spare = nn.Linear(3, 2)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Map (N, 6) to (N, 5)."""
        hidden = self.again(torch.tanh(self.again(torch.tanh(self.enter(inputs)))))
        mixed: torch.Tensor = self.frozen(hidden)
        return mixed


def case(seed: int, shares: Sequence[int]) -> tuple[Tied, torch.Tensor, torch.Tensor]:
    """Make the net, inputs (N, 6) and targets (N,) of one case, the same in every process."""
    draw = torch.Generator().manual_seed(seed)
    model = Tied()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=draw) * 0.4)
    total = sum(shares)
    return model, torch.randn(total, 6, generator=draw), torch.randint(5, (total,), generator=draw)


def whole_gradient(seed: int, shares: Sequence[int]) -> Gradients:
    """What one process gets from all images together: the reference."""
    model, inputs, targets = case(seed, shares)
    nn.functional.cross_entropy(model(inputs), targets).backward()
    return _gradients(model)


def average_gradients(namespace: Mapping[str, Any], cases: Sequence[Mapping[str, Any]]) -> list[list[Gradients]]:
    """Give each rank its share and collect the gradients that the learner's function leaves there.

    Args:
        namespace: The learner's names.
        cases: ``{"seed", "shares"}`` each; all with the same number of shares, one for each rank.

    Returns:
        For each case, for each rank: gradient by parameter name.
    """
    function = look_up(namespace, "average_gradients")
    try:
        source = textwrap.dedent(inspect.getsource(function))
    except (OSError, TypeError):
        raise Wrong(
            "`average_gradients` should be a function written in its cell: its text is sent to the ranks."
        ) from None
    world_size = len(cases[0]["shares"])
    payload = {"source": source, "cases": [dict(case) for case in cases]}
    target = f"{__name__}:on_one_rank"
    try:
        result = ranks.run(target, world_size, payload=payload, time_limit_s=RANKS_LIMIT_S)
    except ranks.RanksFailed as failure:
        raise _explained(failure.result) from None
    return [[result.values[rank][number] for rank in range(world_size)] for number in range(len(cases))]


def on_one_rank(source: str, cases: Sequence[Mapping[str, Any]]) -> list[Gradients]:
    """What each rank does: its own share backward, then the learner's function."""
    names: dict[str, Any] = {"np": np, "torch": torch, "dist": dist, "nn": nn}
    exec(compile(source, "<average_gradients>", "exec"), names)
    found = []
    with ranks.joined(time_limit_s=20.0) as (rank, _):
        for given in cases:
            shares = given["shares"]
            model, inputs, targets = case(given["seed"], shares)
            first = sum(shares[:rank])
            own = slice(first, first + shares[rank])
            if shares[rank]:
                nn.functional.cross_entropy(model(inputs[own]), targets[own]).backward()
            names["average_gradients"](model, shares[rank])
            found.append(_gradients(model))
    return found


def _gradients(model: nn.Module) -> Gradients:
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def _explained(result: ranks.RanksResult) -> Wrong:
    if "NotImplementedError" in result.reason:
        return NotAnswered()
    if "raised" in result.reason and not result.has_missed:
        return Wrong(f"On {result.ranks} ranks, {result.reason}.")
    return Wrong(
        f"On {result.ranks} ranks it did not come to an end ({result.reason}). Does every rank make the same "
        "collective calls, in the same order, also one that had no image?"
    )
