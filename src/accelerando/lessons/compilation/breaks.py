"""Graph breaks: small functions that cannot be captured in one piece, each beside a mended twin; what a cut costs."""

from __future__ import annotations

import inspect
import math
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from accelerando import counts, measure, seeds, torch_compile
from accelerando.lessons import Budget
from accelerando.lessons.compilation.toolchain import Toolchain
from accelerando.lessons.compilation.traffic import count_traffic

SEEN: list[float] = []
"""Where `watch_by_item` notes what it saw, as research code does."""


def clip_by_if(x: torch.Tensor) -> torch.Tensor:
    """Scale down, but only if some number is large."""
    largest = x.abs().max()
    if largest > 3:
        x = x * (3 / largest)
    return torch.tanh(x)


def clip_by_where(x: torch.Tensor) -> torch.Tensor:
    """The same, with the decision left in the graph."""
    largest = x.abs().max()
    divisor = torch.where(largest > 3, largest, 3.0)
    return torch.tanh(x * (3 / divisor))


def watch_by_item(x: torch.Tensor) -> torch.Tensor:
    """Normalise, and note the level for a plot."""
    level = x.square().mean()
    SEEN.append(level.item())
    return x * torch.rsqrt(level + 1e-6)


def watch_by_result(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The same; whoever wants to plot the level reads it outside, now and then."""
    level = x.square().mean()
    return x * torch.rsqrt(level + 1e-6), level.detach()


def centre_by_mask(x: torch.Tensor) -> torch.Tensor:
    """Subtract the mean of the positive numbers: how many there are is known only while it runs."""
    return torch.sigmoid(x - x[x > 0].mean())


def centre_by_weight(x: torch.Tensor) -> torch.Tensor:
    """The same with a weight of 0 or 1 for each number: every shape is known beforehand."""
    weight = (x > 0).to(x.dtype)
    return torch.sigmoid(x - (x * weight).sum() / weight.sum())


def sum_by_items(x: torch.Tensor) -> torch.Tensor:
    """Add up some powers, and stop when they no longer matter: a cut inside a loop."""
    total = torch.zeros_like(x)
    for power in range(1, 9):
        term = x**power / math.factorial(power)
        total = total + term
        if term.abs().max().item() < 1e-3:
            break
    return total


def sum_of_all(x: torch.Tensor) -> torch.Tensor:
    """The same without the question: a term that does not matter may as well be added."""
    total = torch.zeros_like(x)
    for power in range(1, 9):
        total = total + x**power / math.factorial(power)
    return total


@dataclass(frozen=True)
class Example:
    """A function that is cut, and its mended twin.

    Args:
        name: What cuts it.
        cut: The function.
        mended: The twin; its first result is the same.
    """

    name: str
    cut: Callable[..., Any]
    mended: Callable[..., Any]

    def source(self) -> str:
        """Both functions' code, as a Markdown block."""
        pieces = [textwrap.dedent(inspect.getsource(function)) for function in (self.cut, self.mended)]
        return "```python\n" + "\n".join(pieces) + "```"


EXAMPLES = (
    Example("an `if` on a tensor's value", clip_by_if, clip_by_where),
    Example("`.item()`", watch_by_item, watch_by_result),
    Example("a boolean mask", centre_by_mask, centre_by_weight),
    Example("a cut inside a loop", sum_by_items, sum_of_all),
)


@dataclass(frozen=True)
class BreakReport:
    """How Dynamo cuts both twins of an example."""

    name: str
    cut: counts.GraphReport
    mended: counts.GraphReport


def explain(examples: tuple[Example, ...] = EXAMPLES) -> tuple[BreakReport, ...]:
    """Ask Dynamo about every example; nothing is compiled."""
    x = torch.randn(64, 32, generator=seeds.generator(0))
    return tuple(
        BreakReport(example.name, counts.graph_breaks(example.cut, x), counts.graph_breaks(example.mended, x))
        for example in examples
    )


def table(reports: tuple[BreakReport, ...]) -> str:
    """Write the reports as a Markdown table, with Dynamo's own reason for each break."""
    lines = ["| what cuts it | graphs | Dynamo says | graphs when mended |", "|---|---|---|---|"]
    for report in reports:
        reason = "; ".join(dict.fromkeys(report.cut.reasons)).replace("|", "/")[:120] or "no word"
        reason = reason.replace("generic_jump TensorVariable()", "a jump that depends on a tensor (`generic_jump`)")
        lines.append(
            f"| {report.name} | {report.cut.graphs or '0: nothing is compiled'} | {reason} | {report.mended.graphs} |"
        )
    return "\n".join(lines)


def refusal(function: Callable[..., Any], *args: Any) -> str:
    """What ``fullgraph=True`` says about a function: the error's beginning, or that there is none."""
    torch._dynamo.reset()
    try:
        with torch_compile.quiet():
            torch.compile(function, backend="eager", fullgraph=True)(*args)
    except Exception as error:  # several kinds, and their names change from version to version
        lines = [line.rstrip() for line in str(error).splitlines() if line.strip() and "/" not in line]
        return f"{type(error).__name__}: " + "\n".join(lines[:5])
    finally:
        torch._dynamo.reset()
    return "captured in one piece: fullgraph=True has nothing to say"


def chain(x: torch.Tensor) -> torch.Tensor:
    """Four steps that could be one kernel."""
    x = torch.relu(x * 1.5 - 0.1)
    x = torch.relu(x * 1.4 - 0.2)
    x = torch.relu(x * 1.3 - 0.3)
    return torch.relu(x * 1.2 - 0.4)


def chain_in_pieces(x: torch.Tensor) -> torch.Tensor:
    """The same with a cut after each step."""
    x = torch.relu(x * 1.5 - 0.1)
    torch._dynamo.graph_break()
    x = torch.relu(x * 1.4 - 0.2)
    torch._dynamo.graph_break()
    x = torch.relu(x * 1.3 - 0.3)
    torch._dynamo.graph_break()
    return torch.relu(x * 1.2 - 0.4)


CHAIN = Example("a cut after each step", chain_in_pieces, chain)


@dataclass(frozen=True)
class BreakCost:
    """What cuts cost.

    Args:
        found: The function in pieces against the whole one, both compiled.
        pieces: Graphs of the first.
        predicted: Times as fast in one piece, if bytes were all that counts.
        toolchain: How far compiling went.
    """

    found: measure.Comparison
    pieces: int
    predicted: float
    toolchain: Toolchain

    def sentence(self) -> str:
        """What this run showed."""
        low, high = self.found.interval
        spread = f" ({low:.2f} to {high:.2f})" if high < float("inf") else ""
        ratio = f"In one piece it is **{self.found.ratio:.2f} times** as fast{spread} as in {self.pieces} pieces"
        if not self.toolchain.generates_code:
            return f"{self.toolchain.why} {ratio}: what is left is the price of leaving and entering Python."
        if high < 1:
            return f"{ratio}: here the pieces won, so something else than the cuts decided. Try other `numbers`."
        if low > 1:
            told = (
                f"{ratio}. Each piece reads the numbers and writes them; counting those bytes promises "
                f"**{self.predicted:.1f} times**"
            )
            off = f"{abs(self.found.ratio / self.predicted - 1):.0%}"
            if low > self.predicted:
                return (
                    f"{told}; it is {off} more. A cut brings more than those bytes: fresh memory for the result of "
                    "each piece, and Python in between. How much of the rest is whose was not measured."
                )
            if high < self.predicted:
                return (
                    f"{told}; it is {off} less. The arithmetic takes its time, or a cache held some of the numbers: "
                    "which of them was not measured."
                )
            return f"{told}, and the interval contains that."
        return f"{ratio}: at this size, on this machine, the cuts cost nothing that can be told from noise."


def measure_cuts(budget: Budget, toolchain: Toolchain, numbers: int = 2**22) -> BreakCost:
    """Compare the chain in pieces with the whole one, both compiled.

    Args:
        budget: Seconds for the comparison.
        toolchain: How far compiling goes.
        numbers: Length of the vector, float32.
    """
    x = torch.randn(numbers if budget.name != "smoke" else 2**12, generator=seeds.generator(0))
    pieces = counts.graph_breaks(chain_in_pieces, x).graphs
    moved = [count_traffic(function, x).fused_bytes for function in (chain_in_pieces, chain)]
    with toolchain.caches(), torch.no_grad():
        cut, whole = (torch.compile(f, backend=toolchain.backend) for f in (chain_in_pieces, chain))
        with torch_compile.quiet():
            cut(x), whole(x)
    with torch.no_grad():
        found = measure.compare(
            lambda: cut(x), lambda: whole(x), budget_s=budget.pair_s, labels=("in pieces", "in one piece")
        )
    torch._dynamo.reset()
    return BreakCost(found, pieces, moved[0] / moved[1], toolchain)
