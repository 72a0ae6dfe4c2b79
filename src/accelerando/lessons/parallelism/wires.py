"""What collectives move, counted by the system, and what an all-reduce by hand takes on links of known speed."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from accelerando import cluster, collectives, costs, measure, programs, ranks, stats, units
from accelerando.lessons import Budget

RANKS = 4
COUNT, TIME = (f"accelerando.lessons.parallelism.on_wires:{name}" for name in ("count", "time_all_reduce"))
OWN = "gloo's own"
MESSAGE_BYTES = 2**20
SIZES_BYTES = (64, 2 * 2**20)
MEGABITS_PER_S = 100

AFTERWARDS = {
    "send and receive": "one rank has what another had",
    "broadcast": "everybody has the tensor of rank 0",
    "scatter": "everybody has its piece of rank 0's tensor",
    "gather": "rank 0 has everybody's piece",
    "reduce": "rank 0 has the sum",
    "all-gather": "everybody has everybody's piece",
    "reduce-scatter": "everybody has its piece of the sum",
    "all-reduce": "everybody has the sum",
    "all-to-all": "everybody has one piece from everybody",
    "barrier": "everybody knows that all have come",
}


def predict_moved_bytes(collective: str, message_bytes: int, world_size: int) -> float:
    """Predict the bytes that all ranks together must send for one collective.

    Args:
        collective: One of `AFTERWARDS`.
        message_bytes: The tensor, all its ``world_size`` pieces together.
        world_size: At least 2.
    """
    others = world_size - 1
    if collective == "send and receive":
        return message_bytes
    if collective in ("scatter", "gather"):
        return others / world_size * message_bytes
    if collective in ("broadcast", "reduce", "all-gather", "reduce-scatter", "all-to-all"):
        return others * message_bytes
    if collective == "all-reduce":
        return 2 * others * message_bytes
    if collective == "barrier":
        return 0
    raise ValueError(f"there is no collective {collective!r}: say one of {', '.join(AFTERWARDS)}")


@dataclass(frozen=True)
class CollectiveCounts:
    """What every collective moved.

    Args:
        message_bytes: Size of the tensor.
        world_size: Ranks.
        sent_bytes: Collective -> what each rank sent; empty when it was refused or could not be counted.
        refused: Collective -> gloo's sentence.
    """

    message_bytes: int
    world_size: int
    sent_bytes: dict[str, tuple[int, ...]]
    refused: dict[str, str]

    def table(self) -> str:
        """Markdown: who has what afterwards, predicted and counted."""
        lines = ["| collective | afterwards | needed, all ranks | counted | busiest rank |", "|---|---|---|---|---|"]
        for name, afterwards in AFTERWARDS.items():
            needed_bytes = predict_moved_bytes(name, self.message_bytes, self.world_size)
            needed = units.decimal_size(needed_bytes) if needed_bytes else "nothing of the tensor"
            sent = self.sent_bytes.get(name)
            counted = self.refused.get(name, "not counted") if sent is None else units.decimal_size(sum(sent))
            lines.append(
                f"| {name} | {afterwards} | {needed} | {counted} | {units.decimal_size(max(sent)) if sent else ''} |"
            )
        return "\n".join(lines)

    def sentence(self) -> str:
        """What this run showed."""
        if not self.sent_bytes:
            return "No bytes were counted in this run: the smoke budget starts no ranks, or the system does not tell."
        ratios = {
            name: sum(sent) / predict_moved_bytes(name, self.message_bytes, self.world_size)
            for name, sent in self.sent_bytes.items()
            if name not in ("barrier", "send and receive")
        }
        exact = [name for name, ratio in ratios.items() if 0.95 < ratio < 1.05]
        wasteful = {name: ratio for name, ratio in ratios.items() if ratio >= 1.05}
        told = f"{self._most()}{len(exact)} of {len(ratios)} collectives of data move what they have to, within 5 %"
        if wasteful:
            worst = max(wasteful, key=lambda name: wasteful[name])
            told += (
                f"; more is moved for {' and '.join(wasteful)} ({worst}: {wasteful[worst]:.1f} times as much), which "
                "gloo makes out of other collectives"
            )
        if "all-reduce" in self.sent_bytes:
            each = max(self.sent_bytes["all-reduce"])
            told += (
                f". In the all-reduce the busiest of {self.world_size} ranks sent {each / self.message_bytes:.2f} "
                f"times the tensor; 2(N − 1)/N is {2 * (self.world_size - 1) / self.world_size:.2f}"
            )
        return f"{told}."

    def _most(self) -> str:
        moved = {name: sum(sent) for name, sent in self.sent_bytes.items()}
        highest = max(moved.values())
        most = [name for name, number in moved.items() if number > 0.95 * highest]
        return f"Most was moved for **{' and '.join(most)}**, {units.decimal_size(highest)}. "


def count_collectives(budget: Budget) -> CollectiveCounts:
    """Run every collective once on four ranks of this machine and read the system's counters; nothing in smoke."""
    if budget.name == "smoke":
        return CollectiveCounts(MESSAGE_BYTES, RANKS, {}, {})
    values = ranks.run(COUNT, RANKS, payload={"message_bytes": MESSAGE_BYTES}).values
    return read_counts(MESSAGE_BYTES, [value["sent"] for value in values])


