"""Lesson 1: where a training step spends its time, and what more cores, bigger batches and switches do about it.

Every experiment returns a frozen result with a ``sentence``: what this run showed, whichever way it came out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from accelerando import bandwidth, costs, datasets, machine, measure, models, rounds, stats, training
from accelerando.costs import Offer
from accelerando.lessons import Budget
from accelerando.recipes import Recipe
from accelerando.surroundings import Surroundings
from accelerando.workers import Experiment

TRAIN_RECIPE = "accelerando.lessons.scaling:train_recipe"
PREPARE_STEPS = "accelerando.lessons.scaling:prepare_steps"
SLOW_START: dict[str, Any] = {
    "epochs": 2,
    "batch_size": 16,
    "learning_rate": 0.02,
    "schedule": "constant",
    "optimizer": "sgd",
    "optimizer_kind": "for_loop",
    "layout": "contiguous",
    "threads": 1,
    "zero_grad_set_to_none": False,
}
"""The badly configured start of the lab's timed question."""
STEP_RECIPE = Recipe(batch_size=64, learning_rate=0.01, schedule="constant", test_images=10)


# -- where the time of a step goes ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class StepBreakdown:
    """Seconds of each part of a training step.

    Args:
        median_s: Part -> seconds, in the order in which they run.
        interval_s: Part -> 95 % interval for the median.
        batch_size: Images per step.
        steps: Steps that were timed.
    """

    median_s: dict[str, float]
    interval_s: dict[str, tuple[float, float]]
    batch_size: int
    steps: int

    @property
    def step_s(self) -> float:
        """Seconds of a whole step, as the sum of its parts."""
        return sum(self.median_s.values())

    def share(self, part: str) -> float:
        """The part's share of the step, 0 to 1."""
        return self.median_s[part] / self.step_s

    def sentence(self) -> str:
        """What this run showed."""
        first, second, *_, last = sorted(self.median_s, key=self.share, reverse=True)
        return (
            f"A step of {self.batch_size} images takes {measure.duration(self.step_s)}. **{first}** has "
            f"{self.share(first):.0%} of it and **{second}** {self.share(second):.0%}; backward takes "
            f"{self.median_s['backward'] / self.median_s['forward']:.1f} times as long as forward, the optimizer "
            f"{self.share('optimizer'):.1%} and fetching the data {self.share('data'):.1%}. "
            f"If *{last}* cost nothing at all, a step would still take {1 - self.share(last):.1%} of its time."
        )


def step_breakdown(budget: Budget, recipe: Recipe = STEP_RECIPE) -> StepBreakdown:
    """Measure what each part of a training step takes, over a few dozen steps.

    Args:
        budget: How many steps.
        recipe: How to train.
    """
    timer = training.PhaseTimer()
    step = training.stepper(recipe, images(budget), phases=timer.phase)
    for _ in range(3):
        step()
    taken = []
    for _ in range(10 * budget.rounds):
        before = dict(timer.seconds)
        step()
        taken.append([timer.seconds[part] - before[part] for part in training.PHASES])
    columns = dict(zip(training.PHASES, np.array(taken).T, strict=True))
    found = {part: stats.median_interval(column) for part, column in columns.items()}
    return StepBreakdown(
        {part: median for part, (median, _, _) in found.items()},
        {part: (low, high) for part, (_, low, high) in found.items()},
        recipe.batch_size,
        len(taken),
    )


