"""Ways to train and to answer, stock PyTorch's and IPEX's, as two processes measured them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from accelerando.lessons.cpu.turns import Reading, Turns

IPEX = "ipex.optimize"
IPEX_TRACED = f"{IPEX}, traced"
STEPS_COMPARED = 5
"""Training steps after which the losses of all ways are set side by side."""


Ways = Mapping[str, Reading]
"""A few words for each way, stock PyTorch as it comes first -> its reading against that first one."""


@dataclass(frozen=True)
class Rivals:
    """The best way of IPEX against the best stock one.

    Args:
        ipex: Its name.
        stock: Likewise.
        against: Of IPEX's, the ratio being taken to the stock one.
    """

    ipex: str
    stock: str
    against: Reading


@dataclass(frozen=True)
class ExtensionTable:
    """Stock PyTorch and IPEX, training and answering.

    Args:
        training: Ways to train, stock first.
        answering: Ways to answer.
        loss_gap: Largest relative difference between the losses after a few steps, over all ways to train.
        rivals: "training", "answering" -> best way of IPEX, best stock way, and the one set against the other.
        version: Of IPEX; None when it gave no time.
        why_not: Why IPEX, or torch.compile, is left out; empty when both are there.
    """

    training: Ways = field(default_factory=dict)
    answering: Ways = field(default_factory=dict)
    loss_gap: float = 0.0
    rivals: Mapping[str, Rivals] = field(default_factory=dict)
    version: str | None = None
    why_not: str = ""

    def sentence(self) -> str:
        """What this run showed."""
        if not self.training:
            return self.why_not
        parts = [
            f"{title.capitalize()}: {self._judged(title, ways)}"
            for title, ways in (("training", self.training), ("answering", self.answering))
            if ways
        ]
        parts.append(f"After {STEPS_COMPARED} steps the losses of all ways agree to {self.loss_gap:.1g}.")
        if self.why_not:
            parts.append(self.why_not)
        return " ".join(parts)

    def _judged(self, title: str, ways: Ways) -> str:
        """The best stock way, and IPEX's best set directly against it."""
        best = _best(ways, of_ipex=False)
        start = f"the best stock way is *{best}*, {ways[best].ratio:.2f} times as fast as it comes."
        rivals = self.rivals.get(title)
        if rivals is None:
            return start
        reading, (low, high) = rivals.against, rivals.against.interval
        spread = f" (95 % interval {low:.2f} to {high:.2f})" if high < math.inf else ""
        verdict = (
            "on this processor there was still something in it"
            if low > 1
            else "nothing is lost by moving"
            if high < 1
            else "no difference can be told in this run"
        )
        return f"{start} Set against it, *{rivals.ipex}* is **{reading.ratio:.2f} times** as fast{spread}: {verdict}."


def tabulate(turns: Turns, why_not: str = "") -> ExtensionTable:
    """Turn what two processes measured into ways, each compared to stock PyTorch as it comes."""
    losses: dict[str, float] = {}
    for facts in turns.facts.values():
        losses |= facts["losses"]
    first = losses["as it comes"]
    gap = max(abs(loss / first - 1) for loss in losses.values())
    version = turns.facts.get("ipex", {}).get("version")
    found = {"training": _ways(turns, "train"), "answering": _ways(turns, "answer")}
    tasks = {"training": "train", "answering": "answer"}
    rivals = {title: told for title, ways in found.items() if (told := _rivals(turns, tasks[title], ways))}
    return ExtensionTable(found["training"], found["answering"], gap, rivals, version, why_not)


def _rivals(turns: Turns, task: str, ways: Ways) -> Rivals | None:
    """The best way of IPEX and the best stock one, compared within rounds and not through a third."""
    if not any(name.startswith(IPEX) for name in ways):
        return None
    ipex, stock = _best(ways, of_ipex=True), _best(ways, of_ipex=False)
    return Rivals(ipex, stock, turns.compare(("stock", f"{task}: {stock}"), ("ipex", f"{task}: {ipex}")))


def _best(ways: Ways, *, of_ipex: bool) -> str:
    return max((name for name in ways if name.startswith(IPEX) == of_ipex), key=lambda name: ways[name].ratio)


def _ways(turns: Turns, task: str) -> Ways:
    kernels = [(setting, name) for setting, rows in turns.samples.items() for name in rows[0]]
    first = ("stock", f"{task}: as it comes")
    return {
        name.partition(": ")[2]: turns.compare(first, (setting, name))
        for setting, name in kernels
        if name.startswith(f"{task}: ")
    }
