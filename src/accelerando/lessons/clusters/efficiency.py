"""What a link leaves of the work of two nodes: predicted from bytes and bandwidth, then measured."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from accelerando import costs, measure, ranks, units
from accelerando.lessons import Budget
from accelerando.lessons.clusters import stage as stages
from accelerando.lessons.clusters.stage import MEGABITS_PER_S, NODES, Stage

TARGET = "accelerando.lessons.clusters.on_links:measure"
SPEEDS_MBIT = {"smoke": (), "quick": (20, 100, 500), "full": (10, 20, 50, 100, 200, 500, 1000)}


@dataclass(frozen=True)
class LinkPoint:
    """One bandwidth.

    Args:
        megabits_per_s: Of every node's link.
        work: Of a step without messages, measured in turns with those that have them.
        step_s: Median seconds of a step with DDP.
        processor_s: In which a rank's threads computed during one.
        efficiency: Seconds of a step without messages over ``step_s``.
        interval: 95 %, of the efficiency: pairs of steps drawn again.
        sent_bytes: Of one rank in a step, by the system's counters; None where it does not tell.
        is_enforced: The system held the nodes to the link; else they waited by themselves.
    """

    megabits_per_s: float
    work: costs.Work
    step_s: float
    processor_s: float
    efficiency: float
    interval: tuple[float, float]
    sent_bytes: float | None
    is_enforced: bool


MANY, LARGE_BYTES, LARGE_S = 64, 14_000_000_000, 2.0
"""Nodes, and bytes and seconds of a batch, of the explorer's questions."""
EXAMPLE = costs.Work(0.006, 0.014, 425_000)
"""For the explorer where nothing was measured; it is said so there."""


@dataclass(frozen=True)
class LinkStory:
    """Efficiency over bandwidth; without ``points`` nothing was measured.

    Args:
        work: Of a step, over all links.
        points: From the slowest link to the fastest.
        why_not: What could not be measured.
    """

    work: costs.Work
    points: tuple[LinkPoint, ...] = ()
    why_not: str = ""

    @property
    def together(self) -> float:
        """Images per second of all nodes over those of one alone, on the link nearest to the stage's, or NaN."""
        nearest = min(self.points, key=lambda p: abs(p.megabits_per_s - MEGABITS_PER_S), default=None)
        return math.nan if nearest is None else NODES * nearest.efficiency

    def rows(self) -> list[tuple[float, float, float, float]]:
        """Mbit/s, efficiency and its interval, for figures."""
        return [(point.megabits_per_s, point.efficiency, *point.interval) for point in self.points]

    def table(self) -> str:
        """Markdown: predicted bounds and what was measured."""
        if not self.points:
            return ""
        lines = [
            "| link | message alone, predicted | computing alone, measured | step, measured | of it a processor works "
            "| efficiency, predicted | measured (95 %) |",
            "|---|---|---|---|---|---|---|",
        ]
        for point in self.points:
            link = costs.Link(0.0, point.megabits_per_s * 1e6 / 8)
            message_s = costs.predict_ring_all_reduce_s(round(point.work.message_bytes), NODES, link)
            low, high = (self._bound(point, overlap) for overlap in (0.0, 1.0))
            seconds = (message_s, _computing_s(point.work), point.step_s, point.processor_s)
            lines.append(
                f"| {point.megabits_per_s:g} Mbit/s | {' | '.join(map(measure.duration, seconds))} | "
                f"{low:.0%} to {high:.0%} | **{point.efficiency:.0%}** "
                f"({100 * point.interval[0]:.0f} to {100 * point.interval[1]:.0f}) |"
            )
        return "\n".join(lines)

    def sentence(self) -> str:
        """What this run showed."""
        if not self.points:
            return f"Nothing was measured: {self.why_not}."
        slow, fast = self.points[0], self.points[-1]
        within = [p for p in self.points if self._misses(p) <= 0.05]
        told = (
            f"Every step sends {units.decimal_size(self.work.message_bytes)}. At {slow.megabits_per_s:g} Mbit/s each "
            f"of {NODES} nodes is worth **{slow.efficiency:.0%}** of one alone: together "
            f"{NODES * slow.efficiency:.2f} times one, "
        )
        told += "less than one node without a network. " if NODES * slow.efficiency < 1 else "which is still a gain. "
        told += f"At {fast.megabits_per_s:g} Mbit/s it is {fast.efficiency:.0%}. "
        told += f"Predicted from bytes and bandwidth, to within 5 points: {len(within)} of {len(self.points)} links"
        worst = max(self.points, key=self._misses)
        if self._misses(worst) > 0.05:
            told += (
                f"; furthest off at {worst.megabits_per_s:g} Mbit/s, by {100 * self._misses(worst):.0f} points: "
                f"{self._why(worst)}"
            )
        if not all(point.is_enforced for point in self.points):
            told += " (the link was simulated: nothing travels while something computes)"
        works = slow.processor_s / slow.step_s
        if works < 0.5:
            told += f". On the slowest link a rank uses a processor in {works:.0%} of a step's time: gloo waits asleep"
        return f"{told}. {self.why_not}".strip()

    def answers(self) -> str:
        """Markdown: what the explorer's three questions come to, by the formula."""
        two, many = (predict_needed_mbit(self.work, nodes) for nodes in (NODES, MANY))
        longer = LARGE_S / _computing_s(self.work)
        large = costs.Work(longer * self.work.forward_s, longer * self.work.backward_s, LARGE_BYTES)
        every, seldom = (
            [predict_needed_mbit(large, MANY, overlap=overlap, batches=batches) / 1000 for overlap in (1.0, 0.0)]
            for batches in (1, 16)
        )
        return (
            "<details><summary>What the three questions come to</summary>\n\n"
            f"* **{MANY} nodes.** A message is 2(N − 1)/N times the gradients: {_times(NODES):g} for {NODES} nodes, "
            f"{_times(MANY):.3g} for {MANY}, never 2. So nine tenths take {two:.3g} Mbit/s with {NODES} nodes and "
            f"{many:.3g} with {MANY}, where all of backward hides the message.\n"
            f"* **7 billion parameters, {LARGE_S:g} s a batch, {MANY} nodes.** From {every[0]:.3g} Gbit/s, where "
            f"backward hides what it can, to {every[1]:.3g} Gbit/s, where nothing hides.\n"
            f"* **One message for 16 batches.** From {seldom[0]:.3g} to {seldom[1]:.3g} Gbit/s. (It is another recipe: "
            "the batch of a step is 16 times as large.)\n\n</details>"
        )

    def _why(self, point: LinkPoint) -> str:
        if point.efficiency < self._bound(point, 0.0):
            return "sending keeps a core busy too, and these ranks have no core to spare"
        return "the machine was not equally busy while the links took their turns"

    def _bound(self, point: LinkPoint, overlap: float) -> float:
        link = costs.Link(0.0, point.megabits_per_s * 1e6 / 8)
        return costs.predict_link_efficiency(point.work, link, NODES, overlap=overlap)

    def _misses(self, point: LinkPoint) -> float:
        """How far outside of the predicted bounds it lies."""
        low, high = (self._bound(point, overlap) for overlap in (0.0, 1.0))
        return max(0.0, low - point.efficiency, point.efficiency - high)