# -- twice the cores --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SpeedupCurve:
    """Speed-ups measured for several numbers of threads.

    Args:
        label: What was run.
        points: The first one is for 1 thread.
        usable_cores: More threads than this share cores.
        is_scaled: The work grew with the threads (Gustafson); else it stayed the same (Amdahl).
    """

    label: str
    points: tuple[rounds.RoundPoint, ...]
    usable_cores: int
    is_scaled: bool = False

    @property
    def serial_fraction(self) -> float:
        """Amdahl's serial fraction that fits the points up to one thread per core; NaN with one core only."""
        times = {point.key: 1 / point.ratio for point in self.points if point.key <= self.usable_cores}
        return costs.fit_serial_fraction(times) if len(times) > 1 else math.nan

    @property
    def last(self) -> rounds.RoundPoint:
        """The point with one thread per usable core, or the nearest below."""
        return max((point for point in self.points if point.key <= self.usable_cores), key=lambda point: point.key)

    def sentence(self) -> str:
        """What this run showed."""
        last = self.last
        if last.key == 1:
            return "There is one usable core here: nothing can be divided, and the curve has one point."
        low, high = last.interval
        spread = "" if high == math.inf else f" (95 % interval {low:.2f} to {high:.2f})"
        start = f"{self.label}: {last.key} threads gave **{last.ratio:.2f} times** the speed{spread}"
        if self.is_scaled and last.ratio >= 1:
            return f"{start}, with the work grown in the same measure."
        if low <= 1 <= high:
            return f"{start}: whether they helped at all cannot be told."
        if last.ratio < 1:
            return f"{start}: they made it slower. Is something else running, or is each piece of work very small?"
        if last.ratio > 0.95 * last.key:
            return f"{start}. That is all there was to gain: here the belief survives, up to the cores there are."
        ceiling = f"{1 / self.serial_fraction:.1f}" if self.serial_fraction > 0.001 else "no visible limit"
        return (
            f"{start}, not {last.key}. To Amdahl's law that looks like a serial share of {self.serial_fraction:.0%}, "
            f"and the most that any number of cores could give: {ceiling}."
        )


def thread_counts(usable_cores: int) -> tuple[int, ...]:
    """Numbers of threads worth trying: 1, 2, 4 … up to the cores, and twice the cores to see what too many do."""
    doubled = [2**power for power in range(12) if 2**power < usable_cores]
    return (*doubled, usable_cores, 2 * usable_cores)


def measure_threads(
    budget: Budget, usable_cores: int, *, batch_size: int = 64, is_scaled: bool = False
) -> SpeedupCurve:
    """Measure a training step on more and more threads.

    Args:
        budget: How many rounds.
        usable_cores: ``Machine.usable_cores``.
        batch_size: Images per step, on one thread.
        is_scaled: Let the batch grow with the threads, and count work per second.
    """
    data = images(budget)
    steps = {}
    for threads in thread_counts(usable_cores):
        size = batch_size * threads if is_scaled else batch_size
        steps[threads] = training.stepper(STEP_RECIPE.changed(batch_size=min(size, 1024)), data)
    sample_s = 0.15 if budget.rounds > 1 else 0.01
    points = rounds.measure_rounds(steps, budget.rounds, sample_s=sample_s, around=_threads)
    label = f"A training step ({batch_size} images{' per thread' if is_scaled else ''})"
    if is_scaled:
        points = tuple(_scaled(point, min(batch_size * point.key, 1024) / batch_size) for point in points)
    return SpeedupCurve(label, points, usable_cores, is_scaled)


def _scaled(point: rounds.RoundPoint, work: float) -> rounds.RoundPoint:
    low, high = point.interval
    return rounds.RoundPoint(point.key, point.median_s, point.ratio * work, (low * work, high * work), point.samples_s)


def measure_kernels(budget: Budget, here: machine.Machine) -> tuple[SpeedupCurve, ...]:
    """Measure three kinds of work on one thread and on all cores: arithmetic, memory, and very small pieces."""
    import torch

    generator = torch.Generator().manual_seed(0)
    square, tiny = torch.rand(512, 512, generator=generator), torch.rand(256, generator=generator)
    out = torch.empty_like(square)

    def multiply() -> None:
        torch.mm(square, square, out=out)

    def many_small() -> None:
        for _ in range(50):
            tiny.add(1.0)

    large = bandwidth.beyond_caches_bytes(here.caches, here.memory_bytes)
    if budget.name == "smoke":
        large = 2**22
    kinds: dict[str, Callable[[], object]] = {
        "Arithmetic (a matrix product)": multiply,
        "Memory (triad)": bandwidth.triad(large),
        "Small pieces (256 numbers at a time)": many_small,
    }
    counts = (1, here.usable_cores) if here.usable_cores > 1 else (1,)
    return tuple(
        SpeedupCurve(
            label,
            rounds.measure_rounds(dict.fromkeys(counts, run), budget.rounds, sample_s=0.05, around=_threads),
            here.usable_cores,
        )
        for label, run in kinds.items()
    )


