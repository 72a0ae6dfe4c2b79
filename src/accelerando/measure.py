"""How long something takes, and which of two things is faster: durations with intervals, never a bare stopwatch.

`measure` times one callable or `Experiment`. `compare` times two of them in pairs, in random order within each
pair, until `stats.decide_speedup` can say faster or not faster, or the budget ends. Warm-up and the first call
(where compiling happens) are reported apart; a sample repeats a short call until the clock can be trusted; the
garbage collector is off while sampling; a GPU is waited for; the state of the machine stands beside the result.
"""

import contextlib
import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from accelerando import stats
from accelerando.noise import MachineState, watch
from accelerando.timing import Clock, Side, calm, collect_garbage, open_side
from accelerando.workers import Experiment

MIN_SAMPLE_S = 0.02
"""Shorter samples would be mostly clock, pipe and chance."""
MAX_PAIRS = 1500
_COLLECT_EVERY_S = 10.0


@dataclass(frozen=True)
class Measurement:
    """How long one call takes.

    Attributes:
        label: What was measured.
        median_s: Seconds per call; NaN without samples.
        interval_s: For the median; (0, inf) with fewer than five samples.
        confidence: Of the interval (it takes the samples for independent, so a drifting machine makes it too narrow).
        samples_s: Seconds per call of each sample, in order.
        repeats: Calls in one sample.
        first_call_s: The first call of all: caches are cold, compilers compile.
        warmup_s: All further calls before sampling.
        start_s: Starting the process and loading the target; 0.0 for a callable.
        elapsed_s: From the first sample to the last.
        state: Of the machine meanwhile.
    """

    label: str
    median_s: float
    interval_s: tuple[float, float]
    confidence: float
    samples_s: tuple[float, ...]
    repeats: int
    first_call_s: float
    warmup_s: float
    start_s: float
    elapsed_s: float
    state: MachineState

    @property
    def calls_per_s(self) -> float:
        """Calls per second at the median."""
        return 1 / self.median_s

    def __str__(self) -> str:
        low, high = self.interval_s
        spread = f"{self.confidence:.0%} interval {duration(low)} to {duration(high)}, " if high < math.inf else ""
        calls = f" of {self.repeats} calls" if self.repeats > 1 else ""
        name = f"{self.label}: " if self.label else ""
        first = f"first call {duration(self.first_call_s)}"
        return f"{name}{duration(self.median_s)} ({spread}{len(self.samples_s)} samples{calls}; {first})"


@dataclass(frozen=True)
class Comparison:
    """Which of two is faster.

    Attributes:
        verdict: Of `stats.decide_speedup`.
        ratio: Baseline time / candidate time: above 1 the candidate is faster; NaN without pairs.
        interval: For the ratio, valid although sampling stopped when it decided; (0, inf) if pairs were too few.
        confidence: Of the interval.
        threshold: The ratio that was asked for.
        pairs: Pairs measured.
        planned_pairs: The most that the budget had room for.
        baseline: Each side on its own; its samples are in the order of the pairs.
        candidate: Likewise.
        budget_s: For the pairs.
        elapsed_s: From the first pair to the last.
        reason: One sentence: what decided, or what is missing.
        notes: What a reader should know: disturbances, unequal conditions.
        state: Of the machine from start to end, warm-up included.
    """

    verdict: Literal["faster", "not faster", "undecided"]
    ratio: float
    interval: tuple[float, float]
    confidence: float
    threshold: float
    pairs: int
    planned_pairs: int
    baseline: Measurement
    candidate: Measurement
    budget_s: float
    elapsed_s: float
    reason: str
    notes: tuple[str, ...]
    state: MachineState

    @property
    def outcome(self) -> Literal["faster", "not faster", "slower", "undecided"]:
        """The verdict for a reader: "slower" where the whole interval says so, which "not faster" would hide."""
        return "slower" if self.verdict == "not faster" and self.interval[1] < 1 else self.verdict

    def __str__(self) -> str:
        if not self.pairs:
            return f"{self.candidate.label} against {self.baseline.label}: undecided, {self.reason}"
        low, high = self.interval
        is_judged = self.threshold != 1.0 and self.outcome in ("faster", "not faster")
        asked = f" than {self.threshold:.3g}x" if is_judged else ""
        spread = f", {self.confidence:.0%} interval {low:.2f}-{high:.2f}" if high < math.inf else ""
        pairs = "1 pair" if self.pairs == 1 else f"{self.pairs} pairs"
        return (
            f"{self.candidate.label} is {self.ratio:.2f}x as fast as {self.baseline.label}{spread}"
            f" from {pairs} in {duration(self.elapsed_s)}: {self.outcome}{asked}"
        )


