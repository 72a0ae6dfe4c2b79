"""What a session of the final allows to say: a ratio with its interval on each task, and accuracy kept or not. Pure.

A session has few rounds of many seconds. Two pairs on a task say little about how much pairs scatter, so both tasks
tell it together, the course's own two sides as well, and what such runs usually scatter by: a moderated variance,
each part counted by its degrees of freedom.

Source:
    Smyth (2004), Linear models and empirical Bayes methods; the moderated t statistic.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy import special

from .. import stats
from ..looks import look_levels

FEWEST_PAIRS, MOST_PAIRS = 2, 8  # on each task
ERROR_RATE = stats.ERROR_RATE
_ERRATIC_LEVEL = 0.05  # how often a task that scatters like the rest is called erratic, and its interval is wider
_DIFFER_LEVEL = 0.05  # each side: of equal tasks a tenth are called different, and judged one by one

Speed = Literal["reached", "missed", "undecided"]


@dataclass(frozen=True)
class RatioInterval:
    """How many times faster than the starter, on one task: a ratio of times, with an interval valid at every look."""

    ratio: float
    low: float
    high: float
    pairs: int

    @property
    def is_telling(self) -> bool:
        """Whether its upper end is worth showing."""
        return self.high < 20 * self.ratio

    def against(self, announced: float) -> Speed:
        """Judge an announced threshold."""
        bar = announced / stats.TOLERANCE
        return "reached" if self.low >= bar else "missed" if self.high < bar else "undecided"


@dataclass(frozen=True)
class Ratios:
    """How many times faster than the starter.

    Attributes:
        tasks: For each task.
        together: The geometric mean over all tasks.
        are_alike: Whether nothing speaks for a difference between the tasks.
    """

    tasks: Mapping[str, RatioInterval] = field(default_factory=dict)
    together: RatioInterval = RatioInterval(math.nan, 0.0, math.inf, 0)
    are_alike: bool = False

    def against(self, announced: float) -> Speed:
        """Judge a threshold on all tasks: reached when it is on each, missed when it is on one.

        Time does not depend on what the labels say. So where the tasks do not differ, their mean may decide for both;
        who gains on one of them only (by stored knowledge, say) is judged on each by itself.
        """
        found = {interval.against(announced) for interval in self.tasks.values()} or {"undecided"}
        both = self.together.against(announced)
        if "missed" in found or both == "missed":  # a mean below it: one task must be
            return "missed"
        is_above = min((own.ratio for own in self.tasks.values()), default=0.0) >= announced / stats.TOLERANCE
        if found == {"reached"} or (both == "reached" and self.are_alike and is_above):
            return "reached"
        return "undecided"


def noise_sd(groups: Sequence[Sequence[float]]) -> float:
    """Deviation of repeats about the mean of their group, all groups together; NaN without a repeat."""
    degrees = _degrees(groups)
    if degrees < 1:
        return math.nan
    return math.sqrt(_squares(groups) / degrees)


def ratio_intervals(
    log_ratios: Mapping[str, Sequence[float]],
    *,
    control: Sequence[Sequence[float]] = (),
    is_last: bool = False,
    error_rate: float = ERROR_RATE,
) -> Ratios:
    """Give each task its interval, and the mean over all tasks.

    Args:
        log_ratios: For each task log(starter's time / submission's time), one a round.
        control: For each task log ratios of the course's own two sides, which tell how restless the machine is.
        is_last: No more rounds will come.
        error_rate: Of each end, over all looks.
    """
    groups = {task: list(values) for task, values in log_ratios.items()}
    spreads = _spreads(groups, control)
    rounds = min((len(group) for group in groups.values()), default=0)
    both = _Spread(
        float(np.mean([own.variance for own in spreads.values()])) if spreads else math.inf,
        min((own.degrees for own in spreads.values()), default=0),
    )

    def interval(values: Sequence[float], looked_at: int, spread: _Spread) -> RatioInterval:
        center = math.exp(float(np.mean(values))) if values else math.nan
        if looked_at < FEWEST_PAIRS:
            return RatioInterval(center, 0.0, math.inf, len(values))
        quantile = spread.quantile(_level(looked_at, is_last, error_rate))
        half = quantile * math.sqrt(spread.variance / len(values)) + math.log1p(stats.SYSTEMATIC)
        return RatioInterval(center, center * math.exp(-half), center * math.exp(min(half, 50.0)), len(values))

    every = [value for group in groups.values() for value in group[:rounds]]  # each task with the same weight
    means = [float(np.mean(group[:rounds])) for group in groups.values() if rounds]
    apart = max(means, default=0.0) - min(means, default=0.0)
    are_alike = (
        rounds >= FEWEST_PAIRS
        and not any(own.is_erratic for own in spreads.values())
        and apart <= both.quantile(_DIFFER_LEVEL) * math.sqrt(2 * both.variance / rounds)
    )
    if not are_alike:  # one task says nothing about the other then
        spreads = {task: spread.alone(len(groups[task])) for task, spread in spreads.items()}
    return Ratios(
        {task: interval(values, len(values), spreads[task]) for task, values in groups.items()},
        interval(every, rounds, both),
        are_alike,
    )


@dataclass(frozen=True)
class _Spread:
    """How much the log ratios of a task scatter, and how well that is known."""

    variance: float
    degrees: int
    is_erratic: bool = False

    def quantile(self, level: float) -> float:
        return -float(special.stdtrit(self.degrees, level))

    def alone(self, pairs: int) -> "_Spread":
        return _Spread(self.variance, max(1, min(self.degrees, pairs - 1)), self.is_erratic)


def _spreads(groups: Mapping[str, Sequence[float]], control: Sequence[Sequence[float]]) -> dict[str, _Spread]:
    """One variance from all repeats for all tasks; a task that scatters more than the rest is judged by its own."""
    found = {}
    for task, group in groups.items():
        rest = [*control, *(other for name, other in groups.items() if name != task)]
        rest_degrees, own_degrees = stats.PRIOR_DF + _degrees(rest), max(0, len(group) - 1)
        rest_squares = stats.PRIOR_DF * stats.PRIOR_SD**2 + _squares(rest)
        own = _squares([group]) / max(1, own_degrees)
        limit = special.fdtri(max(1, own_degrees), rest_degrees, 1 - _ERRATIC_LEVEL) * rest_squares / rest_degrees
        shared = (rest_squares + _squares([group])) / (rest_degrees + own_degrees)
        shared = max(shared, _squares(list(groups.values())) / max(1, _degrees(list(groups.values()))))
        if own > limit:
            found[task] = _Spread(max(own, shared), own_degrees, is_erratic=True)
        else:
            found[task] = _Spread(shared, rest_degrees + own_degrees)
    return found


def _degrees(groups: Sequence[Sequence[float]]) -> int:
    return sum(len(group) - 1 for group in groups if group)


def _squares(groups: Sequence[Sequence[float]]) -> float:
    return sum(len(group) * float(np.var(group)) for group in groups if group)


def _level(pairs: int, is_last: bool, error_rate: float) -> float:
    """What one end of an interval may err by at this look, so that all looks together err at ``error_rate``."""
    looks = tuple(range(FEWEST_PAIRS, pairs + 1))
    if is_last or pairs >= MOST_PAIRS:
        return look_levels(looks, pairs, error_rate)[-1]
    return look_levels((*looks, MOST_PAIRS), MOST_PAIRS, error_rate)[len(looks) - 1]


def judge_accuracy(
    correct: Mapping[str, tuple[Sequence[NDArray[np.bool_]], Sequence[NDArray[np.bool_]]]],
    margin: float,
    *,
    is_last: bool = False,
) -> dict[str, stats.AccuracyVerdict]:
    """Say for each task whether the submission kept the starter's accuracy.

    Args:
        correct: For each task the starter's and the submission's runs, bool (held-out images,) each.
        margin: Largest loss that counts as kept, as a fraction.
        is_last: No more rounds will come.
    """
    found = {}
    for task, (starter, own) in correct.items():
        pairs = min(len(starter), len(own))
        if pairs >= FEWEST_PAIRS:  # a single run may be lucky
            confidence = 1 - 2 * _level(pairs, is_last, stats.ACCURACY_ERROR_RATE)
            both = np.stack(starter), np.stack(own)
            found[task] = stats.paired_non_inferiority(*both, margin, confidence=confidence)
    return found