@contextmanager
def _threads(count: int) -> Iterator[None]:
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


# -- a bigger batch ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class BatchPoint:
    """One run of a sweep over batch sizes."""

    batch_size: int
    learning_rate: float
    steps: int
    images_per_s: float
    accuracy: float
    accuracy_error: float  # one standard error, from the number of test images alone
    epochs_images_per_s: tuple[float, ...]  # of each epoch: how far the speed can be trusted

    @property
    def speed_row(self) -> tuple[float, float, float]:
        """Images per second: of the whole run, of its slowest and of its fastest epoch."""
        return self.images_per_s, min(self.epochs_images_per_s), max(self.epochs_images_per_s)

    @property
    def accuracy_row(self) -> tuple[float, float, float]:
        """Accuracy in percent, and its 95 % interval."""
        middle, half = 100 * self.accuracy, 196 * self.accuracy_error
        return middle, middle - half, middle + half


@dataclass(frozen=True)
class BatchSweep:
    """Speed and accuracy over batch size, at equal epochs."""

    points: tuple[BatchPoint, ...]
    epochs: int
    is_scaled: bool  # the learning rate grew with the batch

    @property
    def fastest(self) -> BatchPoint:
        """The point with most images per second."""
        return max(self.points, key=lambda point: point.images_per_s)

    @property
    def best(self) -> BatchPoint:
        """The point with the highest accuracy."""
        return max(self.points, key=lambda point: point.accuracy)

    @property
    def knee(self) -> BatchPoint:
        """The smallest batch with nine tenths of the highest speed."""
        return next(point for point in self.points if point.images_per_s >= 0.9 * self.fastest.images_per_s)

    def sentence(self) -> str:
        """What this run showed."""
        smallest, largest, knee, best = self.points[0], self.points[-1], self.knee, self.best
        rule = "a learning rate that grows with the batch" if self.is_scaled else "the same learning rate for all"
        lost = best.accuracy - largest.accuracy
        clear = 2 * math.hypot(best.accuracy_error, largest.accuracy_error)
        learned = (
            f"accuracy is highest at batch {best.batch_size} ({best.accuracy:.1%}), and at {largest.batch_size} it is "
            f"{100 * lost:.1f} points lower, after {largest.steps} steps at a rate of {largest.learning_rate:g}"
            if lost > clear
            else f"no loss of accuracy can be told from chance, even at batch {largest.batch_size}"
        )
        if knee is smallest:
            speed = f"no larger batch is much faster than {smallest.batch_size} ({smallest.images_per_s:,.0f} images/s)"
        else:
            after = (
                f"beyond it the speed falls again, to {largest.images_per_s:,.0f} at {largest.batch_size}"
                if largest.images_per_s < 0.9 * knee.images_per_s
                else f"beyond it little is left to gain (at most {self.fastest.images_per_s:,.0f} images/s)"
            )
            speed = (
                f"from batch {smallest.batch_size} to {knee.batch_size} the speed rises "
                f"{knee.images_per_s / smallest.images_per_s:.1f} times, to {knee.images_per_s:,.0f} images/s; {after}"
            )
        return f"With {rule}: {speed}. And {learned}."


def batch_sweep(budget: Budget, *, is_scaled: bool, sizes: Sequence[int] = (8, 32, 128, 512, 2048)) -> BatchSweep:
    """Train with several batch sizes through the same images, and judge speed and accuracy.

    Args:
        budget: How many images.
        is_scaled: Let the learning rate grow in proportion to the batch (up to 1.0); else keep that of batch 32.
        sizes: Batch sizes, rising.
    """
    data = images(budget)
    points = []
    for size in sizes if budget.name != "smoke" else sizes[1:3]:
        rate = min(1.0, 0.05 * size / 32) if is_scaled else 0.05
        result = training.fit(Recipe(batch_size=size, learning_rate=rate, epochs=2, schedule="one_cycle"), data)
        error = math.sqrt(max(result.accuracy * (1 - result.accuracy), 1e-9) / len(result.predictions))
        each_images = result.images / len(result.epoch_seconds)
        speeds = tuple(each_images / seconds for seconds in result.epoch_seconds)
        points.append(BatchPoint(size, rate, result.steps, result.images_per_s, result.accuracy, error, speeds))
    return BatchSweep(tuple(points), 2, is_scaled)


