"""The explorer of lesson 8: images per second by processes and threads, on this machine or on a larger one."""

from __future__ import annotations

import html
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from accelerando import costs, figures, units
from accelerando.figures import multi_cpu as pictures
from accelerando.widgets import Shown

Cells = Mapping[tuple[int, int], float]


class Predict(Protocol):
    """Predicts seconds of a step."""

    def __call__(self, knobs: Knobs) -> Cells:
        """(processes, threads) -> images per second."""


@dataclass(frozen=True)
class Knobs:
    """What the sliders set.

    Args:
        cores: That may be used.
        batch: Images of a step, all processes together.
        serial_share: Part of an image's time that threads do not shorten.
        message_bytes: All gradients.
        link: Between two ranks.
        fixed_s: Of a step, whatever the batch; no slider.
        image_s: Of one image on one core; no slider.
    """

    cores: int
    batch: int
    serial_share: float
    message_bytes: int
    link: costs.Link
    fixed_s: float
    image_s: float


def layout_words(cells: Cells, knobs: Knobs) -> str:
    """Say which layout is best, and how the two extremes compare to it."""
    best = max(cells, key=lambda cell: cells[cell])
    told = f"Predicted best: {best[0]} processes × {best[1]} threads, {cells[best]:,.0f} images/s."
    alone = (1, knobs.cores)
    if alone in cells and alone != best:
        told += f" One process with all {knobs.cores} threads: {cells[alone] / cells[best]:.0%} of that."
    each = max((cell for cell in cells if cell[1] == 1), key=lambda cell: cell[0])
    if each != best:
        told += f" {each[0]} processes of one thread: {cells[each] / cells[best]:.0%}."
    return told


def layout_explorer(predict: Predict, start: Knobs, measured: Cells) -> Shown:
    """Sliders for cores, batch, serial share, message and link over the predicted map, with the measured one beside it.

    Args:
        predict: From knobs to images per second.
        start: What was measured here.
        measured: (processes, threads) -> images per second, of this machine; empty when nothing was measured.
    """
    import ipywidgets as ipw

    powers = sorted({start.cores, 1, 2, 4, 8, 16, 32, 64})
    cores = ipw.SelectionSlider(options=powers, value=start.cores, description="cores")
    batch = ipw.SelectionSlider(
        options=sorted({start.batch, 16, 32, 64, 128, 256, 512}), value=start.batch, description="batch"
    )
    share = ipw.FloatSlider(
        value=round(start.serial_share, 2), min=0, max=1, step=0.01, description="serial share", readout_format=".0%",
        continuous_update=False,
    )  # fmt: skip
    sizes = {
        f"{units.binary_size(start.message_bytes)} (here)": start.message_bytes,
        "1 MiB": 2**20,
        "16 MiB": 2**24,
        "256 MiB": 2**28,
    }
    message = ipw.Dropdown(options=list(sizes.items()), value=start.message_bytes, description="message")
    speeds = {"as here": start.link}
    for name, factor in (("3 times as fast", 3), ("10 times as slow", 0.1)):
        speeds[name] = costs.Link(start.link.latency_s / factor, start.link.bandwidth_bytes_per_s * factor)
    link = ipw.Dropdown(options=list(speeds), value="as here", description="link")

    def picture() -> tuple[figures.Picture, str]:
        knobs = replace(
            start, cores=cores.value, batch=batch.value, serial_share=share.value, message_bytes=message.value,
            link=speeds[link.value],
        )  # fmt: skip
        cells = predict(knobs)
        maps = {f"predicted: {knobs.cores} cores, batch {knobs.batch}": (cells, knobs.cores)}
        if measured:
            maps[f"measured here: {start.cores} cores, batch {start.batch}"] = (measured, start.cores)
        return pictures.heat_maps(maps, "Images per second"), layout_words(cells, knobs)

    still, said = picture()
    shown, words = ipw.Image(value=still.png, format="png"), ipw.HTML(html.escape(said))

    def redraw(*_: object) -> None:
        now, text = picture()
        shown.value, shown.alt = now.png, now.words
        words.value = html.escape(text)

    for control in (cores, batch, share, message, link):
        control.observe(redraw, "value")
    redraw()
    controls = [ipw.HBox([cores, batch, share]), ipw.HBox([message, link])]
    return Shown(ipw.VBox([*controls, words, shown]), still, f"{still.words} {said}")
