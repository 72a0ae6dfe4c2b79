"""What a link leaves of the work of two nodes: predicted from bytes and bandwidth, then measured."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from accelerando import costs, measure, ranks
from accelerando.lessons import Budget
from accelerando.lessons.clusters import stage as stages
from accelerando.lessons.clusters.stage import MEGABITS_PER_S, NODES, Stage, size

TARGET = "accelerando.lessons.clusters.on_links:measure"
SPEEDS_MBIT = {"smoke": (), "quick": (20, 100, 500), "full": (10, 20, 50, 100, 200, 500, 1000)}


@dataclass(frozen=True)
class LinkPoint:
    """One bandwidth.

    Args:
        megabits_per_s: Of every node's link.
        step_s: Median seconds of a step with DDP.
        efficiency: Seconds without messages over ``step_s``.
        interval: 95 %, of the efficiency.
        sent_bytes: Of one rank in a step, by the system's counters; None where it does not tell.
        is_enforced: The system held the nodes to the link; else they waited by themselves.
    """

    megabits_per_s: float
    step_s: float
    efficiency: float
    interval: tuple[float, float]
    sent_bytes: float | None
    is_enforced: bool


EXAMPLE = costs.Work(0.006, 0.014, 425_000)
"""For the explorer where nothing was measured; it is said so there."""


@dataclass(frozen=True)
class LinkStory:
    """Efficiency over bandwidth; without ``points`` nothing was measured.

    Args:
        work: Of a step.
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
            "| link | message alone, predicted | step, measured | efficiency, predicted | measured |",
            "|---|---|---|---|---|",
        ]
        for point in self.points:
            link = costs.Link(0.0, point.megabits_per_s * 1e6 / 8)
            message_s = costs.predict_ring_all_reduce_s(round(self.work.message_bytes), NODES, link)
            low, high = (self._bound(point, overlap) for overlap in (0.0, 1.0))
            lines.append(
                f"| {point.megabits_per_s:g} Mbit/s | {measure.duration(message_s)} | "
                f"{measure.duration(point.step_s)} | {low:.0%} to {high:.0%} | **{point.efficiency:.0%}** |"
            )
        return "\n".join(lines)

    def sentence(self) -> str:
        """What this run showed."""
        if not self.points:
            return f"Nothing was measured: {self.why_not}."
        slow, fast = self.points[0], self.points[-1]
        within = [p for p in self.points if self._misses(p) <= 0.05]
        told = (
            f"A step computes for {measure.duration(self.work.forward_s + self.work.backward_s)} and sends "
            f"{size(self.work.message_bytes)}. At {slow.megabits_per_s:g} Mbit/s each of {NODES} nodes is worth "
            f"**{slow.efficiency:.0%}** of one alone: together {NODES * slow.efficiency:.2f} times one, "
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
        return f"{told}. {self.why_not}".strip()

    def _why(self, point: LinkPoint) -> str:
        if point.efficiency < self._bound(point, 0.0):
            return "sending keeps a core busy too, and these ranks have no core to spare"
        return "the machine was not equally busy while the links took their turns"

    def _bound(self, point: LinkPoint, overlap: float) -> float:
        link = costs.Link(0.0, point.megabits_per_s * 1e6 / 8)
        return costs.predict_link_efficiency(self.work, link, NODES, overlap=overlap)

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
    forward_s, backward_s = (
        float(np.median([value[part] for _, _, found in told for value in found["alone"]])) for part in (0, 1)
    )
    points = []
    for speed, is_enforced, found in sorted(told, key=lambda row: row[0]):
        steps = np.array(found["step_s"])
        own_s = float(np.median([sum(value) for value in found["alone"]]))
        low, high = (float(end) for end in np.quantile(_medians(steps), [0.025, 0.975]))
        sent = found["sent_bytes"]
        points.append(
            LinkPoint(
                speed, float(np.median(steps)), own_s / float(np.median(steps)), (own_s / high, own_s / low),
                None if sent is None else float(sent), is_enforced,
            )
        )  # fmt: skip
    return LinkStory(costs.Work(forward_s, backward_s, int(told[0][2]["message_bytes"])), tuple(points), why_not)


def _medians(values: np.ndarray, resamples: int = 1000) -> np.ndarray:
    rng = np.random.default_rng(0)
    return np.asarray(np.median(values[rng.integers(0, len(values), (resamples, len(values)))], axis=1))