# -- switches in the program and in the environment -------------------------------------------------------------------


@dataclass(frozen=True)
class Switch:
    """One change, and what is on either side of it.

    Args:
        name: A few words.
        before: Fields of `Recipe`, and under "bias" whether convolutions before BatchNorm have one.
        after: Likewise.
        why: What the switch saves.
    """

    name: str
    before: Mapping[str, Any]
    after: Mapping[str, Any]
    why: str


SWITCHES = (
    Switch("no bias before BatchNorm", {"bias": True}, {"bias": False}, "parameters that BatchNorm cancels"),
    Switch(
        "zero_grad: forget, not fill",
        {"zero_grad_set_to_none": False},
        {"zero_grad_set_to_none": True},
        "writing zeros, and reading them again to add to them",
    ),
    Switch(
        "optimizer: foreach",
        {"optimizer_kind": "for_loop"},
        {"optimizer_kind": "foreach"},
        "starting one operator per parameter and sum",
    ),
    Switch(
        "optimizer: fused",
        {"optimizer_kind": "for_loop"},
        {"optimizer_kind": "fused"},
        "reading and writing every parameter several times",
    ),
    Switch(
        "layout: channels last",
        {"layout": "contiguous"},
        {"layout": "channels_last"},
        "reordering images inside every convolution",
    ),
)


def measure_switch(switch: Switch, budget: Budget) -> measure.Comparison:
    """Compare both sides of a switch in this process: one training step each, in turn."""
    data = images(budget)
    recipe = STEP_RECIPE.changed(optimizer="adamw", batch_size=32)
    before, after = (
        training.stepper(recipe.changed(**rest), data, model=models.CnnSizes(bias=bias))
        for bias, rest in (_split(switch.before), _split(switch.after))
    )
    return measure.compare(before, after, budget_s=budget.pair_s, labels=("before", switch.name))


def _split(fields: Mapping[str, Any]) -> tuple[bool, dict[str, Any]]:
    rest = dict(fields)
    return bool(rest.pop("bias", False)), rest


def measure_surroundings(wanted: Sequence[Surroundings], budget: Budget) -> tuple[measure.Comparison, ...]:
    """Compare environments, each pair in two child processes; nothing when the budget has no time for processes."""
    arguments = {"recipe": {"batch_size": 128}, "steps": 4}
    found = []
    for setting in wanted if budget.process_s else ():
        sides = (setting.before, setting.after)
        before, after = (Experiment(PREPARE_STEPS, arguments, variables, prepares=True) for variables in sides)
        found.append(measure.compare(before, after, budget_s=budget.process_s, labels=("before", setting.name)))
    return tuple(found)


def prepare_steps(recipe: dict[str, Any], steps: int) -> Callable[[], None]:
    """Prepare training steps for a child process: the function that it returns makes ``steps`` of them."""
    step = training.stepper(STEP_RECIPE.changed(**recipe), datasets.synthetic(1024, 10))

    def run() -> None:
        for _ in range(steps):
            step()

    return run


def reading(comparisons: Sequence[measure.Comparison]) -> str:
    """Say which of several switches helped in this run, which did not, and which stay open."""
    if not comparisons:
        return "Nothing was measured: the smoke budget has no time for it."
    groups: dict[str, list[str]] = {"faster": [], "slower": [], "not faster": [], "undecided": []}
    for found in comparisons:
        ratio = f"{found.ratio:.2f}" if found.pairs else "not one pair"
        groups[found.outcome].append(f"{found.candidate.label} ({ratio})")
    words = {
        "faster": "Faster here",
        "slower": "Slower here",
        "not faster": "Not faster here",
        "undecided": "Too close to call in this time",
    }
    return ". ".join(f"{words[outcome]}: {', '.join(names)}" for outcome, names in groups.items() if names) + "."


# -- what hardware buys -----------------------------------------------------------------------------------------------


