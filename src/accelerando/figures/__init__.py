"""The figures of the lessons: the only door to matplotlib.

Small, of one style, on white so that dark themes show them too, in colours that the colour-blind can tell apart
(Okabe and Ito), and each with a sentence that says what is to be seen.
"""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from accelerando.bandwidth import Ladder
    from accelerando.measure import Comparison

INK, GREY = "#24292f", "#8c959f"
BLUE, ORANGE, GREEN, RED, PURPLE, SKY = "#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7", "#56b4e9"
CYCLE = (BLUE, ORANGE, GREEN, RED, PURPLE, SKY)
_STYLE: dict[Any, Any] = {
    "font.size": 9,
    "axes.edgecolor": GREY,
    "axes.labelcolor": INK,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e6e8eb",
    "axes.axisbelow": True,
    "legend.frameon": False,
    "figure.facecolor": "white",
    "axes.facecolor": "white",
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "svg.hashsalt": "accelerando",
}


@dataclass(frozen=True)
class Picture:
    """A finished figure; the last line of a notebook cell shows it.

    Args:
        png: The picture.
        words: What is to be seen, for those who cannot see it.
    """

    png: bytes
    words: str

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        return {"image/png": self.png, "text/plain": self.words}, {"image/png": {"alt": self.words}}


def draw(words: str, *, panels: int = 1, width: float = 6.6, height: float = 3.2) -> _Sheet:
    """Start a figure, for a ``with`` block that yields its axes; ``picture`` is there afterwards."""
    return _Sheet(words, panels, width, height)


class _Sheet:
    def __init__(self, words: str, panels: int, width: float, height: float) -> None:
        self._words, self._panels, self._size = words, panels, (width, height)

    def __enter__(self) -> _Sheet:
        import matplotlib as mpl
        from matplotlib.figure import Figure

        self._context = mpl.rc_context(_STYLE)
        self._context.__enter__()
        self._figure: Figure = Figure(figsize=self._size, layout="constrained")
        self.axes: list[Axes] = list(self._figure.subplots(1, self._panels, squeeze=False)[0])
        return self

    def __exit__(self, *error: Any) -> None:
        if error[0] is None:
            stream = io.BytesIO()
            self._figure.savefig(stream, format="png", dpi=110, metadata={"Software": None})
            self.picture = Picture(stream.getvalue(), self._words)
        self._context.__exit__(*error)


def stacked_bar(parts_s: Mapping[str, float], title: str) -> Picture:
    """One bar cut into the parts of a step, each with its share; thin parts are named below."""
    total = sum(parts_s.values())
    words = f"{title}: " + ", ".join(f"{name} {seconds / total:.1%}" for name, seconds in parts_s.items())
    with draw(words, height=2.0) as sheet:
        axes, left = sheet.axes[0], 0.0
        for colour, (name, seconds) in zip(CYCLE, parts_s.items(), strict=False):
            label = f"{name} {seconds / total:.1%}"
            axes.barh(0, seconds * 1e3, left=left * 1e3, color=colour, label=label, height=0.6)
            left += seconds
        axes.set(title=title, xlabel="milliseconds", yticks=[], ylim=(-0.5, 0.5), xlim=(0, total * 1e3))
        axes.grid(visible=False)
        axes.figure.legend(loc="outside lower center", ncols=3, columnspacing=1.2, handlelength=1.0)
    return sheet.picture


def speedups(
    lines: Mapping[str, tuple[Sequence[float], Sequence[float]]],
    points: Mapping[str, Sequence[tuple[float, float, float, float]]],
    *,
    title: str,
    is_log: bool = False,
) -> Picture:
    """Predicted speed-ups as lines and measured ones as points with intervals, over workers.

    Args:
        lines: Label -> (workers, speed-ups).
        points: Label -> rows of (workers, speed-up, interval's lower and upper end).
        title: What is shown.
        is_log: Logarithmic axes, for many workers.
    """
    said = [f"{label}: {y[-1]:.1f} at {x[-1]:g} workers" for label, (x, y) in lines.items()]
    said += [f"{label}: " + ", ".join(f"{row[1]:.2f} at {row[0]:g}" for row in rows) for label, rows in points.items()]
    with draw(f"{title}. " + "; ".join(said)) as sheet:
        axes = sheet.axes[0]
        for colour, (label, (x, y)) in zip((GREY, *CYCLE), lines.items(), strict=False):
            axes.plot(x, y, color=colour, label=label, linestyle="--" if colour == GREY else "-")
        for mark, colour, (label, rows) in zip("osD^", (INK, RED, GREEN, PURPLE), points.items(), strict=False):
            workers, gains = [row[0] for row in rows], [row[1] for row in rows]
            # Without an upper end there were too few rounds for an interval: a bare point says so.
            known = [row if row[3] < math.inf else (row[0], row[1], row[1], row[1]) for row in rows]
            spread = [[max(0.0, row[1] - row[2]) for row in known], [max(0.0, row[3] - row[1]) for row in known]]
            axes.errorbar(workers, gains, spread, fmt=mark, color=colour, label=label, capsize=3, markersize=5)
        axes.set(title=title, xlabel="workers (threads, processes, machines)", ylabel="speed-up")
        if is_log:
            axes.set_xscale("log", base=2)
            axes.set_yscale("log", base=2)
            for axis in (axes.xaxis, axes.yaxis):
                axis.set_major_formatter("{x:g}")
        else:
            axes.set_ylim(bottom=0)
            axes.locator_params(axis="x", integer=True)
        axes.legend()
    return sheet.picture


