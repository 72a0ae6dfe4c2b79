"""The pictures of lesson 4: timelines of a pipeline, and speed over the number of workers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from accelerando.figures import BLUE, GREEN, GREY, INK, ORANGE, PURPLE, RED, SKY, Picture, draw

if TYPE_CHECKING:
    from accelerando.rounds import RoundPoint
    from accelerando.timelines import Timeline

KINDS = {"read": SKY, "load": BLUE, "copy": PURPLE, "step": GREEN, "stall": RED}
WORDS = {
    "read": "waiting for storage",
    "load": "loading",
    "copy": "copying to the GPU",
    "step": "training step",
    "stall": "waiting for a batch",
}


def timeline(found: Timeline, title: str = "", *, window_s: float | None = None) -> Picture:
    """Who does what when: one row per worker, the training process below, the GPU at the bottom.

    Args:
        found: From the simulator.
        title: Of the picture; the speed when left out.
        window_s: Seconds shown from the start; about ten batches when left out.
    """
    lanes = found.lanes()
    end_s = window_s or max(10 * found.period_s, found.step_ends_s[0] + 4 * found.period_s)
    title = (
        title or f"{1e3 * found.period_s:.1f} ms per batch; a step runs in {1 - found.stall_fraction:.0%} of the time"
    )
    words = f"{title}. Rows: {', '.join(lanes)}."
    with draw(words, width=7.2, height=1.1 + 0.28 * len(lanes)) as sheet:
        axes = sheet.axes[0]
        rows = {lane: len(lanes) - 1 - place for place, lane in enumerate(lanes)}
        for span in found.spans:
            if span.start_s >= end_s:
                continue
            left, width = 1e3 * span.start_s, 1e3 * (min(span.end_s, end_s) - span.start_s)
            is_wait = span.kind in ("stall", "read")
            axes.barh(
                rows[span.lane], width, left=left, height=0.7, color=KINDS[span.kind], edgecolor="white",
                linewidth=0.6, alpha=0.45 if is_wait else 1.0,
            )  # fmt: skip
            if not is_wait and width > 22e3 * end_s / 720:
                axes.annotate(
                    str(span.batch), (left + width / 2, rows[span.lane]), ha="center", va="center", color="white",
                    fontsize=7,
                )  # fmt: skip
        shown = [kind for kind in KINDS if any(span.kind == kind and span.start_s < end_s for span in found.spans)]
        for kind in shown:
            axes.barh(0, 0, color=KINDS[kind], label=WORDS[kind], alpha=0.45 if kind in ("stall", "read") else 1.0)
        axes.set_yticks(list(rows.values()), labels=list(rows))
        axes.set(
            title=title, xlabel="milliseconds from the start", xlim=(0, 1e3 * end_s), ylim=(-0.6, len(lanes) - 0.4)
        )
        axes.grid(visible=False)
        axes.figure.legend(loc="outside lower center", ncols=len(shown), columnspacing=1.2, handlelength=1.0)
    return sheet.picture


def speeds(
    points: Sequence[RoundPoint], predicted: Mapping[int, float], title: str, *, label: str = "at most, on paper"
) -> Picture:
    """Times as fast as without workers, over their number: measured with intervals, and as predicted.

    Args:
        points: Measured; the first one is 1.
        predicted: Workers -> times as fast as without, as is possible on paper; may be empty.
        title: What is shown.
        label: Of what is possible on paper.
    """
    told = ", ".join(f"{point.ratio:.2f} with {point.key}" for point in points)
    words = f"{title}. Measured: {told}"
    if predicted:
        words += f"; {label}: " + ", ".join(f"{value:.2f} with {key}" for key, value in predicted.items())
    with draw(words, width=5.2, height=2.8) as sheet:
        axes = sheet.axes[0]
        places = list(range(len(points)))
        axes.bar(places, [point.ratio for point in points], color=SKY, width=0.6, label="measured")
        for place, point in enumerate(points):
            low, high = point.interval
            if place and high < math.inf:
                ends = [[max(0.0, point.ratio - low)], [max(0.0, high - point.ratio)]]
                axes.errorbar([place], [point.ratio], ends, fmt="none", color=INK, capsize=4)
        if predicted:
            keys = [point.key for point in points if point.key in predicted]
            at = [places[[point.key for point in points].index(key)] for key in keys]
            axes.plot(at, [predicted[key] for key in keys], "D", color=ORANGE, label=label, markersize=6)
        axes.axhline(1.0, color=GREY, linewidth=1)
        axes.set_xticks(places, labels=[str(point.key) for point in points])
        axes.set(title=title, xlabel="workers", ylabel="times as fast as without")
        axes.legend(loc="upper left")
        axes.set_ylim(top=1.25 * max(max(point.ratio for point in points), *predicted.values(), 1.0))
    return sheet.picture


def bars(values: Mapping[str, float], title: str, xlabel: str, intervals: Mapping[str, tuple[float, float]]) -> Picture:
    """Horizontal bars from zero, with their numbers and the ends of their intervals."""
    words = f"{title}. " + ", ".join(f"{name}: {value:,.0f}" for name, value in values.items())
    with draw(words, height=0.9 + 0.34 * len(values)) as sheet:
        axes = sheet.axes[0]
        places = list(range(len(values) - 1, -1, -1))
        axes.barh(places, list(values.values()), color=SKY, height=0.6)
        for place, (name, value) in zip(places, values.items(), strict=True):
            low, high = intervals[name]
            axes.errorbar([value], [place], xerr=[[value - low], [high - value]], fmt="none", color=INK, capsize=4)
            axes.annotate(f" {value:,.0f}", (max(value, high), place), va="center")
        axes.set_yticks(places, labels=list(values))
        axes.set(title=title, xlabel=xlabel, xlim=(0, 1.2 * max(values.values())))
    return sheet.picture
