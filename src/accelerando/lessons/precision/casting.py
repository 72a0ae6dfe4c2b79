"""Autocast's rules, asked of torch itself, and the places where they end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from accelerando import models, seeds

_NAMES = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}


@dataclass(frozen=True)
class Rule:
    """The type that an operator's result has under autocast.

    Args:
        operator: Its name.
        of_fp32: Result for fp32 inputs.
        of_half: Result for inputs in the narrow type.
        of_both: Result for one input of each type, where it joins several; else empty.
    """

    operator: str
    of_fp32: str
    of_half: str
    of_both: str = ""

    @property
    def kind(self) -> str:
        """What autocast does with it."""
        if self.of_fp32 != "fp32":
            return "narrow: inputs are cast down"
        if self.of_both:
            return f"joins: of one of each it makes {self.of_both}"
        return "wide: inputs are cast up" if self.of_half == "fp32" else "neither: takes what comes"


Operator = Callable[[torch.Tensor], torch.Tensor]


def _operators() -> dict[str, tuple[Operator, ...]]:
    """Operators by name, several in one row where they are expected to behave alike; each of them is run."""
    functional = nn.functional
    draw = torch.Generator().manual_seed(0)
    weight, kernel = torch.randn(8, 8, generator=draw), torch.randn(4, 4, 3, 3, generator=draw)
    return {
        "linear, matmul": (lambda x: functional.linear(x, weight), lambda x: x @ weight),
        "conv2d": (lambda x: functional.conv2d(x.reshape(1, 4, 4, 4), kernel),),
        "scaled_dot_product_attention": (lambda x: functional.scaled_dot_product_attention(x[None], x[None], x[None]),),
        "relu, add, max_pool": (torch.relu, lambda x: x + x, lambda x: functional.max_pool2d(x[None], 2)),
        "batch_norm": (lambda x: functional.batch_norm(x, None, None, training=True),),
        "layer_norm": (lambda x: functional.layer_norm(x, x.shape[1:]),),
        "softmax": (lambda x: functional.softmax(x, 1),),
        "sum, mean": (torch.sum, torch.mean),
        "exp, pow": (torch.exp, lambda x: x.pow(2.0)),
        "cat, stack": (lambda x: torch.cat([x, x]), lambda x: torch.stack([x, x])),
        "mse_loss": (lambda x: functional.mse_loss(x, x),),
        "cross_entropy": (lambda x: functional.cross_entropy(x, torch.zeros(8, dtype=torch.int64)),),
    }


_JOINING: dict[str, Callable[[list[torch.Tensor]], torch.Tensor]] = {"cat": torch.cat, "stack": torch.stack}


def rules(half: torch.dtype = torch.bfloat16) -> tuple[Rule, ...]:
    """Run operators under CPU autocast and look at the type of what comes out."""
    draw = torch.Generator().manual_seed(1)
    wide = torch.randn(8, 8, generator=draw)
    found = []
    with torch.autocast("cpu", half):
        for row, operators in _operators().items():
            names = row.split(", ")
            kinds = {}
            for name, operator in zip(names, operators, strict=True):
                results = [operator(x).dtype for x in (wide, wide.to(half))]
                if name in _JOINING:
                    results.append(_JOINING[name]([wide, wide.to(half)]).dtype)
                kinds[name] = [_NAMES.get(result, str(result)) for result in results]
            are_alike = len({tuple(kind) for kind in kinds.values()}) == 1
            rows = {row: kinds[names[0]]} if are_alike else kinds
            found += [Rule(name, *kind) for name, kind in rows.items()]
    return tuple(found)


def rules_table(found: tuple[Rule, ...]) -> str:
    """Rules, as a Markdown table."""
    rows = [f"| {one.operator} | {one.of_fp32} | {one.of_half} | {one.kind} |" for one in found]
    return "\n".join(["| operator | of fp32 | of bf16 | so it is |", "|---|---|---|---|", *rows])


# -- where it goes wrong ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Trap:
    """A mistake, tried here.

    Args:
        name: What is done.
        found: What came of it.
        cure: What to do instead.
        is_wrong: Whether it went wrong with this version of torch.
    """

    name: str
    found: str
    cure: str
    is_wrong: bool


def traps() -> tuple[Trap, ...]:
    """Step into each trap and report what happened."""
    return (_mask(), _own_exp(), _variance(), _stale_weights(), _half_twice())


def traps_table(found: tuple[Trap, ...]) -> str:
    """Traps, as a Markdown table."""
    rows = [f"| {one.name} | {'✗' if one.is_wrong else '✓'} {one.found} | {one.cure} |" for one in found]
    return "\n".join(["| done | seen here | instead |", "|---|---|---|", *rows])


def _mask() -> Trap:
    scores = torch.full((1, 4), -1e9).half()
    found = scores.softmax(1)[0, 0].item()
    try:
        torch.zeros(1, 4).half().masked_fill(torch.ones(1, 4, dtype=torch.bool), -1e9)
        direct = "takes it without a word"
    except RuntimeError:
        direct = "refuses it with an error"
    return Trap(
        "a mask of -1e9, made in fp32 and cast to fp16 with the scores, a row all masked",
        f"-1e9 is {scores[0, 0].item():.0f} in fp16, and the softmax {found:.2f} (`masked_fill` on fp16 {direct})",
        "`torch.finfo(x.dtype).min`, or a boolean mask given to the attention",
        found != found,
    )


def _own_exp() -> Trap:
    logits = torch.tensor([[20.0, 10.0]])
    with torch.autocast("cpu", torch.float16):
        hidden = nn.functional.linear(logits, torch.eye(2))
        own = (hidden.exp() / hidden.exp().sum(1, keepdim=True))[0, 0].item()
        ready = hidden.softmax(1)[0, 0].item()
    return Trap(
        "a softmax written by hand, on fp16 logits up to 20, on a CPU (a GPU's autocast casts `exp` up)",
        f"exp(20) overflows: {own:.2f}, where torch's own softmax gives {ready:.2f}",
        "torch's `softmax` and losses, on `logits.float()`",
        own != own,
    )


def _variance() -> Trap:
    values = 100 + torch.randn(4096, generator=torch.Generator().manual_seed(0))
    with torch.autocast("cpu", torch.bfloat16):
        hidden = values.to(torch.bfloat16)
        own = ((hidden * hidden).mean() - hidden.mean() ** 2).item()
    return Trap(
        "a variance as mean of squares minus square of mean, in bf16",
        f"{own:.3g}, where it is {values.var().item():.3g}",
        "`x.float().var()`, or a norm layer, which does that",
        not 0.5 < own < 2.0,
    )


def _stale_weights() -> Trap:
    with seeds.preserved():
        seeds.seed(0)
        layer = nn.Linear(4, 1)
    inputs = torch.ones(2, 4)
    with torch.autocast("cpu", torch.bfloat16):
        before = layer(inputs).detach().float()
        with torch.no_grad():
            layer.weight.add_(1.0)
        moved = float((layer(inputs).detach().float() - before).abs().max())
    return Trap(
        "one `with autocast` around several steps: a weight changes inside it",
        f"the weight moved by 1 and the output by {moved:.2g}: the cast copy is kept until the block ends",
        "one block around each forward",
        moved < 1.0,
    )


def _half_twice() -> Trap:
    model = models.build(models.MlpSizes(hidden=(8,))).half()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu")
    with torch.autocast("cpu", torch.float16):
        loss = model(torch.zeros(2, 1, 28, 28)).float().sum()
    scaler.scale(loss).backward()
    try:
        scaler.unscale_(optimizer)
        said, is_wrong = "nothing was said", False
    except ValueError as error:
        said, is_wrong = f"ValueError: {error}", True
    return Trap("`model.half()` and a scaler", said, "leave the weights in fp32: autocast casts them", is_wrong)
