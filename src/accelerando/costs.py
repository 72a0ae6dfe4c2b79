"""What a run should cost, before it is run: pure predictions of time, bytes and money.

Nothing here measures anything. A lesson writes a prediction down, measures, and looks at the difference.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class Link:
    """What connects two neighbours.

    Args:
        latency_s: Seconds that a message of no bytes takes; at least 0.
        bandwidth_bytes_per_s: Bytes per second of a long message; above 0.
    """

    latency_s: float
    bandwidth_bytes_per_s: float

    def __post_init__(self) -> None:
        _at_least("latency_s", self.latency_s, 0)
        _above("bandwidth_bytes_per_s", self.bandwidth_bytes_per_s, 0)


def predict_speedup(serial_fraction: float, workers: float) -> float:
    """Predict how many times faster the same work becomes (Amdahl's law).

    The serial part keeps its time, the rest is divided: the gain can never exceed ``1 / serial_fraction``.

    Args:
        serial_fraction: Share of the time on one worker that cannot be divided, 0 to 1.
        workers: Cores, processes or machines; at least 1.

    Returns:
        Time on one worker divided by time on ``workers``.

    Raises:
        ValueError: If an argument is out of range.

    Source:
        Amdahl (1967), Validity of the single processor approach to achieving large scale computing capabilities.
    """
    _share("serial_fraction", serial_fraction)
    _at_least("workers", workers, 1)
    return 1 / (serial_fraction + (1 - serial_fraction) / workers)


def predict_scaled_speedup(serial_fraction: float, workers: float) -> float:
    """Predict how many times more work is done in the same time (Gustafson's law).

    When the work grows with the workers, the serial part becomes a smaller share of it: the gain has no ceiling.

    Args:
        serial_fraction: Share of the time *on the many workers* that is serial, 0 to 1.
        workers: At least 1.

    Returns:
        Work done by ``workers`` divided by work done by one, in equal time.

    Raises:
        ValueError: If an argument is out of range.

    Source:
        Gustafson (1988), Reevaluating Amdahl's law.
    """
    _share("serial_fraction", serial_fraction)
    _at_least("workers", workers, 1)
    return workers - serial_fraction * (workers - 1)


def serial_fraction_of(speedup: float, workers: float) -> float:
    """Compute the serial fraction that would explain a measured speed-up (Karp and Flatt).

    If it stays the same as workers are added, something serial limits; if it grows, something shared does: memory
    bandwidth, locks, communication. Noise, and caches that add up, can push it below 0; it is returned as it is.

    Args:
        speedup: Measured, above 0.
        workers: Above 1.

    Returns:
        The fraction; at most 1 unless more workers made it slower.

    Raises:
        ValueError: If an argument is out of range.

    Source:
        Karp and Flatt (1990), Measuring parallel processor performance.
    """
    _above("speedup", speedup, 0)
    _above("workers", workers, 1)
    return (1 / speedup - 1 / workers) / (1 - 1 / workers)


def fit_serial_fraction(times_s: Mapping[int, float]) -> float:
    """Fit Amdahl's serial fraction to times on several numbers of workers, by least squares.

    Args:
        times_s: Workers -> seconds, for 1 and at least one more.

    Returns:
        The fraction, kept within 0 to 1.

    Raises:
        ValueError: If the time on one worker is missing, or it is the only one.
    """
    if 1 not in times_s or len(times_s) < 2:
        raise ValueError(f"times for {sorted(times_s)} workers: needed are 1 and at least one other number")
    # T(n)/T(1) - 1/n = fraction * (1 - 1/n): a line through the origin.
    rows = [(1 - 1 / workers, seconds / times_s[1] - 1 / workers) for workers, seconds in times_s.items()]
    fraction = sum(x * y for x, y in rows) / sum(x * x for x, _ in rows)
    return min(1.0, max(0.0, fraction))


def predict_roofline_flops_per_s(flops_per_byte: float, peak_flops_per_s: float, bandwidth_bytes_per_s: float) -> float:
    """Predict the highest rate of computing that a kernel can reach (the roofline).

    A kernel waits for whichever runs out first: arithmetic or bytes.

    Args:
        flops_per_byte: Operations per byte moved to or from memory; above 0.
        peak_flops_per_s: What the arithmetic units can do; above 0.
        bandwidth_bytes_per_s: What the memory can deliver; above 0.

    Returns:
        Floating-point operations per second, at most.

    Source:
        Williams, Waterman and Patterson (2009), Roofline: an insightful visual performance model.
    """
    _above("flops_per_byte", flops_per_byte, 0)
    _above("peak_flops_per_s", peak_flops_per_s, 0)
    _above("bandwidth_bytes_per_s", bandwidth_bytes_per_s, 0)
    return min(peak_flops_per_s, flops_per_byte * bandwidth_bytes_per_s)


def predict_naive_all_reduce_s(message_bytes: int, ranks: int, link: Link) -> float:
    """Predict an all-reduce through one rank: everybody sends to it, it sends the sum back to each.

    All set off at once, so latencies overlap: one on the way there, one on the way back. But every message passes
    through the link of that one rank, one after the other.

    Args:
        message_bytes: Size of the reduced tensor, in bytes; at least 0.
        ranks: Number of processes; at least 1.
        link: Between any two of them.

    Returns:
        Seconds; 0.0 for one rank.
    """
    _at_least("message_bytes", message_bytes, 0)
    _at_least("ranks", ranks, 1)
    others = ranks - 1
    return 2 * (min(others, 1) * link.latency_s + others * message_bytes / link.bandwidth_bytes_per_s)


def predict_ring_all_reduce_s(message_bytes: int, ranks: int, link: Link) -> float:
    """Predict how long a ring all-reduce takes.

    Every rank sends ``2 * (ranks - 1)`` pieces of ``message_bytes / ranks``: the bandwidth part hardly
    grows with ``ranks``, the latency part grows with it.

    Args:
        message_bytes: Size of the reduced tensor, in bytes; at least 0.
        ranks: Number of processes; at least 1.
        link: Latency (seconds) and bandwidth (bytes per second) between neighbours.

    Returns:
        Seconds; 0.0 for one rank.

    Raises:
        ValueError: If ``ranks`` is below 1.

    Source:
        Patarasuk and Yuan (2009), bandwidth-optimal all-reduce.
    """
    _at_least("message_bytes", message_bytes, 0)
    _at_least("ranks", ranks, 1)
    return 2 * (ranks - 1) * _message_s(message_bytes / ranks, link)


def predict_tree_all_reduce_s(message_bytes: int, ranks: int, link: Link) -> float:
    """Predict an all-reduce up and down a binary tree: few messages, each of full size.

    Args:
        message_bytes: Size of the reduced tensor, in bytes; at least 0.
        ranks: Number of processes; at least 1.
        link: Between parent and child.

    Returns:
        Seconds; 0.0 for one rank.
    """
    _at_least("message_bytes", message_bytes, 0)
    _at_least("ranks", ranks, 1)
    return 2 * math.ceil(math.log2(ranks)) * _message_s(message_bytes, link)


def ring_all_reduce_sent_bytes(message_bytes: int, ranks: int) -> float:
    """Count the bytes that each rank sends in a ring all-reduce: ``2 (N - 1) / N`` of the message."""
    _at_least("message_bytes", message_bytes, 0)
    _at_least("ranks", ranks, 1)
    return 2 * (ranks - 1) / ranks * message_bytes


@dataclass(frozen=True)
class Work:
    """What one rank computes and has to send in a data-parallel step, whatever the link.

    Args:
        forward_s: Seconds of one forward; at least 0.
        backward_s: Seconds of one backward; at least 0.
        message_bytes: All gradients; at least 0.
    """

    forward_s: float
    backward_s: float
    message_bytes: float

    def __post_init__(self) -> None:
        for name in ("forward_s", "backward_s", "message_bytes"):
            _at_least(f"Work.{name}", getattr(self, name), 0)
        _above("forward_s + backward_s", self.forward_s + self.backward_s, 0)


def predict_link_efficiency(
    work: Work, link: Link, ranks: int, *, overlap: float = 1.0, batches_per_message: int = 1
) -> float:
    """Predict the share of the time in which a rank computes, with as many images on each rank as on one alone.

    Args:
        work: Of one batch.
        link: Between neighbours; messages go around a ring.
        ranks: At least 1.
        overlap: Share of the backward during which gradients travel, 0 to 1; at 0 the message waits for all of them.
        batches_per_message: Batches whose gradients add up at home; only the last backward can hide the message.

    Returns:
        Above 0 to 1: what each of many ranks is worth, compared to one alone.
    """
    _share("overlap", overlap)
    _at_least("batches_per_message", batches_per_message, 1)
    _at_least("ranks", ranks, 1)
    message_s = 2 * (ranks - 1) * _message_s(work.message_bytes / ranks, link)
    computing_s = batches_per_message * (work.forward_s + work.backward_s)
    return computing_s / (computing_s + max(0.0, message_s - overlap * work.backward_s))


def predict_price(price_per_hour: float, step_s: float, steps: float = 1000, startup_s: float = 0.0) -> float:
    """Predict what a number of training steps costs on a machine that is billed by the second.

    Args:
        price_per_hour: In any currency; at least 0.
        step_s: Seconds of one step; above 0.
        steps: At least 0.
        startup_s: Seconds that are paid before the first step; at least 0.

    Returns:
        The price, in that currency.
    """
    _at_least("price_per_hour", price_per_hour, 0)
    _above("step_s", step_s, 0)
    _at_least("steps", steps, 0)
    _at_least("startup_s", startup_s, 0)
    return price_per_hour * (startup_s + steps * step_s) / 3600


def predict_break_even_steps(compile_s: float, eager_step_s: float, compiled_step_s: float) -> float:
    """Predict after how many steps compiling has paid for itself.

    Args:
        compile_s: Seconds spent before the first compiled step can run; at least 0.
        eager_step_s: Seconds of a step without compiling; above 0.
        compiled_step_s: Seconds of a compiled step; above 0.

    Returns:
        Steps, not rounded; infinity when a compiled step saves nothing.

    Raises:
        ValueError: If an argument is out of range.
    """
    _at_least("compile_s", compile_s, 0)
    _above("eager_step_s", eager_step_s, 0)
    _above("compiled_step_s", compiled_step_s, 0)
    saved_s = eager_step_s - compiled_step_s
    return compile_s / saved_s if saved_s > 0 else math.inf


@dataclass(frozen=True)
class Offer:
    """A machine that can be rented. Its numbers are the user's input: no price is a fact of the course.

    Args:
        name: What it is called.
        price_per_hour: In any currency.
        cores: Usable ones.
        core_speed: Speed of one core, 1.0 for one of this machine.
    """

    name: str
    price_per_hour: float
    cores: int
    core_speed: float = 1.0


def price_rows(step_s: float, serial_fraction: float, offers: Sequence[Offer]) -> list[dict[str, float | str]]:
    """Predict time and price of a thousand steps on each offer, by Amdahl's law.

    Args:
        step_s: Seconds of one step on one core of this machine, measured.
        serial_fraction: Of that step.
        offers: What can be rented.
    """
    rows = []
    for offer in offers:
        speedup = predict_speedup(serial_fraction, offer.cores) * offer.core_speed
        price = predict_price(offer.price_per_hour, step_s / speedup)
        rows.append({**asdict(offer), "speedup": speedup, "minutes": 1000 * step_s / speedup / 60, "price": price})
    return rows


def _message_s(message_bytes: float, link: Link) -> float:
    return link.latency_s + message_bytes / link.bandwidth_bytes_per_s


def _share(name: str, value: float) -> None:
    if not 0 <= value <= 1:
        raise ValueError(f"{name} is {value}: it must be from 0 to 1, for example 0.1")


def _at_least(name: str, value: float, low: float) -> None:
    if not value >= low:
        raise ValueError(f"{name} is {value}: it must be at least {low:g}")


def _above(name: str, value: float, low: float) -> None:
    if not value > low:
        raise ValueError(f"{name} is {value}: it must be above {low:g}")
