"""Judges the final's recipe for many ranks: one rank keeps its recipe, four ranks train for real."""

import math
import time
from typing import Any

import numpy as np

from accelerando import catalog, datasets, ranks, stats
from accelerando.checks import final_ranks as course
from accelerando.submission import NotMeasurableHere, Submission, Undecided, Wrong

IMAGES = 6000
LIMIT_S = 150.0  # for all trainings: the rest of the final needs its time, too
LOOKS = (2, 4)  # after so many seeds the accuracies are compared; the second time only when the first did not tell
CONFIDENCE = 1 - 0.05 / len(LOOKS)  # so that both looks together err as seldom as one of 95 %


def judge(sub: Submission, rng: np.random.Generator) -> None:
    """One rank: unchanged. Four ranks: as accurate as one rank with the base recipe.

    Raises:
        Wrong: If it is not.
        Undecided: If the seeds differ by too much to tell.
        NotMeasurableHere: If four ranks cannot be trained on this machine.
    """
    steps = course.steps_of(IMAGES, course.WORLD_SIZE)
    base = {"learning_rate": course.LEARNING_RATE, "batch_size": course.BATCH, "steps": course.steps_of(IMAGES, 1)}
    alone = _recipe(sub.global_recipe(base, 1))
    if not math.isclose(alone["learning_rate"], base["learning_rate"], rel_tol=1e-6):
        raise Wrong(
            f"For one rank the rate became {alone['learning_rate']:.4g}, not {base['learning_rate']:.4g} as before. "
            "Does your rule hold for a single rank?"
        )
    recipe = _recipe(sub.global_recipe({**base, "steps": steps}, course.WORLD_SIZE))
    if recipe["warmup_steps"] > steps / 2:
        raise Wrong(f"{recipe['warmup_steps']:g} of {steps} steps are warm-up. When does it train at its full rate?")
    margin = catalog.question("final.global_recipe").margin or 0.0
    found = _compare(recipe, margin, rng)
    changed = f"On {course.WORLD_SIZE} ranks the accuracy changed by {100 * found.difference:+.1f} points"
    if found.verdict == "lost":
        raise Wrong(f"{changed} in as many epochs. {_hint(recipe['learning_rate'] / base['learning_rate'])}")
    if found.verdict == "undecided":
        low, high = (100 * end for end in found.interval)
        raise Undecided(
            f"{changed} ({low:+.1f} to {high:+.1f}), and {100 * margin:g} may be lost: too close to call. A recipe "
            "that keeps more decides it, or another try."
        )


def _hint(times_the_rate: float) -> str:
    """Ask what may have cost the accuracy: steps too long or too short."""
    if times_the_rate > 1.01 * course.WORLD_SIZE:
        return f"The rate is {times_the_rate:.3g} times that of one rank: does the training still converge with it?"
    return f"There are {course.WORLD_SIZE} times fewer steps: what must each of them do?"


def _compare(recipe: dict[str, float], margin: float, rng: np.random.Generator) -> stats.AccuracyVerdict:
    """Train both ways with seeds of the grader's own until the verdict is clear, at most as often as `LOOKS` says."""
    known = datasets.fashion_mnist(embedded_only=True, train_images=IMAGES)
    data = {"images": known.train.images, "labels": known.train.labels, "held_out": known.test.images}
    base = {"learning_rate": course.LEARNING_RATE, "warmup_steps": 0}
    seeds = [int(number) for number in rng.integers(2**31, size=max(LOOKS))]
    one: list[np.ndarray] = []
    many: list[np.ndarray] = []
    ends_s, found = time.monotonic() + LIMIT_S, None
    for look in LOOKS:
        for seed in seeds[len(one) : look]:
            try:
                for found_right, how, count in ((one, base, 1), (many, recipe, course.WORLD_SIZE)):
                    left_s = max(1.0, ends_s - time.monotonic())
                    found_right.append(course.predictions(data, how, count, seed, left_s) == known.test.labels)
            except ranks.RanksFailed as failure:
                if found is not None:
                    return found  # undecided at the first look, and the time is over
                why = f"the training on {course.WORLD_SIZE} ranks did not end here: {failure.result.reason}"
                raise NotMeasurableHere(why) from None
        found = stats.paired_non_inferiority(np.stack(one), np.stack(many), margin, confidence=CONFIDENCE)
        if found.verdict != "undecided":
            break
    assert found is not None
    return found


def _recipe(value: Any) -> dict[str, float]:
    if not isinstance(value, dict) or set(value) != {"learning_rate", "warmup_steps"}:
        raise Wrong('`global_recipe` should return {"learning_rate": ..., "warmup_steps": ...}.')
    for name, low in (("learning_rate", 1e-6), ("warmup_steps", 0)):
        number = value[name]
        if isinstance(number, bool) or not isinstance(number, int | float) or not low <= number <= 1e6:
            raise Wrong(f'"{name}" is {number!r}. It should be a number of at least {low:g}.')
    return {name: float(number) for name, number in value.items()}
