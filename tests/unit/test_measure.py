"""Measuring with a fake clock: what is counted, in which order, and what is said about it. No real durations."""

import gc
import itertools
import math
import sys
import types
from pathlib import Path

import numpy as np
import pytest

from accelerando import measure as measuring
from accelerando import timing
from accelerando.measure import Comparison, compare, measure
from accelerando.workers import Experiment, ExperimentFailed


class FakeClock:
    """A clock that only moves when a task says so."""

    def __init__(self, drift: float = 0.0, seed: int = 0) -> None:
        self.now_s = 1000.0
        self._drift, self._rng = drift, np.random.default_rng(seed)
        self.order: list[str] = []

    def __call__(self) -> float:
        return self.now_s

    def task(self, name: str, seconds: float, noise: float = 0.0, first_s: float = 0.0):
        """A function that takes ``seconds``, more so as the day goes by, and ``first_s`` more at its first call."""
        calls = [0]

        def run() -> None:
            slower = 1 + self._drift * (self.now_s - 1000.0)
            self.now_s += seconds * slower * math.exp(noise * self._rng.normal())
            self.now_s += first_s if not calls[0] else 0.0
            calls[0] += 1
            self.order.append(name)

        return run


def fake_comparison(ratio: float, *, noise: float = 0.05, drift: float = 0.0, seed: int = 0, **settings) -> Comparison:
    clock = FakeClock(drift, seed)
    tasks = clock.task("a", 0.05 * ratio, noise), clock.task("b", 0.05, noise)
    return compare(*tasks, clock=clock, seed=seed, **settings)


def test_a_faster_candidate_is_found_and_said_in_one_sentence():
    result = fake_comparison(1.3)
    assert result.verdict == "faster"
    assert result.interval[0] < 1.3 < result.interval[1]
    assert result.pairs < 40
    sentence = str(result)
    assert sentence.startswith(f"candidate is {result.ratio:.2f}x as fast as baseline, 99% interval ")
    assert sentence.endswith(f" from {result.pairs} pairs in {measuring.duration(result.elapsed_s)}: faster")


def test_equal_code_is_not_called_faster():
    verdicts = [fake_comparison(1.0, noise=0.05, seed=seed, budget_s=20.0).verdict for seed in range(20)]
    assert verdicts.count("faster") == 0
    assert verdicts.count("not faster") >= 15


def test_a_slower_candidate_is_not_faster():
    slow = fake_comparison(0.8)
    assert (slow.verdict, slow.outcome) == ("not faster", "slower")
    assert str(slow).endswith(": slower")
    assert fake_comparison(1.0).outcome == "not faster"


def test_a_drifting_machine_does_not_make_equal_code_differ():
    # Ten percent slower every second: whoever always came second would look slower.
    results = [fake_comparison(1.0, noise=0.02, drift=0.1, seed=seed, budget_s=10.0) for seed in range(10)]
    assert all(result.verdict != "faster" for result in results)
    assert np.mean([math.log(result.ratio) for result in results]) == pytest.approx(0.0, abs=0.01)


def test_order_within_pairs_is_random_and_repeatable():
    def order(seed: int) -> list[str]:
        clock = FakeClock()
        compare(clock.task("a", 0.05), clock.task("b", 0.05), clock=clock, seed=seed, threshold=1.01, budget_s=40.0)
        return clock.order[6:]  # after first calls and warm-up

    first = order(1)
    pairs = ["".join(first[i : i + 2]) for i in range(0, len(first), 2)]
    assert set(pairs) == {"ab", "ba"}
    assert order(1) == first
    assert any(order(seed)[: len(first)] != first for seed in (2, 3, 4))


def test_durations_without_any_spread_are_decided():
    result = fake_comparison(1.3, noise=0.0)
    assert result.verdict == "faster"
    assert result.ratio == pytest.approx(1.3)


def test_a_threshold_is_judged_by_the_interval():
    assert fake_comparison(1.5, threshold=1.18).verdict == "faster"
    missed = fake_comparison(1.05, threshold=1.18)
    assert missed.verdict == "not faster"
    assert str(missed).endswith(": not faster than 1.18x")
    assert "below 1.18" in missed.reason


