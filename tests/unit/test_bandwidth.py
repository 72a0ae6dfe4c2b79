"""The triad computes what it says; sizes come from the machine."""

import pytest
import torch

from accelerando import bandwidth
from accelerando.machine import Cache


def test_the_triad_leaves_torch_threads_as_they_were() -> None:
    before = torch.get_num_threads()
    bandwidth.triad(12_000, threads=before + 1)()
    assert torch.get_num_threads() == before


def test_bytes_over_seconds_is_what_is_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    class Taken:
        median_s = 0.5

    monkeypatch.setattr(bandwidth.measure, "measure", lambda *args, **kwargs: Taken)
    assert bandwidth.measure_triad(1200) == 2400.0


def test_arrays_beyond_the_caches_are_four_times_the_largest_level() -> None:
    caches = {"L2": Cache(2**20, 64), "L3": Cache(2**25, 2)}
    assert bandwidth.beyond_caches_bytes(caches, 2**40) == 4 * 2**26
    assert bandwidth.beyond_caches_bytes({}, None) == 96 * 2**20
    assert bandwidth.beyond_caches_bytes({"L3": Cache(2**30, 8)}, None) == 768 * 2**20


def test_arrays_never_take_more_than_an_eighth_of_the_memory() -> None:
    assert bandwidth.beyond_caches_bytes({"L3": Cache(2**30, 1)}, 2**30) == 2**27


def test_the_ladder_doubles_up_to_the_top() -> None:
    assert list(bandwidth.ladder(100, start_bytes=12)) == [12, 24, 48, 96]
    with pytest.raises(ValueError, match="more than 1"):
        bandwidth.ladder(100, factor=1.0)


def test_the_sentence_says_when_caches_do_not_show() -> None:
    flat = bandwidth.Ladder((1, 2), (10e9, 9e9), {})
    steep = bandwidth.Ladder((2**20, 2**28), (80e9, 10e9), {})
    assert "show little" in flat.sentence()
    assert "8.0 times" in steep.sentence()


def test_less_than_three_floats_are_refused() -> None:
    with pytest.raises(ValueError, match="need 12"):
        bandwidth.triad(8)
