"""The simulator of pipelines against a recursion, its bounds, and what must be true of any pipeline."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accelerando import timelines
from accelerando.timelines import Plan, bounds_s, simulate

TIMES = st.floats(0.001, 0.1)
PLANS = st.builds(
    Plan, TIMES, TIMES, workers=st.integers(0, 6), prefetch=st.integers(1, 4), cores=st.integers(1, 8),
    step_threads=st.integers(1, 4), read_s=st.one_of(st.just(0.0), TIMES),
)  # fmt: skip


def recursion(plan: Plan, batches: int) -> list[float]:
    """When each step ends on a machine with more cores than anybody wants: no events, only maxima."""
    ready, taken, ends = [], [], []
    for batch in range(batches):
        free_s = ready[batch - plan.workers] if batch >= plan.workers else 0.0
        ahead = plan.prefetch * plan.workers
        allowed_s = taken[batch - ahead] if batch >= ahead else 0.0
        ready.append(max(free_s, allowed_s) + (plan.read_s + plan.load_s) * plan.slowness(batch))
        taken.append(max(ready[batch], ends[-1] if ends else 0.0))
        ends.append(taken[batch] + plan.step_s)
    return ends


@given(PLANS.filter(lambda plan: plan.workers > 0), st.integers(0, 9), st.floats(1, 12))
@settings(max_examples=150, deadline=None)
def test_with_cores_enough_the_events_follow_the_recursion(plan: Plan, every: int, factor: float) -> None:
    plan = plan.changed(cores=100, slow_every=every, slow_factor=factor)
    assert simulate(plan).step_ends_s == pytest.approx(recursion(plan, timelines.BATCHES))


@given(PLANS)
@settings(max_examples=150, deadline=None)
def test_no_pipeline_is_faster_than_its_bounds_and_few_are_much_slower(plan: Plan) -> None:
    plan = plan.changed(step_threads=min(plan.step_threads, plan.cores))
    least_s = max(bounds_s(plan).values())
    assert simulate(plan, 200).period_s >= 0.95 * least_s  # a window may begin in the middle of a rhythm
    if plan.workers and plan.prefetch > 1 and not plan.read_s and plan.step_threads == 1:
        assert simulate(plan, 200).period_s <= 1.1 * least_s


@given(PLANS)
@settings(max_examples=60, deadline=None)
def test_every_batch_is_trained_on_once_and_in_order(plan: Plan) -> None:
    found = simulate(plan)
    steps = [span.batch for span in found.spans if span.kind == "step"]
    assert steps == list(range(timelines.BATCHES))
    assert list(found.step_ends_s) == sorted(found.step_ends_s)
    assert 0 <= found.stall_fraction <= 1


def test_without_workers_nothing_overlaps() -> None:
    found = simulate(Plan(0.02, 0.01, workers=0, cores=8))
    assert found.period_s == pytest.approx(0.03)
    assert found.stall_fraction == pytest.approx(2 / 3)


def test_on_busy_cores_more_workers_change_nothing() -> None:
    plan = Plan(0.01, 0.02, cores=2, step_threads=2)
    two, eight = (simulate(plan.changed(workers=count)).period_s for count in (2, 8))
    assert two == pytest.approx(0.025, rel=0.02)
    assert eight == pytest.approx(two, rel=0.02)
    assert timelines.bottleneck(plan.changed(workers=8)) == "cores"


def test_workers_that_wait_need_no_core() -> None:
    plan = Plan(0.0, 0.001, workers=8, cores=1, read_s=0.08)
    assert simulate(plan).period_s == pytest.approx(0.01, rel=0.05)


def test_a_stock_hides_slow_batches_and_only_those() -> None:
    plan = Plan(0.0, 0.008, workers=1, prefetch=1, read_s=0.002, slow_every=8, slow_factor=18)
    one, eight = (simulate(plan.changed(prefetch=ahead)).period_s for ahead in (1, 8))
    assert eight == pytest.approx(0.008, rel=0.02)
    assert one > 1.3 * eight
    steady = plan.changed(slow_every=0)
    assert simulate(steady).period_s == pytest.approx(simulate(steady.changed(prefetch=8)).period_s)


@pytest.mark.parametrize(
    ("copies", "period_s"), [("blocking", 0.016), ("non_blocking", 0.016), ("own_stream", 0.010), ("none", 0.010)]
)
def test_only_a_stream_of_its_own_hides_the_copy(copies: timelines.Copies, period_s: float) -> None:
    plan = Plan(0.004, 0.010, workers=4, cores=8, step_threads=0, copy_s=0.006, copies=copies)
    assert simulate(plan).period_s == pytest.approx(period_s)
    assert max(bounds_s(plan).values()) == pytest.approx(period_s)


def test_a_copy_that_blocks_keeps_a_process_without_workers_from_loading() -> None:
    plan = Plan(0.014, 0.010, workers=0, cores=8, step_threads=0, copy_s=0.006, copies="blocking")
    assert simulate(plan).period_s > simulate(plan.changed(copies="non_blocking")).period_s


@pytest.mark.parametrize(
    "changes",
    [{"workers": -1}, {"cores": 0}, {"prefetch": 0}, {"load_s": -1.0}, {"load_s": math.nan}, {"copies": "blocking"}],
)
def test_an_impossible_pipeline_is_refused(changes: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"must be|step_threads=0"):
        Plan(0.01, 0.01).changed(**changes)


def test_too_few_batches_are_refused() -> None:
    with pytest.raises(ValueError, match="first ones"):
        simulate(Plan(0.01, 0.01), timelines.SETTLED)
