"""The figures of lesson 3."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from accelerando import costs, units
from accelerando.figures import BLUE, CYCLE, GREEN, GREY, INK, ORANGE, RED, Picture, draw

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from accelerando.rounds import RoundPoint

RoofRow = tuple[str, float, float]
"""A kernel: name, operations per byte, operations per second."""


class Measured(Protocol):
    """A ratio with its interval, as the lessons' readings have it."""

    @property
    def ratio(self) -> float:
        """Times as fast."""

    @property
    def interval(self) -> tuple[float, float]:
        """Lower and upper end; (0, inf) when there were too few rounds for one."""


def _bars(axes: Axes, places: Sequence[float], bars: Sequence[Measured], height: float, **style: Any) -> None:
    """Horizontal bars, each with its number, and with its interval as a thin line where there is one."""
    ends = [bar.interval if bar.interval[1] < 1e9 else (bar.ratio, bar.ratio) for bar in bars]
    spread = [
        [max(0.0, bar.ratio - low) for bar, (low, _) in zip(bars, ends, strict=True)],
        [max(0.0, high - bar.ratio) for bar, (_, high) in zip(bars, ends, strict=True)],
    ]
    lines = {"linewidth": 1, "capsize": 2, "ecolor": INK}
    drawn = axes.barh(places, [bar.ratio for bar in bars], height, xerr=spread, error_kw=lines, **style)
    axes.bar_label(drawn, labels=[f" {bar.ratio:.2f}" for bar in bars], fontsize=8)


def grouped_ratios(groups: Mapping[str, Mapping[str, Measured]], title: str, xlabel: str) -> Picture:
    """Bars in groups: how many times as fast each setting is, the first setting of a group being 1.

    Args:
        groups: Group -> setting -> reading; the settings in the same order everywhere.
        title: What is shown.
        xlabel: What the ratio is.
    """
    settings = list(dict.fromkeys(name for group in groups.values() for name in group))
    said = "; ".join(
        f"{group}: " + ", ".join(f"{name} {reading.ratio:.2f}" for name, reading in bars.items())
        for group, bars in groups.items()
    )
    height = 0.8 / max(1, len(settings))
    with draw(f"{title}. {said}", height=1.1 + 0.2 * len(settings) * len(groups)) as sheet:
        axes = sheet.axes[0]
        for number, (colour, name) in enumerate(zip(CYCLE, settings, strict=False)):
            rows = [(place, bars[name]) for place, bars in enumerate(reversed(list(groups.values()))) if name in bars]
            middles = [place + 0.4 - (number + 0.5) * height for place, _ in rows]
            _bars(axes, middles, [reading for _, reading in rows], height * 0.9, color=colour, label=name)
        axes.axvline(1.0, color=INK, linewidth=1)
        axes.set_yticks(range(len(groups)), labels=list(groups)[::-1])
        axes.set(title=title, xlabel=xlabel)
        axes.margins(x=0.12)
        axes.figure.legend(loc="outside lower center", ncols=3, columnspacing=1.2, handlelength=1.0)
    return sheet.picture


def staircase(
    sizes_bytes: Sequence[int], bytes_per_s: Sequence[float], caches: Mapping[str, int], title: str
) -> Picture:
    """Bytes read per second over the size of the working set, with the caches marked."""
    said = ", ".join(
        f"{rate / 1e9:.0f} GB/s at {size / 1024:,.0f} KiB" for size, rate in zip(sizes_bytes, bytes_per_s, strict=True)
    )
    with draw(f"{title}: {said}") as sheet:
        axes = sheet.axes[0]
        axes.plot(
            [size / 1024 for size in sizes_bytes], [rate / 1e9 for rate in bytes_per_s], marker="o", color=BLUE,
            markersize=4,
        )  # fmt: skip
        for name, size in caches.items():
            axes.axvline(size / 1024, color=GREY, linestyle="--")
            axes.annotate(f"{name} ", (size / 1024, 0.95), xycoords=("data", "axes fraction"), ha="right", color=INK)
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter(lambda count, _: units.binary_size(1024 * count))
        axes.set(title=title, xlabel="working set", ylabel="GB/s, one thread")
        axes.set_ylim(bottom=0)
    return sheet.picture


def over_settings(
    points: Sequence[RoundPoint], labels: Sequence[str], *, title: str, xlabel: str, mark: int | None = None
) -> Picture:
    """Times as fast as the first setting, one point each with its interval.

    Args:
        points: In the order shown.
        labels: One for each.
        title: What is shown.
        xlabel: What the settings are.
        mark: Place of a setting to be marked by a line, such as one thread per core.
    """
    said = ", ".join(f"{label}: {point.ratio:.2f}" for label, point in zip(labels, points, strict=True))
    places = range(len(points))
    with draw(f"{title}. Times as fast as {labels[0]}: {said}") as sheet:
        axes = sheet.axes[0]
        if mark is not None:
            axes.axvline(mark, color=GREY, linestyle="--")
        known = [point.interval if point.interval[1] < 1e9 else (point.ratio, point.ratio) for point in points]
        spread = [
            [max(0.0, point.ratio - low) for point, (low, _) in zip(points, known, strict=True)],
            [max(0.0, high - point.ratio) for point, (_, high) in zip(points, known, strict=True)],
        ]
        axes.errorbar(places, [point.ratio for point in points], spread, fmt="o-", color=BLUE, capsize=3, markersize=5)
        axes.axhline(1.0, color=INK, linewidth=1)
        axes.set_xticks(list(places), labels=list(labels))
        axes.set(title=title, xlabel=xlabel, ylabel=f"times as fast as {labels[0]}")
        axes.set_ylim(bottom=0)
    return sheet.picture


