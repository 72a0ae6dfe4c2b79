"""The figures of lesson 8: who sits where, how fast each layout is, and two backends over the size of a message."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from accelerando import units
from accelerando.figures import BLUE, CYCLE, GREEN, GREY, INK, ORANGE, RED, Picture, draw

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Interval = tuple[float, float, float]
"""A middle, and the lower and upper end around it."""
Cells = Mapping[tuple[int, int], float]
"""(processes, threads) -> images per second."""
_LEVEL = "with 95 % intervals"
_PALE, _FULL = (0.95, 0.97, 0.98), (0.0, 0.447, 0.698)


def _ends(rows: Sequence[Interval]) -> list[list[float]]:
    """How far the intervals reach below and above."""
    return [[max(0.0, row[0] - row[1]) for row in rows], [max(0.0, row[2] - row[0]) for row in rows]]


def bars(rows: Mapping[str, Interval], title: str, xlabel: str) -> Picture:
    """One bar for each row, with its 95 % interval; the first row is what the others are compared to."""
    said = "; ".join(f"{name}: {row[0]:,.4g} ({row[1]:,.4g} to {row[2]:,.4g})" for name, row in rows.items())
    with draw(f"{title}. {said}", width=7.4, height=1.0 + 0.36 * len(rows)) as sheet:
        axes = sheet.axes[0]
        middles = [row[0] for row in rows.values()]
        ends = _ends(list(rows.values()))
        colours = [GREY, *([BLUE] * (len(rows) - 1))]
        axes.barh(range(len(rows)), middles, xerr=ends, color=colours, height=0.6, ecolor=INK, capsize=3)
        axes.set_yticks(range(len(rows)), labels=list(rows))
        axes.invert_yaxis()
        axes.set(title=title, xlabel=f"{xlabel} ({_LEVEL})")
        axes.grid(visible=False, axis="y")
    return sheet.picture


def heat_maps(maps: Mapping[str, tuple[Cells, int]], title: str) -> Picture:
    """Processes across, threads up: one panel for each map, on one scale of colours; the best cell has a frame.

    Args:
        maps: Title of the panel -> images per second of each cell, and the cores that are there: cells with more
            threads than that are marked.
        title: What is shown.
    """
    said = "; ".join(
        f"{name}: " + ", ".join(f"{p} × {t} {rate:,.0f}" for (p, t), rate in cells.items())
        for name, (cells, _) in maps.items()
    )
    most = max((rate for cells, _ in maps.values() for rate in cells.values()), default=1.0)
    rows, columns = (max((len({cell[n] for cell in cells}) for cells, _ in maps.values()), default=1) for n in (1, 0))
    with draw(
        f"{title}, images per second, processes × threads. {said}",
        panels=max(1, len(maps)), width=(1.3 + 0.62 * max(4, columns)) * max(1, len(maps)), height=1.7 + 0.44 * rows,
    ) as sheet:  # fmt: skip
        for axes, (name, (cells, cores)) in zip(sheet.axes, maps.items(), strict=False):
            _heat_map(axes, cells, cores, most)
            axes.set(title=f"{title}\n{name}", xlabel="processes")
        sheet.axes[0].set_ylabel("threads of each")
    return sheet.picture


def _heat_map(axes: Axes, cells: Cells, cores: int, most: float) -> None:
    from matplotlib.patches import Rectangle

    columns, rows = (sorted({cell[place] for cell in cells}) for place in (0, 1))
    best = max(cells, key=lambda cell: cells[cell])
    for (processes, threads), rate in cells.items():
        column, row = columns.index(processes), rows.index(threads)
        share = rate / most
        colour = [pale + (full - pale) * share for pale, full in zip(_PALE, _FULL, strict=True)]
        is_best = (processes, threads) == best
        axes.add_patch(
            Rectangle(
                (column - 0.48, row - 0.46), 0.96, 0.92, facecolor=tuple(colour),
                edgecolor=ORANGE if is_best else "white", linewidth=3.0 if is_best else 0.5, zorder=3 if is_best else 2,
            )
        )  # fmt: skip
        crowd = "" if processes * threads <= cores else "\nover"
        axes.text(
            column, row, f"{rate:,.0f}{crowd}", ha="center", va="center", fontsize=8, zorder=4,
            color="white" if share > 0.6 else INK,
        )  # fmt: skip
    axes.set_xticks(range(len(columns)), labels=[str(count) for count in columns])
    axes.set_yticks(range(len(rows)), labels=[str(count) for count in rows])
    axes.set(xlim=(-0.55, len(columns) - 0.45), ylim=(-0.55, len(rows) - 0.45))
    axes.grid(visible=False)


def messages(
    now: Sequence[tuple[str, Sequence[int], Sequence[Interval]]],
    stored: Sequence[tuple[str, Sequence[int], Sequence[Interval]]],
    title: str,
) -> Picture:
    """Milliseconds of an all-reduce over the size of its message, through several backends.

    Args:
        now: Label, bytes and milliseconds with their intervals, of this run.
        stored: Likewise, from elsewhere: shown pale, without intervals.
        title: What is shown.
    """
    said = "; ".join(
        f"{label}: " + ", ".join(f"{row[0]:.3g} ms at {size:,} bytes" for size, row in zip(sizes, rows, strict=True))
        for label, sizes, rows in (*now, *stored)
    )
    with draw(f"{title}. {said}", width=7.4, height=3.4) as sheet:
        axes = sheet.axes[0]
        for colour, (label, sizes, rows) in zip((BLUE, ORANGE), stored, strict=False):
            middles = [row[0] for row in rows]
            axes.plot([size / 1024 for size in sizes], middles, color=colour, alpha=0.45, linestyle="--", label=label)
        for mark, colour, (label, sizes, rows) in zip("os", (BLUE, ORANGE), now, strict=False):
            kib = [size / 1024 for size in sizes]
            style: dict[str, Any] = {"fmt": f"{mark}-", "color": colour, "capsize": 3, "markersize": 5, "label": label}
            axes.errorbar(kib, [row[0] for row in rows], _ends(rows), **style)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.xaxis.set_major_formatter(lambda count, _: units.binary_size(1024 * count))
        axes.yaxis.set_major_formatter("{x:g}")
        axes.set(title=title, xlabel="message", ylabel=f"milliseconds ({_LEVEL})")
        axes.legend(fontsize=8)
    return sheet.picture


def seats(nodes: Sequence[Sequence[int]], plans: Mapping[str, Sequence[Sequence[int]]], title: str) -> Picture:
    """Every core of every NUMA node as a cell, coloured by the rank that may use it; one panel for each plan.

    Args:
        nodes: For each node its CPUs, in order.
        plans: Title of the panel -> for each rank its CPUs.
        title: What is shown.
    """
    said = []
    with draw("", panels=1, width=8.2, height=0.8 + 0.75 * len(plans) * len(nodes)) as sheet:
        axes = sheet.axes[0]
        place = 0
        ticks, labels = [], []
        for name, plan in plans.items():
            own = {cpu: [rank for rank, cpus in enumerate(plan) if cpu in cpus] for node in nodes for cpu in node}
            said.append(f"{name}: " + _who(plan, nodes, own))
            axes.text(-0.5, place - 0.75, name, fontsize=9, color=INK, va="center")
            for number, node in enumerate(nodes):
                for column, cpu in enumerate(node):
                    _seat(axes, column, place, own[cpu])
                ticks.append(place)
                labels.append(f"node {number}")
                place += 1
            place += 1
        axes.set_yticks(ticks, labels=labels)
        widest = max(len(node) for node in nodes)
        axes.set(xlim=(-0.7, widest - 0.3), ylim=(place - 1.4, -1.2), title=title, xlabel="core of the node", xticks=[])
        axes.grid(visible=False)
    return Picture(sheet.picture.png, f"{title}. {'; '.join(said)}")


def _seat(axes: Axes, column: int, place: int, ranks: Sequence[int]) -> None:
    from matplotlib.patches import Rectangle

    colour = "white" if not ranks else CYCLE[ranks[0] % len(CYCLE)] if len(ranks) == 1 else RED
    axes.add_patch(
        Rectangle((column - 0.44, place - 0.36), 0.88, 0.72, facecolor=colour, edgecolor=GREY, linewidth=0.6)
    )
    text = "+".join(map(str, ranks)) if len(ranks) <= 2 else "all"
    axes.text(column, place, text, ha="center", va="center", fontsize=6, color="white")


def _who(plan: Sequence[Sequence[int]], nodes: Sequence[Sequence[int]], own: Mapping[int, Sequence[int]]) -> str:
    idle = sum(not ranks for ranks in own.values())
    crowded = sum(len(ranks) > 1 for ranks in own.values())
    split = sum(sum(bool(set(cpus) & set(node)) for node in nodes) > 1 for cpus in plan)
    return f"{idle} cores idle, {crowded} with more than one rank, {split} rank(s) on two nodes"


def differences(rows: Mapping[str, Interval], margin: float, title: str) -> Picture:
    """Points of accuracy gained or lost, with intervals, beside the margin that may be lost."""
    said = "; ".join(f"{name}: {row[0]:+.1f} ({row[1]:+.1f} to {row[2]:+.1f})" for name, row in rows.items())
    with draw(f"{title}. {said or 'nothing was measured'}", width=7.4, height=1.2 + 0.4 * max(1, len(rows))) as sheet:
        axes = sheet.axes[0]
        axes.axvspan(-margin, 0, color=GREEN, alpha=0.12, label=f"may be lost: {margin:g} points")
        axes.axvline(0, color=INK, linewidth=1)
        for place, row in enumerate(rows.values()):
            colour = GREEN if row[1] > -margin else RED if row[2] < -margin else GREY
            axes.errorbar([row[0]], [place], xerr=_ends([row]), fmt="o", color=colour, capsize=4)
        axes.set_yticks(range(len(rows)), labels=list(rows))
        xlabel = f"points of accuracy, compared to one rank ({_LEVEL})"
        axes.set(title=title, xlabel=xlabel, ylim=(len(rows) - 0.4, -0.6))
        axes.legend(fontsize=8, loc="lower left")
    return sheet.picture
