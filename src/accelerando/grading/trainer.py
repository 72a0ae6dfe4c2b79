"""Trains one side of the final once: a fresh worker in its sandbox, and the grader's clock outside it.

Nothing of a run is left for the next one: no process, no file, no memory. So neither can a submission remember the
images of an earlier round, nor can its threads disturb the side that is timed after it.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..checks.final import judge_scores
from ..submission import NotAnswered, Ungradable, Wrong
from . import isolation
from .final_task import Task
from .sandbox import Cell, Limits, Sandbox, TookTooLong

PREPARE_S = 60.0
_START_S = 60.0
_ASIDE_S = 5.0
CURVE_POINTS = 60


class SideFailed(Exception):
    """A side gave no time; the message is a sentence for the learner."""


class TooSlow(SideFailed):
    """A run, or what comes before it, did not end within its limit."""


@dataclass(frozen=True)
class Trained:
    """One run: the grader's clock from sending the training images to the last score, and the scores."""

    seconds: float
    scores: NDArray[np.float32]  # (held-out images, classes)
    losses: tuple[float, ...] = ()  # as the side itself tells them, thinned out: shown, never judged


@dataclass(frozen=True)
class SandboxTrainer:
    """Runs the sides of a session for real.

    Args:
        cells: For each side its set-up and answer cells.
        masked: Modules that no side reaches.
        limits: Of each worker.
        choice: ``plain`` does without bubblewrap even where it works.
        clock: Seconds that only grow.
    """

    cells: Mapping[str, Sequence[Cell]]
    masked: Sequence[str] = ()
    limits: Limits = field(default_factory=Limits)
    choice: isolation.Choice = "auto"
    clock: Callable[[], float] = time.perf_counter

    def __call__(self, side: str, task: Task, order: NDArray[np.int64], limit_s: float) -> Trained:
        """Train a side once.

        Args:
            side: A key of ``cells``.
            task: Images and labels.
            order: Of the training images in this round, int64 (N,).
            limit_s: Longest time for `train` and `predict` together.

        Raises:
            SideFailed: With what went wrong, as a sentence.
            Ungradable: If no worker can be had.
        """
        limits = replace(self.limits, cell_s=PREPARE_S, answer_s=PREPARE_S, total_s=_START_S + 2 * PREPARE_S + limit_s)
        images, labels = task.train.images[order], task.train.labels[order]
        with Sandbox(self.cells[side], masked=self.masked, limits=limits, choice=self.choice) as sandbox:
            sandbox.begin(None, PREPARE_S)
            if sandbox.failures:
                failure = sandbox.failures[0]
                raise (TooSlow if failure.is_slow else SideFailed)(f"cell {failure.cell} {failure.message}")
            self._ask(sandbox, "prepare", PREPARE_S, list(task.shape), task.classes)
            sandbox.begin(None, limit_s)
            started_s = self.clock()
            self._ask(sandbox, "train", limit_s, images, labels, float(limit_s))
            scores = self._ask(sandbox, "predict", limit_s, task.held_out.images)
            seconds = self.clock() - started_s
            found = judged(scores, len(task.held_out), task.classes)
            losses = told_losses(sandbox)
        return Trained(seconds, found, losses)

    def _ask(self, sandbox: Sandbox, function: str, limit_s: float, *arguments: Any) -> Any:
        try:
            return sandbox.submission.call(function, *arguments)
        except NotAnswered:
            raise SideFailed(f"`{function}` is not answered yet") from None
        except TookTooLong:
            together = "`prepare`" if function == "prepare" else "`train` and `predict`"
            raise TooSlow(f"{together} did not end within {limit_s:.0f} s") from None
        except Wrong as wrong:
            raise SideFailed(_named(str(wrong), function)) from None


def judged(scores: Any, images: int, classes: int) -> NDArray[np.float32]:
    """What `predict` returned, as float32 (images, classes).

    Raises:
        SideFailed: If it has another shape, a score that is no number, or says the same of all.
    """
    try:
        found = judge_scores(scores, images, classes)
    except Wrong as wrong:
        raise SideFailed(str(wrong)) from None
    if not math.isfinite(float(np.ptp(found))) or not np.ptp(found) > 0:
        raise SideFailed("all scores of `predict` are equal, so they choose no class. Does it use the trained model?")
    return found


def _named(sentence: str, function: str) -> str:
    return sentence if f"`{function}`" in sentence else f"`{function}`: {sentence}"


def told_losses(sandbox: Sandbox) -> tuple[float, ...]:
    """What a side left in its list `losses`, asked for when the clock has stopped.

    Nothing rests on it, so whatever is wrong with it only makes it empty.

    Returns:
        Means of at most `CURVE_POINTS` equal stretches.
    """
    try:
        sandbox.begin(None, _ASIDE_S)
        told = np.asarray(sandbox.submission.value("losses"), dtype=np.float64)
    except (Wrong, Ungradable, ValueError, TypeError, OverflowError):
        return ()
    if told.ndim != 1 or not told.size or not np.isfinite(told).all():
        return ()
    return tuple(float(part.mean()) for part in np.array_split(told, min(told.size, CURVE_POINTS)))
