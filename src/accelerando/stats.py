"""The statistics that decide grades: intervals, a stopping rule for speed, non-inferiority of accuracy. Pure.

**Speed.** Baseline and candidate are timed in pairs, the order inside each pair decided by a coin. If the two
are the same code, the coin alone decides which of a pair's two durations is called the baseline's: the log
ratio is as likely to be ``+x`` as ``-x``, whatever the machine was doing. Drift, bursts, autocorrelation and
outliers change how large ``x`` is, never its sign. A *signed-rank* interval needs exactly this symmetry and
nothing else, so its false-alarm rate does not depend on how noisy the machine is. It needs a dozen pairs; fewer
(runs of many seconds) get a Student's t interval with a floor under the spread.

**Stopping early.** Looking often and stopping at the first good news multiplies false alarms. The whole error
rate is therefore shared out over a list of looks fixed before the first pair (group-sequential boundaries of
a Lan-DeMets spending function, uniform in the logarithm of the number of pairs). The intervals hold at all
looks at once, so a caller may stop whenever it likes.
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from accelerando.looks import last_look, plan_looks

TOLERANCE = 1.1
"""An announced ratio of 1.3 is judged at 1.3 / 1.1: nobody fails for a hair."""
ERROR_RATE = 0.005
"""How often identical code may be called faster, and a threshold that is reached be called missed."""
ACCURACY_ERROR_RATE = 0.025
"""How often a loss of the whole margin may be called kept, over all looks."""
WORTHWHILE = 1.05
"""With the threshold 1.0: a gain below this is not worth having, so "not faster" may be said."""
SYSTEMATIC = 0.01
"""Allowance for what no number of pairs averages out, e.g. where the pages of two functions' data happen to lie."""
BETWEEN_PROCESSES = 0.05
"""The same for two processes, which differ in all that is drawn once when they start. Four quiet couples of equal code
lay up to 1.7 % apart as a whole, and above 3 % for stretches of seconds (`benchmarks/decision_quality.py`)."""

PRIOR_SD, PRIOR_DF = 0.1, 4
"""What a pair's log ratio usually scatters by, and as how many pairs that counts: a few may agree by chance."""
_RUN_SD, _RUN_DF = 0.003, 4  # accuracy between seeds, likewise
_EXACT_PAIRS = 60


@dataclass(frozen=True)
class SpeedDecision:
    """What the pairs seen so far allow to say.

    Attributes:
        verdict: Faster, not faster, or undecided so far.
        ratio: Baseline time / candidate time; above 1 the candidate is faster; NaN without pairs.
        interval: Lower and upper end for the ratio; valid at every look at once.
        confidence: Of the interval, e.g. 0.99.
        pairs: Pairs that the interval rests on (those up to the last look).
        reason: One sentence: which end decided, or what is missing.
    """

    verdict: Literal["faster", "not faster", "undecided"]
    ratio: float
    interval: tuple[float, float]
    confidence: float
    pairs: int
    reason: str


def decide_speedup(
    log_ratios: ArrayLike,
    threshold: float = 1.0,
    *,
    planned_pairs: int = 1000,
    is_last: bool = False,
    worthwhile: float | None = None,
    error_rate: float = ERROR_RATE,
    systematic: float = SYSTEMATIC,
) -> SpeedDecision:
    """Say whether the candidate is faster than ``threshold`` times the baseline; may be asked after any pair.

    Args:
        log_ratios: log(baseline time / candidate time), one a pair, in the order measured.
        threshold: Wanted ratio, e.g. 1.0 or 1.18; above 0.
        planned_pairs: The most pairs that will be taken; fixed before the first one.
        is_last: No more pairs will come: all the error rate that is left may be spent now.
        worthwhile: "Not faster" when the interval ends below this; the threshold unless that is 1.0,
            where no interval around equal code could: then ``WORTHWHILE``, or more if ``systematic`` is large.
        error_rate: Of each side of the interval.
        systematic: Lasting difference between two copies of the same code, as a fraction; widens the interval.

    Raises:
        ValueError: If a log ratio is not finite or a setting is out of range.
    """
    values = _finite(log_ratios, "log_ratios")
    if not (math.isfinite(threshold) and threshold > 0):
        raise ValueError(f"threshold is {threshold}: it must be a ratio above 0, e.g. 1.0 or 1.3")
    if not 0 < error_rate < 0.5 or not 0 <= systematic < 0.5:
        raise ValueError(f"error_rate {error_rate} must lie in (0, 0.5), systematic {systematic} in [0, 0.5)")
    if worthwhile is None:
        worthwhile = max(WORTHWHILE, 1 + 2 * systematic) if threshold == 1.0 else threshold
    if worthwhile < threshold:
        raise ValueError(f"worthwhile is {worthwhile}: it must not be below the threshold {threshold}")
    looked, level = last_look(values.size, planned_pairs, error_rate, is_last=is_last)
    confidence = 1 - 2 * error_rate
    if not looked:
        ratio = float(np.exp(np.median(values))) if values.size else math.nan
        reason = f"{values.size} pairs are too few: the first look comes after {plan_looks(planned_pairs)[0]}"
        return SpeedDecision("undecided", ratio, (0.0, math.inf), confidence, 0, reason)
    center, low, high = _location_interval(values[:looked], level)
    slack = math.log1p(systematic)
    interval = (_exp(low - slack), _exp(high + slack))
    verdict: Literal["faster", "not faster", "undecided"] = "undecided"
    reason = f"the interval {interval[0]:.3g}-{interval[1]:.3g} still holds both {threshold:g} and {worthwhile:g}"
    if threshold == worthwhile:
        reason = f"the interval {interval[0]:.3g}-{interval[1]:.3g} still holds {threshold:g}"
    if interval[0] >= threshold:
        verdict, reason = "faster", f"the interval begins at {interval[0]:.3g}, not below {threshold:g}"
    elif interval[1] < worthwhile:
        verdict, reason = "not faster", f"the interval ends at {interval[1]:.3g}, below {worthwhile:g}"
    return SpeedDecision(verdict, _exp(center), interval, confidence, looked, reason)


