"""The whole map: images per second for every number of processes and threads, predicted and measured."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from accelerando import costs, measure
from accelerando.lessons import Budget
from accelerando.lessons.multi_cpu import backends
from accelerando.lessons.multi_cpu.layouts import (
    BATCH,
    FEWER,
    HALF,
    MOST_PROCESSES,
    Layout,
    StepCost,
    compare,
    fit_cost,
    grid,
    predict_map,
    predict_step_s,
    setting,
    tell_disturbances,
    time_settings,
)
from accelerando.lessons.multi_cpu.race import FREE, Race
from accelerando.widgets.multi_cpu import Knobs


@dataclass(frozen=True)
class Map:
    """A step's time by processes and threads, predicted and measured.

    Args:
        cores: That may be used.
        cost: The four numbers of a step.
        predicted_s: Layout -> seconds.
        seconds: Layout -> seconds in each round; empty when nothing was measured.
        disturbances: What else was known to take the cores meanwhile.
        message_from: Where the link was measured, in words.
        half_s: `HALF` images by one process and thread, to which nothing was fitted; None when not measured.
    """

    cores: int
    cost: StepCost
    predicted_s: Mapping[Layout, float]
    seconds: Mapping[Layout, Sequence[float]] = field(default_factory=dict)
    disturbances: Sequence[str] = ()
    message_from: str = "two ranks"
    half_s: float | None = None

    @property
    def measured_s(self) -> dict[Layout, float]:
        """Layout -> median seconds."""
        return {layout: float(np.median(taken)) for layout, taken in self.seconds.items()}

    @property
    def best(self) -> Layout:
        """The fastest: measured if anything was, else predicted."""
        found = self.measured_s or dict(self.predicted_s)
        return min(found, key=lambda layout: found[layout])

    def images_per_s(self, *, is_predicted: bool) -> dict[Layout, float]:
        """Layout -> images per second."""
        return {layout: BATCH / s for layout, s in (self.predicted_s if is_predicted else self.measured_s).items()}

    def knobs(self) -> Knobs:
        """Where the explorer's sliders start."""
        cost = self.cost
        return Knobs(self.cores, BATCH, cost.serial_share, cost.message_bytes, cost.link, cost.fixed_s, cost.image_s)

    def sentence(self) -> str:
        """What this run showed."""
        expected = min(self.predicted_s, key=lambda layout: self.predicted_s[layout])
        cost = self.cost
        fixed = measure.duration(cost.fixed_s) if cost.fixed_s > 0 else "too little to see here"
        told = (
            f"From one process, with {FEWER} image and with {BATCH}, and from a message of two ranks: fixed in every "
            f"step {fixed}, {measure.duration(cost.image_s)} for an image, of which more threads leave "
            f"{cost.serial_share:.0%} as it is, and "
            f"{measure.duration(costs.predict_ring_all_reduce_s(cost.message_bytes, 2, cost.link))} for the message. "
            f"Predicted best: **{expected}** (processes × threads)."
        )
        if not self.seconds:
            return f"Predicted only, from one process and, for the message, {self.message_from}. {told}"
        best, belief = self.best, Layout(1, self.cores)
        told += f" Measured best: **{best}**, {BATCH / self.measured_s[best]:,.0f} images/s"
        told += "." if belief == best else f", {compare(self.seconds[belief], self.seconds[best])} as {belief}."
        return f"{told} {self._test_sentence()}{self._crowd_sentence(expected)}{tell_disturbances(self.disturbances)}"

    def _test_sentence(self) -> str:
        """How the prediction did where nothing was fitted."""
        fitted = (Layout(1, 1), Layout(1, self.cores))
        fitting = [x for x in self.seconds if x.processes * x.threads <= self.cores and x not in fitted]
        cells = " and ".join(dict.fromkeys(map(str, fitted)))
        told = f"The numbers were fitted to {cells}, so what is said there proves nothing."
        if fitting:
            off = max(fitting, key=lambda x: abs(math.log(self.measured_s[x] / self.predicted_s[x])))
            others = " (the others with no more threads than cores were nearer)" if fitting[1:] else ""
            told += f" Not fitted was {off}: {_both(self.predicted_s[off], self.measured_s[off])}{others}."
        if self.half_s is not None:
            predicted_s = predict_step_s(self.cost, Layout(1, 1), HALF, self.cores)
            told += f" Nor were {HALF} images on one core: {_both(predicted_s, self.half_s)}."
            if self.half_s < 0.95 * predicted_s:
                told += (
                    " So an image costs less in a smaller batch here (one candidate: more of it stays in the caches). "
                    "The model has one price for all images, and is unfair to layouts that divide the batch."
                )
        return told

    def _crowd_sentence(self, expected: Layout) -> str:
        """What became of more threads than cores; empty when they did well."""
        best, worst = self.best, max(self.measured_s, key=lambda x: self.measured_s[x])
        if worst.processes * worst.threads <= self.cores:
            return ""
        return (
            f" The slowest of all is {worst}, {worst.processes * worst.threads} threads on {self.cores} cores: "
            f"{self.measured_s[worst] / self.measured_s[best]:.1f} times the time of the best, where the model "
            f"expected {self.predicted_s[worst] / self.predicted_s[expected]:.1f}. It takes waiting threads for free."
        )

    def race_sentence(self, raced: Race) -> str:
        """Set the two layouts of the race beside what it had found; empty where one of the two has none of them.

        Args:
            raced: Measured before, in a launch of its own.
        """
        pair = (raced.threads, raced.processes)
        if raced.cores < 2 or not raced.seconds or not set(pair) <= set(self.seconds):
            return ""
        there_s = (raced.seconds[str(raced.threads)], raced.seconds[FREE])
        here_s = [self.seconds[layout] for layout in pair]
        there, here = compare(*there_s), compare(*here_s)
        told = f"{pair[1]} against {pair[0]} stood in the race, too: **{there}** there, **{here}** here."
        if there.low > here.high or here.low > there.high:
            told += (
                " The intervals do not meet. Each says how far the rounds of one run scatter, and nothing of what "
                "differs between two runs: minutes lie between them, and other settings ran in between. "
            )
            if there.verdict == here.verdict:
                return told + f"By how much is open; that it is {there.verdict} both agree."
            return told + "On this machine no single run settles who is faster."
        both = compare(*([*first, *second] for first, second in zip(there_s, here_s, strict=True)))
        verdict = {
            "faster": "the belief fails here",
            "slower": "the belief holds here",
            "too close to call": "too close to call",
        }
        return (
            f"{told} The intervals overlap, so both may be right. All rounds together: **{both}**, "
            f"{verdict[both.verdict]}."
        )


