"""Runs the timed questions: baseline and candidate in turn on equal cores, judged on an interval.

An announced threshold T is judged at T / 1.1. Passed: the interval of the ratio begins there or above, and the accuracy
is kept. Failed: it ends below, or the accuracy is lost. Else more pairs; when the time for that is over, *undecided*.
Both are asked at looks planned beforehand, which share the error rate: asking often must not find what is not there.
Speed is often settled first; what is left of the time, and half as much again, then goes to the question of accuracy.
A busy machine can make a good answer slow (two threads that share one free core), so nobody fails for speed on one.
"""

import itertools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from .. import catalog, looks, noise, stats
from ..submission import LearnerCall, NotAnswered, Result, SpeedTask, Status, Submission, Ungradable, Wrong
from ..workers import Experiment, ExperimentFailed, Worker
from .sandbox import TookTooLong

BUDGET_S = 75.0  # a clear case takes a third of it; what is noisy or slow needs the rest
LEARNERS_S = 3 * BUDGET_S  # for all calls of a learner's function: the first one may compile
FEWEST_PAIRS, MOST_PAIRS = 4, 60
ENOUGH_FOR_ACCURACY = 16  # pairs: with so many, only chance leaves it open, not their number
_STRETCH = 1.5  # so many times the budget for the fewest pairs on a slow machine, and where only accuracy is open
_FIRST_RUN_LIMIT_S = 120.0
_BUSY = "Close other programs and grade again."
_NOISY = "Whether that is fast enough is too close to call on this machine now."


@dataclass(frozen=True)
class Run:
    """One timed run of one side."""

    seconds: float
    predictions: NDArray | None = None  # int64 (N,): one class per held-out image
    returned: tuple[Any, int] | None = None  # by a learner's call, and the seed that it was given


class TooSlow(Exception):
    """A run did not end within its limit."""


Side = Callable[[float], Run]
"""Runs one side once, with its next seed, for at most so many seconds; raises `TooSlow`."""


class OpenSide(Protocol):
    """Gets a side ready: starts its process. Tests give one that reads a fake clock."""

    def __call__(
        self, what: Experiment | LearnerCall, seeds: Sequence[int], submission: Submission | None
    ) -> AbstractContextManager[Side]:
        """A context manager around the ready side."""


class CandidateFailed(Exception):
    """The learner's side gave no time; the message says why."""


@contextmanager
def open_side(what: Experiment | LearnerCall, seeds: Sequence[int], submission: Submission | None) -> Iterator[Side]:
    """A side that really runs: an experiment in a process of its own, a learner's call in the sandbox."""
    if isinstance(what, Experiment):
        arguments = {
            "target": what.target, "arguments": dict(what.arguments), "seeds": list(seeds), "prepares": what.prepares,
        }  # fmt: skip
        target = "accelerando.grading.seeded:prepare"
        with Worker(Experiment(target, arguments, what.environment, what.cpus, prepares=True)) as worker:
            yield lambda limit_s: _run_experiment(worker, what, limit_s)
        return
    if submission is None:
        raise Ungradable("this question times the learner's own function, but there is no worker to call it in")
    waiting = itertools.cycle(seeds)
    _run_call(submission, what, next(waiting))  # warm-up: what is compiled or cached once is no part of a run
    yield lambda limit_s: _run_call(submission, what, next(waiting))


def _run_experiment(worker: Worker, experiment: Experiment, limit_s: float) -> Run:
    started_s = time.monotonic()
    try:
        value = worker.call(time_limit_s=limit_s)
    except ExperimentFailed:
        if time.monotonic() - started_s >= limit_s:
            raise TooSlow from None
        raise
    if not isinstance(value, dict) or not isinstance(value.get("seconds"), int | float):
        raise ExperimentFailed(f"{experiment.target} returned no seconds")
    return Run(float(value["seconds"]), _as_array(value.get("predictions")))


def _run_call(submission: Submission, call: LearnerCall, seed: int) -> Run:
    """The sandbox ends a call that takes too long by itself."""
    more = {"seed": seed} if call.takes_seed else {}
    ask = submission.probe if call.is_probe else submission.call
    started_s = time.perf_counter()
    value = ask(call.function, **call.arguments, **more)
    elapsed_s = time.perf_counter() - started_s
    return Run(elapsed_s, _as_array(value), (value, seed))


