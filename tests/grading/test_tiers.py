"""Intervals of a session's few rounds hold what they promise."""

import math

import numpy as np
import pytest

from accelerando import stats
from accelerando.grading import tiers


def intervals(rng: np.random.Generator, truth: float, sd: float, pairs: int) -> dict:
    values = {task: list(rng.normal(math.log(truth), sd, pairs)) for task in ("real", "rule")}
    return dict(tiers.ratio_intervals(values, is_last=True).tasks)


@pytest.mark.parametrize("sd", [0.01, 0.05, 0.15])
def test_true_ratio_lies_in_the_interval_almost_always(sd: float) -> None:
    rng = np.random.default_rng(0)
    misses = 0
    for _ in range(400):
        found = intervals(rng, 2.0, sd, 2)
        misses += sum(not interval.low <= 2.0 <= interval.high for interval in found.values())
    assert misses <= 12  # 1 % of 800, and four deviations


def test_border_is_crossed_by_chance_in_few_sessions_although_looked_at_often() -> None:
    rng, crossed = np.random.default_rng(1), 0
    for _ in range(300):
        values: dict[str, list[float]] = {"real": [], "rule": []}
        bar = math.log(3.5 / stats.TOLERANCE)
        for pairs in range(1, 6):
            for own in values.values():
                own.append(float(rng.normal(bar, 0.06)))
            found = tiers.ratio_intervals(values, is_last=pairs == 5)
            if found.against(3.5) == "reached":
                crossed += 1
                break
    assert crossed <= 6


@pytest.mark.parametrize(("sd", "most"), [(0.08, 6), (0.16, 16)])
def test_ratio_at_the_announced_threshold_is_seldom_missed_however_restless_the_submission(
    sd: float, most: int
) -> None:
    rng, missed = np.random.default_rng(7), 0
    for _ in range(400):
        own, control = {"real": [], "rule": []}, {"real": [], "rule": []}
        for pairs in range(1, 5):
            for task, values in own.items():
                starter = rng.normal(0, 0.08)
                values.append(math.log(1.5) + starter - rng.normal(0, sd))
                control[task].append(2 + starter - rng.normal(0, 0.08))
            found = tiers.ratio_intervals(own, control=list(control.values()), is_last=pairs == 4)
            if pairs >= tiers.FEWEST_PAIRS and found.against(1.5) != "undecided":
                missed += found.against(1.5) == "missed"
                break
    assert missed <= most


@pytest.mark.parametrize(("truth", "sd"), [(1.0, 0.3), (1.0, 0.5), (0.9, 1.0), (1.1, 0.5)])
def test_erratic_times_on_one_task_are_neither_a_way_up_nor_down(truth: float, sd: float) -> None:
    rng, counted = np.random.default_rng(5), {"reached": 0, "missed": 0, "undecided": 0}
    bar = 1.5 / stats.TOLERANCE
    for _ in range(300):
        own, control = {"real": [], "rule": []}, {"real": [], "rule": []}
        for pairs in range(1, 6):
            for task, ratio, own_sd in (("real", 10 * bar, 0.05), ("rule", truth * bar, sd)):
                starter = rng.normal(0, 0.08)
                own[task].append(math.log(ratio) + starter - rng.normal(0, own_sd))
                if pairs <= 2:
                    control[task].append(2 + starter - rng.normal(0, 0.08))
            judged = tiers.ratio_intervals(own, control=list(control.values()), is_last=pairs == 5).against(1.5)
            if judged != "undecided":
                break
        counted[judged] += 1
    assert counted["missed" if truth >= 1 else "reached"] <= 6
    if truth == 1:
        assert counted["reached"] <= 6


def test_interval_is_never_narrower_than_the_allowance_between_processes() -> None:
    values = {task: [1.0] * 8 for task in ("real", "rule")}
    found = tiers.ratio_intervals(values, control=[[2.0] * 500] * 2, is_last=True).tasks["real"]
    assert found.high / found.ratio > 1 + tiers.stats.SYSTEMATIC


def test_one_pair_says_nothing() -> None:
    found = tiers.ratio_intervals({"real": [2.0], "rule": []}, is_last=True)
    assert found.against(1.5) == "undecided"
    assert found.tasks["real"].against(1.5) == "undecided"
    assert found.tasks["rule"].pairs == 0


def test_noise_of_the_courses_own_sides_widens_the_interval() -> None:
    values = {"real": [1.0, 1.01], "rule": [1.0, 1.01]}
    alone, calm, restless = (
        tiers.ratio_intervals(values, control=control).tasks["real"]
        for control in ([], [[2.0, 2.01]] * 2, [[2.0, 2.5]] * 2)
    )
    assert restless.high / restless.low > 2 * calm.high / calm.low
    assert calm.high / calm.low < alone.high / alone.low  # more repeats, and they agree


def test_more_pairs_and_a_last_look_narrow_it() -> None:
    def width(pairs: int, *, is_last: bool) -> float:
        values = {task: [1.0 + 0.02 * (-1) ** n for n in range(pairs)] for task in ("real", "rule")}
        found = tiers.ratio_intervals(values, is_last=is_last).tasks["real"]
        return found.high / found.low

    assert width(6, is_last=False) < width(4, is_last=False) < width(2, is_last=False)
    assert width(2, is_last=True) < width(2, is_last=False)


