"""Recompiles: what makes Dynamo translate a function again, and what keeps it from doing so. All of it is counted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from accelerando import counts

Calls = list[tuple[Any, ...]]


@dataclass(frozen=True)
class ShapeTrial:
    """One remedy over some epochs.

    Args:
        name: The remedy.
        recompiles: Translations after the first.
        examples: Different examples that were trained on in an epoch.
        rows: Rows computed in an epoch, padding included.
        note: What it costs otherwise.
    """

    name: str
    recompiles: int
    examples: int
    rows: int
    note: str


def scaled(x: torch.Tensor) -> torch.Tensor:
    """Something to compile whose input changes its shape."""
    return torch.tanh(x) * 2


def batch_sizes(examples: int, batch_size: int) -> list[int]:
    """Sizes of an epoch's batches; the last one holds what is left over."""
    whole, left = divmod(examples, batch_size)
    return [batch_size] * whole + [left] * bool(left)


def try_remedies(examples: int = 1000, batch_size: int = 64, epochs: int = 3) -> tuple[ShapeTrial, ...]:
    """Count the recompiles of some epochs whose last batch is smaller, under each remedy."""
    sizes = batch_sizes(examples, batch_size)
    whole = [size for size in sizes if size == batch_size]
    padded = [batch_size] * len(sizes)
    trials = (
        ("nothing", sizes, None, False, "one translation more, which holds for every size"),
        ("`dynamic=False`", sizes, False, False, "one translation for each size there is"),
        ("`dynamic=True`", sizes, True, False, "no size is fixed, from the start"),
        ("`torch._dynamo.mark_dynamic(x, 0)`", sizes, None, True, "only the batch dimension is left open"),
        ("`drop_last=True`", whole, None, False, "the examples left over are not seen in this epoch"),
        ("padding", padded, None, False, "rows of weight 0 are computed for nothing"),
    )
    return tuple(
        ShapeTrial(
            name,
            counts.recompiles(scaled, _calls(list(chosen) * epochs, is_marked), dynamic=dynamic),
            min(examples, sum(chosen)),
            sum(chosen),
            note,
        )
        for name, chosen, dynamic, is_marked, note in trials
    )


def try_lengths(lengths: Sequence[int] = tuple(range(16, 40, 2))) -> tuple[ShapeTrial, ...]:
    """Count recompiles when every batch has another length, as sentences have, and when lengths come in buckets."""
    buckets = [16 * -(-length // 16) for length in lengths]
    trials = (
        ("nothing", lengths, None, "the second translation holds for every length"),
        ("`dynamic=False`", lengths, False, "beyond 8 translations Dynamo gives up: the rest runs uncompiled"),
        (
            "`dynamic=False`, buckets of 16",
            buckets,
            False,
            "3 sizes, so none is left uncompiled and each has code for itself; padding up to the next bucket",
        ),
    )
    return tuple(
        ShapeTrial(
            name,
            counts.recompiles(scaled, _calls(list(chosen), False), dynamic=dynamic),
            sum(lengths),
            sum(chosen),
            note,
        )
        for name, chosen, dynamic, note in trials
    )


def _calls(sizes: list[int], is_marked: bool) -> Calls:
    calls: Calls = [(torch.ones(size, 3),) for size in sizes]
    for (x,) in calls if is_marked else ():
        torch._dynamo.mark_dynamic(x, 0)
    return calls


def table(trials: tuple[ShapeTrial, ...], head: str = "remedy", per: str = " per epoch") -> str:
    """Write trials as a Markdown table; ``per`` says over what rows are counted, recompiles being counted over all."""
    lines = [f"| {head} | recompiles | used{per} | computed{per} | what it costs |", "|---|---|---|---|---|"]
    lines += [
        f"| {trial.name} | {trial.recompiles} | {trial.examples:,} | {trial.rows:,} | {trial.note} |"
        for trial in trials
    ]
    return "\n".join(lines)


@dataclass(frozen=True)
class Surprise:
    """A change between calls that looks harmless.

    Args:
        change: What changes.
        function: What is compiled.
        calls: The arguments of each call.
        remedy: What to do about it.
    """

    change: str
    function: Callable[..., Any]
    calls: Callable[[], Calls]
    remedy: str


class Counting(torch.nn.Module):
    """A module that counts its calls in a Python number."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map any shape to the same."""
        self.calls += 1
        return x * self.calls


def warmed_up(x: torch.Tensor, step: int) -> torch.Tensor:
    """Scale by a warm-up that depends on the step."""
    return x * (min(step, 10) / 10)


def named(x: torch.Tensor, kind: str) -> torch.Tensor:
    """Choose by a word."""
    return torch.tanh(x) if kind == "tanh" else torch.sigmoid(x)


def _one() -> torch.Tensor:
    return torch.ones(4, 3)


SURPRISES = (
    Surprise("the same shape again", scaled, lambda: [(_one(),)] * 4, "nothing to mend"),
    Surprise(
        "another number type",
        scaled,
        lambda: [(_one(),), (_one().double(),), (_one(),)],
        "decide on one, before the model",
    ),
    Surprise(
        "a tensor that asks for a gradient",
        scaled,
        lambda: [(_one(),), (_one().requires_grad_(),), (_one(),)],
        "expected: training and judging are two programs",
    ),
    Surprise(
        "transposed in memory",
        scaled,
        lambda: [(torch.ones(4, 3),), (torch.ones(3, 4).t(),), (torch.ones(4, 3),)],
        "`.contiguous()`, or one layout for all",
    ),
    Surprise(
        "an argument that is a word (`kind='tanh'`)",
        named,
        lambda: [(_one(), "tanh"), (_one(), "sigmoid"), (_one(), "tanh")],
        "each word is a program of its own: few of them, or none",
    ),
    Surprise(
        "a step counter as Python number",
        warmed_up,
        lambda: [(_one(), step) for step in range(1, 13)],
        "none after the second value, from which on any number is allowed; better a tensor, `torch.tensor(step)`",
    ),
    Surprise(
        "a counter inside the module",
        Counting(),
        lambda: [(_one(),)] * 12,
        "its value is a constant in the code: again for each, until 8 translations are made and the rest runs "
        'uncompiled; better a buffer, `register_buffer("calls", torch.zeros(()))`',
    ),
)


def surprises() -> str:
    """Count the recompiles of every surprise, as a Markdown table."""
    lines = ["| between the calls changes | calls | recompiles | why, and the remedy |", "|---|---|---|---|"]
    for surprise in SURPRISES:
        calls = surprise.calls()
        found = counts.recompiles(surprise.function, calls)
        lines.append(f"| {surprise.change} | {len(calls)} | {found} | {surprise.remedy} |")
    return "\n".join(lines)
