"""Ways of sending less over a slow link, as a learner writes them down: checked, and priced beforehand. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from accelerando import costs

RANKS = 2
BATCH = 64
"""Images of each rank in one backward."""
TRAIN_IMAGES, TEST_IMAGES, EPOCHS = 5000, 5000, 3
HIDDEN = (128,)
LAYERS = ((128, 784), (128,), (10, 128), (10,))
"""Shapes of the model's parameters: a multi-layer perceptron with `HIDDEN`."""
PARAMETERS = sum(math.prod(shape) for shape in LAYERS)
COMPRESSIONS = ("none", "fp16", "bf16", "powersgd")
_BYTES = {"none": 4, "fp16": 2, "bf16": 2}


@dataclass(frozen=True)
class Plan:
    """How two ranks train together over a slow link.

    Args:
        compression: What becomes of a gradient before it is sent: "none", "fp16", "bf16" or "powersgd".
        powersgd_rank: Columns of the two thin matrices that PowerSGD sends in place of a wide one; 1 to 32.
        average_every: 1: gradients are averaged in every step. More: each rank steps by itself (local SGD), and every
            so many steps all weights are averaged; 1 to 1,000.
        accumulate: Batches whose gradients add up, unsent, before one optimizer step; 1 to 32.
        learning_rate: At the start; it falls evenly to 0. Above 0, at most 2.
        warmup_steps: The first steps that send plain gradients, whatever the rest says; 0 to 1,000.
    """

    compression: str = "none"
    powersgd_rank: int = 4
    average_every: int = 1
    accumulate: int = 1
    learning_rate: float = 0.05
    warmup_steps: int = 0

    @property
    def steps(self) -> int:
        """Optimizer steps of a whole run; incomplete ones are left out."""
        return EPOCHS * (TRAIN_IMAGES // (RANKS * BATCH * self.accumulate))

    @property
    def is_local(self) -> bool:
        """Ranks step by themselves and average weights."""
        return self.average_every > 1

    def changed(self, **changes: Any) -> Plan:
        """The same plan with some fields changed."""
        return replace(self, **changes)

    def words(self) -> str:
        """What is not as at the start, in a few words."""
        start = Plan()
        return ", ".join(
            f"{field.name} {getattr(self, field.name):g}"
            if not isinstance(getattr(self, field.name), str)
            else f"{field.name} {getattr(self, field.name)}"
            for field in fields(self)
            if getattr(self, field.name) != getattr(start, field.name)
        )


START = asdict(Plan())
"""The plan that is there: everything is sent, in every step."""
_LIMITS = {"powersgd_rank": (1, 32), "average_every": (1, 1000), "accumulate": (1, 32), "warmup_steps": (0, 1000)}


def check_plan(answer: Any) -> Plan:
    """Return a complete plan, or say what is wrong with it.

    Args:
        answer: A dictionary with keys of `START`; what is left out stays as it is there.

    Raises:
        ValueError: In words: what was given, and what is allowed.
    """
    if not isinstance(answer, Mapping):
        raise ValueError(f"a plan is a dictionary, not {type(answer).__name__}")
    for key, value in answer.items():
        if key not in START:
            raise ValueError(f"there is no {str(key)[:40]!r}: a plan has {', '.join(START)}")
        if key in _LIMITS:
            low, high = _LIMITS[key]
            if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
                raise ValueError(f"{key} is {str(value)[:20]}: it must be a whole number from {low} to {high:,}")
    found = {**START, **answer}
    if found["compression"] not in COMPRESSIONS:
        raise ValueError(f"compression is {str(found['compression'])[:20]!r}: say one of {', '.join(COMPRESSIONS)}")
    rate = found["learning_rate"]
    if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 < rate <= 2:
        raise ValueError(f"learning_rate is {str(rate)[:20]}: it must be above 0 and at most 2")
    plan = Plan(**found)
    if plan.is_local and plan.compression != "none":
        raise ValueError(
            f"compression is {plan.compression!r} and average_every {plan.average_every}: with local steps no gradient "
            "is sent that could be compressed. Choose one of the two"
        )
    return plan


def predict_sent_bytes(plan: Plan) -> float:
    """Predict what one rank sends in a whole run: bytes, by ring all-reduce between `RANKS`."""
    return sum(costs.ring_all_reduce_sent_bytes(message, RANKS) for message in _messages(plan))


def predict_seconds(plan: Plan, batch_s: float, link: costs.Link) -> float:
    """Predict a whole run without overlap: all batches, then all messages.

    Args:
        plan: How.
        batch_s: Seconds of one forward and backward, with its share of the optimizer.
        link: Between the two ranks.
    """
    batches = plan.steps * plan.accumulate
    messages = (costs.predict_ring_all_reduce_s(message, RANKS, link) for message in _messages(plan))
    return batches * batch_s + sum(messages)


def _messages(plan: Plan) -> list[int]:
    """Bytes of every all-reduce of a run."""
    whole = 4 * PARAMETERS
    plain = min(plan.warmup_steps, plan.steps)
    if plan.is_local:
        return [whole] * (plain + (plan.steps - plain) // plan.average_every + 1)
    if plan.compression == "powersgd":
        plain = min(max(plan.warmup_steps, 2), plan.steps)  # it needs two plain steps, to know how buckets are arranged
        return [whole] * plain + _powersgd_messages(plan.powersgd_rank) * (plan.steps - plain)
    small = _BYTES[plan.compression] * PARAMETERS
    return [whole] * plain + [small] * (plan.steps - plain)


def _powersgd_messages(rank: int) -> list[int]:
    """What PowerSGD sends in a step: vectors as they are, then the two thin matrices of each wide one."""
    as_they_are, tall, wide = 0, 0, 0
    for shape in LAYERS:
        rows, columns = (shape[0], math.prod(shape[1:])) if len(shape) > 1 else (1, shape[0])
        if len(shape) > 1 and (rows + columns) * min(rank, rows, columns) * 2 < rows * columns:
            tall, wide = tall + rows * rank, wide + columns * rank
        else:
            as_they_are += rows * columns
    return [4 * count for count in (as_they_are, tall, wide) if count]
