"""Ways of sending less over a slow link, side by side: bytes, time, and whether the accuracy was kept."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from accelerando import costs, measure, ranks, stats, units
from accelerando.lessons import Budget
from accelerando.lessons.clusters import plans
from accelerando.lessons.clusters.plans import Plan
from accelerando.lessons.clusters.stage import MEGABITS_PER_S, Stage

TARGET = "accelerando.lessons.clusters.on_plans:compare"
START = "everything, every step"
PLANS: dict[str, Plan] = {
    START: Plan(),
    "fp16 compression": Plan(compression="fp16"),
    "bf16 compression": Plan(compression="bf16"),
    "PowerSGD, rank 4": Plan(compression="powersgd"),
    "accumulation of 4": Plan(accumulate=4),
    "accumulation of 4, rate × 4": Plan(accumulate=4, learning_rate=4 * Plan().learning_rate),
    "accumulation of 2, rate × 2": Plan(accumulate=2, learning_rate=2 * Plan().learning_rate),
    "local SGD, every 8": Plan(average_every=8),
}
SEEDS = {"smoke": (), "quick": (1, 2, 3), "full": (1, 2, 3, 4, 5, 6)}
MARGIN = 0.01
ASSUMED_BATCH_S = 0.002
"""Seconds of a batch in a prediction where none was measured."""


@dataclass(frozen=True)
class Way:
    """One plan and what came of it.

    Args:
        plan: How it was trained.
        predicted_s: Seconds of a run, without overlap.
        predicted_bytes: What one rank sends.
        seconds: Median over runs; None where nothing was measured.
        sent_bytes: By the system's counters; None where it does not tell.
        accuracy: Mean over runs.
        verdict: Of the paired test against `START`.
        gains: How many times as fast as `START` with the same seed: the lowest and the highest run.
    """

    plan: Plan
    predicted_s: float
    predicted_bytes: float
    seconds: float | None = None
    sent_bytes: float | None = None
    accuracy: float | None = None
    verdict: stats.AccuracyVerdict | None = None
    gains: tuple[float, float] | None = None


@dataclass(frozen=True)
class Recovery:
    """All ways on one link.

    Args:
        megabits_per_s: Of every node's link.
        is_enforced: By the system; else every message waited by itself.
        ways: Name -> what came of it.
        runs: Of each way.
        why_not: Why nothing was measured.
    """

    megabits_per_s: float
    is_enforced: bool
    ways: Mapping[str, Way]
    runs: int = 0
    why_not: str = ""

    def gain(self, name: str) -> float:
        """How many times as fast as the start: measured, else predicted."""
        start, way = self.ways[START], self.ways[name]
        if start.seconds is None or way.seconds is None:
            return start.predicted_s / way.predicted_s
        return start.seconds / way.seconds

    @property
    def best_kept(self) -> float:
        """How many times as fast the fastest way was whose accuracy was kept; NaN if there was none."""
        kept = [name for name, way in self.ways.items() if way.verdict is not None and way.verdict.verdict == "kept"]
        return max((self.gain(name) for name in kept), default=math.nan)

    def table(self) -> str:
        """Markdown: bytes and seconds, predicted and measured, and the accuracy."""
        lines = [
            "| what is sent | bytes of a rank, predicted | counted | seconds, predicted | measured | times as fast "
            "(lowest to highest run) | accuracy | kept? |",
            "|---|---|---|---|---|---|---|---|",
        ]
        for name, way in self.ways.items():
            counted = "" if way.sent_bytes is None else units.decimal_size(way.sent_bytes)
            seconds = "" if way.seconds is None else measure.duration(way.seconds)
            accuracy = "" if way.accuracy is None else f"{way.accuracy:.1%}"
            kept = ""
            if way.verdict is not None:
                kept = f"{way.verdict.verdict} ({', '.join(f'{100 * end:+.1f}' for end in way.verdict.interval)})"
            runs = "" if way.gains is None or name == START else f" ({way.gains[0]:.1f} to {way.gains[1]:.1f})"
            lines.append(
                f"| {name} | {units.decimal_size(way.predicted_bytes)} | {counted} | "
                f"{measure.duration(way.predicted_s)} | {seconds} | {self.gain(name):.1f}{runs} | {accuracy} | {kept} |"
            )
        return "\n".join(lines)

    def rows(self) -> dict[str, tuple[float, tuple[float, float] | None, float | None, float | None]]:
        """Way -> times as fast, its range, accuracy, and half the width of its interval, for the figure."""
        return {
            name: (
                self.gain(name),
                way.gains,
                way.accuracy,
                None if way.verdict is None else (way.verdict.interval[1] - way.verdict.interval[0]) / 2,
            )
            for name, way in self.ways.items()
        }

    def sentence(self) -> str:
        """What this run showed."""
        others = [name for name in self.ways if name != START]
        best = max(others, key=self.gain)
        if not self.runs:
            return (
                f"Predicted only ({self.why_not}): {best} would be {self.gain(best):.1f} times as fast as sending "
                "everything. What it does to the accuracy cannot be predicted."
            )
        verdicts = {name: way.verdict.verdict for name in others if (way := self.ways[name]).verdict is not None}
        kept = [name for name in others if verdicts.get(name) == "kept"]
        lost = [name for name in others if verdicts.get(name) == "lost"]
        open_ = [name for name in others if verdicts.get(name) == "undecided"]
        start = self.ways[START].seconds
        told = f"On {self.megabits_per_s:g} Mbit/s the usual run took {measure.duration(start or 0.0)}. "
        told += f"Fastest: **{best}**, {self.gain(best):.1f} times as fast. "
        if kept:
            fastest = max(kept, key=self.gain)
            told += (
                f"Accuracy kept, to within {100 * MARGIN:g} point: {'; '.join(kept)}. The fastest of them is "
                f"{fastest} ({self.gain(fastest):.1f} times). "
            )
        if lost:
            told += f"Accuracy lost: {'; '.join(lost)}. "
        if open_:
            told += f"Not decided by {self.runs} runs of each: {'; '.join(open_)}. "
        told += f"Accumulation moved the accuracy by {self._accumulated()}. "
        if not self.is_enforced:
            told += "(The link was simulated: every message waited by itself.) "
        return told.strip()

    def _accumulated(self) -> str:
        first = self.ways[START].accuracy or 0.0
        return ", ".join(
            f"{100 * ((way.accuracy or 0.0) - first):+.1f} points ({name.removeprefix('accumulation ')}: "
            f"{way.plan.steps} steps for {self.ways[START].plan.steps})"
            for name, way in self.ways.items()
            if way.plan.accumulate > 1
        )


def predict_ways(batch_s: float = ASSUMED_BATCH_S, megabits_per_s: float = MEGABITS_PER_S) -> dict[str, Way]:
    """Predict bytes and seconds of every way."""
    link = costs.Link(0.0, megabits_per_s * 1e6 / 8)
    return {
        name: Way(plan, plans.predict_seconds(plan, batch_s, link), plans.predict_sent_bytes(plan))
        for name, plan in PLANS.items()
    }


def measure_recovery(stage: Stage, budget: Budget) -> Recovery:
    """Train by every plan on the stage's link, with a few seeds, and judge the accuracy in pairs."""
    speed = stage.megabits_per_s or MEGABITS_PER_S
    if not SEEDS[budget.name]:
        return Recovery(speed, True, predict_ways(), why_not="the smoke budget starts one program only")
    payload = {"plans": {name: asdict(plan) for name, plan in PLANS.items()}, "seeds_of_runs": list(SEEDS[budget.name])}
    try:
        values = stage.run(TARGET, payload).values
    except ranks.RanksFailed as failure:
        return Recovery(speed, True, predict_ways(), why_not=failure.result.reason)
    return read_recovery(speed, stage.is_enforced, values)


def read_recovery(megabits_per_s: float, is_enforced: bool, values: Sequence[Mapping[str, Any]]) -> Recovery:
    """Put together what the ranks told: a run is over when the last rank is."""
    first = values[0]
    labels = np.asarray(first["labels"])
    correct = {
        name: np.stack([np.asarray(run["predictions"]) == labels for run in runs])
        for name, runs in first["runs"].items()
    }
    ways, start_s = {}, np.ones(1)
    for name, way in predict_ways(float(first["batch_s"]), megabits_per_s).items():
        seconds = np.max([[run["seconds"] for run in value["runs"][name]] for value in values], axis=0)
        start_s = seconds if name == START else start_s
        sent = [run["sent_bytes"] for run in first["runs"][name]]
        verdict = None if name == START else stats.paired_non_inferiority(correct[START], correct[name], MARGIN)
        ways[name] = Way(
            way.plan, way.predicted_s, way.predicted_bytes, float(np.median(seconds)),
            None if None in sent else float(np.median(sent)), float(correct[name].mean()), verdict,
            (float((start_s / seconds).min()), float((start_s / seconds).max())),
        )  # fmt: skip
    return Recovery(megabits_per_s, is_enforced, ways, runs=len(correct[START]))
