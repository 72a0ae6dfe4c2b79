"""Why a graph can be faster: bytes that never travel. Predicted by counting, then measured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from accelerando import counts, measure
from accelerando.lessons import Budget
from accelerando.lessons.compilation.toolchain import Toolchain
from accelerando.lessons.compilation.traffic import Traffic, count_traffic


@dataclass(frozen=True)
class Fusion:
    """A forward, eager against compiled, with what counting bytes predicts.

    Args:
        traffic: Bytes, counted.
        operators: Operators that the eager call starts.
        found: Eager against compiled, measured.
        toolchain: How far compiling went.
    """

    traffic: Traffic
    operators: int
    found: measure.Comparison
    toolchain: Toolchain

    def prediction(self) -> str:
        """What counting says, before anything is timed."""
        traffic = self.traffic
        return (
            f"Eager, the call starts {self.operators} operators, which together read and write "
            f"{_mib(traffic.eager_bytes)}. One kernel would read the inputs and write the result, "
            f"{_mib(traffic.fused_bytes)}: if bytes were all that counts, it would be "
            f"**{traffic.predicted_gain:.1f} times** as fast."
        )

    def sentence(self) -> str:
        """What this run showed."""
        low, high = self.found.interval
        spread = f" ({self.found.confidence:.0%} interval {low:.2f} to {high:.2f})" if high < float("inf") else ""
        start = f"{self.toolchain.why} " if self.toolchain.why else ""
        start += f"Compiled it is {self.found.ratio:.2f} times as fast{spread}"
        if not self.toolchain.generates_code:
            return f"{start}. The operators are the same as before, so there was nothing to gain."
        if self.found.verdict == "not faster" or self.found.ratio < 1.1:
            return f"{start}. Nothing to speak of: here the bytes were not what the function waited for."
        if not spread:
            return f"{start}. Too few pairs were timed to set that beside the prediction."
        off = f"{abs(self.found.ratio / self.traffic.predicted_gain - 1):.0%}"
        if high < self.traffic.predicted_gain:
            return (
                f"{start}. That is {off} less than predicted: the arithmetic itself may be what is left to wait for, "
                "or a cache had made some of the bytes cheap already. Which of them was not measured."
            )
        if low > self.traffic.predicted_gain:
            return (
                f"{start}. That is {off} more than predicted: starting operators and getting memory for each result "
                "cost time, too, and those are gone as well."
            )
        return f"{start}. What counting bytes predicted lies within the interval."


def measure_fusion(function: Callable[..., Any], *args: Any, budget: Budget, toolchain: Toolchain) -> Fusion:
    """Compare a function's forward, eager and compiled in fresh caches.

    Args:
        function: Of tensors.
        args: What to call it with.
        budget: Seconds for the comparison.
        toolchain: How far compiling goes.
    """
    traffic = count_traffic(function, *args)
    with torch.no_grad():
        with counts.operators() as seen:
            function(*args)
        torch._dynamo.reset()
        compiled = torch.compile(function, backend=toolchain.backend)
        with toolchain.caches():
            compiled(*args)
        found = measure.compare(
            lambda: function(*args),
            lambda: compiled(*args),
            budget_s=budget.pair_s,
            labels=("eager", "compiled"),
        )
    torch._dynamo.reset()
    return Fusion(traffic, sum(seen.values()), found, toolchain)


def _mib(size: int) -> str:
    return f"{size / 2**20:,.1f} MiB"
