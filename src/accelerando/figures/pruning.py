"""The figures of lesson 5."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from accelerando.figures import BLUE, GREEN, GREY, INK, ORANGE, RED, Picture, draw

Row = tuple[float, float, float, float]  # x, value, lower and upper end of its interval


def _bars(rows: Sequence[Row]) -> list[list[float]]:
    """Lengths of error bars; none where there were too few rounds for an interval."""
    ends = [(row[2], row[3]) if math.isfinite(row[3]) else (row[1], row[1]) for row in rows]
    return [
        [max(0.0, row[1] - low) for row, (low, _) in zip(rows, ends, strict=True)],
        [max(0.0, high - row[1]) for row, (_, high) in zip(rows, ends, strict=True)],
    ]


def sparse_products(measured: Sequence[Row], promised: Sequence[float], title: str) -> Picture:
    """Speed of a sparse product against the dense one, over the percentage of zeros.

    Args:
        measured: Percent, times as fast, interval; the first row is the dense product itself.
        promised: Times as fast if zeros cost nothing, in the same order.
        title: What is shown.
    """
    dense, *sparse = measured
    said = ", ".join(f"{ratio:.2f} at {percent:g} %" for percent, ratio, _, _ in sparse)
    ideal = f"promised: {promised[-1]:.0f} at {sparse[-1][0]:g} %"
    with draw(f"{title}. The dense product: {dense[1]:.2f}; sparse: {said}; {ideal}") as sheet:
        axes, percents = sheet.axes[0], [row[0] for row in measured]
        axes.axhline(1.0, color=INK, linewidth=1)
        axes.plot(percents, promised, "--", color=GREY, marker="o", markersize=3, label="if zeros cost nothing")
        axes.plot(dense[0], dense[1], "s", color=INK, label="the dense product")
        axes.errorbar(
            [row[0] for row in sparse], [row[1] for row in sparse], _bars(sparse), fmt="o-", color=BLUE, capsize=3,
            label="sparse, measured",
        )  # fmt: skip
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter("{x:g}")
        axes.set(title=title, xlabel="zeros, %", ylabel="times as fast as dense")
        axes.legend()
    return sheet.picture


def channel_norms(layers: Mapping[str, tuple[Sequence[float], Sequence[bool]]], title: str) -> Picture:
    """Size of each channel's filter, layer by layer in rising order; those that go in another colour.

    Args:
        layers: Layer -> norms, and whether each channel stays.
        title: What is shown.
    """
    said = "; ".join(
        f"layer {name}: {sum(stays)} of {len(stays)} stay, norms {min(norms):.2f} to {max(norms):.2f}"
        for name, (norms, stays) in layers.items()
    )
    with draw(f"{title}. {said}", panels=len(layers), width=7.4, height=2.6) as sheet:
        for axes, (name, (norms, stays)) in zip(sheet.axes, layers.items(), strict=True):
            order = sorted(range(len(norms)), key=lambda place: norms[place])
            for is_kept, colour, label in ((False, RED, "goes"), (True, BLUE, "stays")):
                places = [place for place, channel in enumerate(order) if stays[channel] == is_kept]
                axes.bar(places, [norms[order[place]] for place in places], 1.0, color=colour, label=label)
            axes.set(title=f"layer {name}", xlabel="channels, sorted", ylim=(0, None))
            axes.grid(visible=False)
        sheet.axes[0].set_ylabel("L1 norm of the filter")
        sheet.axes[0].legend(loc="upper left")
    return sheet.picture


def criteria(
    before: Mapping[str, float],
    after: Sequence[tuple[str, float, float, tuple[float, float]]],
    dense: float,
    title: str,
) -> Picture:
    """Accuracy by method, right after pruning and after training again; then what is left of the difference, enlarged.

    Args:
        before: Method -> accuracy, 0 to 1, right after pruning.
        after: (method, accuracy, difference to the dense net, its interval) after training again, as fractions.
        dense: Accuracy of the dense net.
        title: What is shown.
    """
    said = "; ".join(f"{name}: {before[name]:.1%}, then {found:.1%}" for name, found, _, _ in after)
    with draw(f"{title}. Dense {dense:.1%}. {said}", panels=2, width=7.4, height=1.1 + 0.34 * len(before)) as sheet:
        left, right = sheet.axes
        last = list(reversed(after))
        rows, names = range(len(last)), [row[0] for row in last]
        left.axvline(100 * dense, color=INK, linewidth=1)
        left.plot([100 * before[name] for name in names], rows, "o", color=RED, label="right after")
        left.plot([100 * row[1] for row in last], rows, "s", color=BLUE, label="one epoch later")
        left.set_yticks(rows, labels=names)
        left.set(title=title, xlabel="accuracy, % (line: dense)", xlim=(0, 100), ylim=(-0.6, len(names) - 0.4))
        left.legend(loc="upper left", bbox_to_anchor=(0.0, -0.32), ncols=2)
        points = [(0.0, 100 * gap, 100 * low, 100 * high) for _, _, gap, (low, high) in last]
        right.axvline(0, color=INK, linewidth=1)
        right.errorbar([row[1] for row in points], rows, xerr=_bars(points), fmt="s", color=BLUE, capsize=3)
        right.set_yticks(rows, labels=[])
        right.set(title="One epoch later, enlarged", xlabel="points to dense", ylim=(-0.6, len(names) - 0.4))
        for axes in sheet.axes:
            axes.grid(visible=False, axis="y")
    return sheet.picture


def staircase(measured_s: Sequence[Row], predicted_s: Sequence[float], title: str) -> Picture:
    """Seconds of a convolution over its channels, with what the multiplications alone would take.

    Args:
        measured_s: Channels, median seconds, interval.
        predicted_s: Seconds by work alone, in the same order.
        title: What is shown.
    """
    said = ", ".join(f"{1e3 * seconds:.2f} ms at {count:g}" for count, seconds, _, _ in measured_s)
    known = [row[0] for row, seconds in zip(measured_s, predicted_s, strict=True) if row[1] == seconds]
    anchor = f", from {known[-1]:g} channels" if known else ""
    with draw(f"{title}: {said}") as sheet:
        axes, counts = sheet.axes[0], [row[0] for row in measured_s]
        rows = [(count, 1e3 * mid, 1e3 * low, 1e3 * high) for count, mid, low, high in measured_s]
        axes.plot(
            counts,
            [1e3 * seconds for seconds in predicted_s],
            "--",
            color=GREY,
            label=f"by multiplications alone{anchor}",
        )
        axes.errorbar(counts, [row[1] for row in rows], _bars(rows), fmt="o-", color=BLUE, capsize=3, label="measured")
        axes.set_xticks([count for count in counts if count % 8 == 0] or counts)
        axes.set(title=title, xlabel="channels, in and out", ylabel="milliseconds", ylim=(0, None))
        axes.legend()
    return sheet.picture


def trade_off(rows: Sequence[Mapping[str, Any]], what: str, allowed: float, chosen: int) -> Picture:
    """Accuracy lost over speed won, one point per sparsity, with intervals both ways.

    Args:
        rows: With "percent", "difference", "interval" (fractions) and ``what`` -> (seconds, ratio, interval).
        what: Which speed, such as "training step".
        allowed: Accuracy that may be lost, as a fraction.
        chosen: Percent of the point to point at.
    """
    said = "; ".join(f"{row['percent']} %: {row[what][1]:.2f} times, {100 * row['difference']:+.1f}" for row in rows)
    with draw(f"Accuracy over speed of a {what}, by channels removed. {said} points. Chosen: {chosen} %") as sheet:
        axes = sheet.axes[0]
        axes.axhline(0, color=INK, linewidth=1)
        axes.axhline(-100 * allowed, color=ORANGE, linestyle="--", label=f"{100 * allowed:.1f} points may be lost")
        for row in rows:
            x = (0.0, row[what][1], *row[what][2])
            y = (0.0, *(100 * row[key] for key in ("difference",)), *(100 * end for end in row["interval"]))
            colour = GREEN if row["percent"] == chosen else BLUE
            axes.errorbar([x[1]], [y[1]], _bars([y]), _bars([x]), fmt="o", color=colour, capsize=3)
            axes.annotate(f"{row['percent']} %", (x[1], y[1]), (7, -12), textcoords="offset points", color=colour)
        axes.set(
            title=f"Accuracy over speed of a {what}: channels removed",
            xlabel="times as fast as dense",
            ylabel="points of accuracy, to dense",
            xlim=(0, None),
        )
        axes.legend(loc="lower left")
    return sheet.picture
