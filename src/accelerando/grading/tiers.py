"""What a session of the final allows to say: a ratio with its interval on each task, and accuracy kept or not. Pure.

A session has few rounds of many seconds. Two pairs on a task say little about how much pairs scatter, so both tasks
tell it together, and the course's own two sides as well: no interval is narrower than their repeats allow.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy import special

from .. import stats
from ..looks import look_levels

TOLERANCE = 1.1  # an announced 3.5 is judged at 3.5 / 1.1
FEWEST_PAIRS, MOST_PAIRS = 2, 8  # on each task
ERROR_RATE = stats.ERROR_RATE
ACCURACY_ERROR_RATE = 0.025  # how often a loss of the whole margin may be called kept, over all looks
_PRIOR_SD, _PRIOR_DF = 0.1, 4  # as in `stats`: a few pairs may agree by chance

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
        bar = announced / TOLERANCE
        return "reached" if self.low >= bar else "missed" if self.high < bar else "undecided"


def noise_sd(groups: Sequence[Sequence[float]]) -> float:
    """Deviation of repeats about the mean of their group, all groups together; NaN without a repeat."""
    degrees = sum(len(group) - 1 for group in groups if group)
    if degrees < 1:
        return math.nan
    return math.sqrt(sum(len(group) * float(np.var(group)) for group in groups if group) / degrees)


def ratio_intervals(
    log_ratios: Mapping[str, Sequence[float]],
    *,
    floor_sd: float = 0.0,
    is_last: bool = False,
    error_rate: float = ERROR_RATE,
) -> dict[str, RatioInterval]:
    """Give each task its interval.

    Args:
        log_ratios: For each task log(starter's time / submission's time), one a round.
        floor_sd: Deviation that pairs have at least, from repeats of the course's own sides; NaN: not known.
        is_last: No more rounds will come.
        error_rate: Of each end, over all looks.
    """
    groups = [list(values) for values in log_ratios.values()]
    degrees = sum(len(group) - 1 for group in groups if group)
    own_sd = noise_sd(groups)
    found = {}
    for task, values in log_ratios.items():
        pairs = len(values)
        center = math.exp(float(np.mean(values))) if pairs else math.nan
        if pairs < FEWEST_PAIRS:
            found[task] = RatioInterval(center, 0.0, math.inf, pairs)
            continue
        level = _level(pairs, is_last, error_rate)
        seen_sd = max(own_sd, 0.0 if math.isnan(floor_sd) else floor_sd)
        steadied_sd = math.sqrt((_PRIOR_DF * _PRIOR_SD**2 + degrees * seen_sd**2) / (_PRIOR_DF + degrees))
        half = max(_exceeded(degrees, level) * seen_sd, _exceeded(_PRIOR_DF + degrees, level) * steadied_sd)
        half = half / math.sqrt(pairs) + math.log1p(stats.SYSTEMATIC)
        found[task] = RatioInterval(center, center * math.exp(-half), center * math.exp(min(half, 50.0)), pairs)
    return found


def _level(pairs: int, is_last: bool, error_rate: float) -> float:
    """What one end of an interval may err by at this look, so that all looks together err at ``error_rate``."""
    looks = tuple(range(FEWEST_PAIRS, pairs + 1))
    if is_last or pairs >= MOST_PAIRS:
        return look_levels(looks, pairs, error_rate)[-1]
    return look_levels((*looks, MOST_PAIRS), MOST_PAIRS, error_rate)[len(looks) - 1]


def _exceeded(degrees: float, level: float) -> float:
    return -float(special.stdtrit(degrees, level))


def judge_tier(intervals: Mapping[str, RatioInterval], announced: float) -> Speed:
    """Judge a threshold on all tasks: missed on one is missed, and it is reached when it is on each."""
    found = {interval.against(announced) for interval in intervals.values()}
    return "missed" if "missed" in found else "undecided" if "undecided" in found or not found else "reached"


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
            confidence = 1 - 2 * _level(pairs, is_last, ACCURACY_ERROR_RATE)
            both = np.stack(starter), np.stack(own)
            found[task] = stats.paired_non_inferiority(*both, margin, confidence=confidence)
    return found
