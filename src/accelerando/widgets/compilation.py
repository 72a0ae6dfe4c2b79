"""Lesson 2's explorer: when does compiling pay?"""

from __future__ import annotations

import html
import math

from accelerando import costs, measure
from accelerando.figures import compilation as pictures
from accelerando.widgets import Shown

STEPS = (10, 30, 100, 200, 500, 1000, 2000, 3000, 4000, 6000, 10_000, 30_000, 100_000, 1_000_000)


def break_even_explorer(compile_s: float, eager_step_s: float, gain: float, ready_s: float = 0.0) -> Shown:
    """Sliders for what compiling costs and brings, and for the length of the run.

    Args:
        compile_s: Of one compilation: where the slider starts, such as what was measured.
        eager_step_s: Seconds of an eager step; stays as it is.
        gain: Eager step / compiled step, where the slider starts.
        ready_s: For getting the compiler ready, once: where the slider starts.
    """
    import ipywidgets as ipw

    compiling = ipw.FloatSlider(
        value=min(max(compile_s, 0.5), 300.0),
        min=0.5,
        max=300,
        step=0.5,
        description="compile, s",
        continuous_update=False,
    )
    ready = ipw.FloatSlider(
        value=min(max(ready_s, 0.0), 60.0), min=0, max=60, step=0.5, description="ready, s", continuous_update=False
    )
    faster = ipw.FloatSlider(
        value=min(max(gain, 0.5), 5.0), min=0.5, max=5, step=0.05, description="times faster", continuous_update=False
    )
    step = ipw.FloatLogSlider(
        value=min(max(1000 * eager_step_s, 0.1), 10_000.0),
        min=-1,
        max=4,
        step=0.05,
        description="eager step, ms",
        readout_format=".1f",
        continuous_update=False,
    )
    even = costs.predict_break_even_steps(ready_s + compile_s, eager_step_s, eager_step_s / gain)
    steps = ipw.SelectionSlider(options=STEPS, value=long_enough(even), description="steps")
    compiles = ipw.IntSlider(value=1, min=1, max=8, description="compilations", continuous_update=False)

    def now() -> tuple[float, float, float, int, int, float]:
        return compiling.value, step.value / 1000, faster.value, steps.value, compiles.value, ready.value

    still = pictures.break_even(*now())
    picture, words = ipw.Image(value=still.png, format="png", width=726), ipw.HTML()

    def draw(*_: object) -> None:
        drawn = pictures.break_even(*now())
        picture.value, picture.alt = drawn.png, drawn.words
        words.value = html.escape(explain(*now()))

    for slider in (ready, compiling, faster, step, steps, compiles):
        slider.observe(draw, "value")
    draw()
    rows = [ipw.HBox([ready, compiling]), ipw.HBox([step, faster]), ipw.HBox([steps, compiles])]
    return Shown(ipw.VBox([*rows, words, picture]), still, still.words)


def long_enough(break_even_steps: float) -> int:
    """A run that goes well beyond its break-even step, so that the crossing is in the picture; 1,000 if there is none.

    Args:
        break_even_steps: Infinity for never.
    """
    if break_even_steps == math.inf:
        return 1000
    return next((steps for steps in STEPS if steps >= 1.2 * break_even_steps), STEPS[-1])


def explain(compile_s: float, eager_step_s: float, gain: float, steps: int, compiles: int, ready_s: float = 0.0) -> str:
    """Say how long the first step waits, when it pays, and what would have to change."""
    spent = ready_s + compiles * compile_s
    even = costs.predict_break_even_steps(spent, eager_step_s, eager_step_s / gain)
    wait = f"The first compiled step waits {measure.duration(ready_s + compile_s)}."
    if even == math.inf:
        return f"{wait} Compiled, a step saves nothing: no number of steps pays for it."
    run_s = steps * eager_step_s
    best = f"However long the run, it cannot take less than 1/{gain:.2f} of the time."
    if even > steps:
        moves = costs.predict_break_even_steps(compile_s, eager_step_s, eager_step_s / gain)
        return (
            f"{wait} This run of {steps:,} steps ends before step {math.ceil(even):,}, where it would pay. "
            f"A recompile moves it by {math.ceil(moves):,}. {best}"
        )
    saved = measure.duration(run_s - spent - run_s / gain)
    return (
        f"{wait} It pays from step {math.ceil(even):,} on. Compiling is {spent / (spent + run_s / gain):.0%} of the "
        f"compiled run, which saves {saved} of {measure.duration(run_s)}. {best}"
    )
