"""The pictures of a final's report: how much faster, against the tiers; what became of the accuracy; the losses."""

from collections.abc import Sequence

from .. import figures, stats
from .session import SIDES, SessionResult


def ratios(session: SessionResult, thresholds: Sequence[float]) -> figures.Picture:
    """Each round's ratio as a point, the interval as a bar, the announced tiers and where they are judged as lines."""
    rows = {task: found for task, found in session.intervals.items() if found.pairs}
    said = ", ".join(
        f"{task}: {found.ratio:.2f} ({found.low:.2f} to {found.high:.2f}) from {found.pairs} rounds"
        for task, found in rows.items()
    )
    with figures.draw(f"Times as fast as the starter. {said}", height=1.5 + 0.5 * max(1, len(rows))) as sheet:
        axes = sheet.axes[0]
        for bar in thresholds:
            axes.axvspan(bar / stats.TOLERANCE, bar, color=figures.GREY, alpha=0.3, linewidth=0)
            axes.annotate(
                f"{bar:g}", (bar, 1), xycoords=("data", "axes fraction"), ha="center", va="bottom", color=figures.INK
            )
        for place, (task, found) in enumerate(rows.items()):
            pairs = zip(session.times_s("starter", task), session.times_s("submission", task), strict=True)
            own = [starter / mine for starter, mine in pairs]
            if found.is_telling:
                ends = [[found.ratio - found.low], [found.high - found.ratio]]
                axes.errorbar([found.ratio], [place], xerr=ends, fmt="D", color=figures.BLUE, capsize=4)
            axes.plot(own, [place + 0.22] * len(own), "o", color=figures.ORANGE, markersize=4)
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter("{x:g}")
        axes.minorticks_off()
        ticks = [tick for tick in (0.25, 0.5, 1, 1.5, 2.3, 3.5, 5, 7, 10, 15, 20, 30, 50) if _near(tick, session)]
        axes.set_xticks(ticks or [1.0])
        axes.set_yticks(range(len(rows)), labels=[f"task {task}" for task in rows])
        axes.set(
            xlabel="times as fast as the starter (grey: a tier, judged at its left edge)", ylim=(-0.6, len(rows) - 0.3)
        )
    return sheet.picture


def _near(tick: float, session: SessionResult) -> bool:
    found = [own for own in session.intervals.values() if own.pairs]
    low = min([1.0, *(own.low for own in found if own.is_telling), *(own.ratio for own in found)])
    high = max([4.0, *(own.high for own in found if own.is_telling), *(own.ratio for own in found)])
    return 0.8 * low <= tick <= 1.25 * high


def accuracies(session: SessionResult, margin: float) -> figures.Picture:
    """The change of accuracy on each task with its interval, and the largest loss that counts as kept."""
    changes = {
        task: [f"{100 * number:+.2f}" for number in (found.difference, *found.interval)]
        for task, found in session.accuracy.items()
    }
    said = ", ".join(f"{task}: {own[0]} points ({own[1]} to {own[2]})" for task, own in changes.items())
    with figures.draw(
        f"Accuracy compared with the starter's. {said}", height=1.3 + 0.5 * len(session.accuracy)
    ) as sheet:
        axes = sheet.axes[0]
        axes.axvline(0, color=figures.INK, linewidth=1)
        axes.axvline(-100 * margin, color=figures.RED, linewidth=1, linestyle="--")
        for place, found in enumerate(session.accuracy.values()):
            low, high = (100 * end for end in found.interval)
            middle = 100 * found.difference
            ends = [[max(middle - low, 0)], [max(high - middle, 0)]]
            axes.errorbar([middle], [place], xerr=ends, fmt="D", color=figures.GREEN, capsize=4)
        axes.set_yticks(range(len(session.accuracy)), labels=[f"task {task}" for task in session.accuracy])
        axes.set(
            xlabel="points of accuracy gained (dashed: the largest loss that counts as kept)",
            ylim=(-0.6, len(session.accuracy) - 0.4),
        )
    return sheet.picture


def losses(session: SessionResult) -> figures.Picture:
    """The loss over each run, as each side's own code tells it; tasks beside each other, sides in colours."""
    colours = dict(zip(SIDES, (figures.GREY, figures.GREEN, figures.ORANGE), strict=True))
    told = sorted((run for run in session.runs if run.losses), key=lambda run: SIDES.index(run.side))
    last = ", ".join(f"{run.side} on {run.task} {run.losses[-1]:.2f}" for run in told)
    tasks = sorted({run.task for run in told})
    with figures.draw(f"Training loss over each run. At the end: {last}", panels=len(tasks), height=2.8) as sheet:
        for axes, task in zip(sheet.axes, tasks, strict=True):
            named: set[str] = set()
            for run in (run for run in told if run.task == task):
                share = [100 * (place + 0.5) / len(run.losses) for place in range(len(run.losses))]
                label = run.side if run.side not in named else None
                axes.plot(share, run.losses, color=colours[run.side], linewidth=1.2, alpha=0.8, label=label)
                named.add(run.side)
            axes.set(title=f"task {task}", xlabel="% of the run", ylabel="loss")
            axes.legend()
    return sheet.picture
