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
    MOST_PROCESSES,
    Layout,
    Ratio,
    StepCost,
    compare,
    fit_cost,
    grid,
    predict_map,
    setting,
    tell_disturbances,
    time_settings,
)
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
    """

    cores: int
    cost: StepCost
    predicted_s: Mapping[Layout, float]
    seconds: Mapping[Layout, Sequence[float]] = field(default_factory=dict)
    disturbances: Sequence[str] = ()
    message_from: str = "two ranks"

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
        told = (
            f"From one process alone: {measure.duration(cost.fixed_s)} for a step of no images, "
            f"{measure.duration(cost.image_s)} for an image, of which more threads leave {cost.serial_share:.0%} as it "
            f"is, and {measure.duration(costs.predict_ring_all_reduce_s(cost.message_bytes, 2, cost.link))} for the "
            f"message of two ranks. Predicted best: **{expected}** (processes × threads)."
        )
        if not self.seconds:
            return f"Predicted only, from one process and, for the message, {self.message_from}. {told}"
        best, belief = self.best, Layout(1, self.cores)
        fitting = [x for x in self.seconds if x.processes * x.threads <= self.cores]
        off = max(fitting, key=lambda x: abs(math.log(self.measured_s[x] / self.predicted_s[x])))
        worst = max(self.measured_s, key=lambda x: self.measured_s[x])
        told += f" Measured best: **{best}**, {BATCH / self.measured_s[best]:,.0f} images/s"
        if belief != best:
            ratio = compare(self.seconds[belief], self.seconds[best])
            told += f", {ratio} as {belief}: {_words(ratio)}"
        told += (
            f". Where there are no more threads than cores, the prediction was worst for {off} "
            f"({measure.duration(self.predicted_s[off])} predicted, {measure.duration(self.measured_s[off])} measured)."
        )
        if worst.processes * worst.threads > self.cores:
            told += (
                f" The slowest of all is {worst}, {worst.processes * worst.threads} threads on {self.cores} cores: "
                f"{self.measured_s[worst] / self.measured_s[best]:.1f} times the time of the best, where the model "
                f"expected {self.predicted_s[worst] / self.predicted_s[expected]:.1f}. It thinks that waiting threads "
                "cost nothing."
            )
        return told + tell_disturbances(self.disturbances)


def _words(ratio: Ratio) -> str:
    return {
        "faster": "the belief fails here",
        "slower": "in the same rounds the belief's layout was ahead",
        "too close to call": "too close to call",
    }[ratio.verdict]


def measure_map(budget: Budget, cores: int) -> Map:
    """Measure a step for every layout of the grid, in one launch, in turns; in smoke only predict, from one process.

    Args:
        budget: How many rounds.
        cores: ``Machine.usable_cores``.
    """
    if budget.name == "smoke":
        return _predicted(cores)
    layouts = grid(cores)
    settings = [*(setting(layout) for layout in layouts), setting(Layout(1, 1), batch=FEWER)]
    world_size = max(layout.processes for layout in layouts)
    told = time_settings(settings, world_size, budget)
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
    """Put together what the ranks told: the layouts in order, then one process and thread with `FEWER` images."""
    *taken, fewer = told["seconds"]
    seconds = dict(zip(layouts, taken, strict=True))
    whole, threaded = (float(np.median(seconds[Layout(1, threads)])) for threads in (1, cores))
    cost = fit_cost(whole, float(np.median(fewer)), threaded, cores, costs.Link(*told["link"]), told["message_bytes"])
    return Map(cores, cost, predict_map(cost, cores), seconds, told.get("disturbances", ()))


def predict_cells(knobs: Knobs) -> dict[tuple[int, int], float]:
    """Predict images per second for the explorer, with a process for every core at most."""
    cost = StepCost(knobs.fixed_s, knobs.image_s, knobs.serial_share, knobs.link, knobs.message_bytes)
    predicted = predict_map(cost, knobs.cores, knobs.batch, max(MOST_PROCESSES, knobs.cores))
    return {layout: knobs.batch / seconds for layout, seconds in predicted.items()}
