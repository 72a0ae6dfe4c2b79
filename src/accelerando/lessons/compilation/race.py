"""The break-even step, measured: the same network trained twice, eager and compiled, and who is ahead when."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from accelerando import costs, measure
from accelerando.figures import Picture
from accelerando.figures import compilation as pictures
from accelerando.lessons import Budget
from accelerando.lessons.compilation.payback import Payback, as_payback, step_arguments
from accelerando.lessons.compilation.sides import (
    COMPILED,
    EAGER,
    Side,
    get_ready,
    in_own_process,
    make_sides,
    seconds,
    time_sides,
)
from accelerando.lessons.compilation.subjects import Subject
from accelerando.lessons.compilation.toolchain import Toolchain

_CURVE_POINTS = 240


@dataclass(frozen=True, eq=False)
class Race:
    """Seconds since the first step, eager and compiled, over the steps of one run.

    Args:
        payback: What two short measurements say, from which the crossing is predicted.
        steps: Steps at which the seconds stand.
        eager_s: Since the start.
        compiled_s: Since the start, compiling included.
        crossed_at: First step after which the compiled run is ahead and stays so; None when it is not at the end.
    """

    payback: Payback
    steps: np.ndarray
    eager_s: np.ndarray
    compiled_s: np.ndarray
    crossed_at: int | None

    def sentence(self) -> str:
        """What this run showed."""
        predicted = self.payback.break_even_steps
        total = int(self.steps[-1])
        start = f"{self.payback.toolchain.why} " if self.payback.toolchain.why else ""
        said = f"Predicted: {predicted:,.0f} steps" if predicted < math.inf else "Predicted: never"
        if self.crossed_at is None:
            behind = self.compiled_s[-1] - self.eager_s[-1]
            return f"{start}{said}. After {total:,} steps the compiled run is still {behind:.1f} s behind."
        off = f" ({abs(self.crossed_at / predicted - 1):.0%} off)" if 0 < predicted < math.inf else ""
        met_s = float(np.interp(self.crossed_at, self.steps, self.compiled_s))
        return (
            f"{start}{said}. Measured: the compiled run is ahead from step **{self.crossed_at:,}** on{off}, after "
            f"{met_s:.1f} s. A run of fewer steps is better left alone{self._cold()}. {self._inputs()}"
        )

    def mean_steps_s(self) -> tuple[float, float]:
        """Seconds of an eager and of a compiled step of the race, without the first two, in which it was compiled."""
        count = self.steps[-1] - self.steps[1]  # the second place is that of the second step, or of a later one
        eager_s, compiled_s = ((side[-1] - side[1]) / count for side in (self.eager_s, self.compiled_s))
        return float(eager_s), float(compiled_s)

    def _inputs(self) -> str:
        """The prediction's two step times beside those of the race: both may be off and the quotient be right."""
        eager, compiled = map(measure.duration, self.mean_steps_s())
        medians = measure.duration(self.payback.eager_step_s), measure.duration(self.payback.compiled_step_s)
        return (
            f"In the race a step took {eager} eager and {compiled} compiled on average; the prediction had gone by "
            f"medians of {medians[0]} and {medians[1]}."
        )

    def _cold(self) -> str:
        """The same for a fresh process, where getting ready takes long enough to be told."""
        cold = self.payback.cold_break_even_steps
        if self.payback.start_s <= 0.5 or cold == math.inf:
            return ""
        return (
            f"; in a fresh process, {self.payback.start_s:.1f} s behind before it begins, one of fewer than {cold:,.0f}"
        )

    def picture(self) -> Picture:
        """Both runs as curves."""
        return pictures.crossing(
            self.payback.subject.name,
            self.steps.tolist(),
            self.eager_s.tolist(),
            self.compiled_s.tolist(),
            predicted=self.payback.break_even_steps,
            crossed_at=self.crossed_at,
            ready_s=self.payback.start_s,
        )


def measure_race(subject: Subject, budget: Budget, toolchain: Toolchain, *, limit_s: float = 20.0) -> Race:
    """Train the same network twice from the first step on, eager and compiled, and see who is ahead when.

    The clock of a side runs only while it is its turn, from before its first step, compiling included; that the
    compiler is loaded and got ready is not counted. A recompile for a batch of another size is timed at the end.

    Args:
        subject: What to train.
        budget: "smoke" makes few steps, in this process.
        toolchain: How far compiling goes.
        limit_s: The eager run is made no longer than this.
    """
    arguments = step_arguments(subject, budget, toolchain) | {"race_s": limit_s if budget.process_s else 1e-9}
    found = in_own_process(race_in_child, arguments, budget)
    eager_s, compiled_s = (np.asarray(found[side]) for side in ("eager_s", "compiled_s"))
    kept = np.unique(np.linspace(0, len(eager_s) - 1, min(len(eager_s), _CURVE_POINTS)).astype(int))
    payback = as_payback(subject, toolchain, found)
    return Race(payback, kept + 1, eager_s[kept], compiled_s[kept], crossing(eager_s, compiled_s))


def crossing(eager_s: Sequence[float] | np.ndarray, compiled_s: Sequence[float] | np.ndarray) -> int | None:
    """Find the first step, from 1, after which the compiled run is ahead for good; None when it is behind at the end.

    Args:
        eager_s: Seconds since the start after each step.
        compiled_s: Likewise.
    """
    behind = np.flatnonzero(np.asarray(compiled_s) > np.asarray(eager_s))
    last = int(behind[-1]) + 1 if len(behind) else 0
    return last + 1 if last < len(eager_s) else None


def race_in_child(sizes: Mapping[str, Any], batch_size: int, backend: str, count: int, race_s: float) -> dict[str, Any]:
    """Compile, time both sides in turns, race, and time a recompile; see `Race` for what comes back."""
    start_s = get_ready(backend)
    eager, compiled = make_sides(sizes, batch_size, backend)
    found, first_s = time_sides(eager, compiled, count)
    more = _steps_worth_racing(found, race_s) - len(first_s[EAGER])
    took_s = _race(eager, compiled, max(more, 8))
    since_s = [np.cumsum([*first_s[side], *took_s[side]]) for side in (EAGER, COMPILED)]
    return found | {
        "start_s": start_s,
        "eager_s": since_s[EAGER],
        "compiled_s": since_s[COMPILED],
        "recompile_s": _recompile_s(compiled, batch_size),
    }


def _steps_worth_racing(found: Mapping[str, Any], race_s: float) -> int:
    """A little beyond the predicted break-even step, as far as the time allows."""
    predicted = costs.predict_break_even_steps(found["compile_s"], found["eager_step_s"], found["compiled_step_s"])
    return int(min(1.15 * predicted + 20, race_s / found["eager_step_s"]))


def _race(eager: Side, compiled: Side, steps: int) -> tuple[list[float], list[float]]:
    """Seconds of each further step; the sides take turns of about a dozen steps, so that both meet the same machine."""
    took_s: tuple[list[float], list[float]] = ([], [])
    while len(took_s[COMPILED]) < steps:
        turn = min(12, steps - len(took_s[COMPILED]))
        for side, training in ((EAGER, eager), (COMPILED, compiled)):
            took_s[side].extend(seconds(training.step) for _ in range(turn))
    return took_s


def _recompile_s(compiled: Side, batch_size: int) -> float:
    rows = batch_size - 3
    took_s = [seconds(lambda: compiled.step(rows)) for _ in range(4)]
    return max(sum(took_s[:2]) - sum(took_s[2:]), 0.0)
