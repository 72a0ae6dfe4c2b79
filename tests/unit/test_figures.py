"""Figures are small, say in words what they show, and leave matplotlib as it was."""

import io

import matplotlib as mpl
import pytest
from PIL import Image

from accelerando import bandwidth, figures, measure
from accelerando.noise import UNKNOWN_STATE


def measurement(label: str) -> measure.Measurement:
    return measure.Measurement(label, 1.0, (0.9, 1.1), 0.95, (1.0,), 1, 1.0, 0.0, 0.0, 1.0, UNKNOWN_STATE)


def comparison(verdict, ratio: float, pairs: int = 9) -> measure.Comparison:
    return measure.Comparison(
        verdict, ratio, (ratio * 0.9, float("inf")), 0.99, 1.0, pairs, 20, measurement("before"), measurement("after"),
        4.0, 3.0, "", (), UNKNOWN_STATE,
    )  # fmt: skip


PICTURES = {
    "stacked_bar": lambda: figures.stacked_bar({"forward": 0.01, "backward": 0.03}, "A step"),
    "speedups": lambda: figures.speedups(
        {"perfect": ([1, 2], [1, 2])}, {"here": [(1, 1, 1, 1), (2, 1.5, 0.0, float("inf"))]}, title="Threads"
    ),
    "two_over_one": lambda: figures.two_over_one(
        [8, 16],
        {"a": [(1, 1, 1), (2, 1, 3)]},
        {"a": [(50, 49, 51), (40, 39, 41)]},
        labels=("batch", "speed", "accuracy"),
        title="Batch",
    ),
    "ratios": lambda: figures.ratios([comparison("faster", 1.3), comparison("undecided", float("nan"), 0)], "Switches"),
    "no ratios": lambda: figures.ratios([], "Nothing measured"),
    "ladder": lambda: figures.ladder(bandwidth.Ladder((2**20, 2**21), (9e9, 5e9), {"L2": 2**20}), "Triad"),
}


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_is_small_and_on_white(name: str) -> None:
    picture = PICTURES[name]()
    image = Image.open(io.BytesIO(picture.png)).convert("RGB")
    assert image.getpixel((1, 1)) == (255, 255, 255)
    assert image.width <= 850
    assert len(picture.png) < 60_000


def test_words_carry_the_numbers() -> None:
    assert "backward 75.0%" in PICTURES["stacked_bar"]().words
    assert "1.50 at 2" in PICTURES["speedups"]().words
    assert "50 at 8, 40 at 16" in PICTURES["two_over_one"]().words


def test_the_same_data_give_the_same_bytes() -> None:
    assert PICTURES["ladder"]().png == PICTURES["ladder"]().png


def test_drawing_leaves_matplotlib_as_it_was() -> None:
    before = dict(mpl.rcParams)
    PICTURES["ratios"]()
    assert dict(mpl.rcParams) == before


def test_a_notebook_gets_the_picture_and_the_words() -> None:
    picture = PICTURES["speedups"]()
    bundle, metadata = picture._repr_mimebundle_()
    assert bundle["image/png"] == picture.png
    assert bundle["text/plain"] == metadata["image/png"]["alt"] == picture.words