def _both(predicted_s: float, measured_s: float) -> str:
    return (
        f"{measure.duration(predicted_s)} predicted, {measure.duration(measured_s)} measured "
        f"({measured_s / predicted_s - 1:+.0%})"
    )


def measure_map(budget: Budget, cores: int) -> Map:
    """Measure a step for every layout of the grid, in one launch, in turns; in smoke only predict, from one process.

    Args:
        budget: How many rounds.
        cores: ``Machine.usable_cores``.
    """
    if budget.name == "smoke":
        return _predicted(cores)
    layouts = grid(cores)
    settings = [*(setting(layout) for layout in layouts), *(setting(Layout(1, 1), batch=few) for few in (HALF, FEWER))]
    world_size = max(layout.processes for layout in layouts)
    told = time_settings(settings, world_size, budget.rounds)
    return read_map(cores, layouts, told)


def _predicted(cores: int) -> Map:
    """Predict from steps in this process and from the messages that the course keeps; no rank is started."""
    from accelerando.lessons.multi_cpu import on_layouts

    link, where = backends.stored_link()
    whole, fewer, threaded = (
        on_layouts.time_alone(threads, batch) for threads, batch in ((1, BATCH), (1, FEWER), (cores, BATCH))
    )
    cost = fit_cost(whole, fewer, threaded, cores, link, on_layouts.message_bytes())
    return Map(cores, cost, predict_map(cost, cores), message_from=where)


def read_map(cores: int, layouts: Sequence[Layout], told: Mapping[str, Any]) -> Map:
    """Put together what the ranks told: the layouts in order, then one process and thread, with `HALF` and `FEWER`."""
    *taken, half, fewer = told["seconds"]
    seconds = dict(zip(layouts, taken, strict=True))
    whole, threaded = (float(np.median(seconds[Layout(1, threads)])) for threads in (1, cores))
    cost = fit_cost(whole, float(np.median(fewer)), threaded, cores, costs.Link(*told["link"]), told["message_bytes"])
    half_s, disturbances = float(np.median(half)), told.get("disturbances", ())
    return Map(cores, cost, predict_map(cost, cores), seconds, disturbances, half_s=half_s)


def predict_cells(knobs: Knobs) -> dict[tuple[int, int], float]:
    """Predict images per second for the explorer, with a process for every core at most."""
    cost = StepCost(knobs.fixed_s, knobs.image_s, knobs.serial_share, knobs.link, knobs.message_bytes)
    predicted = predict_map(cost, knobs.cores, knobs.batch, max(MOST_PROCESSES, knobs.cores))
    return {layout: knobs.batch / seconds for layout, seconds in predicted.items()}
