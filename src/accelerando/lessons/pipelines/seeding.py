"""Do workers draw the same "random" numbers? And the next epoch again? Asked of each kind of generator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch.utils.data import DataLoader

from accelerando import seeds
from accelerando.lessons import Budget
from accelerando.lessons.pipelines import samples
from accelerando.lessons.pipelines.samples import SOURCES, Source


@dataclass(frozen=True)
class Repeats:
    """What one kind of generator drew.

    Args:
        source: Which generator.
        are_workers_alike: Two workers drew the same numbers in the same order.
        are_epochs_alike: A worker drew in the second epoch what it had drawn in the first.
        is_repeatable: The same seed of the loader gave the same numbers again.
    """

    source: Source
    are_workers_alike: bool
    are_epochs_alike: bool
    is_repeatable: bool


@dataclass(frozen=True)
class Seeding:
    """All kinds, compared."""

    rows: tuple[Repeats, ...]

    def markdown(self) -> str:
        """The table."""
        if not self.rows:
            return "Nothing was measured: the smoke budget starts no processes."
        lines = [
            "| numbers from | two workers alike? | two epochs alike? | same seed, same numbers? |",
            "|---|---|---|---|",
        ]
        for row in self.rows:
            facts = (row.are_workers_alike, row.are_epochs_alike, row.is_repeatable)
            lines.append(f"| {row.source} | " + " | ".join("yes" if fact else "no" for fact in facts) + " |")
        return "\n".join(lines)

    def sentence(self) -> str:
        """What this run showed."""
        bad = [row.source for row in self.rows if row.are_workers_alike or row.are_epochs_alike]
        if not bad:
            return "Every kind of generator drew something new in every worker and every epoch."
        named = ", ".join(f"*{source}*" for source in bad)
        return (
            f"Not random at all: {named}. A worker starts as a copy of the training process, generator included, and "
            "without "
            "persistent workers it is copied anew for every epoch, from a parent that has drawn nothing meanwhile. "
            "torch gives new seeds to the three global generators, and knows nothing of yours."
        )


def measure_seeding(budget: Budget) -> Seeding:
    """Let two workers draw for two epochs, from each kind of generator."""
    if not budget.process_s:
        return Seeding(())
    return Seeding(tuple(_ask(source) for source in SOURCES))


def _ask(source: Source) -> Repeats:
    first, second = _epochs(source)
    again, _ = _epochs(source)
    own, other = first[0], first[1]
    return Repeats(source, own == other, first == second, first == again)


def _epochs(source: Source) -> tuple[dict[int, list[float]], dict[int, list[float]]]:
    """Two epochs of the same loader: worker -> what it drew, in order."""
    is_cured = source == "numpy, its own, reseeded"
    loader: DataLoader[Any] = DataLoader(
        samples.Draws(source), batch_size=4, num_workers=2, generator=seeds.generator(0),
        worker_init_fn=samples.reseed_own if is_cured else None,
    )  # fmt: skip
    return _by_worker(loader), _by_worker(loader)


def _by_worker(loader: DataLoader[Any]) -> dict[int, list[float]]:
    found: dict[int, list[float]] = {0: [], 1: []}
    for workers, draws in loader:
        for worker, draw in zip(workers.tolist(), draws.tolist(), strict=True):
            found[worker].append(draw)
    return found