def read_counts(message_bytes: int, sent: Sequence[dict[str, Any]]) -> CollectiveCounts:
    """Put together what the ranks told."""
    refused = {name: found for name, found in sent[0].items() if isinstance(found, str)}
    counted = {
        name: tuple(row[name] for row in sent)
        for name in sent[0]
        if all(isinstance(row.get(name), int) for row in sent)
    }
    return CollectiveCounts(message_bytes, len(sent), counted, refused)


@dataclass(frozen=True)
class AllReduceTimes:
    """An all-reduce of two sizes by every algorithm, predicted and measured.

    Args:
        where: Between what, in words.
        is_shaped: The link's bandwidth was set, not measured.
        link: Latency measured; bandwidth set, or measured where it could not be set.
        world_size: Ranks.
        predicted_s: Algorithm -> seconds for each of ``sizes_bytes``.
        measured_s: Likewise, medians; empty when nothing was measured.
        sizes_bytes: Of the tensor.
        intervals_s: Like ``measured_s``: 95 %, for the medians.
    """

    where: str
    is_shaped: bool
    link: costs.Link
    world_size: int
    predicted_s: dict[str, tuple[float, ...]]
    measured_s: dict[str, tuple[float, ...]]
    sizes_bytes: tuple[int, ...]
    intervals_s: dict[str, tuple[tuple[float, float], ...]] = field(default_factory=dict)

    def rows_s(self, place: int) -> dict[str, tuple[float, float | None, tuple[float, float] | None]]:
        """For the figure, one of the sizes: algorithm -> seconds predicted, measured, and that one's interval."""
        return {
            name: (
                predicted[place],
                self.measured_s[name][place] if name in self.measured_s else None,
                self.intervals_s[name][place] if name in self.intervals_s else None,
            )
            for name, predicted in self.predicted_s.items()
        }

    def sentence(self) -> str:
        """What this run showed."""
        small, large = (units.decimal_size(number) for number in self.sizes_bytes)
        if not self.measured_s:
            ring, naive = self.predicted_s["ring"][1], self.predicted_s["naive"][1]
            return f"Predicted only: {large} by ring {measure.duration(ring)}, naive {measure.duration(naive)}."
        fastest = [self._fastest(place) for place in (0, 1)]
        expected = min(self.predicted_s, key=lambda name: self.predicted_s[name][0])
        naive, tree, ring = (self.measured_s[name][1] for name in ("naive", "tree", "ring"))
        told = (
            f"{self.where}: {large} took {measure.duration(naive)} naive, {measure.duration(tree)} by tree and "
            f"{measure.duration(ring)} by ring ({naive / ring:.1f} times as fast as naive; predicted "
            f"{self.predicted_s['naive'][1] / self.predicted_s['ring'][1]:.1f}). The prediction was worst for "
            f"{self._worst(1)} when the message had {large}, and for {self._worst(0)} when it had {small}. Fastest of "
            f"{large}: {_listed(fastest[1])}; of {small}: {_listed(fastest[0])}"
        )
        if fastest[0] == [expected]:
            return f"{told}, as predicted."
        if expected in fastest[0]:
            return f"{told}; {expected} was predicted."
        return (
            f"{told}, where {expected} was predicted: what a rank does for each message, and how soon the system wakes "
            "it, is not in the prediction."
        )

    def _fastest(self, place: int) -> list[str]:
        """The algorithm of the lowest median, then those whose interval begins before its interval ends."""
        order = sorted(self.measured_s, key=lambda name: self.measured_s[name][place])
        if not self.intervals_s:
            return order[:1]
        high = self.intervals_s[order[0]][place][1]
        return [name for name in order if name == order[0] or self.intervals_s[name][place][0] <= high]

    def _worst(self, place: int) -> str:
        ratios = {name: self.measured_s[name][place] / times[place] for name, times in self.predicted_s.items()}
        name = max(ratios, key=lambda name: abs(math.log(ratios[name])))
        return (
            f"{name} ({measure.duration(self.predicted_s[name][place])} predicted, "
            f"{measure.duration(self.measured_s[name][place])} measured: {ratios[name]:.1f} times as long)"
        )


