"""The figures of lesson 7: an all-reduce step by step, predicted beside measured, and who holds what."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from accelerando.collectives import Schedule
from accelerando.figures import BLUE, CYCLE, GREEN, GREY, INK, ORANGE, RED, Picture, draw

if TYPE_CHECKING:
    from matplotlib.patches import Rectangle

_PALE, _FULL = (0.93, 0.95, 0.97), (0.0, 0.447, 0.698)


def all_reduce_step(schedule: Schedule, step: int) -> Picture:
    """What every rank holds after a step, and what travelled in it.

    Args:
        schedule: The algorithm.
        step: 0 for the start, then 1 to ``len(schedule.steps)``.
    """
    holdings = schedule.follow()[step]
    moved = schedule.steps[step - 1] if step else ()
    done = sum(len(cell) == schedule.ranks for row in holdings for cell in row)
    title = f"{schedule.name}, {schedule.ranks} ranks: step {step} of {len(schedule.steps)}"
    said = ", ".join(f"rank {one.source} {_verb(one.adds)} {one.target} piece {one.piece}" for one in moved)
    words = f"{title}. {said or 'Everybody holds its own numbers'}. {done} of {schedule.ranks * schedule.pieces} done."
    with draw(words, width=min(8.0, 2.2 + 0.9 * schedule.ranks), height=1.5 + 0.42 * schedule.pieces) as sheet:
        axes = sheet.axes[0]
        for rank, row in enumerate(holdings):
            for piece, cell in enumerate(row):
                share = len(cell) / schedule.ranks
                colour = [pale + (full - pale) * share for pale, full in zip(_PALE, _FULL, strict=True)]
                axes.add_patch(
                    _box(rank, piece, colour, any(one.target == rank and one.piece == piece for one in moved))
                )
                text = "all" if share == 1 else "+".join(map(str, sorted(cell))) if len(cell) < 5 else f"{len(cell)}"
                axes.text(
                    rank, piece, text, ha="center", va="center", fontsize=8, color="white" if share > 0.6 else INK
                )
        for one in moved:
            bend = 0.0 if abs(one.source - one.target) == 1 else -0.06
            axes.annotate(
                "", (one.target, one.piece + 0.3), (one.source, one.piece + 0.3),
                arrowprops={
                    "arrowstyle": "-|>", "color": RED if one.adds else GREEN, "shrinkA": 9, "shrinkB": 9,
                    "connectionstyle": f"arc3,rad={bend}",
                },
            )  # fmt: skip
        axes.set(
            title=title,
            xlim=(-0.6, schedule.ranks - 0.4),
            ylim=(schedule.pieces - 0.4, -0.6),
            yticks=range(schedule.pieces) if schedule.pieces > 1 else [],
        )
        axes.set_xticks(range(schedule.ranks), labels=[f"rank {rank}" for rank in range(schedule.ranks)])
        axes.set_ylabel("piece" if schedule.pieces > 1 else "all of it")
        axes.grid(visible=False)
    return sheet.picture


def _verb(adds: bool) -> str:
    return "sends for adding to" if adds else "gives the sum to"


def _box(rank: int, piece: int, colour: Sequence[float], is_new: bool) -> Rectangle:
    from matplotlib.patches import Rectangle

    return Rectangle(
        (rank - 0.38, piece - 0.4), 0.76, 0.8,
        facecolor=tuple(colour), edgecolor=ORANGE if is_new else GREY, linewidth=2.0 if is_new else 0.8,
    )  # fmt: skip


def predicted_and_measured(
    panels: Mapping[str, Mapping[str, tuple[float, float | None, tuple[float, float] | None]]],
    lines: str = "95 % interval",
) -> Picture:
    """One panel for each title: bars in pairs, what was predicted and what was measured.

    Args:
        panels: Title -> label -> seconds (predicted, measured or None, ends of the measured one's line or None).
        lines: What the lines are.
    """
    said = [
        f"{title}: "
        + ", ".join(
            f"{name} {1e3 * a:.3g} predicted{'' if b is None else f', {1e3 * b:.3g} measured'}"
            for name, (a, b, _) in rows.items()
        )
        for title, rows in panels.items()
    ]
    rows_most = max(len(rows) for rows in panels.values())
    with draw(
        "; ".join(said) + " (milliseconds)", panels=len(panels), width=7.4, height=1.1 + 0.5 * rows_most
    ) as sheet:
        for axes, (title, rows) in zip(sheet.axes, panels.items(), strict=True):
            for place, (predicted, measured, ends) in enumerate(reversed(list(rows.values()))):
                axes.barh(place + 0.2, 1e3 * predicted, 0.36, color=GREY, label="predicted" if not place else None)
                if measured is not None:
                    low, high = ends or (measured, measured)
                    spread = [[1e3 * max(0.0, measured - low)], [1e3 * max(0.0, high - measured)]] if ends else None
                    label = "measured" if not place else None
                    axes.barh(
                        place - 0.2, 1e3 * measured, 0.36, xerr=spread, color=BLUE, ecolor=INK, capsize=3, label=label
                    )
            axes.set_yticks(range(len(rows)), labels=list(rows)[::-1])
            has_lines = any(ends for _, _, ends in rows.values())
            axes.set(title=title, xlabel=f"milliseconds (lines: {lines})" if has_lines else "milliseconds")
            axes.grid(visible=False, axis="y")
        sheet.axes[0].legend()
    return sheet.picture


def memory_bars(
    rows: Mapping[str, Mapping[str, float]], title: str, counted: Mapping[str, float] | None = None, unit: str = "MB"
) -> Picture:
    """One stacked bar for each strategy; a mark shows what was counted.

    Args:
        rows: Strategy -> part -> bytes.
        title: What is shown.
        counted: Strategy -> bytes, where they were counted.
        unit: "MB" or "GB".
    """
    factor = {"MB": 1e6, "GB": 1e9}[unit]
    said = [f"{name}: {sum(parts.values()) / factor:.3g} {unit}" for name, parts in rows.items()]
    with draw(f"{title}. " + "; ".join(said), height=1.35 + 0.4 * len(rows)) as sheet:
        axes = sheet.axes[0]
        for place, (name, parts) in enumerate(reversed(list(rows.items()))):
            left = 0.0
            for colour, (part, number) in zip(CYCLE, parts.items(), strict=False):
                label = part if not place else None
                axes.barh(place, number / factor, 0.62, left=left / factor, color=colour, label=label)
                left += number
            gap = "   " if counted and name in counted else " "
            axes.annotate(f"{gap}{left / factor:.3g}", (left / factor, place), va="center", fontsize=8)
            if counted and name in counted:
                label = "counted" if not place else None
                axes.plot([counted[name] / factor], [place], marker="D", color=INK, linestyle="", label=label)
        axes.set_yticks(range(len(rows)), labels=list(rows)[::-1])
        axes.set(title=title, xlabel=f"{unit} on one rank")
        axes.margins(x=0.12)
        axes.grid(visible=False, axis="y")
        axes.figure.legend(loc="outside lower center", ncols=5, columnspacing=1.2, handlelength=1.0)
    return sheet.picture


def step_times(rows: Mapping[str, tuple[float, float, float]], title: str) -> Picture:
    """One bar for each way of training: milliseconds of a step, with an interval.

    Args:
        rows: Way -> (median, interval's lower and upper end).
        title: What is shown.
    """
    said = [f"{name} {median:.3g} ms" for name, (median, _, _) in rows.items()]
    with draw(f"{title}. " + "; ".join(said), height=0.95 + 0.34 * max(1, len(rows))) as sheet:
        axes = sheet.axes[0]
        for place, (median, low, high) in enumerate(reversed(list(rows.values()))):
            spread = [[max(0.0, median - low)], [max(0.0, high - median)]]
            axes.barh(place, median, 0.62, xerr=spread, color=BLUE, ecolor=INK, capsize=3)
        axes.set_yticks(range(len(rows)), labels=list(rows)[::-1])
        axes.set(title=title, xlabel="milliseconds for a step (lines: 95 % interval of the median)")
        axes.grid(visible=False, axis="y")
    return sheet.picture


def worth_and_accuracy(
    batches: Sequence[int],
    worth: Mapping[str, Sequence[float]],
    accuracy: Sequence[tuple[int, float, float]],
    noise_images: float,
) -> Picture:
    """What an image of a batch is worth, predicted; and what training with such batches reached.

    Args:
        batches: Batch sizes of the left panel, rising.
        worth: Label -> predicted worth for each, 0 to 1.
        accuracy: (batch size, accuracy, standard error) of the right panel.
        noise_images: Marked in both.
    """
    said = [f"worth {label}: " + ", ".join(f"{100 * v:.0f} % at {b}" for b, v in zip(batches, values, strict=True))
            for label, values in worth.items()]  # fmt: skip
    said.append("accuracy: " + ", ".join(f"{100 * value:.1f} % at {size}" for size, value, _ in accuracy))
    with draw("; ".join(said), panels=2, width=7.4) as sheet:
        left, right = sheet.axes
        for mark, colour, (label, values) in zip("os", (ORANGE, BLUE), worth.items(), strict=False):
            left.plot(batches, [100 * value for value in values], marker=mark, color=colour, label=label, markersize=5)
        left.set(title="an image's worth, predicted, %", xlabel="batch size", ylim=(0, 105))
        left.legend()
        sizes, values, errors = zip(*accuracy, strict=True)
        right.errorbar(sizes, [100 * v for v in values], [200 * e for e in errors], marker="o", color=RED, capsize=3)
        right.set(title="accuracy at equal epochs, measured, %", xlabel="batch size (bars: two standard errors)")
        for axes, ticks in ((left, batches), (right, sizes)):
            axes.set_xscale("log", base=2)
            axes.set_xticks(list(ticks), labels=[f"{tick:g}" for tick in ticks])
            axes.minorticks_off()
            if batches[0] / 2 <= noise_images <= 2 * batches[-1]:
                axes.axvline(noise_images, color=GREY, linestyle="--")
                axes.annotate(" noise scale", (noise_images, 0.03), xycoords=("data", "axes fraction"), color=INK)
    return sheet.picture