def two_over_one(
    x: Sequence[float],
    left: Mapping[str, Sequence[tuple[float, float, float]]],
    right: Mapping[str, Sequence[tuple[float, float, float]]],
    *,
    labels: tuple[str, str, str],
    title: str,
) -> Picture:
    """Two panels over one logarithmic axis: what is gained on the left, what is paid on the right.

    Args:
        x: Positive, rising.
        left: Label -> (value, lower and upper end of its bar) of the left panel.
        right: Likewise for the right panel.
        labels: Of the common axis, the left and the right values.
        title: What is shown.
    """
    said = [
        f"{what}, {label}: " + ", ".join(f"{row[0]:.4g} at {at:g}" for at, row in zip(x, rows, strict=True))
        for what, lines in ((labels[1], left), (labels[2], right))
        for label, rows in lines.items()
    ]
    with draw(f"{title}. " + "; ".join(said), panels=2, width=7.4) as sheet:
        for axes, lines, label in zip(sheet.axes, (left, right), labels[1:], strict=True):
            for mark, colour, (name, rows) in zip("os", (BLUE, RED), lines.items(), strict=False):
                spread = [[max(0.0, row[0] - row[1]) for row in rows], [max(0.0, row[2] - row[0]) for row in rows]]
                axes.errorbar(
                    x, [row[0] for row in rows], spread, fmt=f"{mark}-", color=colour, label=name, capsize=3,
                    markersize=5,
                )  # fmt: skip
            axes.set_xscale("log", base=2)
            axes.set_xticks(list(x), labels=[f"{value:g}" for value in x])
            axes.minorticks_off()
            axes.set(xlabel=labels[0], title=label)
            axes.legend()
        sheet.axes[0].set_ylim(bottom=0)
    return sheet.picture


def ratios(comparisons: Sequence[Comparison], title: str, *, against: str = "before", log: bool = False) -> Picture:
    """One row per comparison: the ratio with its interval, and the verdict in words; 1 is a line.

    Args:
        comparisons: What was compared.
        title: What is shown.
        against: What 1 stands for, in words.
        log: Powers of two on the axis, for ratios that are far apart.
    """
    words = f"{title}. " + "; ".join(str(found) for found in comparisons)
    colours = {"faster": GREEN, "not faster": INK, "slower": RED, "undecided": GREY}
    with draw(words, height=0.75 + 0.36 * len(comparisons)) as sheet:
        axes = sheet.axes[0]
        axes.axvline(1.0, color=INK, linewidth=1)
        for row, found in enumerate(reversed(comparisons)):
            if not found.pairs:
                continue
            low, high = found.interval if found.interval[1] < math.inf else (found.ratio, found.ratio)
            ends = [max(found.ratio - low, 0.0)], [max(high - found.ratio, 0.0)]
            axes.errorbar([found.ratio], [row], xerr=ends, fmt="o", color=colours[found.outcome], capsize=3)
            axes.annotate(f" {found.outcome}", (1.0, row), xycoords=("axes fraction", "data"), va="center")
        axes.set_yticks(range(len(comparisons)), labels=[found.candidate.label for found in reversed(comparisons)])
        if log:
            axes.set_xscale("log", base=2)
            axes.xaxis.set_major_formatter(lambda x, _: f"1/{1 / x:.0f}" if x < 1 else f"{x:.0f}")
            axes.minorticks_off()
        levels = sorted({f"{found.confidence:.0%}" for found in comparisons if found.pairs})
        level = f"; {' and '.join(levels)} intervals" if levels else ""
        label = f"times as fast as {against} (above 1: faster{level})"
        axes.set(title=title, xlabel=label, ylim=(-0.6, len(comparisons) - 0.4))
    return sheet.picture


def ladder(found: Ladder, title: str) -> Picture:
    """Bandwidth over the size of the arrays, with the caches marked."""
    speeds = ", ".join(
        f"{speed / 1e9:.0f} GB/s at {size / 2**20:.1f} MiB"
        for size, speed in zip(found.sizes_bytes, found.bytes_per_s, strict=True)
    )
    with draw(f"{title}: {speeds}") as sheet:
        axes = sheet.axes[0]
        axes.plot(
            [size / 2**20 for size in found.sizes_bytes],
            [speed / 1e9 for speed in found.bytes_per_s],
            marker="o",
            color=BLUE,
            markersize=4,
        )
        for name, size in found.caches.items():
            if size >= found.sizes_bytes[0] / 2:
                axes.axvline(size / 2**20, color=GREY, linestyle="--")
                axes.annotate(f" {name}", (size / 2**20, 0.95), xycoords=("data", "axes fraction"), color=INK)
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter("{x:g}")
        axes.set(title=title, xlabel="MiB, three arrays together", ylabel="GB/s")
        axes.set_ylim(bottom=0)
    return sheet.picture
