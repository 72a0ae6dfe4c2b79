"""One session of the final: starter, reference and submission trained in turn on two secret tasks.

Four rounds, the tasks in turn, the three sides of a round in random order. More rounds only while something is still
undecided and time is left; by then the reference has told what it is there for, how restless the machine is and
whether it is fit to measure, and the time goes to the other two. Who trains, and what the time is, comes from outside:
tests bring a fake clock.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from .. import stats
from ..submission import Ungradable
from . import tiers
from .final_task import Task
from .trainer import SideFailed, TooSlow, Trained

SIDES = ("starter", "reference", "submission")
FEWEST_ROUNDS = 4
RUN_LIMIT_S = 120.0
_GUESSED_ROUND_S = 60.0
_RESERVE = 1.25  # a round may last longer than those before it


class Train(Protocol):
    """Trains one side once; see `trainer.SandboxTrainer`."""

    def __call__(self, side: str, task: Task, order: NDArray[np.int64], limit_s: float) -> Trained:
        """Raises `SideFailed` when the side gives no time."""


@dataclass(frozen=True)
class Run:
    """One run as the report keeps it."""

    round: int  # from 1
    task: str
    side: str
    seconds: float
    accuracy: float
    losses: tuple[float, ...] = ()  # as the side itself tells them


@dataclass(frozen=True)
class SessionResult:
    """What a session found.

    Attributes:
        runs: In the order in which they were made.
        ratios: The submission's ratios to the starter.
        accuracy: For each task, whether accuracy was kept.
        reference_ratio: For each task the reference's ratio to the starter.
        noise_sd: Deviation of log(starter / reference) between rounds of a task; NaN without repeats.
        failure: Why the submission gave no time; empty when it did.
        is_slow: It failed by not ending within its limit.
        is_broken_off: One of the course's own sides gave no time any more; whole rounds before that count.
        starter_s: The starter's longest run, or its run after a submission that was too slow (infinite where that
            gave no time either); NaN without one.
        reference_s: The reference's, likewise.
        seconds: Of the whole session.
        train_images: Images that a run gets for training.
    """

    runs: tuple[Run, ...]
    ratios: tiers.Ratios
    accuracy: Mapping[str, stats.AccuracyVerdict]
    reference_ratio: Mapping[str, float]
    noise_sd: float
    failure: str
    is_slow: bool
    is_broken_off: bool
    starter_s: float
    reference_s: float
    seconds: float
    train_images: int

    @property
    def intervals(self) -> Mapping[str, tiers.RatioInterval]:
        """For each task the submission's ratio to the starter."""
        return self.ratios.tasks

    def times_s(self, side: str, task: str) -> list[float]:
        """Seconds of a side's runs on a task."""
        return [run.seconds for run in self.runs if (run.side, run.task) == (side, task)]

    def mean_accuracy(self, side: str, task: str) -> float:
        """Mean accuracy of a side's runs on a task; NaN without one."""
        found = [run.accuracy for run in self.runs if (run.side, run.task) == (side, task)]
        return float(np.mean(found)) if found else math.nan


def run_session(
    tasks: Sequence[Task],
    train: Train,
    *,
    thresholds: Sequence[float],
    margin: float,
    budget_s: float,
    rng: np.random.Generator,
    clock: Callable[[], float] = time.monotonic,
    progress: Callable[[str, float], None] = lambda doing, left_s: None,
) -> SessionResult:
    """Train all sides until every threshold is decided or the time is over.

    Args:
        tasks: In the order in which they take turns.
        train: Trains one side once.
        thresholds: Announced ratios.
        margin: Accuracy that may be lost, as a fraction.
        budget_s: For all rounds. A round that would not fit any more is not begun.
        rng: Draws the order of the sides and, for each round, of the training images.
        clock: Seconds that only grow; the runs are timed by ``train``.
        progress: Told what is done and about how many seconds are left.

    Raises:
        Ungradable: If the starter or the reference gives no time and no round was whole before.
    """
    session = _Session(tasks, train, thresholds, margin, budget_s, rng, clock, progress, clock())
    while not session.is_over():
        session.play_round()
    return session.result(is_last=True)