@dataclass(frozen=True)
class Progress:
    """What a progress callback is told after every sample or pair.

    Attributes:
        done: Samples or pairs so far.
        planned: The most there will be.
        elapsed_s: Since the first one.
        left_s: At most; a decision ends it sooner.
        interval: For the ratio (`compare`) or the median in seconds (`measure`), as of the last look.
    """

    done: int
    planned: int
    elapsed_s: float
    left_s: float
    interval: tuple[float, float]


def measure(
    subject: Callable[[], object] | Experiment,
    *,
    label: str = "",
    budget_s: float = 5.0,
    precision: float = 0.01,
    warmup_calls: int = 1,
    min_sample_s: float = MIN_SAMPLE_S,
    time_limit_s: float = 300.0,
    clock: Clock = time.perf_counter,
    progress: Callable[[Progress], None] | None = None,
) -> Measurement:
    """Time one callable, or one experiment in a process of its own.

    Args:
        subject: What to call.
        label: Its name in the result.
        budget_s: For the samples; at least one is taken.
        precision: Stop earlier when the interval is narrower than the median by this fraction on each side.
        warmup_calls: Calls after the first that do not count.
        min_sample_s: A sample repeats the call until it lasts so long.
        time_limit_s: For one sample of an experiment, the first call included.
        clock: Seconds; tests bring their own.
        progress: Called after every sample.

    Raises:
        ValueError: If a setting is out of range, or the call is too short for the clock.
        ExperimentFailed: If the experiment fails.
    """
    _check(budget_s, min_sample_s, warmup_calls)
    samples: list[float] = []
    interval = (0.0, math.inf)
    with watch() as watched, contextlib.ExitStack() as stack:
        side = open_side(subject, label, clock, time_limit_s, stack)
        side.warm_up(warmup_calls, min_sample_s)
        planned = max(1, min(MAX_PAIRS, int(budget_s / max(side.expected_s, 1e-9))))
        stack.enter_context(calm([side]))
        begun, look = clock(), 10
        while len(samples) < planned and (not samples or clock() - begun + side.expected_s <= budget_s):
            samples.append(side.sample())
            if len(samples) >= look:
                interval = stats.median_interval(samples)[1:]
                look = math.ceil(look * 1.25)
            elapsed = clock() - begun
            if progress:
                progress(Progress(len(samples), planned, elapsed, max(0.0, budget_s - elapsed), interval))
            if interval[1] - interval[0] <= 2 * precision * statistics.median(samples):
                break
        elapsed = clock() - begun
    return _summary(side, samples, elapsed, watched.state)


def compare(
    baseline: Callable[[], object] | Experiment,
    candidate: Callable[[], object] | Experiment,
    *,
    threshold: float = 1.0,
    worthwhile: float | None = None,
    budget_s: float = 60.0,
    labels: tuple[str, str] = ("baseline", "candidate"),
    warmup_calls: int = 1,
    min_sample_s: float = MIN_SAMPLE_S,
    max_pairs: int = MAX_PAIRS,
    time_limit_s: float = 300.0,
    seed: int | None = None,
    clock: Clock = time.perf_counter,
    progress: Callable[[Progress], None] | None = None,
) -> Comparison:
    """Say whether the candidate is faster than ``threshold`` times the baseline.

    Two experiments live in two processes, so they may differ in environment variables and cores; while one is
    timed the other waits on its pipe. Processes running equal code differ for as long as they live, so a wider
    allowance is made for them (`stats.BETWEEN_PROCESSES`).

    Args:
        baseline: What is there.
        candidate: What is proposed.
        threshold: Wanted baseline time / candidate time.
        worthwhile: "Not faster" when the interval ends below this; see `stats.decide_speedup`.
        budget_s: For the pairs; starting and warming up come on top. Stops as soon as it is decided.
        labels: Names of the two in the result.
        warmup_calls: Calls of each side after the first that do not count.
        min_sample_s: A sample repeats the call until it lasts so long.
        max_pairs: Never more pairs than this.
        time_limit_s: For one sample of an experiment, the first call included.
        seed: Of the coin that orders each pair; None draws one, as the guarantee wants.
        clock: Seconds; tests bring their own.
        progress: Called after every pair.

    Raises:
        ValueError: If a setting is out of range, or a call is too short for the clock.
        ExperimentFailed: If an experiment fails. What a callable raises comes through as it is.
    """
    _check(budget_s, min_sample_s, warmup_calls)
    coin = np.random.default_rng(seed)
    times: tuple[list[float], list[float]] = ([], [])
    log_ratios: list[float] = []
    with watch() as watched, contextlib.ExitStack() as stack:
        pairs = zip((baseline, candidate), labels, strict=True)
        sides = [open_side(subject, label, clock, time_limit_s, stack) for subject, label in pairs]
        for side in sides:
            side.warm_up(warmup_calls, min_sample_s)
        pair_s = sum(side.expected_s for side in sides)
        planned = min(max_pairs, int(budget_s / pair_s))
        is_two_processes = isinstance(baseline, Experiment) or isinstance(candidate, Experiment)
        systematic = stats.BETWEEN_PROCESSES if is_two_processes else stats.SYSTEMATIC
        decide = _Decider(threshold, worthwhile, planned, systematic)
        stack.enter_context(calm(sides))
        begun = collected = clock()
        while len(log_ratios) < planned and clock() - begun + sum(s.expected_s for s in sides) <= budget_s:
            for which in (0, 1) if coin.integers(2) else (1, 0):
                times[which].append(sides[which].sample())
            log_ratios.append(math.log(times[0][-1] / times[1][-1]))
            decide.after(log_ratios)
            elapsed = clock() - begun
            if progress:
                left = max(0.0, budget_s - elapsed)
                progress(Progress(len(log_ratios), planned, elapsed, left, decide.decision.interval))
            if decide.is_decided:
                break
            if clock() - collected > _COLLECT_EVERY_S:
                collect_garbage(sides)
                collected = clock()
        elapsed = clock() - begun
    if not decide.is_decided:
        decide.after(log_ratios, is_last=True)
    decision, reason = decide.decision, decide.decision.reason
    if decision.verdict == "undecided" and len(log_ratios) < 4:
        reason = (
            f"{len(log_ratios)} pairs of about {duration(pair_s)} fitted into the budget of {duration(budget_s)}:"
            f" give it at least {duration(6 * pair_s)}"
        )
    return Comparison(
        decision.verdict,
        decision.ratio,
        decision.interval,
        decision.confidence,
        threshold,
        len(log_ratios),
        planned,
        _summary(sides[0], times[0], elapsed, watched.state),
        _summary(sides[1], times[1], elapsed, watched.state),
        budget_s,
        elapsed,
        reason,
        (*_inequalities(baseline, candidate), *watched.state.disturbances),
        watched.state,
    )


