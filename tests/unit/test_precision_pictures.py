"""The figures and the explorer of lesson 6 show what they are given, with and without a kernel."""

import ipywidgets as ipw
import numpy as np
import pytest

from accelerando import formats
from accelerando.figures import precision as drawn
from accelerando.widgets import precision as widgets

VALUES = {"activations": np.exp2(np.linspace(-40.0, -10.0, 200)), "weights": np.array([0.5, 1e-9])}


def parts(widget: object, kind: type) -> list:
    found = [widget] if isinstance(widget, kind) else []
    for child in getattr(widget, "children", ()):
        found += parts(child, kind)
    return found


def test_moving_the_scale_rescues_gradients() -> None:
    shown = widgets.format_explorer(VALUES, "fp16")
    (scale,), (image,), (words,) = (parts(shown.widget, kind) for kind in (ipw.IntSlider, ipw.Image, ipw.HTML))
    before, said = image.value, words.value
    assert before == shown.still.png
    scale.value = 16
    assert image.value != before
    assert said != words.value
    assert "0.0% become zero" in words.value.split("activations")[1].split("weights")[0]


@pytest.mark.parametrize("form", formats.FORMATS, ids=lambda form: form.name)
def test_every_format_can_be_explored(form: formats.Format) -> None:
    assert widgets.picture(VALUES, form.name, 32).png
    for value in (0.1, 0.0, -1e-30, 1e30, float("inf"), float("nan")):
        assert form.name in widgets.describe_value(form.name, value)


def test_a_value_is_shown_with_its_bits_and_its_error() -> None:
    words = widgets.describe_value("bf16", 0.1)
    for part in (">0<", ">01111011<", ">1001101<", "0.1000977", "0.000488 apart", "0.10%"):
        assert part in words
    assert "largest number is 6.55e+04" in widgets.describe_value("fp16", 1e6)
    assert "smallest number above zero" in widgets.describe_value("fp16", 1e-9)


def test_figures_say_what_they_show() -> None:
    assert "bf16 0 01111011 1001101" in drawn.bit_layout(formats.FORMATS).words
    assert "become zero" in drawn.gradient_range(VALUES, formats.E4M3).words
    assert "skipped: [1]" in drawn.loss_scales([8.0, 4.0, 4.0], [True, False, False]).words
    assert "skipped: none" in drawn.loss_scales([4.0], [False]).words
    assert "(overflow)" in drawn.underflow((1.0, 2.0), (0.1, 0.0), (0.1, 0.0), (False, True)).words
    assert "1.50 at 8" in drawn.bytes_over_batch({"net": ((8, 16), (1.5, 0.7))}).words
    assert "0.80 at 16" in drawn.ratio_over_batch({16: (0.8, 0.7, float("inf"))}, "Speed").words
