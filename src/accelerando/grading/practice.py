"""A trial of the final in the learner's notebook: starter and own cell in turn, before a whole session is worth it.

It measures as a session does, in the same sandbox and by the same clock, with fewer images and without the reference.
Nothing rests on it. Its tasks come from seeds that no session draws, so a session's rule stays unknown.
"""

import inspect
import linecache
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import catalog, noise, progress, stats
from . import final_task, tiers
from .final_task import HELD_OUT_IMAGES, TRAIN_IMAGES, Task
from .lane import lane
from .session import RUN_LIMIT_S, Train
from .sides import TRAINING, course_sides
from .trainer import SandboxTrainer, SideFailed
from .verdict import NOISY_SD

FIRST_SEED = 2**62  # sessions draw theirs below it
IMAGES, LEAST_IMAGES = 4000, 1000
ERROR_RATE = 0.025  # of each end of an interval
_SIDES = {"starter": "the starter", "submission": "your cell"}
_TASKS = {"real": "true labels", "rule": "practice rule"}


@dataclass(frozen=True)
class Trial:
    """What a trial found; ``print`` tells it.

    Attributes:
        images: For training, in each run.
        rounds: On each task.
        intervals: For each task the starter's time / the cell's, of 95 %; empty when a side gave no time.
        accuracy: For each task the cell's accuracy beside the starter's.
        noise_sd: Deviation of the log of that ratio between rounds of a task.
        disturbances: What is known to have disturbed it, each in a few words.
        failure: Why there is no time; empty when there is.
    """

    images: int
    rounds: int
    intervals: Mapping[str, tiers.RatioInterval] = field(default_factory=dict)
    accuracy: Mapping[str, stats.AccuracyVerdict] = field(default_factory=dict)
    noise_sd: float = math.nan
    disturbances: tuple[str, ...] = ()
    failure: str = ""

    @property
    def ratio(self) -> float:
        """How many times faster than the starter, on the task where it gains less: the one that counts."""
        return min((found.ratio for found in self.intervals.values()), default=math.nan)

    def __str__(self) -> str:
        if self.failure:
            return self.failure
        told = [
            f"{self.rounds} rounds on each task, {self.images:,} images for training; a session has {TRAIN_IMAGES:,}"
        ]
        for task, found in self.intervals.items():
            change = self.accuracy[task]
            low, high = (100 * end for end in change.interval)
            told.append(
                f"{_TASKS[task]}: {found.ratio:.2f} times as fast ({found.low:.2f} to {found.high:.2f}), "
                f"accuracy {100 * change.difference:+.1f} points ({low:+.1f} to {high:+.1f})"
            )
        told.append(f"what counts is the slower one: {self.ratio:.2f} times as fast as the starter")
        told.append(f"from round to round the ratio of a task varied by {self.noise_sd:.0%}; intervals are of 95 %")
        if self.noise_sd > NOISY_SD or self.disturbances:
            why = f" ({' and '.join(self.disturbances)})" if self.disturbances else ""
            told.append(f"the machine was restless{why}: close other programs and run it again")
        return "\n".join(told)


def starter() -> str:
    """The text of the starter's cell: the one to change when a single change is to be measured."""
    return course_sides()["starter"][-1].source


