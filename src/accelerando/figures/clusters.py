"""The figures of lesson 10: efficiency over bandwidth, ways of sending less, a run that was broken off."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from accelerando.figures import BLUE, CYCLE, GREEN, GREY, INK, ORANGE, RED, Picture, draw

Row = tuple[float, float, float, float]
WayRow = tuple[float, tuple[float, float] | None, float | None, float | None]


def efficiency(
    megabits_per_s: Sequence[float],
    curves: Mapping[str, Sequence[float]],
    points: Sequence[Row] = (),
    *,
    title: str,
    marked: float | None = None,
) -> Picture:
    """Efficiency over a link's bandwidth: predicted as lines, measured as points with intervals.

    Args:
        megabits_per_s: Of the lines, rising.
        curves: Label -> efficiency for each, 0 to 1.
        points: Rows of (Mbit/s, efficiency, interval's lower and upper end).
        title: What is shown.
        marked: A bandwidth to mark.
    """
    said = [f"{name}: {100 * values[0]:.0f} to {100 * values[-1]:.0f} %" for name, values in curves.items()]
    said += [f"measured {100 * value:.0f} % at {speed:g} Mbit/s" for speed, value, _, _ in points]
    with draw(f"{title}. " + "; ".join(said)) as sheet:
        axes = sheet.axes[0]
        for colour, style, (name, values) in zip((BLUE, GREY, GREEN), ("-", "--", "-."), curves.items(), strict=False):
            axes.plot(megabits_per_s, [100 * value for value in values], style, color=colour, label=name)
        if points:
            speeds, middles = [row[0] for row in points], [100 * row[1] for row in points]
            spread = [
                [max(0.0, 100 * (row[1] - row[2])) for row in points],
                [max(0.0, 100 * (row[3] - row[1])) for row in points],
            ]
            axes.errorbar(
                speeds, middles, spread, fmt="o", color=RED, capsize=3, markersize=5, label="measured here, 95 %"
            )
        if marked is not None:
            axes.axvline(marked, color=INK, linewidth=1, label="the slider's bandwidth")
        axes.set_xscale("log")
        ticks = [
            tick
            for tick in (1, 10, 100, 1000, 10_000, 100_000, 1_000_000)
            if megabits_per_s[0] <= tick <= megabits_per_s[-1]
        ]
        axes.set_xticks(ticks, labels=[f"{tick:g} M" if tick < 1000 else f"{tick / 1000:g} G" for tick in ticks])
        axes.minorticks_off()
        axes.set(title=title, xlabel="bits per second of every node's link", ylabel="efficiency, %", ylim=(0, 105))
        axes.legend(loc="lower right")
    return sheet.picture


def ways(rows: Mapping[str, WayRow], title: str) -> Picture:
    """One row for each way of sending less: how fast on the left, what it reached on the right.

    Args:
        rows: Way -> (times as fast as the first, its lowest and highest run or None, accuracy or None, half of its
            interval against the first or None).
        title: What is shown.
    """
    said = [
        f"{name}: {gain:.1f} times as fast" + ("" if accuracy is None else f", {100 * accuracy:.1f} %")
        for name, (gain, _, accuracy, _) in rows.items()
    ]
    has_accuracy = any(row[2] is not None for row in rows.values())
    panels = 2 if has_accuracy else 1
    with draw(f"{title}. " + "; ".join(said), panels=panels, width=7.4, height=1.1 + 0.36 * len(rows)) as sheet:
        axes = sheet.axes[0]
        for place, (gain, runs, _, _) in enumerate(reversed(list(rows.values()))):
            low, high = runs or (gain, gain)
            axes.barh(place, gain, 0.62, color=BLUE)
            axes.plot([low, high], [place, place], color=INK, linewidth=1.5)
            axes.annotate(f" {gain:.1f}", (max(gain, high), place), va="center", fontsize=8)
        axes.axvline(1.0, color=INK, linewidth=1)
        axes.set_yticks(range(len(rows)), labels=list(rows)[::-1])
        axes.set(title=title, xlabel="times as fast; line: all runs")
        axes.margins(x=0.12)
        axes.grid(visible=False, axis="y")
        if has_accuracy:
            right, first = sheet.axes[1], next(iter(rows.values()))[2]
            for place, (_, _, accuracy, half) in enumerate(reversed(list(rows.values()))):
                if accuracy is not None:
                    right.errorbar(
                        [100 * accuracy], [place], xerr=[100 * (half or 0.0)], fmt="o", color=ORANGE, capsize=3
                    )
            if first is not None:
                right.axvline(100 * first, color=INK, linewidth=1)
            right.set_yticks(range(len(rows)), labels=[""] * len(rows))
            right.set(title="accuracy", xlabel="%; line: 95 % of the difference", ylim=axes.get_ylim())
            right.grid(visible=False, axis="y")
    return sheet.picture


def broken_off(
    lines: Mapping[str, tuple[Sequence[int], Sequence[float]]], *, killed_at: int, saved_at: int, title: str
) -> Picture:
    """Losses of runs over steps, with the step of the last checkpoint and of the kill.

    Args:
        lines: Name -> steps and losses; the first is drawn thick and pale, the others on top of it.
        killed_at: Step after which a node was killed.
        saved_at: Step of the last checkpoint.
        title: What is shown.
    """
    said = [f"{name}: from {losses[0]:.2f} to {losses[-1]:.2f}" for name, (_, losses) in lines.items() if losses]
    words = f"{title}. Killed after step {killed_at}, checkpoint of step {saved_at}. " + "; ".join(said)
    with draw(words) as sheet:
        axes = sheet.axes[0]
        for number, (name, (steps, losses)) in enumerate(lines.items()):
            if not number:
                axes.plot(steps, losses, color=GREY, linewidth=5, alpha=0.6, label=name)
                continue
            style = "-" if number == 1 else ":"
            axes.plot(steps, losses, style, color=CYCLE[(number - 1) % len(CYCLE)], label=name, linewidth=1.6)
        for step, label, colour, side in (
            (saved_at, "checkpoint ", GREEN, "right"),
            (killed_at, " killed", RED, "left"),
        ):
            axes.axvline(step, color=colour, linewidth=1)
            axes.annotate(label, (step, 0.9), xycoords=("data", "axes fraction"), color=colour, ha=side)
        axes.set(title=title, xlabel="step", ylabel="loss of each step's batch")
        axes.legend()
    return sheet.picture
