"""How a machine can be divided into processes and threads, and what a training step then takes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from accelerando import costs, noise, ranks, stats

TIME = "accelerando.lessons.multi_cpu.on_layouts:time_settings"
BATCH = 128
"""Images of a step, all ranks together: whatever the layout, the training is the same."""
HALF = BATCH // 2
FEWER = 1
"""So few that hardly anything but the fixed part of a step is left."""
MOST_PROCESSES = 8
SAMPLE_S = 0.15
NOT_RUN = "Nothing was measured: the smoke budget starts no ranks."


class Layout(NamedTuple):
    """So many processes, each with so many threads."""

    processes: int
    threads: int

    def __str__(self) -> str:
        return f"{self.processes} × {self.threads}"


@dataclass(frozen=True)
class StepCost:
    """Four numbers from which the time of a step follows, for any layout.

    Args:
        fixed_s: Of a step, whatever the batch: Python, launching operators, the optimizer.
        image_s: Of one image on one core.
        serial_share: Part of an image's time that more threads do not shorten, 0 to 1.
        link: Between two ranks.
        message_bytes: All gradients.
    """

    fixed_s: float
    image_s: float
    serial_share: float
    link: costs.Link
    message_bytes: int


def predict_step_s(cost: StepCost, layout: Layout, batch: int, cores: int) -> float:
    """Predict a training step of ``batch`` images, divided among the processes.

    Every process has ``cores / processes`` cores. Its threads share the part of its images' time that can be shared;
    more threads than cores are taken to cost nothing and to gain nothing, and more processes than cores to take turns.

    Args:
        cost: Measured with one process.
        layout: Processes and threads of each.
        batch: Images of all processes together.
        cores: That may be used.
    """
    own_cores = cores / layout.processes
    helping = max(1.0, min(layout.threads, own_cores))
    busy_s = batch / layout.processes * cost.image_s * (cost.serial_share + (1 - cost.serial_share) / helping)
    turn = min(1.0, own_cores)
    message_s = costs.predict_ring_all_reduce_s(cost.message_bytes, layout.processes, cost.link)
    return (cost.fixed_s + busy_s) / turn + message_s


def fit_cost(whole_s: float, fewer_s: float, threaded_s: float, cores: int, link: costs.Link, message: int) -> StepCost:
    """Find the four numbers of a step from three measurements with one process.

    Args:
        whole_s: `BATCH` images, one thread.
        fewer_s: `FEWER` images, one thread.
        threaded_s: `BATCH` images, a thread on each of ``cores``.
        cores: At least 1.
        link: Between two ranks.
        message: Bytes of all gradients.
    """
    image_s = max(1e-9, (whole_s - fewer_s) / (BATCH - FEWER))
    fixed_s = max(0.0, whole_s - BATCH * image_s)
    serial = 0.0
    if cores > 1:
        serial = ((threaded_s - fixed_s) / (BATCH * image_s) - 1 / cores) / (1 - 1 / cores)
    return StepCost(fixed_s, image_s, min(1.0, max(0.0, serial)), link, message)


def grid(cores: int, most_processes: int = MOST_PROCESSES) -> tuple[Layout, ...]:
    """Layouts worth drawing: powers of two up to twice as many as cores, and the number of cores itself."""
    counts = sorted({cores, 2 * cores, *(2**power for power in range((2 * cores).bit_length()) if 2**power < cores)})
    processes = [count for count in counts if count <= max(most_processes, 2)]
    return tuple(Layout(count, threads) for count in processes for threads in counts)


def predict_map(
    cost: StepCost, cores: int, batch: int = BATCH, most_processes: int = MOST_PROCESSES
) -> dict[Layout, float]:
    """Predict the whole grid: layout -> seconds of a step."""
    return {layout: predict_step_s(cost, layout, batch, cores) for layout in grid(cores, most_processes)}


@dataclass(frozen=True)
class Ratio:
    """Time of one setting over the time of another, within rounds: above 1 the second one is faster."""

    middle: float
    low: float
    high: float

    def __str__(self) -> str:
        if not math.isfinite(self.high):
            return f"{self.middle:.2f} times as fast (too few rounds for an interval)"
        return f"{self.middle:.2f} times as fast (95 % interval {self.low:.2f} to {self.high:.2f})"

    @property
    def verdict(self) -> str:
        """Faster, slower, or too close to call."""
        return "faster" if self.low > 1 else "slower" if self.high < 1 else "too close to call"


def compare(first_s: Sequence[float], own_s: Sequence[float]) -> Ratio:
    """Set two series side by side that were measured in the same rounds."""
    middle, low, high = stats.hodges_lehmann(np.log(np.array(first_s) / np.array(own_s)))
    return Ratio(math.exp(middle), math.exp(low), math.exp(high) if high < math.inf else math.inf)


def setting(layout: Layout, cpus: Sequence[Sequence[int]] | None = None, batch: int = BATCH) -> dict[str, Any]:
    """Describe a layout for `time_settings`.

    Args:
        layout: Processes and threads.
        cpus: For each process the cores that it may use; None: all.
        batch: Images of a step, all processes together.
    """
    listed = None if cpus is None else [list(own) for own in cpus]
    return {"processes": layout.processes, "threads": layout.threads, "cpus": listed, "batch": batch}


def time_settings(
    settings: Sequence[Mapping[str, Any]],
    world_size: int,
    rounds: int,
    environment: Mapping[str, str | None] | None = None,
) -> dict[str, Any]:
    """Launch ranks once and let them time every setting in turns; see `on_layouts.time_settings`.

    Args:
        settings: As `setting` describes them.
        world_size: Ranks to launch, at least as many as any setting has.
        rounds: Of all settings.
        environment: Variables of every rank, on top of this process's own.
    """
    payload = {"settings": [dict(one) for one in settings], "rounds": rounds, "sample_s": SAMPLE_S}
    with noise.watch() as watched:
        result = ranks.run(TIME, world_size, payload=payload, environment=environment, time_limit_s=280.0)
    told: dict[str, Any] = result.values[0]
    return {**told, "disturbances": watched.state.disturbances}


def tell_disturbances(found: Sequence[str]) -> str:
    """Say what disturbed a measurement; empty when nothing is known to have done so."""
    if not found:
        return ""
    return (
        f" (Meanwhile {' and '.join(found)}. What waits for others suffers most from that: run it again on a calm "
        "machine.)"
    )