def test_a_gain_that_cannot_be_told_within_the_budget_is_undecided():
    result = fake_comparison(1.03, noise=0.5, budget_s=3.0)
    assert result.verdict == "undecided"
    assert result.elapsed_s <= 3.0
    assert "still holds" in result.reason


def test_first_call_and_warm_up_are_apart_from_the_samples():
    clock = FakeClock()
    baseline = clock.task("a", 0.05, first_s=3.0)
    candidate = clock.task("b", 0.04, first_s=20.0)
    result = compare(baseline, candidate, clock=clock, warmup_calls=3, seed=0)
    assert result.baseline.first_call_s == pytest.approx(3.05)
    assert result.candidate.first_call_s == pytest.approx(20.04)
    assert result.candidate.warmup_s == pytest.approx(4 * 0.04)  # the three, and one to size the samples
    assert max(result.candidate.samples_s) == pytest.approx(0.04)
    assert result.verdict == "faster"


def test_short_calls_are_repeated_until_a_sample_is_long_enough():
    clock = FakeClock()
    result = compare(clock.task("a", 0.0013), clock.task("b", 0.001), clock=clock, seed=0)
    assert result.baseline.repeats * 0.0013 >= measuring.MIN_SAMPLE_S
    assert result.candidate.repeats * 0.001 >= measuring.MIN_SAMPLE_S
    assert result.candidate.repeats <= 21
    assert result.candidate.samples_s[0] == pytest.approx(0.001)
    assert result.verdict == "faster"


def test_a_burst_during_warm_up_does_not_shorten_the_samples():
    clock = FakeClock()
    task = clock.task("a", 0.001)
    calls = iter(range(10**6))

    def burst() -> None:
        task()
        if next(calls) == 1:
            clock.now_s += 0.03

    result = measure(burst, clock=clock)
    assert result.repeats * 0.001 >= measuring.MIN_SAMPLE_S


def test_a_call_too_short_for_the_clock_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(timing, "_MAX_REPEATS", 1000)
    with pytest.raises(ValueError, match="too short to be timed"):
        measure(lambda: None, clock=lambda: 5.0)


def test_a_clock_that_runs_backwards_is_refused():
    clock = FakeClock()
    task = clock.task("a", 0.05)
    calls = iter(range(1000))

    def jumps() -> None:
        task()
        if next(calls) == 5:
            clock.now_s -= 3.0

    with pytest.raises(ValueError, match="use another clock"):
        measure(jumps, clock=clock)


def test_a_budget_of_nothing_measures_nothing_and_says_so():
    result = fake_comparison(1.3, budget_s=0.0)
    assert (result.verdict, result.pairs) == ("undecided", 0)
    assert math.isnan(result.ratio)
    assert result.baseline.samples_s == ()
    assert "fitted into the budget" in str(result)


def test_the_budget_is_never_exceeded_by_a_pair_that_could_be_foreseen():
    result = fake_comparison(1.02, noise=0.0, budget_s=1.05, threshold=1.019)
    assert result.elapsed_s <= 1.05
    assert result.pairs >= 8


@pytest.mark.parametrize(
    "settings",
    [{"budget_s": -1.0}, {"budget_s": math.nan}, {"min_sample_s": 0.0}, {"warmup_calls": -1}, {"threshold": -2.0}],
)
def test_settings_out_of_range_are_refused(settings: dict):
    with pytest.raises(ValueError, match=r"budget_s|min_sample_s|warmup_calls|threshold"):
        fake_comparison(1.0, **settings)


def test_what_is_neither_function_nor_experiment_is_refused():
    with pytest.raises(ValueError, match="got a int to time"):
        measure(5)  # type: ignore[arg-type]


def test_an_error_in_the_function_comes_through_and_garbage_collection_is_back():
    clock = FakeClock()
    task = clock.task("a", 0.05)
    calls = iter(range(100))

    def fails() -> None:
        task()
        if next(calls) == 8:
            assert not gc.isenabled()
            raise OSError("no data")

    with pytest.raises(OSError, match="no data"):
        compare(fails, task, clock=clock, seed=0)
    assert gc.isenabled()


