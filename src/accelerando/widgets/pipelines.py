"""The explorer of lesson 4: a pipeline whose workers, prefetching, times and copies can be moved."""

from __future__ import annotations

import html
from typing import Any

from accelerando import timelines
from accelerando.figures import Picture
from accelerando.figures import pipelines as pictures
from accelerando.timelines import Copies, Plan
from accelerando.widgets import Shown

COPIES: dict[str, Copies] = {
    "CPU: nothing to copy": "none",
    "GPU, blocking": "blocking",
    "GPU, pinned and non_blocking": "non_blocking",
    "GPU, stream of its own": "own_stream",
}


def timeline_picture(plan: Plan) -> Picture:
    """The timeline of a pipeline."""
    return pictures.timeline(timelines.simulate(plan))


def timeline_words(plan: Plan, batch_size: int) -> str:
    """Which resource binds this pipeline, and what would be gained without that bound."""
    found, limits = timelines.simulate(plan), timelines.bounds_s(plan)
    order = sorted(limits, key=lambda name: limits[name], reverse=True)
    names = {
        "model": "the model",
        "workers": "the workers",
        "cores": "the cores",
        "process": "one process that does everything in turn",
    }
    told = ", ".join(f"{names[name]} at least {1e3 * limits[name]:.1f} ms" for name in order)
    return (
        f"{batch_size / found.period_s:,.0f} images/s. A batch needs of {told}: {names[order[0]]} "
        f"{'are' if order[0] in ('workers', 'cores') else 'is'} the bottleneck."
    )


def timeline_explorer(plan: Plan, batch_size: int = 64) -> Shown:
    """Sliders over a simulated pipeline.

    Args:
        plan: Where the sliders start, such as the pipeline that was measured.
        batch_size: Images per batch.
    """
    import ipywidgets as ipw

    def milliseconds(seconds: float, words: str) -> Any:
        return ipw.FloatSlider(
            value=round(min(60.0, max(0.0, 1e3 * seconds)), 1), min=0, max=60, step=0.5, description=words,
            readout_format=".1f", continuous_update=False,
        )  # fmt: skip

    def whole(value: int, low: int, high: int, words: str) -> Any:
        return ipw.IntSlider(value=value, min=low, max=high, description=words, continuous_update=False)

    workers = whole(min(8, plan.workers), 0, 8, "workers")
    prefetch, cores = whole(min(8, plan.prefetch), 1, 8, "prefetch"), whole(min(16, plan.cores), 1, 16, "cores")
    load, step = milliseconds(plan.load_s, "load, ms"), milliseconds(plan.step_s, "step, ms")
    read, copy = milliseconds(plan.read_s, "wait, ms"), milliseconds(plan.copy_s or 0.004, "copy, ms")
    bursts = ipw.Checkbox(value=bool(plan.slow_every), description="every 8th batch is 8 times as slow", indent=False)
    start = next(words for words, value in COPIES.items() if value == plan.copies)
    copies = ipw.Dropdown(options=list(COPIES), value=start, description="model on")
    still = timeline_picture(plan)
    picture, words = ipw.Image(value=still.png, format="png", width=792), ipw.HTML()

    def chosen() -> Plan:
        is_gpu = COPIES[copies.value] != "none"
        return plan.changed(
            workers=workers.value,
            prefetch=prefetch.value,
            cores=cores.value,
            load_s=load.value / 1e3,
            step_s=max(step.value, 0.1) / 1e3,
            read_s=read.value / 1e3,
            copy_s=copy.value / 1e3 if is_gpu else 0.0,
            copies=COPIES[copies.value],
            step_threads=0 if is_gpu else max(1, min(plan.step_threads, cores.value)),
            slow_every=8 if bursts.value else 0,
            slow_factor=8.0 if bursts.value else 1.0,
        )

    def draw(*_: object) -> None:
        now = chosen()
        shown = timeline_picture(now)
        picture.value, picture.alt = shown.png, shown.words
        words.value = html.escape(timeline_words(now, batch_size))

    for control in (workers, prefetch, cores, load, step, read, copy, bursts, copies):
        control.observe(draw, "value")
    words.value = html.escape(timeline_words(plan, batch_size))
    rows = [ipw.HBox([workers, prefetch, cores]), ipw.HBox([load, step, read]), ipw.HBox([copies, copy, bursts])]
    return Shown(ipw.VBox([*rows, words, picture]), still, still.words)