EXAMPLE_OFFERS = (
    Offer("like this one, 2 cores", 0.10, 2),
    Offer("older generation, 8 cores", 0.24, 8, 0.7),
    Offer("newest generation, 8 cores", 0.40, 8, 1.4),
    Offer("newest generation, 64 cores", 3.20, 64, 1.4),
)
"""Invented, to show the arithmetic: put in what your provider asks today."""


def price_table(curve: SpeedupCurve, offers: Sequence[Offer] = EXAMPLE_OFFERS) -> str:
    """Predict time and price of a thousand steps on each offer, as a Markdown table.

    Args:
        curve: Measured here, by `measure_threads`: gives the step's time on one core and its serial share.
        offers: What can be rented.
    """
    fraction = 0.0 if math.isnan(curve.serial_fraction) else curve.serial_fraction
    lines = [
        "| offer | € per hour | cores | speed of one core | speed-up | 1000 steps take | and cost |",
        "|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {row['name']} | {row['price_per_hour']:.2f} | {row['cores']} | {row['core_speed']:g} | "
        f"{row['speedup']:.1f} | {60 * float(row['minutes']):.1f} s | {100 * float(row['price']):.3f} cents |"
        for row in costs.price_rows(curve.points[0].median_s, fraction, offers)
    ]
    return "\n".join(lines)


# -- the lab's timed question -----------------------------------------------------------------------------------------


def images(budget: Budget) -> datasets.Dataset:
    """The images of this lesson's experiments: real ones from the package, the same on every machine."""
    return _embedded(budget.train_images, budget.test_images)


@cache
def _embedded(train_images: int, test_images: int) -> datasets.Dataset:
    return datasets.fashion_mnist(embedded_only=True, train_images=train_images, test_images=test_images)


def task_data() -> datasets.Dataset:
    """The images of the timed question: 4,000 to train on, twice, and 2,000 to judge by, the same on every machine."""
    return _embedded(4000, 2000)


def train_recipe(recipe: dict[str, Any], seed: int = 0) -> dict[str, Any]:
    """Train by a recipe and judge the result: the trusted experiment of the lab's timed question.

    Args:
        recipe: Fields of `Recipe`; what is left out keeps its default.
        seed: Initial weights and order of the images.

    Returns:
        ``seconds`` of training alone (no start, no warm-up, no judging) and ``predictions``, int64 (2000,).
    """
    return _train(recipe, seed, task_data())


def _train(recipe: Mapping[str, Any], seed: int, data: datasets.Dataset) -> dict[str, Any]:
    result = training.fit(Recipe.from_dict({**recipe, "seed": seed}), data)
    return {"seconds": result.seconds, "predictions": result.predictions}


@dataclass(frozen=True)
class RecipeTrial:
    """Two recipes, trained in turn with the same seeds."""

    ratio: float
    accuracy_before: float
    accuracy_after: float
    accuracy: stats.AccuracyVerdict
    runs: int

    def sentence(self) -> str:
        """What this run showed."""
        return (
            f"**{self.ratio:.2f} times** the images per second; accuracy {self.accuracy_before:.1%} before, "
            f"{self.accuracy_after:.1%} after: {self.accuracy.verdict} (runs of each: {self.runs}; "
            "`./course check` measures longer, on a quiet machine)."
        )


def try_recipe(
    start: dict[str, Any], recipe: dict[str, Any], budget: Budget, *, runs: int = 1, margin: float = 0.02
) -> RecipeTrial:
    """Train by two recipes in turn, in this process, and compare speed and accuracy; for finding your way in the lab.

    Args:
        start: The recipe that is there.
        recipe: The one that is proposed.
        budget: How many images.
        runs: Of each, with seeds 0, 1, …
        margin: Accuracy that may be lost, as a fraction.
    """
    data = images(budget)
    labels = data.test.labels
    pairs = [(_train(start, seed, data), _train(recipe, seed, data)) for seed in range(runs)]
    ratio = math.exp(float(np.mean([math.log(before["seconds"] / after["seconds"]) for before, after in pairs])))
    before, after = (np.stack([pair[side]["predictions"] == labels for pair in pairs]) for side in (0, 1))
    kept = stats.paired_non_inferiority(before, after, margin)
    return RecipeTrial(ratio, float(before.mean()), float(after.mean()), kept, runs)
