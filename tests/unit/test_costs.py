"""Predictions against simulations and the laws' own limits."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accelerando import costs

fractions = st.floats(0.0, 1.0)
counts = st.integers(2, 4096)


def simulated_s(serial_s: float, parallel_s: float, workers: int) -> float:
    """One worker does the serial part while the others wait, then all do an equal share."""
    clocks = [serial_s] * workers
    return max(clock + parallel_s / workers for clock in clocks)


@given(fractions, counts)
def test_amdahl_equals_a_simulated_run(fraction: float, workers: int) -> None:
    gain = simulated_s(fraction, 1 - fraction, 1) / simulated_s(fraction, 1 - fraction, workers)
    assert costs.predict_speedup(fraction, workers) == pytest.approx(gain)


@given(st.floats(0.01, 1.0), counts)
def test_amdahl_never_exceeds_the_inverse_of_the_serial_fraction(fraction: float, workers: int) -> None:
    assert 1 <= costs.predict_speedup(fraction, workers) <= min(workers, 1 / fraction) * (1 + 1e-12)


@given(fractions, counts)
def test_gustafson_counts_the_work_of_a_simulated_second(fraction: float, workers: int) -> None:
    work = fraction + (1 - fraction) * workers  # one second: serial, then everybody
    assert costs.predict_scaled_speedup(fraction, workers) == pytest.approx(work)


@given(fractions, counts)
def test_karp_flatt_undoes_amdahl(fraction: float, workers: int) -> None:
    found = costs.serial_fraction_of(costs.predict_speedup(fraction, workers), workers)
    assert found == pytest.approx(fraction, abs=1e-9)


def test_more_speedup_than_workers_reads_as_a_negative_fraction() -> None:
    assert costs.serial_fraction_of(2.2, 2) < 0


@given(fractions)
def test_the_fit_finds_the_fraction_of_noiseless_times(fraction: float) -> None:
    times = {workers: simulated_s(fraction, 1 - fraction, workers) for workers in (1, 2, 3, 8)}
    assert costs.fit_serial_fraction(times) == pytest.approx(fraction, abs=1e-9)


def test_the_fit_stays_possible_when_noise_does_not() -> None:
    assert costs.fit_serial_fraction({1: 1.0, 2: 0.4}) == 0.0
    assert costs.fit_serial_fraction({1: 1.0, 2: 1.3}) == 1.0


@pytest.mark.parametrize("times", [{}, {1: 1.0}, {2: 1.0, 4: 0.5}])
def test_the_fit_needs_one_worker_and_another(times: dict[int, float]) -> None:
    with pytest.raises(ValueError, match="needed are 1"):
        costs.fit_serial_fraction(times)


def test_the_roofline_has_its_ridge_where_peak_meets_bandwidth() -> None:
    assert costs.predict_roofline_flops_per_s(1.0, 100e9, 20e9) == 20e9
    assert costs.predict_roofline_flops_per_s(5.0, 100e9, 20e9) == 100e9
    assert costs.predict_roofline_flops_per_s(50.0, 100e9, 20e9) == 100e9


def simulated_ring_s(message_bytes: int, ranks: int, link: costs.Link) -> float:
    """Reduce-scatter, then all-gather: in each round every rank passes one piece to its neighbour."""
    total = 0.0
    for _ in range(2 * (ranks - 1)):
        total += link.latency_s + message_bytes / ranks / link.bandwidth_bytes_per_s
    return total


@given(st.integers(0, 10**9), st.integers(1, 64))
def test_the_ring_equals_its_rounds(message_bytes: int, ranks: int) -> None:
    link = costs.Link(5e-6, 1e9)
    assert costs.predict_ring_all_reduce_s(message_bytes, ranks, link) == pytest.approx(
        simulated_ring_s(message_bytes, ranks, link)
    )


def test_the_ring_wins_for_many_bytes_and_the_tree_for_few() -> None:
    link = costs.Link(latency_s=1e-4, bandwidth_bytes_per_s=1e9)
    ring, tree = costs.predict_ring_all_reduce_s, costs.predict_tree_all_reduce_s
    assert ring(10**9, 16, link) < tree(10**9, 16, link) < costs.predict_naive_all_reduce_s(10**9, 16, link)
    assert tree(100, 16, link) < ring(100, 16, link)


@pytest.mark.parametrize(
    "predict", [costs.predict_naive_all_reduce_s, costs.predict_ring_all_reduce_s, costs.predict_tree_all_reduce_s]
)
def test_one_rank_has_nobody_to_talk_to(predict) -> None:
    assert predict(10**6, 1, costs.Link(1e-3, 1e6)) == 0.0
    with pytest.raises(ValueError, match="ranks is 0"):
        predict(10**6, 0, costs.Link(1e-3, 1e6))


def test_each_rank_sends_less_than_twice_the_message_however_many_there_are() -> None:
    assert costs.ring_all_reduce_sent_bytes(1000, 2) == 1000
    assert 1990 < costs.ring_all_reduce_sent_bytes(1000, 1000) < 2000


def test_the_price_of_an_hour_of_steps_is_the_hourly_price() -> None:
    assert costs.predict_price(0.4, step_s=3.6) == pytest.approx(0.4)
    assert costs.predict_price(0.4, step_s=3.6, startup_s=3600) == pytest.approx(0.8)


@pytest.mark.parametrize("fraction", [-0.1, 1.1, math.nan])
def test_a_fraction_outside_0_to_1_is_refused(fraction: float) -> None:
    with pytest.raises(ValueError, match="from 0 to 1"):
        costs.predict_speedup(fraction, 2)


@pytest.mark.parametrize("workers", [0, -1, math.nan])
def test_less_than_one_worker_is_refused(workers: float) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        costs.predict_speedup(0.1, workers)