def test_garbage_is_not_collected_while_sampling_and_is_afterwards():
    clock = FakeClock()
    task = clock.task("a", 0.05)
    states: list[bool] = []

    def looks() -> None:
        states.append(gc.isenabled())
        task()

    measure(looks, clock=clock)
    assert states[:3] == [True] * 3  # first call and warm-up
    assert not any(states[3:])
    assert gc.isenabled()


def test_a_gpu_is_waited_for_when_torch_uses_one(monkeypatch: pytest.MonkeyPatch):
    clock = FakeClock()
    queued: list[float] = []

    def synchronize() -> None:
        clock.now_s += sum(queued)
        queued.clear()

    cuda = types.SimpleNamespace(is_initialized=lambda: True, synchronize=synchronize)
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(cuda=cuda))
    result = measure(lambda: queued.append(0.05), clock=clock)
    assert result.median_s == pytest.approx(0.05)


def test_measure_gives_a_median_with_an_interval_and_stops_when_precise():
    clock = FakeClock(seed=3)
    result = measure(clock.task("a", 0.05, noise=0.03), label="step", clock=clock, budget_s=60.0)
    assert result.interval_s[0] < result.median_s < result.interval_s[1]
    assert result.median_s == pytest.approx(0.05, rel=0.03)
    assert result.elapsed_s < 20
    assert result.calls_per_s == pytest.approx(20, rel=0.03)
    assert str(result).startswith("step: ")
    assert "95% interval" in str(result)


def test_measure_takes_one_sample_whatever_the_budget():
    clock = FakeClock()
    result = measure(clock.task("a", 2.0), clock=clock, budget_s=0.0)
    assert len(result.samples_s) == 1
    assert result.interval_s == (0.0, math.inf)
    assert "interval" not in str(result)


def test_progress_is_told_after_every_pair():
    heard: list[measuring.Progress] = []
    result = fake_comparison(1.3, progress=heard.append)
    assert [item.done for item in heard] == list(range(1, result.pairs + 1))
    assert all(a.left_s > b.left_s for a, b in itertools.pairwise(heard))
    assert heard[0].interval == (0.0, math.inf)
    assert heard[-1].interval == result.interval
    assert heard[0].planned == result.planned_pairs


@pytest.fixture
def targets(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    return "worker_targets"


def test_experiments_are_compared_in_two_processes(targets: str):
    slow = Experiment(f"{targets}:spins", {"milliseconds": 6}, {"SIDE": "a"}, prepares=True)
    fast = Experiment(f"{targets}:spins", {"milliseconds": 2}, {"SIDE": "b"}, prepares=True)
    result = compare(slow, fast, budget_s=20.0, labels=("slow", "fast"), min_sample_s=0.005)
    assert result.verdict == "faster"  # three times: no machine is so busy that this needs a fake clock
    assert result.baseline.start_s > 0
    assert result.candidate.label == "fast"
    assert result.notes == result.state.disturbances


def test_unequal_conditions_are_noted(targets: str):
    pinned = Experiment(f"{targets}:spins", {"milliseconds": 2}, cpus=(0,), prepares=True)
    free = Experiment(f"{targets}:spins", {"milliseconds": 2}, prepares=True)
    assert "different cores: (0,) and all" in compare(pinned, free, budget_s=0.0).notes[0]
    assert "in its own" in compare(lambda: sum(range(1000)), free, budget_s=0.0).notes[0]


def test_an_experiment_that_fails_ends_the_comparison(targets: str):
    with pytest.raises(ExperimentFailed, match="KeyError"):
        compare(lambda: None, Experiment(f"{targets}:raises", {"text": "x"}))


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(6.123, "6.12 s"), (0.0123, "12.3 ms"), (1.5e-6, "1.5 µs"), (2e-9, "2 ns"), (4321.0, "4321 s"),
     (0.9996, "1 s"), (999.7, "1000 s"), (math.nan, "an unknown time")],
)  # fmt: skip
def test_durations_are_written_for_people(seconds: float, text: str):
    assert measuring.duration(seconds) == text
