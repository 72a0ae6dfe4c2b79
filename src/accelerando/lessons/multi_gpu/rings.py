"""One slow hop in a ring, predicted and measured between real ranks; and when a tree is the better way."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from accelerando import collectives, costs, measure, ranks, units
from accelerando.lessons import Budget
from accelerando.lessons.multi_gpu.topologies import Pair, predict_paced_s

RANKS = 4
TELL = "accelerando.lessons.multi_gpu.on_ranks:pace"
LATENCY_S, FAST, SLOW = 2e-3, costs.Link(2e-3, 6.4e6), costs.Link(2e-3, 0.8e6)
"""Links that ranks of this machine play, a thousand times slower than real ones; 8 times apart, as NVLink and PCIe are.
What gloo takes and the waking of ranks come on top: it counts for short messages, and `PacedRings` tells how much."""
REPEATS = 3
LONG_BYTES, SHORT_BYTES = 256 * 1024, 256
SLOW_HOPS = {"four fast hops": (), "one slow hop": (3,), "two slow hops": (1, 3), "four slow hops": (0, 1, 2, 3)}
"""Case -> ranks whose link to their right neighbour is slow."""


def links_of(slow: Sequence[int]) -> dict[Pair, costs.Link]:
    """All links between `RANKS` ranks; a slow hop is slow in both directions."""
    pairs = {frozenset((rank, (rank + 1) % RANKS)) for rank in slow}
    return {(a, b): SLOW if frozenset((a, b)) in pairs else FAST for a in range(RANKS) for b in range(RANKS) if a != b}


def cases() -> dict[str, tuple[str, int, tuple[int, ...]]]:
    """What is run: label -> algorithm, bytes, slow hops."""
    rings = {label: ("ring", LONG_BYTES, slow) for label, slow in SLOW_HOPS.items()}
    both = {f"{name}, short": (name, SHORT_BYTES, ()) for name in ("ring", "tree")}
    return rings | {"tree, long": ("tree", LONG_BYTES, ())} | both


def predict_cases_s() -> dict[str, float]:
    """Seconds of each case by the cost model."""
    return {
        label: predict_paced_s(collectives.ALGORITHMS[algorithm](RANKS), size, links_of(slow))
        for label, (algorithm, size, slow) in cases().items()
    }


@dataclass(frozen=True)
class PacedRings:
    """All-reduces over links that differ.

    Args:
        predicted_s: Case -> seconds.
        measured_s: Case -> median seconds; empty when nothing was measured.
        is_right: All sums were right.
        ranges_s: Case -> the shortest and the longest of the repeats.
    """

    predicted_s: dict[str, float]
    measured_s: dict[str, float]
    is_right: bool
    ranges_s: dict[str, tuple[float, float]] = field(default_factory=dict)

    @property
    def slowdown(self) -> float:
        """How many times longer the ring takes with one slow hop, measured where it was measured."""
        times = self.measured_s or self.predicted_s
        return times["one slow hop"] / times["four fast hops"]

    def rows_s(self, labels: Sequence[str]) -> dict[str, tuple[float, float | None, tuple[float, float] | None]]:
        """For the figure: case -> seconds predicted, measured, and of the shortest and longest repeat."""
        return {
            label: (self.predicted_s[label], self.measured_s.get(label), self.ranges_s.get(label)) for label in labels
        }

    def sentence(self) -> str:
        """What this run showed."""
        times = self.measured_s or self.predicted_s
        fast, one, four = (times[label] for label in ("four fast hops", "one slow hop", "four slow hops"))
        fast_mb, slow_mb = (link.bandwidth_bytes_per_s / 1e6 for link in (FAST, SLOW))
        ratio = FAST.bandwidth_bytes_per_s / SLOW.bandwidth_bytes_per_s
        how = "Predicted only (the smoke budget starts no ranks)"
        if self.measured_s:
            how = f"Measured between real ranks (medians of {REPEATS} runs, and the shortest and the longest)"
        told = (
            f"{how}, on links of {1e3 * LATENCY_S:g} ms and {fast_mb:g} MB/s, or {slow_mb:g} MB/s where they are slow: "
            f"with one hop that is {ratio:g} times slower, the ring takes {self._time('one slow hop')} in place of "
            f"{self._time('four fast hops')}, **{one / fast:.1f} times as long**. With all four hops slow it takes "
            f"{self._time('four slow hops')}"
        )
        if one > 0.85 * four:
            return (
                f"{told}: the three fast hops save next to nothing. (Not {ratio:g} times as long, because slow and "
                f"fast hops have the same latency; the larger the tensor, the closer it comes to {ratio:g}.)"
            )
        return f"{told}, so here the fast hops did save something: this machine was busy, look at the prediction."

    def tree_sentence(self) -> str:
        """Which algorithm won for which size."""
        times = self.measured_s or self.predicted_s
        rows = {
            f"{SHORT_BYTES} bytes": {"ring": "ring, short", "tree": "tree, short"},
            f"{LONG_BYTES // 1024} KB": {"ring": "four fast hops", "tree": "tree, long"},
        }
        told = []
        for size, labels in rows.items():
            best = min(labels, key=lambda name, labels=labels: times[labels[name]])  # type: ignore[misc]
            said = ", ".join(f"{name} {self._told(label)}" for name, label in labels.items())
            told.append(f"{size}, {said}: **{best}** wins")
        return f"{'Measured' if self.measured_s else 'Predicted'} on {RANKS} ranks: {'; '.join(told)}.{self._miss()}"

    def _told(self, label: str) -> str:
        predicted = measure.duration(self.predicted_s[label])
        return f"{self._time(label)}, {predicted} predicted" if label in self.measured_s else predicted

    def _time(self, label: str) -> str:
        """A time, with the shortest and the longest of the repeats where it was measured."""
        seconds = (self.measured_s or self.predicted_s)[label]
        if label not in self.ranges_s:
            return measure.duration(seconds)
        low, high = self.ranges_s[label]
        return f"{measure.duration(seconds)} ({measure.duration(low)} to {measure.duration(high)})"

    def _miss(self) -> str:
        """How far the short messages are from the prediction, where that is worth a word."""
        short = [label for label in ("ring, short", "tree, short") if label in self.measured_s]
        longer = max((self.measured_s[label] / self.predicted_s[label] - 1 for label in short), default=0.0)
        if longer <= 0.1:
            return ""
        return (
            f" The {SHORT_BYTES} bytes take up to {longer:.0%} longer than predicted: the model knows the links and "
            "nothing else. In every step ranks that slept have to be woken, which is a likely cause; it was not "
            "measured by itself."
        )


def measure_rings(budget: Budget) -> PacedRings:
    """Run every case between real ranks whose links are held back to a known speed; predictions only in smoke."""
    if budget.name == "smoke":
        return PacedRings(predict_cases_s(), {}, is_right=True)
    payload = {
        "cases": {label: [name, size, list(slow)] for label, (name, size, slow) in cases().items()},
        "repeats": REPEATS,
    }
    return read_rings(list(ranks.run(TELL, RANKS, payload=payload).values))


def read_rings(values: Sequence[Mapping[str, Any]]) -> PacedRings:
    """Put together what the ranks told: an all-reduce is over when the last rank has the sum."""
    times = {label: np.max([value["seconds"][label] for value in values], axis=0) for label in cases()}
    return PacedRings(
        predict_cases_s(),
        {label: float(np.median(seconds)) for label, seconds in times.items()},
        all(value["is_right"] for value in values),
        {label: (float(seconds.min()), float(seconds.max())) for label, seconds in times.items()},
    )


def predict_nccl_s(algorithm: str, message_bytes: float, world_size: int, link: costs.Link) -> float:
    """Predict an all-reduce as NCCL makes it, over equal links.

    Its ring is that of lesson 7. Its tree is two binary trees over the same ranks, each for half of the tensor: inner
    in one, a leaf in the other, a rank sends about two tensors in all; and as pieces follow each other closely, the
    bandwidth part is paid once, and the latency once for every level, up and down.

    Args:
        algorithm: "ring" or "tree".
        message_bytes: Of the tensor.
        world_size: At least 2.
        link: Between any two.

    Source:
        S. Jeaugey (2019), Massively scale your deep learning training with NCCL 2.4; P. Sanders, J. Speck, J. L. Träff
        (2009), Two-tree algorithms for full bandwidth broadcast, reduction and scan.
    """
    if algorithm == "ring":
        return costs.predict_ring_all_reduce_s(round(message_bytes), world_size, link)
    if algorithm != "tree":
        raise ValueError(f"algorithm is {algorithm!r}: say ring or tree")
    return 2 * math.ceil(math.log2(world_size)) * link.latency_s + 2 * message_bytes / link.bandwidth_bytes_per_s


def predict_crossover_bytes(world_size: int, link: costs.Link) -> float:
    """Predict the size of tensor up to which NCCL's tree is faster than its ring.

    Args:
        world_size: At least 2.
        link: Between any two.

    Returns:
        Bytes; 0.0 where the ring is never slower.
    """
    saved_steps = 2 * (world_size - 1) - 2 * math.ceil(math.log2(world_size))
    return saved_steps * link.latency_s * link.bandwidth_bytes_per_s * world_size / 2


def crossover_sentence(link: costs.Link) -> str:
    """Where the tree stops winning, for few and for many ranks."""
    places = [f"{units.decimal_size(predict_crossover_bytes(n, link))} on {n} ranks" for n in (8, 64, 512)]
    return (
        f"On links of {link.bandwidth_bytes_per_s / 1e9:g} GB/s and {measure.duration(link.latency_s)}, the tree is "
        f"predicted to win up to {', '.join(places)}. The more ranks, the more a ring pays for its many steps."
    )
