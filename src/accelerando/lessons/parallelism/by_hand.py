"""Data parallelism in a few lines: all that the lesson builds before it takes PyTorch's own."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from accelerando.collectives import Schedule


def all_reduce(message: torch.Tensor, schedule: Schedule) -> None:
    """Sum ``message`` over all ranks, in place, with nothing but send and receive."""
    rank = dist.get_rank()
    pieces = message.tensor_split(schedule.pieces)
    for step in schedule.steps:
        waiting: list[Any] = []
        arrived = []
        for one in step:
            if one.source == rank:
                waiting.append(dist.isend(pieces[one.piece], one.target))
            if one.target == rank:
                buffer = torch.empty_like(pieces[one.piece])
                waiting.append(dist.irecv(buffer, one.source))
                arrived.append((pieces[one.piece], buffer, one.adds))
        for work in waiting:
            work.wait()
        for piece, buffer, adds in arrived:
            piece.add_(buffer) if adds else piece.copy_(buffer)


def broadcast_start(model: nn.Module) -> None:
    """Give every rank the weights of rank 0."""
    for tensor in (*model.parameters(), *model.buffers()):
        dist.broadcast(tensor.detach(), 0)


def average_each(model: nn.Module) -> None:
    """After backward: one message for every parameter."""
    for parameter in model.parameters():
        assert parameter.grad is not None
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()


def average_flat(model: nn.Module) -> None:
    """After backward: one message for all."""
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    for gradient, part in zip(gradients, flat.split([g.numel() for g in gradients]), strict=True):
        gradient.copy_(part.view_as(gradient))


class Overlapped:
    """While backward runs: each gradient leaves as soon as it is there, and is waited for at the end."""

    def __init__(self, model: nn.Module) -> None:
        """Hook every parameter."""
        self.pending: list[dist.Work] = []
        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(self._send)

    def _send(self, parameter: torch.Tensor) -> None:
        assert parameter.grad is not None
        parameter.grad /= dist.get_world_size()
        work = dist.all_reduce(parameter.grad, async_op=True)
        assert work is not None
        self.pending.append(work)

    def wait(self) -> None:
        """Before the optimizer moves anything."""
        for work in self.pending:
            work.wait()
        self.pending.clear()
