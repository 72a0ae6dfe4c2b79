"""A session of the final decides rightly, stops in time, and tells whose fault it was; on a fake clock."""

from typing import Any

import numpy as np
import pytest
from fake_sides import FakeSides, tasks

from accelerando import catalog
from accelerando.grading import verdict
from accelerando.grading.final_task import Task
from accelerando.grading.session import FEWEST_ROUNDS, SIDES, SessionResult, run_session
from accelerando.grading.trainer import SideFailed, TooSlow, Trained
from accelerando.noise import UNKNOWN_STATE, MachineState
from accelerando.submission import Ungradable

TIMED = [question for question in catalog.final().questions if question.is_timed]
USUAL = {"starter": 28.0, "reference": 4.0, "submission": 4.0}


def session(sides: FakeSides, budget_s: float = 480.0, seed: int = 1) -> SessionResult:
    return run_session(
        tasks(),
        sides,
        thresholds=[question.threshold or 0 for question in TIMED],
        margin=0.01,
        budget_s=budget_s,
        rng=np.random.default_rng(seed),
        clock=sides.clock,
    )


def statuses(found: SessionResult, state: MachineState = UNKNOWN_STATE) -> list[str]:
    return [result.status for result in verdict.judge_tiers(found, TIMED, state)]


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (4.0, ["passed", "passed", "passed"]),
        (10.2, ["passed", "passed", "failed"]),
        (15.5, ["passed", "failed", "failed"]),
        (28.0, ["failed", "failed", "failed"]),
        (60.0, ["failed", "failed", "failed"]),
    ],
)
def test_submission_lands_in_its_tier(seconds: float, expected: list[str]) -> None:
    sides = FakeSides({**USUAL, "submission": seconds}, {"submission": 0.86}, jitter=0.01, overhead_s=1.0)
    assert statuses(session(sides, budget_s=2000)) == expected


def test_equal_speed_is_told_apart_from_the_first_tier_at_the_noise_of_a_shared_machine() -> None:
    equal = {**USUAL, "starter": 24.0, "submission": 24.0, "reference": 3.0}
    found = [session(FakeSides(equal, jitter=0.08, rng=np.random.default_rng(seed)), seed=seed) for seed in range(10)]
    assert sum(statuses(each) == ["failed"] * 3 for each in found) >= 9
    assert all("passed" not in statuses(each) for each in found)
    assert sum(max(run.round for run in each.runs) == FEWEST_ROUNDS for each in found) >= 5
    told = [verdict.judge_tiers(each, TIMED)[0].message for each in found]
    assert any("both tasks together 0.9" in each or "both tasks together 1." in each for each in told)


def test_clear_case_is_over_after_four_rounds() -> None:
    found = session(FakeSides(USUAL, {"submission": 0.87}))
    assert max(run.round for run in found.runs) == FEWEST_ROUNDS
    assert statuses(found) == ["passed"] * 3


def test_each_round_trains_every_side_once_and_tasks_take_turns() -> None:
    sides = FakeSides(USUAL, {"submission": 0.87})
    found = session(sides)
    for number in range(1, FEWEST_ROUNDS + 1):
        own = [run for run in found.runs if run.round == number]
        assert {run.side for run in own} == set(SIDES)
        assert {run.task for run in own} == {"real" if number % 2 else "rule"}


def test_later_rounds_spare_the_reference() -> None:
    found = session(FakeSides(USUAL, {"submission": 0.84}))
    later = [run.side for run in found.runs if run.round > FEWEST_ROUNDS]
    assert later
    assert set(later) == {"starter", "submission"}
    assert len(found.times_s("reference", "real")) == FEWEST_ROUNDS / 2


def test_sides_come_in_changing_order_and_images_in_a_new_one_each_round() -> None:
    orders = set()
    for seed in range(8):
        sides = FakeSides(USUAL, {"submission": 0.87})
        session(sides, seed=seed)
        orders.add(tuple(side for side, _, _ in sides.asked[:3]))
        rounds = [sides.orders[first : first + 3] for first in range(0, len(sides.orders), 3)]
        assert all(len(set(own)) == 1 for own in rounds)
        assert len({own[0] for own in rounds}) == len(rounds)
    assert len(orders) > 2


def test_slower_task_counts() -> None:
    sides = FakeSides({**USUAL, "submission/real": 2.0, "submission/rule": 15.5}, {"submission": 0.87}, jitter=0.01)
    found = session(sides, budget_s=2000)
    assert statuses(found) == ["passed", "failed", "failed"]
    assert verdict.slower(found) == "rule"


