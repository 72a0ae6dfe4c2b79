"""Messages that travel while backward still runs: predicted from buckets, measured with a link that needs no core."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from accelerando import costs, measure, ranks
from accelerando.lessons import Budget

TELL = "accelerando.lessons.multi_gpu.on_ranks:hide"
REPEATS = 7
CAPS_MB = {"one bucket": 1000.0, "buckets": 1.0}
"""What DDP is told: everything in one message, or messages of about a megabyte."""


def predict_backward_s(backward_s: float, bucket_bytes: Sequence[float], link: costs.Link) -> float:
    """Predict backward with its messages: a bucket leaves when its gradients are there and the one before is through.

    Args:
        backward_s: Seconds of backward alone; gradients come in evenly, byte by byte.
        bucket_bytes: Of each bucket, in the order in which they leave.
        link: That the messages share.

    Returns:
        Seconds until the last gradient has arrived.
    """
    return max(backward_s, spans(backward_s, bucket_bytes, link)[-1][1])


def spans(backward_s: float, bucket_bytes: Sequence[float], link: costs.Link) -> tuple[tuple[float, float], ...]:
    """When each bucket travels: (start, end) in seconds from the start of backward; arguments as above."""
    total, ready, end, found = sum(bucket_bytes), 0.0, 0.0, []
    for size in bucket_bytes:
        ready += backward_s * size / total
        start = max(ready, end)
        end = start + link.latency_s + size / link.bandwidth_bytes_per_s
        found.append((start, end))
    return tuple(found)


@dataclass(frozen=True)
class OverlapStory:
    """A step with messages behind backward, and without.

    Args:
        silent_s: Median of forward and backward without any message.
        backward_s: Of backward alone.
        link: That was played.
        buckets: Name of `CAPS_MB` -> bytes of each bucket.
        measured_s: Likewise -> median seconds of forward and backward, until all messages were through.
        ranges_s: Likewise, and "no messages" -> the shortest and the longest of the repeats.
    """

    silent_s: float
    backward_s: float
    link: costs.Link
    buckets: dict[str, tuple[int, ...]]
    measured_s: dict[str, float]
    ranges_s: dict[str, tuple[float, float]] = field(default_factory=dict)

    @property
    def message_s(self) -> float:
        """What the link takes for all gradients: what could be hidden at most."""
        return self.link.latency_s + sum(self.buckets["one bucket"]) / self.link.bandwidth_bytes_per_s

    @property
    def predicted_s(self) -> dict[str, float]:
        """What the model says, for each of `buckets`."""
        forward_s = self.silent_s - self.backward_s
        return {
            name: forward_s + predict_backward_s(self.backward_s, sizes, self.link)
            for name, sizes in self.buckets.items()
        }

    def rows_s(self) -> dict[str, tuple[float, float | None, tuple[float, float] | None]]:
        """For the figure: each of `buckets` -> seconds predicted, measured, and of the shortest and longest repeat."""
        return {
            name: (seconds, self.measured_s[name], self.ranges_s.get(name))
            for name, seconds in self.predicted_s.items()
        }

    def messages_ms(self) -> dict[str, tuple[float, list[tuple[float, float]]]]:
        """For the figure: name of `CAPS_MB` -> milliseconds of backward, and when each message travels, predicted."""
        return {
            name: (
                1e3 * self.backward_s,
                [(1e3 * a, 1e3 * b) for a, b in spans(self.backward_s, sizes, self.link)],
            )
            for name, sizes in self.buckets.items()
        }

    def sentence(self) -> str:
        """What this run showed."""
        one, many = (self.measured_s[name] for name in CAPS_MB)
        once, often = (self.predicted_s[name] for name in CAPS_MB)
        hidden, expected = (one - many) / self.message_s, (once - often) / self.message_s
        told = (
            f"(Medians of {REPEATS} steps, and the shortest and the longest.) Without messages a step takes "
            f"{self._told('no messages', self.silent_s)}; with one message behind backward "
            f"{self._told('one bucket', one)}; in {len(self.buckets['buckets'])} buckets "
            f"{self._told('buckets', many)}. Predicted: {measure.duration(once)} and {measure.duration(often)}. "
            f"The link needs {measure.duration(self.message_s)} for all gradients"
        )
        if hidden <= 0.15:
            told += (
                ". In this run next to nothing of that was hidden, as happens on busy cores: look at the prediction."
            )
        else:
            told += (
                f"; **{min(hidden, 1):.0%} of the message's time is hidden** behind backward; predicted: "
                f"{expected:.0%}, if gradients come evenly and a bucket costs nothing but its message."
            )
        if one > 1.05 * once:
            told += (
                f" Even with one message the step takes {measure.duration(one - once)} longer than predicted. That is "
                "no message but DDP's own work and that of the played link. Copies into buckets, the hook in Python "
                "and the waking of a sleeping thread come to mind; none of them was measured."
            )
        return told

    def _told(self, name: str, seconds: float) -> str:
        if name not in self.ranges_s:
            return measure.duration(seconds)
        low, high = self.ranges_s[name]
        return f"{measure.duration(seconds)} ({measure.duration(low)} to {measure.duration(high)})"


def measure_overlap(budget: Budget) -> OverlapStory | None:
    """Time one process of its own, on a CPU, whose messages go over a played link; None in smoke."""
    if budget.name == "smoke":
        return None
    return read_overlap(ranks.run(TELL, 1, payload={"repeats": REPEATS}).values[0])


def read_overlap(told: Mapping[str, Any]) -> OverlapStory:
    """Put together what `on_ranks.hide` told."""
    seconds: dict[str, list[float]] = told["seconds"]
    medians = {name: statistics.median(times) for name, times in seconds.items()}
    return OverlapStory(
        medians["no messages"],
        told["backward_s"],
        costs.Link(0.0, told["bandwidth_bytes_per_s"]),
        {name: tuple(sizes) for name, sizes in told["buckets"].items()},
        {name: medians[name] for name in CAPS_MB},
        {name: (min(times), max(times)) for name, times in seconds.items()},
    )