def roofline(
    peak_flops_per_s: float,
    bandwidth_bytes_per_s: float,
    points: Sequence[RoofRow],
    *,
    title: str,
    asked: RoofRow | None = None,
) -> Picture:
    """The two roofs with measured kernels under them.

    Args:
        peak_flops_per_s: The flat roof.
        bandwidth_bytes_per_s: The slope.
        points: Measured kernels.
        title: What is shown.
        asked: One more place on the roof: a prediction.
    """
    said = ", ".join(f"{name} {rate / 1e9:.1f} GFLOP/s at {intensity:.2g}" for name, intensity, rate in points)
    every = [intensity for _, intensity, _ in points] + ([asked[1]] if asked else [])
    left, right = min(0.02, *every) / 1.5, max(500.0, *every) * 1.5
    ridge = peak_flops_per_s / bandwidth_bytes_per_s
    corners = sorted({left, min(max(ridge, left), right), right})
    roofs = [costs.predict_roofline_flops_per_s(x, peak_flops_per_s, bandwidth_bytes_per_s) / 1e9 for x in corners]
    with draw(f"{title}. Roofs meet at {ridge:.1f} operations per byte. {said}", width=7.4, height=3.8) as sheet:
        axes = sheet.axes[0]
        axes.plot(corners, roofs, color=INK, linewidth=1.5)
        axes.axvline(ridge, color=GREY, linestyle=":")
        for number, (name, intensity, rate) in enumerate(points):
            colour, sign = CYCLE[number % len(CYCLE)], "osD^vP"[number // len(CYCLE) % 6]
            axes.plot([intensity], [rate / 1e9], sign, color=colour, label=name, markersize=6)
        if asked:
            axes.plot([asked[1]], [asked[2] / 1e9], "*", color=RED, markersize=15, label=asked[0])
        axes.set_xscale("log")
        axes.set_yscale("log")
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter("{x:g}")
        axes.set(title=title, xlabel="operations per byte", ylabel="GFLOP/s")
        axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1.0), fontsize=8)
    return sheet.picture


def load(
    flops_per_s: Sequence[float], steal: Sequence[float | None], others: Sequence[float | None], slice_s: float
) -> Picture:
    """Speed under full load over time, above what the host and other programs took."""
    at = [slice_s * (number + 1) for number in range(len(flops_per_s))]
    rates = [rate / 1e9 for rate in flops_per_s]
    words = (
        f"Full load for {at[-1]:.0f} s: {min(rates):.0f} to {max(rates):.0f} GFLOP/s; "
        f"the host stole up to {max((share or 0.0) for share in steal):.1%}"
    )
    with draw(words, panels=2, width=7.4) as sheet:
        left, right = sheet.axes
        left.plot(at, rates, color=BLUE, marker=".", markersize=4)
        left.set(title="GFLOP/s, all cores", xlabel="seconds")
        left.set_ylim(bottom=0)
        for colour, name, shares in ((RED, "stolen by the host", steal), (ORANGE, "other programs here", others)):
            right.plot(at, [100 * (share or 0.0) for share in shares], color=colour, label=name)
        right.set(title="% of the CPU time that others had", xlabel="seconds")
        right.set_ylim(bottom=0, top=max(10.0, *(100 * (share or 0.0) for share in (*steal, *others))) * 1.1)
        right.figure.legend(loc="outside lower right", ncols=2, handlelength=1.0)
    return sheet.picture


def ways(groups: Mapping[str, Mapping[str, Measured]], title: str) -> Picture:
    """Ways to do two things, each compared to the first way of its panel.

    Args:
        groups: Panel -> name of a way -> its ratio.
        title: What is shown.
    """
    said = "; ".join(
        f"{panel}: " + ", ".join(f"{name} {bar.ratio:.2f}" for name, bar in bars.items())
        for panel, bars in groups.items()
    )
    rows = max((len(bars) for bars in groups.values()), default=1)
    with draw(f"{title}. {said}", panels=max(1, len(groups)), width=8.6, height=1.0 + 0.34 * rows) as sheet:
        for axes, (panel, bars) in zip(sheet.axes, groups.items(), strict=False):
            colors = [GREEN if "ipex" in name else BLUE for name in bars]
            _bars(axes, range(len(bars)), list(bars.values()), 0.6, color=colors)
            axes.axvline(1.0, color=INK, linewidth=1)
            axes.set_yticks(range(len(bars)), labels=list(bars))
            axes.invert_yaxis()
            axes.margins(x=0.18)
            axes.set(title=panel, xlabel="times as fast as it comes")
    return sheet.picture
