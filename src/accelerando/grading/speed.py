"""Runs the timed questions: baseline and candidate in turn on equal cores, judged on an interval.

An announced threshold T is judged at T / 1.1. Passed: the interval of the ratio begins there or above, and the accuracy
is kept. Failed: it ends below, or the accuracy is lost. Else more pairs; when the time for that is over, *undecided*.
"""

import math
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from .. import catalog, stats
from ..submission import LearnerCall, NotAnswered, Result, SpeedTask, Status, Submission, Ungradable, Wrong
from ..workers import Experiment, ExperimentFailed, Worker
from .lane import lane

TOLERANCE = 1.1  # an announced 1.3 is judged at 1.3 / 1.1: nobody fails for a hair
BUDGET_S = 45.0
FEWEST_PAIRS, MOST_PAIRS = 4, 60
_RUN_LIMIT_S = 120.0

__all__ = ["BUDGET_S", "Run", "Side", "lane", "open_side", "run"]


@dataclass(frozen=True)
class Run:
    """One timed run of one side."""

    seconds: float
    predictions: NDArray[np.int64] | None = None  # int64 (N,): one class per held-out image


Side = Callable[[], Run]
"""Runs one side once, with its next seed."""


class OpenSide(Protocol):
    """Gets a side ready: starts its process, warms it up. Tests give one that reads a fake clock."""

    def __call__(
        self, what: Experiment | LearnerCall, seeds: Sequence[int], submission: Submission | None
    ) -> AbstractContextManager[Side]:
        """A context manager around the ready side."""


class CandidateFailed(Exception):
    """The learner's side gave no time; the message says why."""


@dataclass
class _Pairs:
    """What was measured so far."""

    log_ratios: list[float] = field(default_factory=list)
    seconds: tuple[list[float], list[float]] = field(default_factory=lambda: ([], []))
    correct: tuple[list[NDArray], list[NDArray]] = field(default_factory=lambda: ([], []))


@contextmanager
def _experiment_side(experiment: Experiment, seeds: Sequence[int]) -> Any:
    arguments = {"target": experiment.target, "arguments": dict(experiment.arguments), "seeds": list(seeds)}
    seeded = Experiment(
        "accelerando.grading.seeded:prepare", arguments, experiment.environment, experiment.cpus, prepares=True
    )
    with Worker(seeded) as worker:

        def side() -> Run:
            value = worker.call(time_limit_s=_RUN_LIMIT_S)
            if not isinstance(value, dict) or not isinstance(value.get("seconds"), int | float):
                raise ExperimentFailed(f"{experiment.target} returned no seconds")
            predictions = value.get("predictions")
            return Run(float(value["seconds"]), None if predictions is None else np.asarray(predictions))

        yield side


def open_side(
    what: Experiment | LearnerCall, seeds: Sequence[int], submission: Submission | None
) -> AbstractContextManager[Side]:
    """A side that really runs: an experiment in a process of its own, a learner's call in the sandbox."""
    if isinstance(what, Experiment):
        return _experiment_side(what, seeds)
    if submission is None:
        raise Ungradable("this question times the learner's own function, but there is no worker to call it in")
    asked, call = submission, what

    def side() -> Run:
        started_s = time.perf_counter()
        value = asked.call(call.function, **call.arguments)
        elapsed_s = time.perf_counter() - started_s
        return Run(
            elapsed_s, np.asarray(value) if isinstance(value, np.ndarray | list) or hasattr(value, "numpy") else None
        )

    side()  # warm-up: what is compiled or cached once is not part of a run
    return nullcontext(side)


def run(
    task: SpeedTask,
    question: catalog.Question,
    *,
    seed: int,
    submission: Submission | None = None,
    open_side: OpenSide = open_side,
    clock: Callable[[], float] = time.monotonic,
    budget_s: float = BUDGET_S,
    on_pair: Callable[[float, str], None] = lambda spent_s, doing: None,
) -> Result:
    """Decide a timed question. Hold the exclusive `lane` around it.

    Args:
        task: What the question's check returned.
        question: Its threshold and margin.
        seed: Of the runs and of the order inside each pair.
        submission: For sides that are calls of the learner's functions.
        open_side: Gets a side ready.
        clock: Seconds that only grow; bounds the whole, the sides time themselves.
        budget_s: For all pairs together.
        on_pair: Told the seconds spent so far and what stands.

    Returns:
        Passed, failed or undecided, with the figures as evidence; ungradable if the course's own side fails.
    """
    if question.threshold is None:
        raise ValueError(f"{question.id} is timed but has no threshold in the catalog")
    rng = np.random.default_rng(seed)
    seeds = [int(number) for number in rng.integers(2**31, size=MOST_PAIRS)]
    try:
        with open_side(task.baseline, seeds, submission) as baseline:
            try:
                candidate_side = open_side(task.candidate, seeds, submission)
                with candidate_side as candidate:
                    return _measure(task, question, (baseline, candidate), rng, clock, budget_s, on_pair)
            except CandidateFailed as error:
                return _result(question, "failed", f"your side gave no time: {error}", {})
    except ExperimentFailed as error:
        return _result(question, "ungradable", f"the timed runs could not be made: {error}", {})
    except NotAnswered as blank:
        return _result(question, "failed", str(blank), {})
    except Wrong as wrong:
        return _result(question, "failed", str(wrong), {})


