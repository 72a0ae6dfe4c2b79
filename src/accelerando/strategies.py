"""What every rank holds and sends when one model is trained on several ranks. Pure predictions.

Five ways to share the work: each rank a part of the batch (*data*), the same with the optimizer's memory dealt out
(*optimizer sharded*), the same with everything dealt out (*fully sharded*), each rank a part of every layer (*tensor*),
each rank some of the layers (*pipeline*).
"""

from __future__ import annotations

from dataclasses import dataclass

NAMES = ("data", "optimizer sharded", "fully sharded", "tensor", "pipeline")
OPTIMIZERS = {"SGD": 0, "momentum": 1, "Adam": 2}
"""Numbers that the optimizer keeps for each parameter."""
PRECISIONS = {"fp32": (4, 4, 0), "bf16 + fp32 copy": (2, 2, 4)}
"""Bytes for each parameter: the weight that computes, its gradient, and the exact copy that the optimizer updates."""
STATE_BYTES = 4


@dataclass(frozen=True)
class Stack:
    """A model as the strategies see it: equal blocks, one after the other, and one global batch.

    Args:
        parameters: Of all blocks together.
        blocks: How many.
        boundary_bytes: What goes from one block to the next, for the whole batch.
        inner_bytes: What one block keeps for backward beside its input, for the whole batch.
    """

    parameters: float
    blocks: int
    boundary_bytes: float
    inner_bytes: float

    def __post_init__(self) -> None:
        for name in ("parameters", "blocks"):
            if not getattr(self, name) > 0:
                raise ValueError(f"Stack.{name} is {getattr(self, name)}: it must be above 0")
        for name in ("boundary_bytes", "inner_bytes"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"Stack.{name} is {getattr(self, name)}: it must be at least 0")


@dataclass(frozen=True)
class Memory:
    """Bytes on one rank, by what they are for."""

    parameters: float
    gradients: float
    optimizer: float
    activations: float

    @property
    def total(self) -> float:
        """All of it."""
        return self.parameters + self.gradients + self.optimizer + self.activations

    def parts(self) -> dict[str, float]:
        """Part -> bytes, in the order in which they are drawn."""
        return {
            "parameters": self.parameters,
            "gradients": self.gradients,
            "optimizer": self.optimizer,
            "activations": self.activations,
        }


def predict_memory(
    strategy: str, stack: Stack, ranks: int, *, optimizer: str = "Adam", precision: str = "fp32"
) -> Memory:
    """Predict the bytes of one rank between backward and the optimizer step.

    Left out, because they come and go: the one block that *fully sharded* gathers while it computes, buffers of
    messages, and what the allocator wastes.

    Args:
        strategy: One of `NAMES`.
        stack: The model and its batch.
        ranks: At least 1.
        optimizer: One of `OPTIMIZERS`.
        precision: One of `PRECISIONS`.

    Raises:
        ValueError: If a name is unknown or ``ranks`` below 1.

    Source:
        Rajbhandari et al. (2020), ZeRO; Shoeybi et al. (2019), Megatron-LM; Huang et al. (2019), GPipe.
    """
    _check(strategy, ranks)
    for value, known in ((optimizer, OPTIMIZERS), (precision, PRECISIONS)):
        if value not in known:
            raise ValueError(f"there is no {value!r}: say one of {', '.join(known)}")
    weight, gradient, copy = PRECISIONS[precision]
    state = copy + STATE_BYTES * OPTIMIZERS[optimizer]
    shares_model = strategy in ("fully sharded", "tensor", "pipeline")
    count = stack.parameters / (ranks if shares_model else 1)
    states = stack.parameters / (1 if strategy == "data" else ranks)
    boundary = stack.blocks * stack.boundary_bytes / (1 if strategy == "tensor" else ranks)
    inner = stack.blocks * stack.inner_bytes / ranks
    return Memory(weight * count, gradient * count, state * states, boundary + inner)


def predict_sent_bytes(strategy: str, stack: Stack, ranks: int, *, bytes_per_number: int = 4) -> float:
    """Predict what one rank sends in one training step, in bytes (the mean over ranks), by ring algorithms.

    *Optimizer sharded* is priced as PyTorch's ``ZeroRedundancyOptimizer`` does it on top of DDP: all gradients to
    everybody, then the new weights. ZeRO 1 need not send more than *data* does: a rank needs the sum of its own part
    only (reduce-scatter), and the new weights (all-gather) are the other half of an all-reduce.

    Args:
        strategy: One of `NAMES`.
        stack: The model and its batch.
        ranks: At least 1.
        bytes_per_number: Of weights and gradients on the wire.

    Source:
        Rajbhandari et al. (2020), ZeRO: stages 1 and 2 send as data parallelism does, stage 3 half as much again.
    """
    _check(strategy, ranks)
    share = (ranks - 1) / ranks
    model_bytes = stack.parameters * bytes_per_number
    if strategy == "data":  # gradients: all-reduce
        return 2 * share * model_bytes
    if strategy == "optimizer sharded":  # as PyTorch does it: the same, then each rank tells its updated part
        return 3 * share * model_bytes
    if strategy == "fully sharded":  # weights gathered for forward and again for backward, gradients reduce-scattered
        return 3 * share * model_bytes
    if strategy == "tensor":  # every block: one all-reduce forward, one backward
        return stack.blocks * 2 * 2 * share * stack.boundary_bytes
    return 2 * share * stack.boundary_bytes  # activations to the next stage, their gradients back


def _check(strategy: str, ranks: int) -> None:
    if strategy not in NAMES:
        raise ValueError(f"there is no strategy {strategy!r}: say one of {', '.join(NAMES)}")
    if not ranks >= 1:
        raise ValueError(f"ranks is {ranks!r}: it must be at least 1")
