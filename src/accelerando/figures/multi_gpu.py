"""The figures of lesson 9: GPUs and their best ring, ring against tree, overlap, accuracies by way of training."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from accelerando.figures import BLUE, CYCLE, GREEN, GREY, INK, ORANGE, RED, Picture, draw

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Pair = tuple[int, int]
Point = tuple[float, float]


def topology(
    title: str,
    gpus: int,
    links: Mapping[Pair, str],
    ring: Sequence[int] | None,
    slowest: str | None,
    islands: Sequence[Sequence[int]] = (),
) -> Picture:
    """Two views of a machine: its NVLinks, and the ring with the best slowest hop.

    Args:
        title: Name of the machine.
        gpus: How many.
        links: Pair, smaller number first -> name of the link.
        ring: Order of the best ring; None where it is not known.
        slowest: Name of its slowest hop.
        islands: Groups that share a colour.
    """
    order = [gpu for island in islands for gpu in island]
    order += [gpu for gpu in range(gpus) if gpu not in order]
    places = dict(zip(order, _circle(gpus), strict=True))
    colours = {gpu: colour for colour, island in zip(CYCLE, islands, strict=False) for gpu in island}
    fast = sum(name.startswith("NV") for name in links.values())
    shown = " → ".join(map(str, (*ring, ring[0]))) if ring else "not known"
    words = (
        f"{title}. {fast} of {len(links)} pairs have NVLink. Best ring: {shown}; slowest hop: {slowest or 'not known'}."
    )
    with draw(words, panels=2, width=7.4, height=3.7) as sheet:
        left, right = sheet.axes
        named: set[str] = set()
        for (a, b), name in links.items():
            if name.startswith("NV"):
                label = None if name in named else name
                named.add(name)
                _line(left, places[a], places[b], GREEN, min(4.0, 0.8 + 1.3 * math.log2(int(name[2:]))), label)
        if named:
            left.legend(loc="lower left", fontsize=7, handlelength=1.2)
        for place, here in enumerate(ring or ()):
            there = (*ring, ring[0])[place + 1] if ring else here
            name = links[min(here, there), max(here, there)]
            _arrow(
                right, places[here], places[there], RED if name == slowest and not name.startswith("NV") else BLUE, name
            )
        for axes, text in ((left, f"{title}:\nNVLinks"), (right, f"best ring,\nslowest hop {slowest or 'not known'}")):
            for gpu, (x, y) in places.items():
                axes.plot([x], [y], "o", markersize=19, color=colours.get(gpu, GREY))
                axes.text(x, y, str(gpu), ha="center", va="center", color="white", fontsize=9)
            axes.set(title=text, xticks=[], yticks=[], xlim=(-1.3, 1.3), ylim=(-1.25, 1.25), aspect="equal")
            axes.grid(visible=False)
            for side in axes.spines.values():
                side.set_visible(False)
        if not fast:
            left.text(0, 0, "none", ha="center", va="center", color=INK)
    return sheet.picture


def _circle(count: int) -> list[Point]:
    angles = [math.pi / 2 - 2 * math.pi * (place + 0.5) / count for place in range(count)]
    return [(math.cos(angle), math.sin(angle)) for angle in angles]


def _line(axes: Axes, start: Point, end: Point, colour: str, width: float, label: str | None) -> None:
    x, y = zip(start, end, strict=True)
    axes.plot(x, y, color=colour, linewidth=width, alpha=0.75, zorder=0, label=label)


def _arrow(axes: Axes, start: Point, end: Point, colour: str, name: str) -> None:
    axes.annotate(
        "",
        end,
        start,
        arrowprops={"arrowstyle": "-|>", "color": colour, "shrinkA": 10, "shrinkB": 10, "linewidth": 1.6},
    )
    x, y = (start[0] + end[0]) / 2, (start[1] + end[1]) / 2
    box = {"facecolor": "white", "edgecolor": "none", "pad": 0.6}
    axes.text(x, y, name, ha="center", va="center", fontsize=7, color=colour, bbox=box)


def times_by_size(
    sizes_bytes: Sequence[float], panels: Mapping[str, Mapping[str, Sequence[float]]], title: str
) -> Picture:
    """Predicted seconds over the size of a tensor, one panel for each number of ranks.

    Args:
        sizes_bytes: Rising.
        panels: Title of the panel -> label -> seconds for each size.
        title: Said in words only.
    """
    said = [
        f"{panel}, {label}: {values[0]:.2g} s at {sizes_bytes[0]:.3g} bytes, {values[-1]:.2g} s at "
        f"{sizes_bytes[-1]:.3g}"
        for panel, lines in panels.items()
        for label, values in lines.items()
    ]
    with draw(f"{title}. " + "; ".join(said), panels=len(panels), width=7.4) as sheet:
        for axes, (panel, lines) in zip(sheet.axes, panels.items(), strict=True):
            for colour, (label, values) in zip((BLUE, ORANGE, RED), lines.items(), strict=False):
                axes.plot(
                    [size / 1e6 for size in sizes_bytes], [1e3 * value for value in values], color=colour, label=label
                )
            axes.set(title=panel, xlabel="MB")
            axes.set_xscale("log")
            axes.set_yscale("log")
        sheet.axes[0].set_ylabel("milliseconds, predicted")
        sheet.axes[0].legend()
    return sheet.picture


SHOWN_POINTS = 9.0
"""Accuracies lower than the best by more than this are named at the edge: else all others would be one dot."""


def accuracies(panels: Mapping[str, Mapping[str, tuple[float, float]]]) -> Picture:
    """Accuracy of several ways of training, with two standard errors; the first way is marked by a line.

    Args:
        panels: Title -> way -> (accuracy from 0 to 1, its standard error).
    """
    said = [
        f"{title}: " + ", ".join(f"{way} {100 * value:.1f} %" for way, (value, _) in ways.items())
        for title, ways in panels.items()
    ]
    rows = max(len(ways) for ways in panels.values())
    with draw("; ".join(said), panels=len(panels), width=7.4, height=1.0 + 0.33 * rows) as sheet:
        for axes, (title, ways) in zip(sheet.axes, panels.items(), strict=True):
            first = next(iter(ways.values()))
            edge = 100 * max(value for value, _ in ways.values()) - SHOWN_POINTS
            axes.axvline(100 * first[0], color=GREY, linestyle="--")
            for place, (value, error) in enumerate(reversed(list(ways.values()))):
                if 100 * value < edge:
                    axes.plot([edge], [place], marker="<", color=RED)
                    axes.annotate(f"  {100 * value:.0f} %", (edge, place), va="center", fontsize=8, color=RED)
                    continue
                colour = RED if first[0] - value > 2 * math.hypot(error, first[1]) else BLUE
                spread = [[min(200 * error, 100 * value - edge)], [200 * error]]
                axes.errorbar([100 * value], [place], xerr=spread, fmt="o", color=colour, capsize=3)
            axes.set_yticks(range(len(ways)), labels=list(ways)[::-1])
            axes.set(title=title, xlabel="accuracy, %", ylim=(-0.6, len(ways) - 0.4))
            axes.grid(visible=False, axis="y")
        sheet.axes[0].figure.supxlabel(
            "at equal epochs; bars: two standard errors; orange: lower than the first, beyond chance", fontsize=8
        )
    return sheet.picture


def overlap(rows: Mapping[str, tuple[float, Sequence[tuple[float, float]]]]) -> Picture:
    """Backward and its messages on one time axis.

    Args:
        rows: Label -> milliseconds of backward, and (start, end) of each message in milliseconds.
    """
    said = [
        f"{label}: backward {ms:.1f} ms, messages end at {max(e for _, e in spans):.1f} ms"
        for label, (ms, spans) in rows.items()
    ]
    with draw("; ".join(said), height=0.9 + 0.55 * len(rows)) as sheet:
        axes = sheet.axes[0]
        for place, (ms, spans) in enumerate(reversed(list(rows.values()))):
            axes.barh(place + 0.18, ms, 0.32, color=BLUE, label=None if place else "backward")
            for number, (start, end) in enumerate(spans):
                label = "messages" if not place and not number else None
                axes.barh(place - 0.18, end - start, 0.32, left=start, color=ORANGE, edgecolor="white", label=label)
        axes.set_yticks(range(len(rows)), labels=list(rows)[::-1])
        axes.set(xlabel="milliseconds from the start of backward, predicted")
        axes.grid(visible=False, axis="y")
        axes.legend(loc="lower right")
    return sheet.picture