def _as_array(value: Any) -> NDArray | None:
    if not isinstance(value, np.ndarray | list) and not hasattr(value, "numpy"):
        return None
    try:
        return np.asarray(value)
    except (TypeError, ValueError, RuntimeError):  # a list of unequal things is no array of predictions
        return None


def run(
    task: SpeedTask,
    question: catalog.Question,
    *,
    seed: int,
    submission: Submission | None = None,
    open_side: OpenSide = open_side,
    clock: Callable[[], float] = time.monotonic,
    watch: Callable[[], AbstractContextManager[noise.Watch]] = noise.watch,
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
        watch: Tells how busy others kept the machine.
        budget_s: For all pairs together.
        on_pair: Told the seconds spent so far and what stands.

    Returns:
        Passed, failed or undecided, with the figures as evidence; ungradable if the course's own side fails.
    """
    if question.threshold is None:
        raise ValueError(f"{question.id} is timed but has no threshold in the catalog")
    rng = np.random.default_rng(seed)
    seeds = [int(number) for number in rng.integers(2**31, size=MOST_PAIRS + 1)]
    duel = _Duel(task, question, rng, clock, budget_s, on_pair)
    with watch() as watched:
        outcome = _hold(duel, open_side, seeds, submission)
    return _excuse(outcome, watched.state, summary=task.summary)


def _hold(duel: "_Duel", open_side: OpenSide, seeds: Sequence[int], submission: Submission | None) -> Result:
    """Start both sides, let them run, and turn what goes wrong into a result."""
    task, question = duel.task, duel.question
    try:
        with open_side(task.baseline, seeds[1:], submission) as baseline:
            baseline_s = duel.plan(baseline)
            if FEWEST_PAIRS * 1.5 * baseline_s > 1.1 * _STRETCH * duel.budget_s:
                message = f"One run of what you were given takes {baseline_s:.0f} s here, too long to compare. {_BUSY}"
                return _result(question, "undecided", message)
            with open_side(task.candidate, seeds, submission) as candidate:
                return duel.fight((baseline, candidate))
    except TooSlow:
        message = f"One run of what you were given did not end within {_FIRST_RUN_LIMIT_S:.0f} s here. {_BUSY}"
        return _result(question, "undecided", message)
    except CandidateFailed as error:
        return _result(question, "failed", str(error), evidence={"is_slow": error.__cause__ is not None})
    except ExperimentFailed as error:
        return _result(question, "ungradable", f"the timed runs could not be made: {error}")
    except NotAnswered as blank:
        return _result(question, "failed", str(blank))
    except Wrong as wrong:
        return _result(question, "failed", str(wrong), {"is_slow": isinstance(wrong, TookTooLong)})


@dataclass
class _Duel:
    """The pairs of one question."""

    task: SpeedTask
    question: catalog.Question
    rng: np.random.Generator
    clock: Callable[[], float]
    budget_s: float
    on_pair: Callable[[float, str], None]
    planned: int = FEWEST_PAIRS
    planned_for_accuracy: int = FEWEST_PAIRS
    speed: stats.SpeedDecision | None = None  # the latest; once it says "faster", more pairs do not change it
    run_limit_s: float = _FIRST_RUN_LIMIT_S
    log_ratios: list[float] = field(default_factory=list)
    seconds: tuple[list[float], list[float]] = field(default_factory=lambda: ([], []))
    correct: tuple[list[NDArray], list[NDArray]] = field(default_factory=lambda: ([], []))

    def plan(self, baseline: Side) -> float:
        """Fix the number of pairs and the limit of a run by one run of the baseline, before any ratio is known.

        Returns:
            Seconds that the run took.
        """
        before_s = self.clock()
        baseline(_FIRST_RUN_LIMIT_S)
        baseline_s = max(self.clock() - before_s, 1e-6)
        self.planned = int(min(MOST_PAIRS, max(FEWEST_PAIRS, self.budget_s / (1.7 * baseline_s))))
        self.planned_for_accuracy = max(self.planned, min(2 * self.planned, ENOUGH_FOR_ACCURACY))
        self.run_limit_s = 10 + 4 * baseline_s
        return baseline_s

    def fight(self, sides: tuple[Side, Side]) -> Result:
        """Take pairs until the interval decides or the time is over."""
        started_s = self.clock()
        while True:
            before_s = self.clock()
            self._add_pair(sides)
            spent_s, pair_s = self.clock() - started_s, self.clock() - before_s
            is_last = self._decide_speed(spent_s + pair_s)
            outcome = self._verdict(is_last)
            most = self.planned_for_accuracy if self._is_fast() and self.correct[0] else self.planned
            self.on_pair(spent_s, f"{len(self.log_ratios)} of at most {most} comparisons")
            if outcome.status != "undecided" or is_last:
                return outcome

    def _decide_speed(self, next_end_s: float) -> bool:
        """Look at the speed unless it is settled; say whether there is no more pair for what is still open.

        Args:
            next_end_s: When one more pair would be over, from the beginning.
        """
        pairs = len(self.log_ratios)
        end_s = self.budget_s * (1.2 if pairs >= FEWEST_PAIRS else _STRETCH)
        is_last = pairs >= self.planned or next_end_s > end_s
        if not self._is_fast():
            wanted = (self.question.threshold or 1.0) / stats.TOLERANCE
            self.speed = stats.decide_speedup(self.log_ratios, wanted, planned_pairs=self.planned, is_last=is_last)
        if self._is_fast() and self.correct[0]:
            return pairs >= self.planned_for_accuracy or next_end_s > self.budget_s * _STRETCH
        return is_last

    def _is_fast(self) -> bool:
        return self.speed is not None and self.speed.verdict == "faster"

    def _add_pair(self, sides: tuple[Side, Side]) -> None:
        order = (0, 1) if self.rng.integers(2) else (1, 0)
        runs = dict(zip(order, [self._run(sides, place) for place in order], strict=True))
        self.log_ratios.append(math.log(runs[0].seconds / runs[1].seconds))
        for place in (0, 1):
            self.seconds[place].append(runs[place].seconds)
            if self.task.labels is not None:
                self.correct[place].append(_correct(runs[place], self.task.labels, is_candidate=bool(place)))

    def _run(self, sides: tuple[Side, Side], place: int) -> Run:
        try:
            found = sides[place](self.run_limit_s if place else _FIRST_RUN_LIMIT_S)
        except TooSlow as slow:
            if not place:
                raise
            message = (
                f"A run of yours did not end within {self.run_limit_s:.0f} s; what you were given takes a quarter."
            )
            raise CandidateFailed(message) from slow
        except ExperimentFailed as error:
            if not place:
                raise
            raise CandidateFailed(f"Your version could not be timed: {error}") from None
        if place and self.task.examine is not None and found.returned is not None:
            self.task.examine(*found.returned)
        if not (math.isfinite(found.seconds) and found.seconds > 0):
            raise Ungradable(f"a run lasted {found.seconds} s by its clock, which cannot be")
        return found

    def _verdict(self, is_last: bool) -> Result:
        question, announced, speed = self.question, self.question.threshold or 1.0, self.speed
        assert speed is not None  # looked at after every pair
        evidence: dict[str, Any] = {
            "ratio": speed.ratio,
            "interval": list(speed.interval),
            "confidence": speed.confidence,
            "announced": announced,
            "judged_at": announced / stats.TOLERANCE,
            "pairs": len(self.log_ratios),
            "baseline_s": self.seconds[0],
            "candidate_s": self.seconds[1],
        }
        told = _tell_speed(speed, speed.pairs or len(self.log_ratios), announced)
        if speed.verdict == "not faster":
            evidence["is_slow"] = True
            return _result(question, "failed", f"{told} Where does the time go now?", evidence)
        is_fast = self._is_fast()
        if not is_fast:
            told += f" {_NOISY}"
        if not self.correct[0]:
            status: Status = "passed" if is_fast else "undecided"
            return _result(question, status, told if is_fast else f"{told} {_BUSY}", evidence)
        margin = question.margin if question.margin is not None else 0.01
        before, after = (float(np.mean(side)) for side in self.correct)
        told += f" Accuracy {after:.1%}, and {before:.1%} with what you were given."
        accuracy = self._accuracy(margin, is_last)
        if accuracy is None:
            return _result(question, "undecided", told, evidence)
        evidence |= {
            "accuracy_baseline": before,
            "accuracy_candidate": after,
            "accuracy_difference": accuracy.difference,
            "accuracy_interval": list(accuracy.interval),
            "margin": margin,
        }
        points = f"{100 * margin:g} points of accuracy"
        if accuracy.verdict == "lost" and (is_fast or is_last):
            return _result(
                question, "failed", f"{told} At most {points} may be lost. Which of your changes costs it?", evidence
            )
        if is_fast and accuracy.verdict == "kept":
            return _result(question, "passed", told, evidence)
        doubt = f"Whether no more than {points} are lost is too close to call: grade again." if is_fast else _BUSY
        return _result(question, "undecided", f"{told} {doubt}", evidence)

    def _accuracy(self, margin: float, is_last: bool) -> stats.AccuracyVerdict | None:
        """Whether it is kept, by the runs up to the latest look; None before the first one."""
        pairs = len(self.correct[0])
        looked, level = looks.last_look(pairs, self.planned_for_accuracy, stats.ACCURACY_ERROR_RATE, is_last=is_last)
        if not looked:
            return None
        before, after = (np.stack(side[:looked]) for side in self.correct)
        return stats.paired_non_inferiority(before, after, margin, confidence=1 - 2 * level)


def _tell_speed(speed: stats.SpeedDecision, pairs: int, announced: float) -> str:
    made = f"{pairs} comparison{'s'[: pairs > 1]}"
    if not math.isfinite(speed.interval[1]):
        return f"{made} fitted into the time: too few to say how fast it is (wanted: {announced:g} times as fast)."
    low, high = speed.interval
    return f"{speed.ratio:.2f} times as fast ({low:.2f} to {high:.2f} by {made}; wanted: {announced:g})."


def _correct(run: Run, labels: NDArray, *, is_candidate: bool) -> NDArray[np.bool_]:
    found = run.predictions
    if found is None or found.shape != labels.shape or found.dtype.kind not in "iu":
        shape = "nothing" if found is None else f"{found.dtype} {found.shape}"
        message = f"predictions should be whole numbers of shape {labels.shape}, found {shape}"
        raise CandidateFailed(message) if is_candidate else Ungradable(message)
    return found == labels


def _excuse(outcome: Result, state: noise.MachineState, summary: str) -> Result:
    """Add the machine's state; take back a failure for slowness that others may have caused."""
    evidence = dict(outcome.evidence)
    is_slow = bool(evidence.pop("is_slow", False))
    evidence |= {"machine": asdict(state), "chosen": summary}
    disturbed = []
    if (state.others_fraction or 0) > noise.BUSY_OTHERS:
        disturbed.append(f"other programs used {state.others_fraction:.0%} of this machine")
    if (state.steal_fraction or 0) > noise.SLOWING_STEAL:
        disturbed.append(f"its host kept {state.steal_fraction:.0%} of its time")
    if disturbed and (outcome.status == "undecided" or (outcome.status == "failed" and is_slow)):
        told = outcome.message.removesuffix(_BUSY).rstrip()
        message = f"{told} Meanwhile {' and '.join(disturbed)}, so it does not count. {_BUSY}"
        return replace(outcome, status="undecided", message=message, evidence=evidence)
    return replace(outcome, evidence=evidence)


def needs_learner(task: SpeedTask) -> bool:
    """Whether a side is a call of the learner's own function, so that the sandbox must stay up."""
    return isinstance(task.baseline, LearnerCall) or isinstance(task.candidate, LearnerCall)


def _result(question: catalog.Question, status: Status, message: str, evidence: dict[str, Any] | None = None) -> Result:
    points = question.points if status == "passed" else 0
    return Result(question.id, status, points, question.points, message, evidence or {})