def test_accuracy_lost_on_one_task_loses_all_tiers() -> None:
    found = session(FakeSides(USUAL, {"submission/real": 0.87, "submission/rule": 0.80}))
    assert statuses(found) == ["failed"] * 3
    assert "(starter 8" in verdict.judge_tiers(found, TIMED)[0].message


def test_accuracy_too_close_to_call_is_undecided_and_takes_more_rounds() -> None:
    found = session(FakeSides(USUAL, {"submission": 0.84}))
    assert max(run.round for run in found.runs) > FEWEST_ROUNDS
    assert statuses(found) == ["undecided"] * 3


def test_ratio_at_the_border_is_undecided_not_failed() -> None:
    found = session(FakeSides({**USUAL, "submission": 28.0 / 3.5 * 1.1}, {"submission": 0.87}, jitter=0.03))
    assert statuses(found) == ["passed", "passed", "undecided"]


@pytest.mark.parametrize("budget_s", [60.0, 200.0, 480.0, 900.0])
def test_no_round_is_begun_that_would_not_fit(budget_s: float) -> None:
    sides = FakeSides({**USUAL, "submission": 28.0 / 3.18}, {"submission": 0.87}, jitter=0.1)
    found = session(sides, budget_s=budget_s)
    assert found.seconds <= max(budget_s, 62.0) * 1.15
    assert found.runs


def test_too_short_a_time_is_undecided() -> None:
    assert statuses(session(FakeSides(USUAL, {"submission": 0.87}), budget_s=50.0)) == ["undecided"] * 3


@pytest.mark.parametrize("failure", [SideFailed("`train` raised ValueError"), SideFailed("not a number")])
def test_failing_submission_fails_with_its_sentence_and_stops_the_session(failure: SideFailed) -> None:
    sides = FakeSides(USUAL, failures={"submission": failure})
    found = session(sides)
    assert statuses(found) == ["failed"] * 3
    assert verdict.judge_tiers(found, TIMED)[0].message == str(failure)
    assert len(sides.asked) <= len(SIDES)


@pytest.mark.parametrize("side", ["starter", "reference"])
def test_failing_side_of_the_course_is_not_the_learners_fault(side: str) -> None:
    with pytest.raises(Ungradable, match=side):
        session(FakeSides(USUAL, failures={side: SideFailed("out of memory")}))


@pytest.mark.parametrize(("starter_s", "expected"), [(28.0, "failed"), (110.0, "undecided")])
def test_endless_run_fails_unless_the_machine_is_slow_for_all(starter_s: float, expected: str) -> None:
    sides = FakeSides({**USUAL, "starter": starter_s}, failures={"submission": TooSlow("did not end within 120 s")})
    for seed in range(4):  # whoever comes first
        assert statuses(session(sides, seed=seed)) == [expected] * 3


def test_limit_of_a_run_follows_the_starter_once_it_is_known() -> None:
    sides = FakeSides({**USUAL, "starter": 10.0, "submission": 10.0}, jitter=0.0)
    session(sides)
    assert {limit_s for _, _, limit_s in sides.asked[3:]} == {35.0}


def test_restless_machine_excuses_slowness() -> None:
    found = [session(FakeSides({**USUAL, "submission": 28.0}, jitter=0.5), seed=seed) for seed in range(20)]
    restless = [each for each in found if each.noise_sd > verdict.NOISY_SD]
    assert len(restless) > 10
    for each in restless:
        assert "failed" not in statuses(each)
        assert "varied by" in verdict.judge_tiers(each, TIMED)[0].message


def test_run_that_is_too_slow_late_is_judged_by_what_the_machine_is_like_then() -> None:
    class BusyLater(FakeSides):
        def __call__(self, side: str, task: Task, order: np.ndarray, limit_s: float) -> Trained:
            if len(self.asked) >= 12:
                self.seconds = {"starter": 36.0, "reference": 89.0}
                self.failures = {"submission": TooSlow(f"did not end within {limit_s:.0f} s")}
            return super().__call__(side, task, order, limit_s)

    for seed in range(6):
        found = session(BusyLater(USUAL, {"submission": 0.84}), seed=seed)  # accuracy too close to call: a fifth round
        assert found.is_slow
        assert len(found.runs) == 12
        assert statuses(found) == ["undecided"] * 3
        assert "own reference was only 0.4 times" in verdict.judge_tiers(found, TIMED)[0].message


class BreaksLater(FakeSides):
    """Sides of which some fail from the thirteenth run on."""

    later: dict[str, Exception]

    def __call__(self, side: str, task: Task, order: np.ndarray, limit_s: float) -> Trained:
        if len(self.asked) >= 12:
            self.failures = self.later
        return super().__call__(side, task, order, limit_s)