def _location_interval(values: NDArray, level: float) -> tuple[float, float, float]:
    """Centre and two-sided interval erring at ``level`` on each side: signed ranks, or Student's t if too few."""
    if 2.0**-values.size * 2 <= level:
        return _signed_rank(values, level)
    return _student_t(values, level)


def _student_t(values: NDArray, level: float) -> tuple[float, float, float]:
    # A few pairs may agree by chance, or because a steady drift met a lucky order. So the interval is never
    # narrower than with a spread of PRIOR_SD seen in PRIOR_DF pairs before (a moderated t: Smyth 2004).
    degrees = values.size - 1
    center = float(values.mean())
    squares = float(((values - center) ** 2).sum())
    moderated = math.sqrt((PRIOR_DF * PRIOR_SD**2 + squares) / (PRIOR_DF + degrees))
    spread = max(
        _t_quantile(degrees, level) * math.sqrt(squares / degrees),
        _t_quantile(PRIOR_DF + degrees, level) * moderated,
    )
    half = spread / math.sqrt(values.size)
    return center, center - half, center + half


def _t_quantile(degrees: float, level: float) -> float:
    """Return what Student's t exceeds with probability ``level``; scipy.stats would take a second to import."""
    return -float(special.stdtrit(degrees, level))


def hodges_lehmann(values: ArrayLike, confidence: float = 0.95) -> tuple[float, float, float]:
    """Return the centre of a symmetric distribution and its signed-rank interval.

    Args:
        values: At least one finite number.
        confidence: Of the two-sided interval. Too few values for it give an infinite one.

    Returns:
        Centre (median of all pairwise means: an outlier hardly moves it), lower end, upper end.
    """
    data = _finite(values, "values")
    if not data.size:
        raise ValueError("values is empty: give at least one number")
    return _signed_rank(data, (1 - confidence) / 2)


def _signed_rank(values: NDArray, level: float) -> tuple[float, float, float]:
    n = values.size
    rows, columns = np.triu_indices(n)
    means = (values[rows] + values[columns]) / 2
    cut = _signed_rank_cut(n, level)
    middle = float(np.median(means))
    if cut < 0:
        return middle, -math.inf, math.inf
    ends = np.partition(means, [cut, means.size - 1 - cut])
    return middle, float(ends[cut]), float(ends[means.size - 1 - cut])


@lru_cache(maxsize=1024)
def _signed_rank_cut(n: int, level: float) -> int:
    """Return the largest c with P(signed-rank sum <= c) <= level under symmetry; -1 if there is none."""
    if n > _EXACT_PAIRS:
        spread = math.sqrt(n * (n + 1) * (2 * n + 1) / 24)
        return math.floor(n * (n + 1) / 4 - float(special.ndtri(1 - level)) * spread - 0.5)
    chances = np.ones(1)
    for rank in range(1, n + 1):
        longer = np.zeros(chances.size + rank)
        longer[: chances.size] += chances / 2
        longer[rank:] += chances / 2
        chances = longer
    return int(np.searchsorted(np.cumsum(chances), level, side="right")) - 1


def median_interval(
    values: ArrayLike, confidence: float = 0.95, *, resamples: int = 2000, seed: int = 0
) -> tuple[float, float, float]:
    """Return the median and its bootstrap (percentile) interval.

    Args:
        values: At least one finite number.
        confidence: Of the two-sided interval, in (0, 1).
        resamples: How many times the values are drawn again.
        seed: Of the draws: the same values give the same interval.
    """
    data = _finite(values, "values")
    if not data.size or not 0 < confidence < 1:
        raise ValueError(f"need at least one value and 0 < confidence < 1, got {data.size} and {confidence}")
    rng = np.random.default_rng(seed)
    medians = np.median(data[rng.integers(0, data.size, (resamples, data.size))], axis=1)
    low, high = np.quantile(medians, [(1 - confidence) / 2, (1 + confidence) / 2])
    return float(np.median(data)), float(low), float(high)


