"""The global batch is ranks times batch: what became of the accuracy, by real ranks and a paired test."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from accelerando import measure, stats
from accelerando.lessons import Budget
from accelerando.lessons.multi_cpu import task
from accelerando.lessons.multi_cpu.layouts import NOT_RUN

RANKS = 4
BATCH = 16
"""Images of one rank, and of the run with one rank."""
RATE = 0.01
MARGIN = 0.02
FEW_RANKS = 2
HIGHER = 8
ALONE = f"1 rank, batch {BATCH}"
SAME_RATE = f"{RANKS} ranks, batch {BATCH} each, the same rate"
SCALED = f"{RANKS} ranks, batch {BATCH} each, {RANKS} times the rate"
SEARCHED = f"{RANKS} ranks, batch {BATCH} each, {HIGHER} times the rate"
FEW_SCALED = f"{FEW_RANKS} ranks, batch {BATCH} each, {FEW_RANKS} times the rate"
GROWN = (SAME_RATE, SCALED, SEARCHED, FEW_SCALED)


@dataclass(frozen=True, eq=False)
class GlobalBatch:
    """Accuracy of one rank's recipe, and of what many ranks made of it.

    Args:
        epochs: Of each run.
        is_correct: Recipe -> bool, (seeds, images): which held-out images were classified correctly.
        steps: Recipe -> optimizer steps.
        seconds: Recipe -> seconds of each run's training.
        processes: That did the work of all ranks.
    """

    epochs: int
    is_correct: Mapping[str, npt.NDArray[np.bool_]] = field(default_factory=dict)
    steps: Mapping[str, int] = field(default_factory=dict)
    seconds: Mapping[str, Sequence[float]] = field(default_factory=dict)
    processes: int = RANKS

    def verdict(self, name: str) -> stats.AccuracyVerdict:
        """The paired test against one rank."""
        return stats.paired_non_inferiority(self.is_correct[ALONE], self.is_correct[name], MARGIN)

    def accuracies(self) -> dict[str, tuple[float, float, float]]:
        """Recipe -> points of accuracy compared to one rank, with the interval of the paired test."""
        return {
            name: (100 * found.difference, *(100 * end for end in found.interval))  # type: ignore[misc]
            for name in GROWN
            if name in self.is_correct
            for found in [self.verdict(name)]
        }

    def table(self) -> str:
        """Markdown: a row for each recipe; empty when nothing was measured."""
        if not self.is_correct:
            return ""
        lines = [
            f"| recipe | steps | time | a step | accuracy | compared to one rank, points | margin {100 * MARGIN:g} |",
            "|---|---|---|---|---|---|---|",
        ]
        for name, correct in self.is_correct.items():
            spent = min(self.seconds[name])
            row = f"| {name} | {self.steps[name]:,} | {measure.duration(spent)} "
            row += f"| {measure.duration(spent / self.steps[name])} | {float(correct.mean()):.1%} "
            if name == ALONE:
                lines.append(f"{row}| | |")
                continue
            found = self.verdict(name)
            low, high = (100 * end for end in found.interval)
            word = "too close to call" if found.verdict == "undecided" else found.verdict
            lines.append(f"{row}| **{100 * found.difference:+.1f}** ({low:+.1f} to {high:+.1f}) | {word} |")
        return "\n".join(lines)

    def sentence(self) -> str:
        """What this run showed."""
        if not self.is_correct:
            return NOT_RUN
        verdicts = {name: self.verdict(name).verdict for name in GROWN if name in self.is_correct}
        groups = {
            word: [name for name, verdict in verdicts.items() if verdict == word]
            for word in ("kept", "lost", "undecided")
        }
        runs = len(self.is_correct[ALONE])
        told = [
            f"All runs went through the same images {self.epochs} times, on {self.processes} processes, {runs} runs of "
            "each recipe (the quicker one's time, and 95 % intervals)."
        ]
        for word, start in (
            ("kept", "The accuracy was kept by"),
            ("lost", "It was lost by"),
            ("undecided", "Too close to call, with so few runs:"),
        ):
            if groups[word]:
                told.append(f"{start} *{'*, *'.join(groups[word])}*.")
        return " ".join([*told, self._step_sentence()])

    def _step_sentence(self) -> str:
        """What a step of more images took."""
        if not {ALONE, SCALED} <= set(self.seconds):
            return ""
        few_s, many_s = (min(self.seconds[name]) / self.steps[name] for name in (ALONE, SCALED))
        few, many = BATCH // self.processes, BATCH * RANKS // self.processes
        return (
            f"A process with {few} images needs {measure.duration(few_s)} for a step, with {many} "
            f"{measure.duration(many_s)}: {RANKS} times the images in {many_s / few_s:.1f} times the time."
        )


def measure_global_batch(budget: Budget, cores: int) -> GlobalBatch:
    """Train by one rank's recipe, and by what becomes of it on more ranks; nothing in smoke.

    All recipes are trained by the same real processes, each with its part of the global batch: the same training, as
    lesson 7 showed, and the same machine. They are as many as the ranks where each finds a core, else two.

    Args:
        budget: How many runs.
        cores: ``Machine.usable_cores``.
    """
    if budget.name == "smoke":
        return GlobalBatch(task.EPOCHS)
    processes = RANKS if cores >= RANKS else FEW_RANKS
    orders = {
        ALONE: (BATCH, RATE),
        SAME_RATE: (RANKS * BATCH, RATE),
        SCALED: (RANKS * BATCH, RANKS * RATE),
        SEARCHED: (RANKS * BATCH, HIGHER * RATE),
        FEW_SCALED: (FEW_RANKS * BATCH, FEW_RANKS * RATE),
    }
    runs = 2 if budget.name == "quick" else 4
    found: dict[str, list[npt.NDArray[np.bool_]]] = {name: [] for name in orders}
    seconds: dict[str, list[float]] = {name: [] for name in orders}
    labels = task.data().test.labels
    with task.team(processes, 1, None, "gloo") as team:
        for seed in range(runs):
            for name, (together, rate) in orders.items():
                trained = task.train(team, batch=together // processes, learning_rate=rate, seed=seed)
                found[name].append(trained["predictions"] == labels)
                seconds[name].append(trained["seconds"])
    return GlobalBatch(
        task.EPOCHS,
        {name: np.stack(rows) for name, rows in found.items()},
        {name: steps(together) for name, (together, _) in orders.items()},
        seconds,
        processes,
    )


def steps(global_batch: int) -> int:
    """Optimizer steps of a run; incomplete batches are left out."""
    return task.EPOCHS * (task.TRAIN_IMAGES // global_batch)
