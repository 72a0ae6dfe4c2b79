"""All-reduce as a list of steps: who sends which piece to whom. Pure.

One description serves four readers: it is priced on a link, drawn step by step, followed with made-up numbers, and run
on real ranks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from accelerando.costs import Link

MOST_RANKS = 64


@dataclass(frozen=True)
class Transfer:
    """One message.

    Args:
        source: Rank that sends.
        target: Rank that receives.
        piece: Which part of the tensor.
        adds: The target adds it to its own; else it replaces its own.
    """

    source: int
    target: int
    piece: int
    adds: bool


Holdings = tuple[tuple[frozenset[int], ...], ...]
"""For each rank, for each piece: whose contributions are in it."""


@dataclass(frozen=True)
class Schedule:
    """An all-reduce, step by step; the messages of one step travel at the same time.

    Args:
        name: Of the algorithm.
        ranks: How many take part.
        pieces: Equal parts into which the tensor is cut.
        steps: Messages of each step.
    """

    name: str
    ranks: int
    pieces: int
    steps: tuple[tuple[Transfer, ...], ...]

    def sent_bytes(self, message_bytes: float) -> tuple[float, ...]:
        """Count what each rank sends, in bytes, for a tensor of ``message_bytes``."""
        return tuple(
            sum(message_bytes / self.pieces for step in self.steps for one in step if one.source == rank)
            for rank in range(self.ranks)
        )

    def predict_s(self, message_bytes: float, link: Link) -> float:
        """Predict the seconds of the whole: every step lasts as long as its busiest rank sends or receives.

        Args:
            message_bytes: Size of the tensor.
            link: Of every rank; it carries both directions at once.
        """
        piece_bytes = message_bytes / self.pieces
        return sum(link.latency_s + _busiest(step) * piece_bytes / link.bandwidth_bytes_per_s for step in self.steps)

    def follow(self) -> tuple[Holdings, ...]:
        """Follow the contributions: what every rank holds at the start and after each step.

        Raises:
            ValueError: If a contribution is added a second time, which makes the sum wrong.
        """
        held = [[frozenset({rank})] * self.pieces for rank in range(self.ranks)]
        told = [_frozen(held)]
        for step in self.steps:
            before = _frozen(held)
            for one in step:
                arriving, own = before[one.source][one.piece], held[one.target][one.piece]
                if one.adds and arriving & own:
                    raise ValueError(f"rank {one.target} adds piece {one.piece} of rank {one.source} a second time")
                held[one.target][one.piece] = arriving | own if one.adds else arriving
            told.append(_frozen(held))
        return tuple(told)


def naive(ranks: int) -> Schedule:
    """Everybody sends everything to rank 0, one after the other, and gets the sum back, one after the other.

    The steps are in the order in which rank 0 takes them. Who only sends need not wait for the steps before, so a
    program overlaps their latencies: `costs.predict_naive_all_reduce_s` prices that, `Schedule.predict_s` does not.
    """
    _check(ranks)
    to_root = tuple((Transfer(rank, 0, 0, True),) for rank in range(1, ranks))
    back = tuple((Transfer(0, rank, 0, False),) for rank in range(1, ranks))
    return Schedule("naive", ranks, 1, to_root + back)


def ring(ranks: int) -> Schedule:
    """Every rank talks to its right neighbour only, and always sends one piece of ``ranks``.

    First each piece travels once around and collects (reduce-scatter), then once more to be known everywhere
    (all-gather).

    Source:
        Patarasuk and Yuan (2009), bandwidth-optimal all-reduce.
    """
    _check(ranks)
    steps = []
    for step in range(2 * (ranks - 1)):
        adds = step < ranks - 1
        steps.append(tuple(Transfer(rank, (rank + 1) % ranks, (rank - step) % ranks, adds) for rank in range(ranks)))
    return Schedule("ring", ranks, ranks, tuple(steps))


def tree(ranks: int) -> Schedule:
    """Sums climb a binary tree in pairs, and the result comes down the same way: few steps, whole messages."""
    _check(ranks)
    up = []
    distance = 1
    while distance < ranks:
        senders = range(distance, ranks, 2 * distance)
        up.append(tuple(Transfer(rank, rank - distance, 0, True) for rank in senders))
        distance *= 2
    down = tuple(tuple(Transfer(one.target, one.source, 0, False) for one in step) for step in reversed(up))
    return Schedule("tree", ranks, 1, (*up, *down))


ALGORITHMS: dict[str, Callable[[int], Schedule]] = {"naive": naive, "ring": ring, "tree": tree}


def _check(ranks: int) -> None:
    if isinstance(ranks, bool) or not isinstance(ranks, int) or not 1 <= ranks <= MOST_RANKS:
        raise ValueError(f"ranks is {ranks!r}: it must be a whole number from 1 to {MOST_RANKS}")


def _busiest(step: tuple[Transfer, ...]) -> int:
    """The most pieces that one rank sends, or receives, in this step."""
    sent, received = [one.source for one in step], [one.target for one in step]
    return max(max(sent.count(rank), received.count(rank)) for rank in {*sent, *received})


def _frozen(held: list[list[frozenset[int]]]) -> Holdings:
    return tuple(tuple(row) for row in held)
