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


@dataclass(frozen=True)
class Way:
    """One way to train or to answer.

    Args:
        name: A few words.
        median_s: Seconds per batch.
        ratio: Times as fast as stock PyTorch as it comes, within rounds.
        interval: 95 % interval for the ratio; (0, inf) with fewer than six rounds.
    """

    name: str
    median_s: float
    ratio: float
    interval: tuple[float, float]


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

    training: tuple[Way, ...] = ()
    answering: tuple[Way, ...] = ()
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

    def _judged(self, title: str, ways: tuple[Way, ...]) -> str:
        """The best stock way, and IPEX's best set directly against it."""
        best = max((way for way in ways if not way.name.startswith(IPEX)), key=lambda way: way.ratio)
        start = f"the best stock way is *{best.name}*, {best.ratio:.2f} times as fast as it comes."
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


def _rivals(turns: Turns, task: str, ways: tuple[Way, ...]) -> Rivals | None:
    """The best way of IPEX and the best stock one, compared within rounds and not through a third."""
    own = [way for way in ways if way.name.startswith(IPEX)]
    if not own:
        return None
    ipex = max(own, key=lambda way: way.ratio).name
    stock = max((way for way in ways if way not in own), key=lambda way: way.ratio).name
    return Rivals(ipex, stock, turns.compare(("stock", f"{task}: {stock}"), ("ipex", f"{task}: {ipex}")))


def _ways(turns: Turns, task: str) -> tuple[Way, ...]:
    kernels = [(setting, name) for setting, rows in turns.samples.items() for name in rows[0]]
    ways = [(setting, name) for setting, name in kernels if name.startswith(f"{task}: ")]
    return tuple(
        Way(name.partition(": ")[2], reading.median_s, reading.ratio, reading.interval)
        for setting, name in ways
        if (reading := turns.compare(("stock", f"{task}: as it comes"), (setting, name)))
    )