@dataclass(frozen=True)
class AccuracyVerdict:
    """Whether the candidate kept the baseline's accuracy.

    Attributes:
        verdict: Kept, lost or undecided.
        difference: Candidate accuracy - baseline accuracy (0.01 is one percentage point).
        interval: For the difference.
        confidence: Of the interval, two-sided.
        runs: Runs of baseline and candidate.
        images: Held-out images.
        reason: One sentence, which also says when a single run each hides the luck of the seed.
    """

    verdict: Literal["kept", "lost", "undecided"]
    difference: float
    interval: tuple[float, float]
    confidence: float
    runs: tuple[int, int]
    images: int
    reason: str


def paired_non_inferiority(
    baseline_correct: ArrayLike,
    candidate_correct: ArrayLike,
    margin: float = 0.01,
    *,
    confidence: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
) -> AccuracyVerdict:
    """Say whether accuracy was kept to within ``margin``, by a bootstrap over images and over runs.

    Both sides answered the same images, so each draw of images is used for both: images hard for everybody
    cancel. Runs differ by their seeds; with a few of them their spread is known poorly, so it is pooled over
    both sides, steadied by a prior, and drawn from Student's t.

    Args:
        baseline_correct: Bool, shape (runs, images) or (images,): was this image classified rightly?
        candidate_correct: Likewise, the same images in the same order; the number of runs may differ.
        margin: Largest loss that counts as kept; 0.01 is one percentage point.
        confidence: Of the two-sided interval.
        resamples: Draws of the bootstrap.
        seed: Of the draws.

    Returns:
        Kept when the interval begins above ``-margin``, lost when it ends below it, else undecided.

    Raises:
        ValueError: If the arrays are not bool, empty, or not about the same images.
    """
    baseline, candidate = (
        _answers(baseline_correct, "baseline_correct"),
        _answers(candidate_correct, "candidate_correct"),
    )
    if baseline.shape[1] != candidate.shape[1]:
        raise ValueError(
            f"baseline has {baseline.shape[1]} images and candidate {candidate.shape[1]}: give the same ones"
        )
    if not 0 <= margin < 1 or not 0 < confidence < 1:
        raise ValueError(f"margin {margin} must lie in [0, 1) and confidence {confidence} in (0, 1)")
    rng = np.random.default_rng(seed)
    runs, images = (baseline.shape[0], candidate.shape[0]), baseline.shape[1]
    difference = float(candidate.mean() - baseline.mean())
    gain = candidate.mean(axis=0) - baseline.mean(axis=0)
    kinds, counts = np.unique(gain.round(9), return_counts=True)  # an image drawn again is one of its kind drawn again
    draws = rng.multinomial(images, counts / images, resamples) @ kinds / images
    note = ""
    if max(runs) > 1:
        deviations = sum(float(((side.mean(1) - side.mean()) ** 2).sum()) for side in (baseline, candidate))
        degrees = _RUN_DF + sum(runs) - 2
        spread = math.sqrt((_RUN_DF * _RUN_SD**2 + deviations) / degrees * (1 / runs[0] + 1 / runs[1]))
        draws = draws + spread * rng.standard_t(degrees, resamples)
    else:
        note = "; one run each: the luck of the seed is not in the interval"
    low, high = (float(end) for end in np.quantile(draws, [(1 - confidence) / 2, (1 + confidence) / 2]))
    points = f"{100 * low:+.2f} to {100 * high:+.2f} points"
    verdict: Literal["kept", "lost", "undecided"] = "undecided"
    reason = f"the difference lies in {points}: both sides of -{100 * margin:g} are possible{note}"
    if low > -margin:
        verdict, reason = "kept", f"the difference lies in {points}, above -{100 * margin:g}{note}"
    elif high < -margin:
        verdict, reason = "lost", f"the difference lies in {points}, below -{100 * margin:g}{note}"
    return AccuracyVerdict(verdict, difference, (low, high), confidence, runs, images, reason)


def _answers(values: ArrayLike, name: str) -> NDArray:
    array = np.asarray(values)
    if array.ndim == 1:
        array = array[None]
    if array.dtype != np.bool_ or array.ndim != 2 or not array.size:
        raise ValueError(f"{name} has dtype {array.dtype} and shape {array.shape}: give bool of shape (runs, images)")
    return array


def _finite(values: ArrayLike, name: str) -> NDArray:
    array = np.asarray(values, dtype=np.float64).reshape(-1)
    if not np.isfinite(array).all():
        first = int(np.flatnonzero(~np.isfinite(array))[0])
        raise ValueError(f"{name}[{first}] is {array[first]}: only finite numbers are allowed")
    return array


def _exp(value: float) -> float:
    return math.exp(value) if value < 700 else math.inf