def _measure(
    task: SpeedTask,
    question: catalog.Question,
    sides: tuple[Side, Side],
    rng: np.random.Generator,
    clock: Callable[[], float],
    budget_s: float,
    on_pair: Callable[[float, str], None],
) -> Result:
    pairs, planned, started_s = _Pairs(), 0, clock()
    while True:
        before_s = clock()
        _add_pair(pairs, task, sides, candidate_first=bool(rng.integers(2)))
        pair_s, spent_s = clock() - before_s, clock() - started_s
        if not planned:  # fixed by the first pair's duration alone: nothing of the ratio has been looked at
            planned = int(min(MOST_PAIRS, max(FEWEST_PAIRS, budget_s / max(pair_s, 1e-9))))
        is_last = len(pairs.log_ratios) >= planned or spent_s + pair_s > 1.5 * budget_s
        verdict = _verdict(pairs, question, planned, is_last)
        on_pair(spent_s, f"{len(pairs.log_ratios)} of at most {planned} pairs")
        if verdict.status != "undecided" or is_last:
            return verdict


def _add_pair(pairs: _Pairs, task: SpeedTask, sides: tuple[Side, Side], *, candidate_first: bool) -> None:
    runs: dict[int, Run] = {}
    for place in (1, 0) if candidate_first else (0, 1):
        try:
            runs[place] = sides[place]()
        except ExperimentFailed as error:
            raise CandidateFailed(str(error)) from None if place else error
        if not (math.isfinite(runs[place].seconds) and runs[place].seconds > 0):
            raise Ungradable(f"a run lasted {runs[place].seconds} s by its clock, which cannot be")
    pairs.log_ratios.append(math.log(runs[0].seconds / runs[1].seconds))
    for place in (0, 1):
        pairs.seconds[place].append(runs[place].seconds)
        if task.labels is not None:
            pairs.correct[place].append(_correct(runs[place], task.labels, is_candidate=bool(place)))


def _correct(run: Run, labels: NDArray, *, is_candidate: bool) -> NDArray[np.bool_]:
    found = run.predictions
    if found is None or found.shape != labels.shape or found.dtype.kind not in "iu":
        shape = "nothing" if found is None else f"{found.dtype} {found.shape}"
        message = f"predictions should be whole numbers of shape {labels.shape}, found {shape}"
        raise CandidateFailed(message) if is_candidate else Ungradable(message)
    return found == labels


def _verdict(pairs: _Pairs, question: catalog.Question, planned: int, is_last: bool) -> Result:
    announced = question.threshold or 1.0
    speed = stats.decide_speedup(pairs.log_ratios, announced / TOLERANCE, planned_pairs=planned, is_last=is_last)
    evidence: dict[str, Any] = {
        "ratio": speed.ratio,
        "interval": list(speed.interval),
        "confidence": speed.confidence,
        "announced": announced,
        "judged_at": announced / TOLERANCE,
        "pairs": len(pairs.log_ratios),
        "baseline_s": pairs.seconds[0],
        "candidate_s": pairs.seconds[1],
    }
    told = (
        f"{speed.ratio:.2f} times as fast as the start (between {speed.interval[0]:.2f} and {speed.interval[1]:.2f}, "
        f"{len(pairs.log_ratios)} pairs of runs; wanted: {announced:g})"
    )
    if speed.verdict == "not faster":
        return _result(question, "failed", f"{told}. Where does the time of a step go now?", evidence)
    if not pairs.correct[0]:
        if speed.verdict == "faster":
            return _result(question, "passed", told, evidence)
        return _result(question, "undecided", f"{told}. {_NOISY}", evidence)
    margin = question.margin if question.margin is not None else 0.01
    accuracy = stats.paired_non_inferiority(np.stack(pairs.correct[0]), np.stack(pairs.correct[1]), margin)
    before, after = (float(np.mean(side)) for side in pairs.correct)
    evidence |= {
        "accuracy_baseline": before,
        "accuracy_candidate": after,
        "accuracy_difference": accuracy.difference,
        "accuracy_interval": list(accuracy.interval),
        "margin": margin,
    }
    told += f"; accuracy {after:.1%}, at the start {before:.1%}"
    is_enough = is_last or speed.verdict == "faster"
    if accuracy.verdict == "lost" and is_enough:
        lost = f"{told}. At most {100 * margin:g} points of accuracy may be lost. Which of your changes costs it?"
        return _result(question, "failed", lost, evidence)
    if speed.verdict == "faster" and accuracy.verdict == "kept":
        return _result(question, "passed", told, evidence)
    what = (
        _NOISY
        if speed.verdict == "undecided"
        else f"Whether the accuracy is kept within {100 * margin:g} points is too close to call."
    )
    return _result(question, "undecided", f"{told}. {what}", evidence)


_NOISY = "That is too close to call on this machine now: close other programs and grade again."


def _result(question: catalog.Question, status: Status, message: str, evidence: dict[str, Any]) -> Result:
    points = question.points if status == "passed" else 0
    return Result(question.id, status, points, question.points, message, evidence)
