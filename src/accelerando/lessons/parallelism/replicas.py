"""Data parallelism from hand-made to DDP, on two real ranks: is it right, what does it send, what does it take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from accelerando import costs, measure, ranks, stats, units
from accelerando.lessons import Budget

RANKS = 2
TELL = "accelerando.lessons.parallelism.on_replicas:tell"
ALONE, SILENT, DDP, INNER = "one rank, the whole batch", "no messages", "DDP", "inner module of DDP"
NOT_RUN = "Nothing was measured: the smoke budget starts no ranks."
LEFT_OUT = "left out"
"""The cap of DDP's buckets when nobody sets one."""
SAME = 1e-3
"""Weights that differ by less than this share of their way are the same but for rounding."""


def predict_step_s(alone_s: float, ranks: int, message_bytes: int, link: costs.Link) -> float:
    """Predict a data-parallel step without overlap: the batch is divided, the gradients are not.

    Args:
        alone_s: Seconds of a step with the whole batch on one rank.
        ranks: At least 1.
        message_bytes: Of all gradients.
        link: Between neighbours.
    """
    return alone_s / ranks + costs.predict_ring_all_reduce_s(message_bytes, ranks, link)


@dataclass(frozen=True)
class Way:
    """One way to train on several ranks.

    Args:
        apart: Largest difference between two ranks' weights after three steps, over the way that weights have gone.
        error: The same between the worst rank and one process with the whole batch.
        sent_bytes: Of one rank in one step; None where the system does not count.
        step_s: Median; None where it was not timed.
        interval_s: 95 %, for the median.
    """

    apart: float
    error: float
    sent_bytes: float | None
    step_s: float | None = None
    interval_s: tuple[float, float] | None = None

    @property
    def is_right(self) -> bool:
        """All ranks hold what one process with the whole batch would hold, but for rounding."""
        return self.apart < SAME and self.error < SAME