def measure_efficiency(stage: Stage, budget: Budget) -> LinkStory:
    """Time steps with and without messages, on a cluster for each bandwidth; the stage's own is used where it fits."""
    if budget.name == "smoke":
        return LinkStory(EXAMPLE, why_not="the smoke budget starts one program only")
    told, failed = [], []
    for speed in SPEEDS_MBIT[budget.name]:
        is_own = stage.megabits_per_s == speed
        on = stage if is_own else stages.open_stage(budget, megabits_per_s=speed, with_slurm=False, part="link")
        try:
            steps = 12 if speed < 50 else 24
            told.append((speed, on.is_enforced, on.run(TARGET, {"steps": steps}).values[0]))
        except ranks.RanksFailed as failure:
            failed.append(f"{speed} Mbit/s failed ({failure.result.reason})")
        finally:
            if not is_own:
                on.close()
    return read_story(told, "; ".join(failed))


def read_story(told: Sequence[tuple[float, bool, dict]], why_not: str = "") -> LinkStory:
    """Put together what rank 0 told for each speed."""
    if not told:
        return LinkStory(EXAMPLE, why_not=why_not or "no link could be made")
    points, message_bytes = [], int(told[0][2]["message_bytes"])
    for speed, is_enforced, found in sorted(told, key=lambda row: row[0]):
        steps, sent = np.array(found["step_s"]), found["sent_bytes"]
        alone = np.array(found["alone"]).sum(axis=1)
        points.append(
            LinkPoint(
                speed, _work(found["alone"], message_bytes), float(np.median(steps)),
                float(np.median(found["processor_s"])), float(np.median(alone) / np.median(steps)),
                _interval(alone, steps), None if sent is None else float(sent), is_enforced,
            )
        )  # fmt: skip
    work = _work([value for _, _, found in told for value in found["alone"]], message_bytes)
    return LinkStory(work, tuple(points), why_not)


def predict_needed_mbit(
    work: costs.Work, nodes: int, share: float = 0.9, *, overlap: float = 1.0, batches: int = 1
) -> float:
    """Predict which link leaves this share of the time for computing: Mbit/s of every node.

    Args:
        work: Of one batch.
        nodes: At least 2.
        share: Above 0, below 1.
        overlap: Share of the last backward that hides the message, 0 to 1.
        batches: For one message.
    """
    exposed_s = batches * _computing_s(work) * (1 / share - 1)
    return 8 * _times(nodes) * work.message_bytes / (exposed_s + overlap * work.backward_s) / 1e6


def _times(nodes: int) -> float:
    """How often a ring of so many nodes sends the message, at each node."""
    return 2 * (nodes - 1) / nodes


def _computing_s(work: costs.Work) -> float:
    return work.forward_s + work.backward_s


def _work(alone: Sequence[Sequence[float]], message_bytes: int) -> costs.Work:
    """Median forward and rest, scaled so that they add up to the median step."""
    parts = np.median(alone, axis=0)
    forward_s, backward_s = parts * np.median(np.sum(alone, axis=1)) / parts.sum()
    return costs.Work(float(forward_s), float(backward_s), message_bytes)


def _interval(alone: np.ndarray, steps: np.ndarray, resamples: int = 1000) -> tuple[float, float]:
    """95 % of the ratio of medians; the two of a pair were measured one after the other, and are drawn together."""
    drawn = np.random.default_rng(0).integers(0, len(steps), (resamples, len(steps)))
    ratios = np.median(alone[drawn], axis=1) / np.median(steps[drawn], axis=1)
    low, high = np.quantile(ratios, [0.025, 0.975])
    return float(low), float(high)
