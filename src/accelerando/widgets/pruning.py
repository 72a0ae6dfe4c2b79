"""The explorer of lesson 5: how much to prune, for an accuracy that may be lost."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import Any

from accelerando import figures
from accelerando.figures import pruning as pictures
from accelerando.widgets import Shown

SPEEDS = ("training step", "classifying")


def choose(rows: Sequence[Mapping[str, Any]], what: str, allowed: float) -> Mapping[str, Any]:
    """The fastest row whose accuracy is surely no more than ``allowed`` (a fraction) below the dense net's.

    Args:
        rows: From `TradeOffCurve.rows`; the first is the dense net.
        what: One of `SPEEDS`.
        allowed: Accuracy that may be lost.
    """
    kept = [row for row in rows if row["percent"] == 0 or row["interval"][0] >= -allowed]
    return max(kept, key=lambda row: row[what][1])


def trade_off_words(row: Mapping[str, Any], what: str, allowed: float) -> str:
    """Say what the chosen point gives and costs, and what the work alone would have promised."""
    if row["percent"] == 0:
        return f"With at most {100 * allowed:.1f} points lost for sure, nothing measured here may be removed."
    low, high = (100 * end for end in row["interval"])
    doing = "classifying a batch" if what == "classifying" else f"a {what}"
    return (
        f"Remove {row['percent']} % of the channels (left: {', '.join(map(str, row['channels']))}): {doing} is "
        f"{row[what][1]:.2f} times as fast, where the multiplications promise {1 / row['work']:.1f}; accuracy "
        f"{100 * row['difference']:+.1f} points ({low:+.1f} to {high:+.1f}), {row['parameters']:,} parameters left."
    )


def trade_off_picture(rows: Sequence[Mapping[str, Any]], what: str, allowed: float) -> figures.Picture:
    """The curve with the chosen point marked."""
    return pictures.trade_off(rows, what, allowed, choose(rows, what, allowed)["percent"])


def trade_off_explorer(rows: Sequence[Mapping[str, Any]], allowed: float = 0.02) -> Shown:
    """A slider for the accuracy that may be lost and a choice of speed, over this machine's measured points.

    Args:
        rows: From `TradeOffCurve.rows`.
        allowed: Where the slider starts, as a fraction.
    """
    import ipywidgets as ipw

    loss = ipw.FloatSlider(
        value=100 * allowed, min=0, max=15, step=0.5, description="may be lost", readout_format=".1f",
        continuous_update=False,
    )  # fmt: skip
    speed = ipw.ToggleButtons(options=list(SPEEDS), value=SPEEDS[0])
    still = trade_off_picture(rows, SPEEDS[0], allowed)
    picture, words = ipw.Image(value=still.png, format="png", width=726), ipw.HTML()

    def draw(*_: object) -> None:
        now = trade_off_picture(rows, speed.value, loss.value / 100)
        picture.value, picture.alt = now.png, now.words
        chosen = choose(rows, speed.value, loss.value / 100)
        words.value = html.escape(trade_off_words(chosen, speed.value, loss.value / 100))

    loss.observe(draw, "value")
    speed.observe(draw, "value")
    draw()
    return Shown(ipw.VBox([ipw.HBox([loss, ipw.HTML("points"), speed]), words, picture]), still, still.words)
