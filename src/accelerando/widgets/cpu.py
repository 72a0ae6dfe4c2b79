"""The explorer of lesson 3: a kernel of any size under this machine's roof, or under another machine's."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass

from accelerando import costs, figures
from accelerando.figures import cpu as pictures
from accelerando.measure import duration
from accelerando.widgets import Shown


@dataclass(frozen=True)
class Asked:
    """What a kernel of some kind and size does.

    Args:
        name: In words.
        flops: Floating-point operations of one call.
        moved_bytes: Bytes of one call, each array once.
    """

    name: str
    flops: float
    moved_bytes: float


KINDS = (
    "matrix product, n × n",
    "matrix × vector, n × n",
    "convolution 3×3, n channels",
    "n operations on each number",
)


def describe(kind: str, size: int, number_bytes: int) -> Asked:
    """Count what a kernel computes and moves.

    Args:
        kind: One of `KINDS`.
        size: Its n, at least 1.
        number_bytes: Bytes of one number: 4 for float32, 2 for the half precisions.

    Raises:
        ValueError: If the kind is unknown.
    """
    if kind == KINDS[0]:
        return Asked(f"product of two {size} × {size} matrices", 2 * size**3, 3 * number_bytes * size**2)
    if kind == KINDS[1]:
        return Asked(f"{size} × {size} matrix × vector", 2 * size**2, number_bytes * size * (size + 2))
    if kind == KINDS[2]:
        pixels = 16 * 56 * 56
        moved = number_bytes * (2 * pixels * size + 9 * size**2)
        return Asked(f"convolution 3×3, {size} channels, 16 images of 56 × 56", 18 * pixels * size**2, moved)
    if kind == KINDS[3]:
        numbers = 2**24
        name = f"{size} operations on each of 16 million numbers, in one pass"
        return Asked(name, size * numbers, 2 * number_bytes * numbers)
    raise ValueError(f"kind is {kind!r}: it must be one of {', '.join(KINDS)}")


def roof_words(asked: Asked, peak_flops_per_s: float, bandwidth_bytes_per_s: float) -> str:
    """Say what the roofline predicts for a kernel, and what would help."""
    intensity = asked.flops / asked.moved_bytes
    rate = costs.predict_roofline_flops_per_s(intensity, peak_flops_per_s, bandwidth_bytes_per_s)
    waits = intensity < peak_flops_per_s / bandwidth_bytes_per_s
    advice = (
        "It waits for memory: fewer bytes help (fuse, block, shorter numbers), more arithmetic units do not."
        if waits
        else "It waits for arithmetic: wider SIMD, more cores or faster units help, more bandwidth does not."
    )
    return (
        f"{asked.name}: {intensity:.3g} operations per byte, at most {rate / 1e9:.1f} GFLOP/s "
        f"({rate / peak_flops_per_s:.0%} of the flat roof), so at least {duration(asked.flops / rate)}. {advice}"
    )


def roofline_explorer(
    peak_flops_per_s: float, bandwidth_bytes_per_s: float, points: Sequence[pictures.RoofRow]
) -> Shown:
    """Choose a kernel and a size, and change the machine: the star shows where the roofline puts it.

    Args:
        peak_flops_per_s: Measured here.
        bandwidth_bytes_per_s: Measured here.
        points: Kernels measured here.
    """
    import ipywidgets as ipw

    kind = ipw.Dropdown(options=KINDS, value=KINDS[0], description="kernel")
    size = ipw.SelectionSlider(options=[2**power for power in range(13)], value=8, description="n")
    number = ipw.Dropdown(options=[("float32: 4 bytes", 4), ("half: 2 bytes", 2)], value=4, description="numbers")
    factors = [0.25, 0.5, 1.0, 2.0, 4.0, 8.0]
    faster = ipw.SelectionSlider(options=factors, value=1.0, description="arithmetic ×")
    wider = ipw.SelectionSlider(options=factors, value=1.0, description="bandwidth ×")

    def picture() -> tuple[figures.Picture, str]:
        asked = describe(kind.value, size.value, number.value)
        peak, width = peak_flops_per_s * faster.value, bandwidth_bytes_per_s * wider.value
        intensity = asked.flops / asked.moved_bytes
        rate = costs.predict_roofline_flops_per_s(intensity, peak, width)
        row = (f"{kind.value.partition(',')[0]}, n = {size.value}", intensity, rate)
        drawn = pictures.roofline(peak, width, points, title="This machine's kernels, and yours (star)", asked=row)
        return drawn, roof_words(asked, peak, width)

    still, said = picture()
    shown, words = ipw.Image(value=still.png, format="png", width=814), ipw.HTML(html.escape(said))

    def redraw(*_: object) -> None:
        now, text = picture()
        shown.value, shown.alt = now.png, now.words
        words.value = html.escape(text)

    for control in (kind, size, number, faster, wider):
        control.observe(redraw, "value")
    redraw()
    controls = [ipw.HBox([kind, size]), ipw.HBox([number, faster, wider])]
    return Shown(ipw.VBox([*controls, words, shown]), still, f"{still.words} {said}")
