"""Which GPU belongs to which rank, and what to take where there are not enough."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist

CPU_RANKS = 4


@dataclass(frozen=True)
class Place:
    """Where the ranks of this lesson run.

    Args:
        backend: "nccl" or "gloo".
        ranks: How many.
        why: In words.
    """

    backend: str
    ranks: int
    why: str

    def sentence(self) -> str:
        """What that means for this run."""
        if self.backend == "nccl":
            return (
                f"{self.why}: the ranks of *Clip the average* use **NCCL**, one GPU each. Links that are played, in "
                "the other experiments, are always played on the CPU, and their ranks talk through gloo."
            )
        return (
            f"{self.why}: the ranks of this lesson are {self.ranks} processes on the CPU that talk through **gloo**. "
            "What GPUs and their links would do is read from real formats and predicted, and none of it was measured "
            "here."
        )


def choose() -> Place:
    """NCCL where every rank gets a GPU of its own and there are at least two; else gloo (NCCL refuses to share one)."""
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if gpus >= 2 and dist.is_nccl_available():
        return Place("nccl", min(gpus, 8), f"{gpus} GPUs")
    return Place("gloo", CPU_RANKS, "No GPU here" if not gpus else "One GPU, and NCCL wants one for each rank")


def take(backend: str) -> torch.device:
    """Give this rank its device, before it joins the others.

    ``LOCAL_RANK`` counts within a machine, ``RANK`` over all. Whoever forgets `torch.cuda.set_device` has every rank of
    the machine on GPU 0.
    """
    if backend != "nccl":
        return torch.device("cpu")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    return device


RULES: dict[str, Callable[[int, int], int]] = {
    "nothing said": lambda rank, local_rank: 0,
    "set_device(RANK)": lambda rank, local_rank: rank,
    "set_device(LOCAL_RANK)": lambda rank, local_rank: local_rank,
}


def predict_device(rule: str, rank: int, gpus_per_node: int) -> int:
    """Predict the GPU that a rank uses, counted within its machine; ranks are dealt out machine by machine."""
    return RULES[rule](rank, rank % gpus_per_node)


def device_table(nodes: int = 2, gpus_per_node: int = 4) -> str:
    """Markdown: for each rule, the GPU of every rank, and what becomes of it."""
    world_size = nodes * gpus_per_node
    lines = [
        f"| rule | GPU of rank {', '.join(map(str, range(world_size)))} | what becomes of it |",
        "|---|---|---|",
    ]
    for rule in RULES:
        devices = [predict_device(rule, rank, gpus_per_node) for rank in range(world_size)]
        lines.append(f"| `{rule}` | {', '.join(map(str, devices))} | {_outcome(devices, gpus_per_node)} |")
    return "\n".join(lines)


def _outcome(devices: list[int], gpus_per_node: int) -> str:
    beyond = [rank for rank, device in enumerate(devices) if device >= gpus_per_node]
    if beyond:
        return f"rank {beyond[0]} and those after it ask for a GPU that their machine lacks (invalid device ordinal)"
    crowd = Counter((rank // gpus_per_node, device) for rank, device in enumerate(devices)).most_common(1)[0][1]
    return f"{crowd} ranks on one GPU: NCCL refuses (Duplicate GPU detected)" if crowd > 1 else "right"