@dataclass(frozen=True)
class ReplicaStory:
    """All that one launch on two ranks told; without ``ways`` nothing was measured.

    Args:
        parameters: Of the model.
        link: Between the two ranks, measured; None when nothing was.
        ways: Name -> what came of it.
        alone_s: Seconds of a step with the whole batch on one rank, the other one idle.
        buckets: Cap in MiB -> bytes of each of DDP's buckets, in the order in which they leave.
        accumulation: How four batches became one step -> bytes of one rank for that step, and the error.
        unused: Option -> what DDP said about a parameter without a gradient.
        waited: What a rank with more batches than the others is told when its patience ends.
        joined_steps: Steps of each rank under `Join`.
        joined_apart: Difference of the weights afterwards.
        alone_interval_s: 95 %, for ``alone_s``; None when nothing was measured.
        speedup_interval: 95 %, for `speedup`, rounds drawn again; None when nothing was measured.
    """

    parameters: int = 0
    link: costs.Link | None = None
    ways: Mapping[str, Way] = field(default_factory=dict)
    alone_s: float = 0.0
    buckets: Mapping[str, Sequence[int]] = field(default_factory=dict)
    accumulation: Mapping[str, Mapping[str, float | None]] = field(default_factory=dict)
    unused: Mapping[str, str] = field(default_factory=dict)
    waited: str = ""
    joined_steps: tuple[int, ...] = ()
    joined_apart: float = 0.0
    alone_interval_s: tuple[float, float] | None = None
    speedup_interval: tuple[float, float] | None = None

    @property
    def speedup(self) -> float:
        """Time of one rank with the whole batch over the time of DDP on all ranks; NaN without a measurement."""
        seconds = self.ways[DDP].step_s if DDP in self.ways else None
        return self.alone_s / seconds if seconds else float("nan")

    def table(self) -> str:
        """Markdown: each way, whether ranks agree, whether the result is right, what it sent."""
        if not self.ways:
            return NOT_RUN
        lines = [
            "| what is done | ranks apart, % of the distance trained | worst rank from one big batch, % of it | "
            "sent per step | right? |",
            "|---|---|---|---|---|",
        ]
        lines += [
            f"| {name} | {_share(way.apart)} | {_share(way.error)} | {_size(way.sent_bytes)} | "
            f"{'yes' if way.is_right else '**no**'} |"
            for name, way in self.ways.items()
        ]
        return "\n".join(lines)

    def milliseconds(self) -> dict[str, tuple[float, float, float]]:
        """Way -> milliseconds of a step with its interval, with one rank alone first."""
        low, high = self.alone_interval_s or (self.alone_s, self.alone_s)
        rows = {ALONE: (1e3 * self.alone_s, 1e3 * low, 1e3 * high)} if self.ways else {}
        for name, way in self.ways.items():
            if way.step_s is not None and way.interval_s is not None:
                low, high = way.interval_s
                if not np.isfinite(high):
                    low = high = way.step_s
                rows[name] = (1e3 * way.step_s, 1e3 * low, 1e3 * high)
        return rows

    def right_sentence(self) -> str:
        """Which ways gave the result of one big batch."""
        if not self.ways:
            return NOT_RUN
        right = [name for name, way in self.ways.items() if way.is_right]
        wrong = [name for name, way in self.ways.items() if not way.is_right]
        text = (
            "Equal to one process with the whole batch, but for rounding (largest difference "
            f"{max((self.ways[name].error for name in right), default=0):.1g} of the distance trained): "
            f"{', '.join(right) or 'none'}. Not equal: {', '.join(wrong) or 'none'}."
        )
        if INNER in wrong:
            text += (
                f" Look at the last row: it sent {_size(self.ways[INNER].sent_bytes)} and raised no error. Each rank "
                "trained a model of its own."
            )
        return text

    def speed_sentence(self) -> str:
        """What two ranks made of a step's time."""
        if not self.ways:
            return NOT_RUN
        seconds = {name: way.step_s for name, way in self.ways.items() if way.step_s is not None}
        talk_s = seconds[DDP] - seconds[SILENT]
        each, flat, overlapped = (
            seconds[name] for name in ("average each gradient", "average in one message", "average while backward runs")
        )
        spread = "" if self.speedup_interval is None else " ({:.2f} to {:.2f})".format(*self.speedup_interval)
        told = (
            f"A step of the whole batch took {measure.duration(self.alone_s)} on one rank and "
            f"{measure.duration(seconds[DDP])} with DDP on {RANKS}: **{self.speedup:.2f} times**{spread} as fast, not "
            f"{RANKS}. "
            if self.speedup < 0.95 * RANKS
            else f"DDP on {RANKS} ranks made a step {self.speedup:.2f} times{spread} as fast: here the belief "
            "survives. "
        )
        if self.link is not None:
            predicted_s = predict_step_s(self.alone_s, RANKS, 4 * self.parameters, self.link)
            told += f"Predicted, half of the work and the whole message: {measure.duration(predicted_s)}"
            if seconds[DDP] > 1.3 * predicted_s:
                told += "; the rest is what it leaves out: ranks and messages share cores, caches and memory bandwidth"
            told += ". "
        if talk_s > 0.02 * seconds[DDP]:
            told += (
                f"Without any message it would have been {measure.duration(seconds[SILENT])}, so talking costs "
                f"{talk_s / seconds[DDP]:.0%} of the step. "
            )
        else:
            told += "Compared to a step without messages, talking cost nothing that can be seen here. "
        saved = 1 - overlapped / each
        return told + (
            f"By hand: {measure.duration(each)} with a message for each parameter after backward, "
            f"{measure.duration(overlapped)} with the same messages while backward runs ("
            + (f"overlap saved {saved:.0%}" if saved > 0.03 else "overlap saved nothing here")
            + f"), {measure.duration(flat)} with one message for all. {self._against_one_message()}"
        )

    def _against_one_message(self) -> str:
        """Whether DDP, which overlaps, is faster than one message after backward."""
        ddp, flat = self.ways[DDP], self.ways["average in one message"]
        assert ddp.step_s is not None
        assert flat.step_s is not None
        told = f"DDP overlaps as well, and took {measure.duration(ddp.step_s)}: "
        if _meet(ddp.interval_s, flat.interval_s):
            return told + "too close to one message for all to call, so its overlap shows no gain here."
        ratio = ddp.step_s / flat.step_s
        if ratio < 1:
            return told + f"{1 - ratio:.0%} less than one message for all."
        return told + f"{ratio - 1:.0%} more than one message for all, so its overlap bought nothing here."

    def bucket_sentence(self) -> str:
        """How DDP packs gradients."""
        if not self.buckets:
            return NOT_RUN
        lines = [
            f"{_cap(cap)}: {len(sizes)} bucket{'s' if len(sizes) != 1 else ''} "
            f"({', '.join(units.decimal_size(number) for number in sizes)})"
            for cap, sizes in self.buckets.items()
        ]
        return (
            f"{'; '.join(lines)}. No gradient is cut: a bucket takes whole ones and leaves once it has reached its "
            f"cap. All together {units.decimal_size(4 * self.parameters)}, whatever the cap."
        )

    def accumulation_sentence(self) -> str:
        """What `no_sync` saves."""
        if not self.accumulation:
            return NOT_RUN
        always, seldom = self.accumulation["every time"], self.accumulation["no_sync"]
        many, few = always["sent_bytes"], seldom["sent_bytes"]
        fewer = f"**{many / few:.1f} times** fewer" if many and few else "not counted here"
        half = self.accumulation["no_sync around backward only"]["sent_bytes"]
        return (
            f"One optimizer step from four batches: {_size(many)} sent with a message after each, {_size(few)} with "
            f"`no_sync` for the first three: {fewer}. With nothing but `backward` inside `no_sync` it was "
            f"{_size(half)}. The gradient is off from that of one big batch by {always['error']:.1g} and "
            f"{seldom['error']:.1g} of its largest entry: rounding."
        )

    def uneven_sentence(self) -> str:
        """What happens when ranks do not have the same number of batches."""
        if not self.joined_steps:
            return NOT_RUN
        waited = f"“{self.waited[:120]}”" if self.waited else "nothing (it did not even notice)"
        agree = "the same weights" if self.joined_apart < 1e-6 else f"weights that differ by {self.joined_apart:.2g}"
        return (
            f"With a patience of one second rank 0 was told {waited}; gloo's default patience is half an hour, "
            f"NCCL's ten minutes. Under `Join` the ranks made {' and '.join(map(str, self.joined_steps))} steps and "
            f"ended with {agree}."
        )


