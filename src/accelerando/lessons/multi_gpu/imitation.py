"""When several ranks equal one big batch: averaging, BatchNorm and clipping, proved on real ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from accelerando import ranks
from accelerando.lessons import Budget
from accelerando.lessons.multi_gpu import placement

TELL = "accelerando.lessons.multi_gpu.on_ranks:imitate"
SAME = 1e-3
"""Weights that differ by less than this share of their way are the same but for rounding."""
WAYS = {
    "average the gradients": "plain",
    "two halves in turn, then one average": "halves",
    "BatchNorm, each rank its own": "own",
    "BatchNorm over all ranks": "synced",
    "clip on each rank, then average": "clip before",
    "average, then clip": "clip after",
}
"""What the ranks do -> its short name."""


@dataclass(frozen=True)
class Errors:
    """How far real ranks end from one process, as a share of the way that weights have gone.

    Args:
        whole: From one process that takes all images at once.
        turns: From one process that takes the ranks' batches one after the other and adds up the gradients.
    """

    whole: float
    turns: float


@dataclass(frozen=True)
class ImitationStory:
    """What one launch told; without ``errors`` nothing was measured.

    Args:
        place: Where it ran.
        errors: Name of `WAYS` -> errors.
        norms: Length of each rank's gradient in the first step, before averaging.
        mean_norm: Length of the averaged gradient.
        sync_said: What torch's own SyncBatchNorm did here.
        longest: Length to which the gradients are clipped.
    """

    place: placement.Place
    errors: dict[str, Errors]
    norms: tuple[float, ...] = ()
    mean_norm: float = 0.0
    sync_said: str = ""
    longest: float = 0.0

    def table(self) -> str:
        """Markdown: way, and whether one process can stand for the ranks."""
        if not self.errors:
            return "*Nothing was measured: the smoke budget starts no ranks.*"
        lines = [
            f"| what {self.place.ranks} real ranks do | the same as all images at once? | the same as their "
            f"batches in turn? |",
            "|---|---|---|",
        ]
        for name, error in self.errors.items():
            lines.append(f"| {name} | {_told(error.whole)} | {_told(error.turns)} |")
        return "\n".join(lines)

    def sentence(self) -> str:
        """What this run showed about clipping, and about SyncBatchNorm."""
        if not self.errors:
            return ""
        norms = ", ".join(f"{norm:.3g}" for norm in self.norms)
        return (
            "The numbers of rank r's images are made 1 + r times as large, so that the ranks' gradients differ: they "
            f"had the lengths {norms} in the first step. The averaged gradient is {self.mean_norm:.3g} long, and the "
            f"limit is {self.longest:g}. Who clips before averaging shortens each by another factor, and the average "
            "points elsewhere. "
            "BatchNorm over all ranks was made by hand, with two all-reduces; torch's own SyncBatchNorm says here: "
            f"{self.sync_said}"
        )


def _told(error: float) -> str:
    return "yes" if error < SAME else f"no, {error:.0%} of the way off"


def measure_imitation(budget: Budget) -> ImitationStory:
    """Train three steps in every way on real ranks, and in one process; nothing in smoke."""
    place = placement.choose()
    if budget.name == "smoke":
        return ImitationStory(place, {})
    found = ranks.run(TELL, place.ranks, payload={"backend": place.backend}, time_limit_s=180.0)
    return read_imitation(place, list(found.values))


def read_imitation(place: placement.Place, values: Sequence[Mapping[str, Any]]) -> ImitationStory:
    """Put together what the ranks told; the worst rank counts."""
    errors = {
        name: Errors(*(max(value["errors"][short][part] for value in values) for part in (0, 1)))
        for name, short in WAYS.items()
    }
    first = values[0]
    norms = tuple(float(value["norm"]) for value in values)
    return ImitationStory(
        place, errors, norms, float(first["mean_norm"]), str(first["sync_said"]), float(first["longest"])
    )