def try_final(
    own: str | Callable[..., Any],
    *,
    images: int = IMAGES,
    rounds: int = tiers.FEWEST_PAIRS,
    draw: int = 0,
    make_tasks: Callable[..., Sequence[Task]] = final_task.make_session,
    make_trainer: Callable[..., Train] = SandboxTrainer,
) -> Trial:
    """Train the starter and a cell with the learner's three functions in turn, on both kinds of task.

    Args:
        own: The cell: its text, or its function ``train`` as it was last run in this notebook.
        images: For training, a multiple of 10 from `LEAST_IMAGES` to all that a session has. Fewer are faster.
        rounds: On each task, at least 2. More make the intervals narrower.
        draw: Another whole number from 0 draws other practice tasks.
        make_tasks: Makes the tasks from a seed; tests bring small ones.
        make_trainer: Makes what trains the sides; takes what `SandboxTrainer` takes.

    Raises:
        ValueError: If a number is out of range, or the text of the cell cannot be found.
        Ungradable: If the machine does not become free, or no sandbox can be had.
    """
    if images % 10 or not LEAST_IMAGES <= images <= TRAIN_IMAGES:
        raise ValueError(f"images is {images}: it must be a multiple of 10 from {LEAST_IMAGES:,} to {TRAIN_IMAGES:,}")
    if rounds < tiers.FEWEST_PAIRS or draw < 0:
        raise ValueError(f"rounds is {rounds} and draw {draw}: at least {tiers.FEWEST_PAIRS} and 0 are needed")
    setup, given = course_sides()["starter"]
    cells = {"starter": (setup, given), "submission": (setup, replace(given, name="yours", source=_text_of(own)))}
    held_out = HELD_OUT_IMAGES * images // TRAIN_IMAGES // 10 * 10
    tasks = make_tasks(FIRST_SEED + draw, train_images=images, held_out_images=held_out)
    trainer = make_trainer(cells, masked=catalog.final().masked)
    try:
        with noise.watch() as watched:
            seconds, correct = _rounds(tasks, trainer, rounds)
    except SideFailed as failed:
        return Trial(images, rounds, failure=str(failed))
    margin = catalog.question(TRAINING).margin or 0.0
    ratios = {name: [math.log(before / after) for before, after in pairs] for name, pairs in seconds.items()}
    return Trial(
        images,
        rounds,
        tiers.ratio_intervals(ratios, is_last=True, error_rate=ERROR_RATE).tasks,
        tiers.judge_accuracy(correct, margin, is_last=True),
        tiers.noise_sd(list(ratios.values())),
        replace(watched.state, others_fraction=None).disturbances,  # it counts the sandboxes among the others
    )


def _rounds(
    tasks: Sequence[Task], trainer: Train, rounds: int
) -> tuple[dict[str, list[list[float]]], dict[str, tuple[list[NDArray[np.bool_]], list[NDArray[np.bool_]]]]]:
    """For each task the seconds of starter and cell, round by round, and what each of the two answered rightly."""
    rng = np.random.default_rng()
    seconds: dict[str, list[list[float]]] = {task.name: [] for task in tasks}
    correct: dict[str, tuple[list[NDArray[np.bool_]], list[NDArray[np.bool_]]]] = {t.name: ([], []) for t in tasks}
    with (
        progress.bar(2 * rounds * len(tasks), "trial", unit="runs") as advance,
        lane("exclusive", on_wait=lambda who: advance(0, who)),
    ):
        for task in [*tasks] * rounds:
            order, took = rng.permutation(len(task.train)), [0.0, 0.0]
            for place in rng.permutation(2):
                side = tuple(_SIDES)[place]
                advance(0, f"{_SIDES[side]} on the {_TASKS[task.name]}")
                try:
                    trained = trainer(side, task, order, RUN_LIMIT_S)
                except SideFailed as failed:
                    cure = ". Close other programs and run it again." if side == "starter" else ""
                    raise SideFailed(f"{_SIDES[side]} gave no time: {failed}{cure}") from None
                took[place] = trained.seconds
                correct[task.name][place].append(trained.scores.argmax(1) == task.held_out.labels)
                advance(1)
            seconds[task.name].append(took)
    return seconds, correct


def _text_of(own: str | Callable[..., Any]) -> str:
    """The text of a cell, which Python keeps with the functions that were defined in it."""
    if isinstance(own, str):
        return own
    code = getattr(inspect.unwrap(own), "__code__", None)
    lines = linecache.getlines(code.co_filename) if code else []
    if not lines:
        raise ValueError("the cell's text cannot be found: give its `train` right after running it, or the text itself")
    return "".join(lines)