def _listed(names: Sequence[str]) -> str:
    told = " and ".join(f"**{name}**" for name in names)
    return told if len(names) == 1 else f"{told}, too close to call"


def measure_all_reduce(
    budget: Budget, *, world_size: int = RANKS, megabits_per_s: int = MEGABITS_PER_S
) -> AllReduceTimes:
    """Time all-reduce by hand between virtual nodes whose links have a known speed, else between ranks of this machine.

    Args:
        budget: In smoke nothing is measured.
        world_size: Nodes, one rank each.
        megabits_per_s: Bandwidth of every node's link.
    """
    bandwidth, speed = f"{megabits_per_s}mbit", f"links of {megabits_per_s} Mbit/s"
    payload = {"sizes_bytes": list(SIZES_BYTES), "repeats": 5 if budget.name == "quick" else 9}
    if budget.name == "smoke":
        link = costs.Link(1e-4, cluster.parse_bandwidth(bandwidth))
        return read_times(f"{world_size} ranks, {speed}", link, world_size, [], is_shaped=True)
    why = "no reason was given"
    try:
        with cluster.up(world_size, bandwidth=bandwidth, name=f"lesson-7-{os.getpid() % 10**6}") as made:
            if made.why_loopback is None:
                launcher = "mpirun" if programs.find_open_mpi() else "torchrun"
                values = made.run(TIME, payload=payload, launcher=launcher, time_limit_s=120.0).values
                link = costs.Link(values[0]["latency_s"], cluster.parse_bandwidth(bandwidth))
                where = f"{world_size} virtual nodes, {speed}"
                return read_times(where, link, world_size, values, is_shaped=True)
            why = made.why_loopback
    except (cluster.ClusterError, ranks.RanksFailed) as error:
        why = str(error).splitlines()[0]
    values = ranks.run(TIME, world_size, payload=payload).values
    link = costs.Link(values[0]["latency_s"], values[0]["bandwidth_bytes_per_s"])
    where = f"{world_size} ranks of this machine, links of no set speed ({why})"
    return read_times(where, link, world_size, values, is_shaped=False)


def read_times(
    where: str, link: costs.Link, world_size: int, values: Sequence[dict[str, Any]], *, is_shaped: bool
) -> AllReduceTimes:
    """Put together what the ranks told: an all-reduce is over when the last rank has the sum."""
    schedules = {name: make(world_size) for name, make in collectives.ALGORITHMS.items()} | {
        OWN: collectives.ring(world_size)
    }
    predicted = {
        name: tuple(schedule.predict_s(number, link) for number in SIZES_BYTES) for name, schedule in schedules.items()
    }
    predicted["naive"] = tuple(costs.predict_naive_all_reduce_s(number, world_size, link) for number in SIZES_BYTES)
    found = {
        name: [
            stats.median_interval(np.max([value["seconds"][name][place] for value in values], axis=0))
            for place in range(len(SIZES_BYTES))
        ]
        for name in (schedules if values else ())
    }
    return AllReduceTimes(
        where,
        is_shaped,
        link,
        world_size,
        predicted,
        {name: tuple(median for median, _, _ in rows) for name, rows in found.items()},
        SIZES_BYTES,
        {name: tuple((low, high) for _, low, high in rows) for name, rows in found.items()},
    )
