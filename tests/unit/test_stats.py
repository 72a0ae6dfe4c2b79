"""The rules that decide grades, tried on simulated noise that is worse than it should be. Seeded."""

import itertools
import math

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import signal, stats

from accelerando.looks import look_levels, plan_looks
from accelerando.stats import (
    WORTHWHILE,
    decide_speedup,
    hodges_lehmann,
    median_interval,
    paired_non_inferiority,
)


def noisy_log_times(rng: np.random.Generator, slots: int, spread: float) -> NDArray:
    """Log durations of one slot after another: autocorrelation, drift, bursts, and one in fifty up to 5x and more."""
    noise = signal.lfilter([1], [1, -0.8], rng.normal(size=slots)) * 0.6 * 0.6 + rng.normal(size=slots) * 0.8
    times = spread * noise + rng.normal(0, 0.3) * np.linspace(0, 1, slots)
    for start in rng.integers(0, slots, max(1, slots // 100)):
        times[start : start + rng.integers(1, 20)] += rng.exponential(0.5)
    return times + (rng.random(slots) < 0.02) * rng.exponential(1.6, slots)


def log_ratios_of_pairs(rng: np.random.Generator, pairs: int, true_ratio: float, spread: float) -> NDArray:
    slots = noisy_log_times(rng, 2 * pairs, spread).reshape(pairs, 2)
    coin = rng.choice([-1, 1], pairs)
    return coin * (slots[:, 0] - slots[:, 1]) + math.log(true_ratio)


def verdict_of_a_run(log_ratios: NDArray, threshold: float, systematic: float = 0.01) -> str:
    """Look at every look, stop at the first verdict: what `measure.compare` does."""
    planned = len(log_ratios)
    for look in plan_looks(planned):
        decision = decide_speedup(
            log_ratios[:look], threshold, planned_pairs=planned, is_last=look == planned, systematic=systematic
        )
        if decision.verdict != "undecided":
            return decision.verdict
    return "undecided"


def most_by_chance(runs: int, rate: float) -> int:
    """So many of ``runs`` are exceeded once in ten thousand tests when each happens at ``rate``."""
    return int(stats.binom.isf(1e-4, runs, rate))


@pytest.mark.parametrize(
    ("pairs", "spread", "runs"),
    [(4, 0.02, 400), (6, 0.18, 400), (6, 0.4, 400), (20, 0.18, 300), (20, 0.4, 300), (60, 0.18, 200), (300, 0.18, 100)],
)
@pytest.mark.parametrize("threshold", [1.0, 1.18])
def test_code_that_just_misses_is_called_faster_in_at_most_half_a_percent(
    pairs: int, spread: float, runs: int, threshold: float
):
    rng = np.random.default_rng([pairs, int(1000 * spread), int(100 * threshold)])
    runs_of_pairs = [log_ratios_of_pairs(rng, pairs, threshold, spread) for _ in range(runs)]
    # Without the systematic allowance, behind which false alarms could hide.
    verdicts = [verdict_of_a_run(values, threshold, systematic=0.0) for values in runs_of_pairs]
    assert verdicts.count("faster") <= most_by_chance(runs, 0.005)


def test_looking_after_every_pair_at_a_plain_interval_would_raise_false_alarms():
    """The naive rule on the same noise: the tests above can fail."""
    rng = np.random.default_rng(0)
    alarms = 0
    for _ in range(200):
        values = log_ratios_of_pairs(rng, 100, 1.0, 0.18)
        alarms += any(hodges_lehmann(values[:n], 0.95)[1] > 0 for n in range(12, 101, 2))
    assert alarms > most_by_chance(200, 0.005)


def test_a_true_ratio_of_1_15_is_found_within_a_minute_of_pairs():
    rng = np.random.default_rng(115)
    # A minute holds some 700 pairs of 2 x 20 ms with rests between them.
    found = sum(verdict_of_a_run(log_ratios_of_pairs(rng, 700, 1.15, 0.18), 1.0) == "faster" for _ in range(100))
    assert found >= 95


def test_a_target_that_is_missed_by_far_is_soon_called_missed():
    rng = np.random.default_rng(7)
    verdicts = {verdict_of_a_run(log_ratios_of_pairs(rng, 300, 1.0, 0.18), 1.18) for _ in range(30)}
    assert verdicts == {"not faster"}


def test_intervals_of_all_looks_hold_the_truth_at_once():
    rng = np.random.default_rng(3)
    planned, missed, runs = 80, 0, 200
    for _ in range(runs):
        values = log_ratios_of_pairs(rng, planned, 1.3, 0.1)
        ends = [decide_speedup(values[:n], planned_pairs=planned, systematic=0.0).interval for n in plan_looks(planned)]
        missed += not all(low <= 1.3 <= high for low, high in ends)
    assert missed <= most_by_chance(runs, 0.01)


@pytest.mark.parametrize("planned", [2, 4, 7, 40, 1500])
def test_looks_share_out_the_whole_error_rate(planned: int):
    """Against brute force: random walks cross the boundaries as often as allowed."""
    looks = plan_looks(planned)
    assert looks[-1] == planned
    assert list(looks) == sorted(set(looks))
    rate = 0.05
    bounds = stats.norm.isf(look_levels(looks, planned, rate))
    rng = np.random.default_rng(planned)
    steps = np.sqrt(np.diff([0, *looks]))
    walks = np.cumsum(rng.normal(size=(40_000, len(looks))) * steps, axis=1) / np.sqrt(looks)
    crossed = int((walks > bounds).any(axis=1).sum())
    low, high = stats.binom.interval(0.9999, 40_000, rate)
    assert low <= crossed <= high


@pytest.mark.parametrize("pairs", [0, 1])
def test_too_few_pairs_say_nothing(pairs: int):
    decision = decide_speedup([0.5] * pairs, is_last=True)
    assert decision.verdict == "undecided"
    assert decision.interval == (0.0, math.inf)
    assert "too few" in decision.reason


def test_between_looks_only_the_pairs_up_to_the_last_look_count():
    values = np.random.default_rng(0).normal(0.1, 0.2, 40)
    looks = plan_looks(200)
    assert looks[:2] == (12, 15)
    at_look = decide_speedup(values[:12], planned_pairs=200)
    assert decide_speedup(values[:14], planned_pairs=200) == at_look
    assert decide_speedup(values[:14], planned_pairs=200, is_last=True).pairs == 14


def test_three_pairs_that_agree_by_chance_do_not_decide():
    assert decide_speedup([0.02, 0.02, 0.02], planned_pairs=3, is_last=True).verdict == "undecided"


def test_pairs_without_any_spread_are_decided_once_there_are_enough():
    faster = decide_speedup([math.log(1.3)] * 12, 1.18, planned_pairs=100)
    assert faster.verdict == "faster"
    assert faster.ratio == pytest.approx(1.3)
    equal = decide_speedup([0.0] * 12, planned_pairs=100)
    assert equal.verdict == "not faster"
    assert equal.interval == pytest.approx((1 / 1.01, 1.01))


def test_the_systematic_allowance_keeps_a_lasting_one_percent_from_being_called_faster():
    values = np.full(1000, math.log(1.009))
    assert decide_speedup(values, planned_pairs=1000).verdict == "not faster"
    assert decide_speedup(values, planned_pairs=1000, systematic=0.0).verdict == "faster"


def test_ends_of_the_interval_decide_as_documented():
    rng = np.random.default_rng(5)
    for shift, threshold in itertools.product((-0.1, 0.0, 0.05, 0.2), (1.0, 1.1)):
        decision = decide_speedup(rng.normal(shift, 0.05, 30), threshold, planned_pairs=30)
        low, high = decision.interval
        worthwhile = WORTHWHILE if threshold == 1.0 else threshold
        expected = "faster" if low >= threshold else "not faster" if high < worthwhile else "undecided"
        assert decision.verdict == expected
        assert low < decision.ratio < high


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_refused(wrong: float):
    with pytest.raises(ValueError, match=r"log_ratios\[2\]"):
        decide_speedup([0.1, 0.1, wrong])


@pytest.mark.parametrize(
    "settings",
    [
        {"threshold": 0.0},
        {"threshold": -1.0},
        {"threshold": math.nan},
        {"threshold": 1.2, "worthwhile": 1.1},
        {"error_rate": 0.0},
        {"error_rate": 0.7},
        {"systematic": -0.1},
    ],
)
def test_settings_out_of_range_are_refused(settings: dict):
    with pytest.raises(ValueError, match=r"threshold|worthwhile|error_rate"):
        decide_speedup([0.1] * 20, **settings)


@pytest.mark.parametrize("n", [6, 9, 15, 61, 90])
def test_hodges_lehmann_agrees_with_scipys_signed_rank_test(n: int):
    """A number lies in the interval exactly when the test does not reject it."""
    values = np.random.default_rng(n).normal(0.3, 1.0, n)
    _, low, high = hodges_lehmann(values, 0.9)
    step = 1e-6
    for end, inward in ((low, step), (high, -step)):
        method = "exact" if n <= 60 else "approx"
        kept = stats.wilcoxon(values - end - inward, method=method, correction=True).pvalue
        lost = stats.wilcoxon(values - end + inward, method=method, correction=True).pvalue
        assert kept > 0.1 - 1e-9
        assert lost <= 0.1 + 1e-9


def test_hodges_lehmann_of_too_few_values_knows_nothing():
    assert hodges_lehmann([1.0, 2.0], 0.99)[1:] == (-math.inf, math.inf)
    with pytest.raises(ValueError, match="empty"):
        hodges_lehmann([])


def test_median_interval_covers_the_median_as_often_as_it_says():
    rng = np.random.default_rng(1)
    runs = 300
    missed = 0
    for run in range(runs):
        _, low, high = median_interval(rng.exponential(size=40), 0.9, resamples=300, seed=run)
        missed += not low <= math.log(2) <= high
    assert missed <= most_by_chance(runs, 0.12)


def test_median_interval_is_the_same_for_the_same_values_and_refuses_none():
    values = np.random.default_rng(2).normal(size=30)
    assert median_interval(values) == median_interval(values)
    assert median_interval([3.0] * 9) == (3.0, 3.0, 3.0)
    with pytest.raises(ValueError, match="at least one"):
        median_interval([])


def answers(rng: np.random.Generator, runs: int, images: int, accuracy: float, run_spread: float = 0.0) -> NDArray:
    """Right or wrong: images have a difficulty of their own, shared by all runs; runs have their luck."""
    difficulty = np.random.default_rng(99).random(images)
    luck = rng.normal(0, run_spread, (runs, 1))
    own = 0.05 * rng.standard_normal((runs, images))
    return difficulty[None] + own < accuracy + luck


@pytest.mark.parametrize(("loss", "verdict"), [(0.0, "kept"), (0.03, "lost"), (0.01, "undecided")])
def test_accuracy_kept_lost_and_at_the_margin(loss: float, verdict: str):
    rng = np.random.default_rng(4)
    result = paired_non_inferiority(answers(rng, 4, 10_000, 0.85), answers(rng, 4, 10_000, 0.85 - loss))
    assert result.verdict == verdict
    assert result.difference == pytest.approx(-loss, abs=0.004)
    assert result.interval[0] < result.difference < result.interval[1]
    assert result.runs == (4, 4)


def test_a_loss_of_exactly_the_margin_is_called_kept_as_rarely_as_it_says():
    rng = np.random.default_rng(8)
    runs, kept = 120, 0
    for run in range(runs):
        baseline = answers(rng, 3, 2000, 0.85, run_spread=0.004)
        candidate = answers(rng, 3, 2000, 0.84, run_spread=0.004)
        kept += paired_non_inferiority(baseline, candidate, resamples=400, seed=run).verdict == "kept"
    assert kept <= most_by_chance(runs, 0.025)


def test_pairing_by_image_is_used():
    """The same answers shuffled per side have the same accuracies and a wider interval."""
    rng = np.random.default_rng(6)
    baseline, candidate = answers(rng, 1, 4000, 0.85), answers(rng, 1, 4000, 0.85)
    paired = paired_non_inferiority(baseline, candidate)
    shuffled = paired_non_inferiority(baseline, rng.permuted(candidate, axis=1))
    assert shuffled.difference == paired.difference
    assert np.ptp(shuffled.interval) > 1.5 * np.ptp(paired.interval)


def test_runs_that_differ_widen_the_interval():
    rng = np.random.default_rng(6)
    calm = paired_non_inferiority(answers(rng, 3, 4000, 0.85), answers(rng, 3, 4000, 0.85))
    restless = paired_non_inferiority(answers(rng, 3, 4000, 0.85, 0.02), answers(rng, 3, 4000, 0.85, 0.02))
    assert np.ptp(restless.interval) > 2 * np.ptp(calm.interval)


def test_one_run_each_says_that_the_luck_of_the_seed_is_missing():
    right = np.arange(10_000) % 10 != 0
    result = paired_non_inferiority(right, right)
    assert result.verdict == "kept"
    assert result.interval == (0.0, 0.0)
    assert "luck of the seed" in result.reason
    assert "luck" not in paired_non_inferiority(np.stack([right] * 2), right).reason


@pytest.mark.parametrize(
    ("baseline", "candidate", "said"),
    [
        ([True, False], [True, False, True], "the same ones"),
        ([1.0, 0.0], [True, False], "dtype float64"),
        ([], [], "dtype float64"),
        (np.zeros((0, 5), bool), np.zeros((1, 5), bool), "shape"),
        (np.zeros((1, 1, 5), bool), np.zeros((1, 5), bool), "shape"),
    ],
)
def test_wrong_answers_arrays_are_refused(baseline, candidate, said: str):
    with pytest.raises(ValueError, match=said):
        paired_non_inferiority(baseline, candidate)