@dataclass
class _Session:
    tasks: Sequence[Task]
    train: Train
    thresholds: Sequence[float]
    margin: float
    budget_s: float
    rng: np.random.Generator
    clock: Callable[[], float]
    progress: Callable[[str, float], None]
    started_s: float
    runs: list[Run] = field(default_factory=list)
    correct: dict[tuple[str, str], list[NDArray[np.bool_]]] = field(default_factory=dict)
    failure: SideFailed | None = None
    is_broken_off: bool = False
    rounds: int = 0
    longest_s: float = 0.0
    longest_run_s: dict[str, float] = field(default_factory=dict)  # of each side, also in rounds that are not whole
    after_failure_s: dict[str, float] = field(default_factory=dict)  # of the course's sides, after a run was too slow

    def is_over(self) -> bool:
        if self.failure is not None or self.is_broken_off:
            return True
        spent_s = self.clock() - self.started_s
        if self.rounds and spent_s + _RESERVE * self.longest_s > self.budget_s:
            return True
        if self.rounds < FEWEST_ROUNDS or self.rounds % len(self.tasks):
            return False
        return self.rounds >= tiers.MOST_PAIRS * len(self.tasks) or self._is_decided()

    def play_round(self) -> None:
        began_s = self.clock()
        task = self.tasks[self.rounds % len(self.tasks)]
        self.rounds += 1
        order = self.rng.permutation(len(task.train))
        found: dict[str, Trained] = {}
        sides = SIDES if self.rounds <= FEWEST_ROUNDS else ("starter", "submission")
        for place in self.rng.permutation(len(sides)):
            side = sides[place]
            if self.failure is not None or self.is_broken_off:
                break
            self.progress(f"round {self.rounds}, task {task.name}, {side}", self._left_s())
            trained = self._train(side, task, order)
            if trained is not None:
                found[side] = trained
        if len(found) == len(sides):  # of a round that is not whole nothing counts
            for side, trained in found.items():
                self._keep(task, side, trained)
        elif isinstance(self.failure, TooSlow):  # is the machine slow now? What it was like earlier does not tell
            for side in ("starter", "reference"):
                self.progress(f"was it the machine? task {task.name}, {side}", self._left_s())
                trained = self._train(side, task, order)
                self.after_failure_s[side] = trained.seconds if trained else math.inf
        self.longest_s = max(self.longest_s, self.clock() - began_s)

    def _train(self, side: str, task: Task, order: NDArray[np.int64]) -> Trained | None:
        try:
            trained = self.train(side, task, order, self._limit_s())
        except SideFailed as failed:
            if side == "submission":
                self.failure = failed
            elif self.runs or self.failure is not None:
                self.is_broken_off = True
            else:
                raise Ungradable(f"the course's own {side} gave no time here: {failed}") from None
            return None
        if not (math.isfinite(trained.seconds) and trained.seconds > 0):
            raise Ungradable(f"a run lasted {trained.seconds} s by the grader's clock, which cannot be")
        self.longest_run_s[side] = max(self.longest_run_s.get(side, 0.0), trained.seconds)
        return trained

    def _limit_s(self) -> float:
        starter_s = self.longest_run_s.get("starter", math.inf)
        return min(RUN_LIMIT_S, 10 + 2.5 * starter_s)

    def _keep(self, task: Task, side: str, trained: Trained) -> None:
        correct = trained.scores.argmax(1) == task.held_out.labels
        self.correct.setdefault((task.name, side), []).append(correct)
        run = Run(self.rounds, task.name, side, trained.seconds, float(correct.mean()), trained.losses)
        self.runs.append(run)

    def _left_s(self) -> float:
        spent_s = self.clock() - self.started_s
        round_s = self.longest_s or _GUESSED_ROUND_S
        wanted_s = max(FEWEST_ROUNDS - self.rounds + 1, 1) * round_s
        return max(0.0, min(wanted_s, self.budget_s - spent_s))

    def _is_decided(self) -> bool:
        found = self.result(is_last=False)
        speeds = [found.ratios.against(threshold) for threshold in self.thresholds]
        if "reached" not in speeds and "undecided" not in speeds:
            return True  # too slow for every tier: accuracy changes nothing
        verdicts = [verdict.verdict for verdict in found.accuracy.values()]
        return "lost" in verdicts or ("undecided" not in speeds and "undecided" not in verdicts)

    def result(self, *, is_last: bool) -> SessionResult:
        names: list[str] = [task.name for task in self.tasks]
        times = {(name, side): self._times(name, side) for name in names for side in SIDES}
        own = {name: _log_ratios(times[name, "starter"], times[name, "submission"]) for name in names}
        reference = {name: _log_ratios(times[name, "starter"], times[name, "reference"]) for name in names}
        control = list(reference.values())
        course_s = self.after_failure_s or self.longest_run_s
        pairs = {
            name: (self.correct.get((name, "starter"), []), self.correct.get((name, "submission"), []))
            for name in names
        }
        return SessionResult(
            runs=tuple(self.runs),
            ratios=tiers.ratio_intervals(own, control=control, is_last=is_last),
            accuracy=tiers.judge_accuracy(pairs, self.margin, is_last=is_last),
            reference_ratio={name: math.exp(float(np.mean(v))) for name, v in reference.items() if v},
            noise_sd=tiers.noise_sd(control),
            failure=str(self.failure or ""),
            is_slow=isinstance(self.failure, TooSlow),
            is_broken_off=self.is_broken_off,
            starter_s=course_s.get("starter", math.nan),
            reference_s=course_s.get("reference", math.nan),
            seconds=self.clock() - self.started_s,
            train_images=len(self.tasks[0].train),
        )

    def _times(self, task: str, side: str) -> list[float]:
        return [run.seconds for run in self.runs if (run.task, run.side) == (task, side)]


def _log_ratios(starter_s: Sequence[float], other_s: Sequence[float]) -> list[float]:
    """Round by round; the reference has no run in later ones."""
    return [math.log(mine / theirs) for mine, theirs in zip(starter_s, other_s, strict=False)]
