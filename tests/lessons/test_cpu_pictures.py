"""Lesson 3's figures say what is to be seen, and its explorer counts and predicts what the roofline does."""

import pytest
import torch

from accelerando.figures import cpu as pictures
from accelerando.lessons.cpu.turns import Reading
from accelerando.rounds import RoundPoint
from accelerando.widgets import cpu as explorers

PNG = b"\x89PNG"
ROWS = [("add", 0.08, 1e9), ("product", 80.0, 90e9)]


def test_every_figure_is_a_picture_with_words() -> None:
    points = [RoundPoint(1, 1.0, 1.0, (1.0, 1.0), (1.0,)), RoundPoint(2, 0.5, 2.0, (1.5, float("inf")), (0.5,))]
    one, more = Reading(1.0, 1.0, (1.0, 1.0)), Reading(1.0, 2.5, (2.0, 3.0))
    named = {"as it comes": Reading(1.0, 1.0, (0.0, float("inf"))), "ipex.optimize": Reading(1.0, 1.5, (1.2, 1.9))}
    drawn = [
        (pictures.grouped_ratios({"a": {"x": one, "y": more}, "b": {"x": one}}, "T", "times"), "a: x 1.00, y 2.50"),
        (pictures.staircase([2**13, 2**20], [5e9, 1e9], {"L1d": 2**15}, "T"), "5 GB/s at 8 KiB"),
        (pictures.over_settings(points, ["1", "2"], title="T", xlabel="threads", mark=1), "2: 2.00"),
        (pictures.roofline(100e9, 10e9, ROWS, title="T", asked=("mine", 2.0, 20e9)), "meet at 10.0 operations"),
        (pictures.load([1e9, 2e9], [0.0, 0.5], [None, None], 0.5), "stole up to 50.0%"),
        (pictures.ways({"training": named}, "T"), "ipex.optimize 1.50"),
    ]
    for picture, words in drawn:
        assert picture.png.startswith(PNG)
        assert words in picture.words


@pytest.mark.parametrize("kind", explorers.KINDS)
def test_an_asked_kernel_computes_more_per_byte_as_it_grows(kind: str) -> None:
    small, large = (explorers.describe(kind, size, 4) for size in (2, 512))
    if kind.startswith("matrix × vector"):
        assert large.flops / large.moved_bytes < 0.5
    else:
        assert large.flops / large.moved_bytes > 4 * small.flops / small.moved_bytes
    half = explorers.describe(kind, 512, 2)
    assert half.flops == large.flops
    assert half.moved_bytes == large.moved_bytes / 2


def test_counts_of_asked_kernels_are_those_of_torch() -> None:
    from torch.utils.flop_counter import FlopCounterMode

    images, filters = torch.rand(16, 8, 56, 56), torch.rand(8, 8, 3, 3)
    runs = {
        explorers.KINDS[0]: lambda: torch.rand(8, 8) @ torch.rand(8, 8),
        explorers.KINDS[2]: lambda: torch.conv2d(images, filters, padding=1),
    }
    for kind, run in runs.items():
        with FlopCounterMode(display=False) as counter:
            run()
        assert counter.get_total_flops() == explorers.describe(kind, 8, 4).flops


def test_an_unknown_kernel_is_refused() -> None:
    with pytest.raises(ValueError, match="must be one of matrix product"):
        explorers.describe("sort", 1, 4)


def test_words_say_what_would_help() -> None:
    starved, busy = (explorers.describe(explorers.KINDS[0], size, 4) for size in (8, 4096))
    assert "waits for memory" in explorers.roof_words(starved, 100e9, 10e9)
    assert "waits for arithmetic" in explorers.roof_words(busy, 100e9, 10e9)
    assert "(100% of the flat roof)" in explorers.roof_words(busy, 100e9, 10e9)


def test_the_explorer_has_a_still_picture_and_moves() -> None:
    shown = explorers.roofline_explorer(100e9, 10e9, ROWS)
    assert shown._repr_mimebundle_()["image/png"].startswith(PNG)
    choices, _, words, _ = shown.widget.children
    size = choices.children[1]
    before = words.value
    size.value = 1024
    assert words.value != before
    assert "waits for arithmetic" in words.value
