"""The figures of lesson 2."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from accelerando import costs
from accelerando.figures import BLUE, GREY, INK, ORANGE, Picture, draw


def crossing(
    name: str,
    steps: Sequence[int],
    eager_s: Sequence[float],
    compiled_s: Sequence[float],
    *,
    predicted: float,
    crossed_at: int | None,
    ready_s: float = 0.0,
) -> Picture:
    """Seconds since the start over steps, eager and compiled, with the predicted and the measured break-even step.

    Args:
        name: Of the network.
        steps: At which the seconds stand.
        eager_s: Since the start.
        compiled_s: Since the start, compiling included.
        predicted: Break-even step; infinity for never.
        crossed_at: Measured break-even step; None when it is not among the steps.
        ready_s: For getting the compiler ready, which ``compiled_s`` leaves out: drawn as a second line above it.
    """
    met = f"measured at step {crossed_at:,}" if crossed_at else "not within these steps"
    said = f"predicted at {predicted:,.0f}" if predicted < math.inf else "never predicted"
    fresh = f"; in a fresh process the compiled run is {ready_s:.1f} s later" if ready_s > 0.5 else ""
    words = (
        f"{name}: after {steps[-1]:,} steps eager {eager_s[-1]:.1f} s, compiled {compiled_s[-1]:.1f} s with compiling; "
        f"break-even {said}, {met}{fresh}"
    )
    with draw(words, height=3.8) as sheet:
        axes = sheet.axes[0]
        axes.plot(steps, eager_s, color=ORANGE, label="eager")
        axes.plot(steps, compiled_s, color=BLUE, label="compiled, compiling included")
        if ready_s > 0.5:
            later = [ready_s + seconds for seconds in compiled_s]
            axes.plot(steps, later, ":", color=BLUE, label=f"in a fresh process: {ready_s:.1f} s later")
        if predicted <= steps[-1]:
            axes.axvline(predicted, color=GREY, linestyle="--", label=f"predicted: {predicted:,.0f}")
        if crossed_at:
            axes.axvline(crossed_at, color=INK, linewidth=1, label=f"measured: {crossed_at:,}")
        axes.set(title=f"Who is ahead? {name}", xlabel="training steps", ylabel="seconds")
        axes.set_xlim(left=0)
        axes.set_ylim(bottom=0)
        axes.legend(loc="upper left", bbox_to_anchor=(0.0, -0.2), ncols=2)
    return sheet.picture


@dataclass(frozen=True)
class Ceiling:
    """A network's measured gain, and the most that it could be.

    Args:
        name: Of the network.
        library_share: Share of an eager step in library calls, 0 to 1.
        ceiling: The most that compiling could gain.
        ratio: What it did gain.
        interval: 95 % interval for that; (0, inf) when there is none.
    """

    name: str
    library_share: float
    ceiling: float
    ratio: float
    interval: tuple[float, float]


def ceilings(found: Sequence[Ceiling]) -> Picture:
    """One row per network: its ceiling, from the share of library calls, and the gain that was measured."""
    words = "Measured gain by compiling, and its ceiling. " + "; ".join(
        f"{one.name}: {one.ratio:.2f} of at most {one.ceiling:.1f} ({one.library_share:.0%} library calls)"
        for one in found
    )
    most = max([one.ratio for one in found] + [2.0]) * 1.6
    least = min([one.ratio for one in found] + [0.8]) - 0.1
    with draw(words, height=0.9 + 0.5 * len(found)) as sheet:
        axes = sheet.axes[0]
        axes.axvline(1.0, color=INK, linewidth=1)
        rows = range(len(found) - 1, -1, -1)
        for row, one in zip(rows, found, strict=True):
            end = min(one.ceiling, most)
            axes.barh(row, end - 1, left=1, height=0.5, color="#d6e6f2")
            label = f" {one.ceiling:.1f}" if one.ceiling <= most else f" {one.ceiling:.0f} →"
            axes.annotate(label, (end, row), va="center", color=GREY)
            low, high = one.interval if one.interval[1] < math.inf else (one.ratio, one.ratio)
            ends = [max(one.ratio - low, 0.0)], [max(high - one.ratio, 0.0)]
            axes.errorbar([one.ratio], [row], xerr=ends, fmt="o", color=BLUE, capsize=3)
        axes.set_yticks(list(rows), labels=[f"{one.name}\n{one.library_share:.0%} library calls" for one in found])
        axes.set(
            title="What compiling gave (dots), and the most it could give (bars)",
            xlabel="times as fast as eager",
            xlim=(least, most * 1.1),
        )
        axes.grid(visible=False, axis="y")
    return sheet.picture


def break_even(
    compile_s: float, eager_step_s: float, gain: float, steps: int, compiles: int, ready_s: float = 0.0
) -> Picture:
    """Two straight lines: the seconds of a run, eager and compiled.

    Args:
        compile_s: Of one compilation.
        eager_step_s: Seconds of an eager step.
        gain: Eager step / compiled step.
        steps: Length of the run.
        compiles: Compilations, recompiles included; the further ones are spread over the first tenth of the run.
        ready_s: For getting the compiler ready, before the first compilation.
    """
    at = [number * steps / 10 / compiles for number in range(compiles)]
    xs, ys, spent = [0.0], [0.0], ready_s
    for place, begin in enumerate(at):
        end = at[place + 1] if place + 1 < compiles else float(steps)
        spent += compile_s
        xs += [begin, end]
        ys += [spent + begin * eager_step_s / gain, spent + end * eager_step_s / gain]
    total_s = steps * eager_step_s
    even = costs.predict_break_even_steps(ready_s + compiles * compile_s, eager_step_s, eager_step_s / gain)
    saved = total_s - ys[-1]
    verdict = f"saves {saved:,.0f} s" if saved > 0 else f"costs {-saved:,.0f} s more"
    words = f"A run of {steps:,} steps: eager {total_s:,.0f} s, compiled {ys[-1]:,.0f} s: compiling {verdict}"
    with draw(words) as sheet:
        axes = sheet.axes[0]
        axes.plot([0, steps], [0, total_s], color=ORANGE, label="eager")
        axes.plot(xs, ys, color=BLUE, label="compiled")
        if even <= steps:
            axes.axvline(even, color=INK, linewidth=1, label=f"break-even: step {math.ceil(even):,}")
        axes.set(title=words, xlabel="training steps", ylabel="seconds", xlim=(0, steps))
        axes.set_ylim(bottom=0)
        axes.legend()
    return sheet.picture