@pytest.mark.parametrize("side", ["starter", "submission"])
def test_what_whole_rounds_have_shown_stays_when_the_machine_breaks_a_later_one(side: str) -> None:
    slow = TooSlow("`train` and `predict` did not end within 80 s")
    told = set()
    for seed in range(6):  # whoever comes first
        sides = BreaksLater({**USUAL, "submission": 28.0 / 2.2}, {"submission": 0.87}, jitter=0.02)
        sides.later = {"starter": slow} if side == "starter" else {"submission": slow, "starter": slow}
        found = session(sides, seed=seed)
        assert len(found.runs) == 12
        assert statuses(found) == ["passed", "undecided", "failed"]
        told.add(verdict.judge_tiers(found, TIMED)[1].message.partition(".")[0])
    ended = "one of the course's own sides gave no time any more, so the session ended early"
    assert told == ({ended} if side == "starter" else {ended, f"{slow}, and the starter is slow here, too"})


def test_reference_that_gives_no_time_after_a_slow_run_excuses_it() -> None:
    sides = BreaksLater(USUAL, {"submission": 0.84})
    slow = TooSlow("did not end within 80 s")
    sides.later = {"submission": slow, "reference": slow}
    found = session(sides)
    assert statuses(found) == ["undecided"] * 3
    assert "reference gave no time then, either" in verdict.judge_tiers(found, TIMED)[0].message


def test_slow_reference_shows_a_machine_that_is_not_fit_and_excuses_slowness_only() -> None:
    loaded = {"starter": 36.0, "reference": 89.0}
    slow = session(FakeSides({**loaded, "submission": 67.0}))
    assert statuses(slow) == ["undecided"] * 3
    assert "own reference was only 0.4 times as fast" in verdict.judge_tiers(slow, TIMED)[0].message
    assert (
        statuses(session(FakeSides({**loaded, "submission": 4.0}, {"submission": 0.87}), budget_s=2000))
        == ["passed"] * 3
    )
    failures = {"submission": TooSlow("did not end within 100 s")}
    for seed in range(4):
        assert statuses(session(FakeSides(loaded, failures=failures), seed=seed)) == ["undecided"] * 3


def test_stolen_time_excuses_slowness_and_never_lost_accuracy() -> None:
    stolen = MachineState(0.3, None, None, None, None)
    assert statuses(session(FakeSides({**USUAL, "submission": 28.0})), stolen) == ["undecided"] * 3
    lost = session(FakeSides(USUAL, {"submission": 0.5}))
    assert statuses(lost, stolen) == ["failed"] * 3


def test_equal_code_is_never_called_one_and_a_half_times_as_fast() -> None:
    calls = [statuses(session(FakeSides({**USUAL, "submission": 28.0}, jitter=0.1), seed=seed)) for seed in range(12)]
    assert not any("passed" in call for call in calls)


@pytest.mark.parametrize(
    ("claimed", "status"), [(7.0, "passed"), (5.5, "passed"), (1.0, "failed"), (60.0, "failed"), (None, "undecided")]
)
def test_claim_about_all_changes_is_compared_with_the_session(claimed: float | None, status: str) -> None:
    from accelerando.submission import Result

    found = session(FakeSides(USUAL, {"submission": 0.87}))
    own = Result("final.claims", "passed", 10, 10, "right")
    table: list[Any] = [{"technique": "all together", "predicted": 2.0, "measured": claimed}] if claimed else []
    assert verdict.judge_claim(own, table, found).status == status


def test_claim_fails_only_when_the_session_is_sure() -> None:
    from accelerando.submission import Result

    own = Result("final.claims", "passed", 10, 10, "right")
    table = [{"technique": "all together", "predicted": 2.0, "measured": 7.0}]
    slow = {**USUAL, "submission": 28.0}
    short = session(FakeSides(slow), budget_s=50.0)
    assert verdict.judge_claim(own, table, short).status == "undecided"
    restless = session(FakeSides(slow, jitter=0.5), seed=4)
    assert verdict.judge_claim(own, table, restless).status == "undecided"
    assert verdict.judge_claim(own, table, session(FakeSides(slow))).status == "failed"


def test_claim_is_undecided_without_a_session() -> None:
    from accelerando.submission import Result

    own = Result("final.claims", "passed", 10, 10, "right")
    row = {"technique": "all together", "predicted": 2.0, "measured": 2.0}
    found = verdict.judge_claim(own, [row], None)
    assert (found.status, "part a was not timed" in found.message) == ("undecided", True)
    broken = session(FakeSides(USUAL, failures={"submission": SideFailed("`train` raised ValueError")}))
    assert "as `train` raised ValueError. Part a comes first." in verdict.judge_claim(own, [row], broken).message