def test_tier_is_missed_when_one_task_misses_it() -> None:
    fast, slow = tiers.RatioInterval(5.0, 4.5, 5.5, 3), tiers.RatioInterval(2.0, 1.8, 2.2, 3)
    assert tiers.Ratios({"real": fast, "rule": slow}).against(3.5) == "missed"
    assert tiers.Ratios({"real": fast, "rule": fast}).against(3.5) == "reached"
    assert tiers.Ratios({"real": fast, "rule": slow}).against(2.0) == "undecided"  # 1.8 to 2.2 holds 2 / 1.1
    assert tiers.Ratios().against(2.0) == "undecided"


def test_tier_is_missed_when_the_mean_of_both_tasks_misses_it_for_then_one_task_must() -> None:
    wide = tiers.RatioInterval(1.0, 0.7, 1.43, 3)
    narrow = tiers.RatioInterval(1.0, 0.8, 1.25, 6)
    assert tiers.Ratios({"real": wide, "rule": wide}).against(1.5) == "undecided"
    assert tiers.Ratios({"real": wide, "rule": wide}, narrow).against(1.5) == "missed"


def test_mean_decides_for_both_tasks_only_where_they_are_alike() -> None:
    one, other = tiers.RatioInterval(1.6, 1.3, 2.0, 3), tiers.RatioInterval(1.7, 1.35, 2.1, 3)
    mean = tiers.RatioInterval(1.65, 1.42, 1.9, 6)
    assert tiers.Ratios({"real": one, "rule": other}, mean, are_alike=True).against(1.5) == "reached"
    assert tiers.Ratios({"real": one, "rule": other}, mean).against(1.5) == "undecided"
    below = tiers.RatioInterval(1.35, 1.1, 1.7, 3)  # by itself below 1.5 / 1.1
    assert tiers.Ratios({"real": below, "rule": other}, mean, are_alike=True).against(1.5) == "undecided"


def test_tasks_are_alike_until_their_ratios_lie_further_apart_than_their_repeats_explain() -> None:
    def is_alike(apart: float) -> bool:
        values = {"real": [1.0, 1.1, 0.9], "rule": [1.0 + apart, 1.1 + apart, 0.9 + apart]}
        return tiers.ratio_intervals(values, control=[[2.0, 2.1], [2.0, 1.9]]).are_alike

    assert is_alike(0.0)
    assert is_alike(0.1)
    assert not is_alike(0.3)
    assert not tiers.ratio_intervals({"real": [1.0], "rule": []}).are_alike


@pytest.mark.parametrize("other", [1.5, 1.7, 1.9, 10.0])
def test_who_is_too_slow_on_one_task_is_seldom_called_fast_by_the_other(other: float) -> None:
    rng, reached = np.random.default_rng(11), 0
    for _ in range(300):
        own, control = {"real": [], "rule": []}, {"real": [], "rule": []}
        for pairs in range(1, 6):
            for task, truth in (("real", other), ("rule", 1.3)):
                starter = rng.normal(0, 0.08)
                own[task].append(math.log(truth) + starter - rng.normal(0, 0.08))
                control[task].append(2 + starter - rng.normal(0, 0.08))
            found = tiers.ratio_intervals(own, control=list(control.values()), is_last=pairs == 5)
            if pairs >= tiers.FEWEST_PAIRS and found.against(1.5) != "undecided":
                reached += found.against(1.5) == "reached"
                break
    assert reached <= 6


def test_noise_is_taken_about_each_groups_own_mean() -> None:
    assert tiers.noise_sd([[0.0, 0.0], [5.0, 5.0]]) == 0.0
    assert tiers.noise_sd([[0.0, 2.0], [5.0, 7.0]]) == pytest.approx(math.sqrt(2))
    assert math.isnan(tiers.noise_sd([[1.0], []]))


def test_loss_of_the_whole_margin_is_called_kept_in_few_sessions_although_looked_at_often() -> None:
    rng, kept, sessions, last = np.random.default_rng(2), 0, 150, 6
    for _ in range(sessions):
        starter, own = (list(rng.random((last, 3000)) < accuracy) for accuracy in (0.85, 0.83))
        for pairs in range(2, last + 1):
            found = tiers.judge_accuracy({"real": (starter[:pairs], own[:pairs])}, 0.02, is_last=pairs == last)["real"]
            if found.verdict != "undecided":
                kept += found.verdict == "kept"
                break
    assert kept <= 10  # 2.5 % of 150, and three deviations


def test_accuracy_gets_a_wider_interval_while_more_looks_may_come() -> None:
    rng = np.random.default_rng(3)
    both = {"real": tuple(list(rng.random((2, 3000)) < 0.85) for _ in range(2))}
    early, late = (tiers.judge_accuracy(both, 0.01, is_last=is_last)["real"].interval for is_last in (False, True))
    assert early[0] < late[0]
    assert late[1] < early[1]
    assert tiers.judge_accuracy({"real": (both["real"][0][:1], both["real"][1])}, 0.01) == {}
