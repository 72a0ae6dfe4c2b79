"""Messages that travel while backward still runs: predicted from buckets, measured with a link that needs no core."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from accelerando import costs, measure

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
    """

    silent_s: float
    backward_s: float
    link: costs.Link
    buckets: dict[str, tuple[int, ...]]
    measured_s: dict[str, float]

    @property
    def predicted_s(self) -> dict[str, float]:
        """What the model says, for each of `buckets`."""
        forward_s = self.silent_s - self.backward_s
        return {
            name: forward_s + predict_backward_s(self.backward_s, sizes, self.link)
            for name, sizes in self.buckets.items()
        }

    def pairs_ms(self) -> dict[str, tuple[float, float | None]]:
        """Predicted and measured milliseconds, for each of `buckets`."""
        return {name: (1e3 * seconds, 1e3 * self.measured_s[name]) for name, seconds in self.predicted_s.items()}

    def rows_ms(self) -> dict[str, tuple[float, list[tuple[float, float]]]]:
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
        hidden = (one - many) / max(one - self.silent_s, 1e-9)
        once, often = (self.predicted_s[name] for name in CAPS_MB)
        expected = (once - often) / max(once - self.silent_s, 1e-9)
        count = len(self.buckets["buckets"])
        told = (
            f"Without messages a step takes {measure.duration(self.silent_s)}; with one message behind backward "
            f"{measure.duration(one)}; in {count} buckets {measure.duration(many)} (predicted: "
            f"{measure.duration(self.predicted_s['one bucket'])} and {measure.duration(self.predicted_s['buckets'])})"
        )
        if hidden > 0.15:
            told += (
                f". **{min(hidden, 1):.0%} of the message's time is hidden** behind backward; predicted: {expected:.0%}"
            )
            if hidden < 0.8 * expected:
                told += (
                    ", if gradients came evenly and nobody had to wait for a core. Here several ranks compute on few "
                    "cores, and a bucket leaves when the last of them has it"
                )
            return f"{told}."
        return f"{told}. In this run next to nothing was hidden: the cores were busy, look at the prediction."


def read_overlap(told: Mapping[str, Any]) -> OverlapStory:
    """Put together what rank 0 told."""
    return OverlapStory(
        told["silent_s"],
        told["backward_s"],
        costs.Link(0.0, told["bandwidth_bytes_per_s"]),
        {name: tuple(sizes) for name, sizes in told["buckets"].items()},
        dict(told["measured_s"]),
    )