class _Decider:
    """Asks `stats.decide_speedup` at the looks planned, and remembers the answer."""

    def __init__(self, threshold: float, worthwhile: float | None, planned: int, systematic: float) -> None:
        self._threshold, self._worthwhile, self._planned = threshold, worthwhile, planned
        self._systematic = systematic
        self._looks = frozenset(stats.plan_looks(planned))
        self.after([], is_last=True)

    def after(self, log_ratios: list[float], *, is_last: bool = False) -> None:
        if is_last or len(log_ratios) in self._looks:
            self.decision = stats.decide_speedup(
                log_ratios,
                self._threshold,
                worthwhile=self._worthwhile,
                systematic=self._systematic,
                planned_pairs=self._planned,
                is_last=is_last,
            )

    @property
    def is_decided(self) -> bool:
        return self.decision.verdict != "undecided"


def _summary(side: Side, samples: list[float], elapsed_s: float, state: MachineState) -> Measurement:
    return Measurement(
        side.label,
        statistics.median(samples) if samples else math.nan,
        stats.median_interval(samples)[1:] if len(samples) >= 5 else (0.0, math.inf),
        0.95,
        tuple(samples),
        side.repeats,
        side.first_call_s,
        side.warmup_s,
        side.start_s,
        elapsed_s,
        state,
    )


def _inequalities(baseline: object, candidate: object) -> tuple[str, ...]:
    if isinstance(baseline, Experiment) and isinstance(candidate, Experiment):
        if baseline.cpus == candidate.cpus:
            return ()
        return (f"the sides had different cores: {baseline.cpus or 'all'} and {candidate.cpus or 'all'}",)
    if isinstance(baseline, Experiment) != isinstance(candidate, Experiment):
        return ("one side ran in this process and the other in its own",)
    return ()


def _check(budget_s: float, min_sample_s: float, warmup_calls: int) -> None:
    if not (math.isfinite(budget_s) and budget_s >= 0):
        raise ValueError(f"budget_s is {budget_s}: it must be 0 or more seconds")
    if not (math.isfinite(min_sample_s) and min_sample_s > 0):
        raise ValueError(f"min_sample_s is {min_sample_s}: it must be above 0 seconds, e.g. {MIN_SAMPLE_S}")
    if warmup_calls < 0:
        raise ValueError(f"warmup_calls is {warmup_calls}: it must be 0 or more")


def duration(seconds: float) -> str:
    """Write a duration for people: ``12.3 ms``, ``6.1 s``."""
    if not math.isfinite(seconds):
        return "an unknown time"
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if float(f"{seconds / size:.3g}") >= 1:  # rounded first: 999.6 ms are 1 s
            return f"{seconds / size:.3g} {unit}" if seconds < 999.5 else f"{seconds:.0f} s"
    return f"{seconds * 1e9:.3g} ns"