def _meet(one: tuple[float, float] | None, other: tuple[float, float] | None) -> bool:
    """Two intervals have something in common; so have those that nobody knows."""
    return one is None or other is None or (one[0] <= other[1] and other[0] <= one[1])


def _cap(cap: str) -> str:
    return "`bucket_cap_mb` left out" if cap == LEFT_OUT else f"`bucket_cap_mb={float(cap):g}`"


def _size(number: float | None) -> str:
    return "not counted" if number is None else units.decimal_size(number)


def _share(number: float) -> str:
    return "0" if number == 0 else f"{number:.1g}" if number < SAME else f"{number:.0%}"


def measure_replicas(budget: Budget) -> ReplicaStory:
    """Launch two ranks once and let them run every experiment of this part; nothing in smoke."""
    if budget.name == "smoke":
        return ReplicaStory()
    payload = {"rounds": budget.rounds, "steps": 5}
    return read_story(ranks.run(TELL, RANKS, payload=payload, time_limit_s=240.0).values)


def read_story(values: Sequence[Mapping[str, Any]]) -> ReplicaStory:
    """Put together what the ranks told."""
    first = values[0]
    alone, ddp = (np.array(first["seconds"][name]) for name in (ALONE, DDP))
    alone_s, *alone_ends = stats.median_interval(alone)
    ways = {}
    for name, found in first["ways"].items():
        apart = max(value["ways"][name]["apart"] for value in values)
        timed: tuple[Any, ...] = (None, None)
        if name in first["seconds"]:
            median, low, high = stats.median_interval(np.array(first["seconds"][name]))
            timed = (median, (low, high))
        ways[name] = Way(apart, found["error"], found["sent_bytes"], *timed)
    return ReplicaStory(
        parameters=first["parameters"],
        link=costs.Link(*first["link"]),
        ways=ways,
        alone_s=alone_s,
        buckets=first["buckets"],
        accumulation=first["accumulation"],
        unused=first["unused"],
        waited=first["uneven"]["waited"],
        joined_steps=tuple(value["uneven"]["steps"] for value in values),
        joined_apart=max(value["uneven"]["apart"] for value in values),
        alone_interval_s=(alone_ends[0], alone_ends[1]),
        speedup_interval=_ratio_interval(alone, ddp),
    )


def _ratio_interval(above_s: np.ndarray, below_s: np.ndarray, resamples: int = 2000) -> tuple[float, float]:
    """95 % bootstrap interval of the ratio of two medians; the rounds of both are drawn together."""
    rounds = np.random.default_rng(0).integers(0, len(above_s), (resamples, len(above_s)))
    ratios = np.median(above_s[rounds], axis=1) / np.median(below_s[rounds], axis=1)
    low, high = np.quantile(ratios, (0.025, 0.975))
    return float(low), float(high)
