"""The explorer of lesson 6: a number format, a loss scale and a value, over gradients of a real run."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from accelerando import formats
from accelerando.figures import Picture
from accelerando.figures.precision import PARTS, gradient_range
from accelerando.widgets import Shown

Magnitudes = Mapping[str, npt.NDArray[np.float64]]


def format_explorer(values: Magnitudes, start: str = "fp16", power: int = 0) -> Shown:
    """Choose a format, a loss scale and a value: bits, range, spacing, and what becomes of the gradients.

    Args:
        values: Label -> magnitudes of gradients, above 0.
        start: Name of the format that is shown first.
        power: Of two: the loss scale that is shown first.
    """
    import ipywidgets as ipw

    names = [one.name for one in formats.FORMATS]
    name = ipw.Dropdown(options=names, value=formats.find(start).name, description="format")
    scale = ipw.IntSlider(value=power, min=0, max=32, description="scale 2^", continuous_update=False)
    number = ipw.FloatText(value=0.1, description="a value", layout=ipw.Layout(width="14em"))
    still = picture(values, name.value, scale.value)
    shown, words = ipw.Image(value=still.png, format="png", width=726), ipw.HTML()

    def redraw(*_: object) -> None:
        now = picture(values, name.value, scale.value)
        shown.value, shown.alt = now.png, now.words
        words.value = describe_value(name.value, float(number.value)) + describe_fate(values, name.value, scale.value)

    for control in (name, scale, number):
        control.observe(redraw, "value")
    redraw()
    return Shown(ipw.VBox([ipw.HBox([name, scale, number]), words, shown]), still, still.words)


def picture(values: Magnitudes, name: str, power: int) -> Picture:
    """The gradients, scaled, over the range of a format."""
    return gradient_range(values, formats.find(name), scale=2.0**power)


def describe_value(name: str, value: float) -> str:
    """A value's bits in a format, what they stand for, and how far its neighbours are, as HTML."""
    form = formats.find(name)
    parts = zip(PARTS, form.encode(value), strict=True)
    bits = " ".join(f'<span style="background:{colour}33;color:inherit">{part}</span>' for (_, colour), part in parts)
    stored = float(form.round(value))
    note = f"neighbours are {float(form.spacing(stored)):.3g} apart"
    if not math.isfinite(stored):
        note = f"the largest number is {form.largest:.4g}"
    elif stored == 0 and value != 0:
        note = f"the smallest number above zero is {form.smallest:.3g}"
    elif value and math.isfinite(value):
        note += f", the error is {abs(stored / value - 1):.2%}"
    return (
        f"<div>{html.escape(form.name)}, {form.bits} bits: {value:g} is stored as <code>{bits}</code> = {stored:.7g}; "
        f"{note}</div>"
    )


def describe_fate(values: Magnitudes, name: str, power: int) -> str:
    """What becomes of the scaled gradients in a format, as HTML."""
    form = formats.find(name)
    return "".join(
        f"<div>{html.escape(label)}, times 2^{power}: {html.escape(str(form.fate(found * 2.0**power)))}</div>"
        for label, found in values.items()
    )
