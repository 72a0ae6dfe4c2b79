"""Series of settings, timed by a clock that the settings themselves move."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from accelerando import rounds


class World:
    """A clock, and functions that take as long as they say; ``pace`` slows all of them."""

    def __init__(self) -> None:
        self.now_s, self.pace, self.entered = 0.0, 1.0, []

    def clock(self) -> float:
        return self.now_s

    def takes(self, seconds: float):
        def run() -> None:
            self.now_s += seconds * self.pace

        return run

    @contextmanager
    def around(self, key: int) -> Iterator[None]:
        self.entered.append(key)
        self.now_s += 100.0  # must not be counted
        yield


def test_ratios_are_those_of_the_true_times() -> None:
    world = World()
    subjects = {1: world.takes(0.08), 2: world.takes(0.05), 4: world.takes(0.10)}
    found = rounds.measure_rounds(subjects, 7, clock=world.clock)
    assert [point.key for point in found] == [1, 2, 4]
    assert [point.ratio for point in found] == pytest.approx([1.0, 1.6, 0.8])
    assert found[1].interval == pytest.approx((1.6, 1.6))
    assert found[1].median_s == pytest.approx(0.05)


def test_a_machine_that_slows_down_changes_times_and_no_ratio() -> None:
    world = World()

    def take(seconds: float):
        def run() -> None:
            world.now_s += seconds * world.pace

        return run

    @contextmanager
    def slower(key: int) -> Iterator[None]:
        world.entered.append(key)
        world.pace = 1.0 + (len(world.entered) - 1) // 2  # each round of two is slower than the last
        yield

    found = rounds.measure_rounds({1: take(0.2), 2: take(0.1)}, 6, around=slower, clock=world.clock)
    assert len(set(found[0].samples_s)) == 6
    assert found[1].ratio == pytest.approx(2.0)


def test_short_calls_are_repeated_until_a_sample_is_long() -> None:
    world, calls = World(), []
    subject = world.takes(0.001)
    rounds.measure_rounds({1: lambda: (calls.append(1), subject())}, 2, sample_s=0.05, clock=world.clock)
    assert len(calls) == 2 + 2 * 50


def test_what_is_entered_around_a_sample_is_not_counted() -> None:
    world = World()
    found = rounds.measure_rounds({1: world.takes(0.2), 2: world.takes(0.1)}, 6, around=world.around, clock=world.clock)
    assert found[1].ratio == pytest.approx(2.0)
    assert sorted(world.entered) == [1] * 7 + [2] * 7


def test_few_rounds_give_no_interval() -> None:
    world = World()
    found = rounds.measure_rounds({1: world.takes(0.2), 2: world.takes(0.1)}, 1, clock=world.clock)
    assert found[1].interval == (0.0, float("inf"))


def test_no_round_is_refused() -> None:
    with pytest.raises(ValueError, match="rounds is 0"):
        rounds.measure_rounds({1: lambda: None}, 0)
