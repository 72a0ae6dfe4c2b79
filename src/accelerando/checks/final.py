"""The untimed part of the final's checks. Speed and accuracy are measured by ``./course assess``, not here."""

import contextlib
from typing import Any

import numpy as np

from accelerando.checks import final_shares
from accelerando.checks.final_answers import (
    WRONG_AVERAGES,
    WRONG_CLAIMS,
    WRONG_QUIZ,
    WRONG_RECIPES,
    WRONG_RESUMES,
    WRONG_SHARDS,
    WRONG_TRAININGS,
)
from accelerando.submission import LearnerCall, SpeedTask, Submission, Wrong, grades

TOGETHER = "all together"
FEWEST_CLAIMS = 4


@grades("final.train", wrong=WRONG_TRAININGS)
def train(sub: Submission, rng: np.random.Generator) -> SpeedTask:
    """The three functions fit together on a few made-up images; the rest is timed."""
    return _usable(sub, rng)


@grades("final.train_further")
def train_further(sub: Submission, rng: np.random.Generator) -> SpeedTask:
    """The same answer at a higher threshold."""
    return _usable(sub, rng)


@grades("final.train_furthest")
def train_furthest(sub: Submission, rng: np.random.Generator) -> SpeedTask:
    """The same answer at the highest threshold."""
    return _usable(sub, rng)


def _usable(sub: Submission, rng: np.random.Generator) -> SpeedTask:
    classes, seen, unseen = 10, 200, 64
    images = rng.integers(0, 256, (seen, 28, 28), dtype=np.uint8)
    labels = rng.permutation(np.arange(seen) % classes)
    sub.prepare([seen, 28, 28], classes)
    sub.train(images, labels, 60.0)
    judge_scores(sub.predict(images[:unseen]), unseen, classes)
    return SpeedTask(LearnerCall("train"), LearnerCall("train"), summary="prepare, train and predict fit together")


def judge_scores(scores: Any, images: int, classes: int) -> np.ndarray:
    """What `predict` returned, as float32 (images, classes).

    Raises:
        Wrong: If it has another shape, or a score that is no number.
    """
    found = None
    with contextlib.suppress(TypeError, ValueError, RuntimeError):  # a list of unequal rows is no array
        if hasattr(scores, "is_floating_point"):
            scores = scores.float() if scores.is_floating_point() else scores  # numpy has no bfloat16
        if isinstance(scores, np.ndarray | list) or hasattr(scores, "numpy"):
            found = np.asarray(scores)
    if found is None or found.dtype.kind not in "fiu":
        raise Wrong(f"`predict` returned {type(scores).__name__}. It should return an array of scores.")
    if found.shape != (images, classes):
        raise Wrong(
            f"`predict` returned shape {found.shape} for {images} images. It should be ({images}, {classes}): one "
            "score for each class."
        )
    if not np.isfinite(found).all():
        raise Wrong(
            "`predict` returned scores that are not numbers. Did training diverge: is the learning rate too high?"
        )
    return found.astype(np.float32)


@grades("final.shard", wrong=WRONG_SHARDS)
def shard(sub: Submission, rng: np.random.Generator) -> None:
    """Disjoint, complete, even, anew in each epoch, for sizes that do not divide."""
    for n, world_size in (
        (10, 2),
        (int(rng.integers(500, 2000)) * 2 + 1, 4),
        (int(rng.integers(2000, 5000)), 7),
        (3, 5),
    ):
        final_shares.judge_shards(sub, n, world_size)
    once, again = (final_shares.as_indices(sub.shard(1001, 1, 3, 5), "shard") for _ in range(2))
    if not np.array_equal(once, again):
        raise Wrong(
            "Asked twice for the same shard, it gave two different ones. The ranks cannot talk to each other: how do "
            "they agree on one order?"
        )


@grades("final.average_gradients", wrong=WRONG_AVERAGES)
def average_gradients(sub: Submission, rng: np.random.Generator) -> None:
    """On three ranks, equal to one big batch; with uneven shares, and a rank that had nothing to do."""
    from accelerando.probes import final as probe

    kinds = {"equal shares": [4, 4, 4], "uneven shares": [7, 1, 5], "a rank without an image": [6, 0, 3]}
    cases: list[dict[str, Any]] = [{"seed": int(rng.integers(2**31)), "shares": shares} for shares in kinds.values()]
    found = sub.probe("final.average_gradients", cases=cases)
    if not isinstance(found, list) or len(found) != len(cases):
        raise Wrong("The gradients did not come back.")
    for kind, case, reports in zip(kinds, cases, found, strict=True):
        expected = probe.whole_gradient(case["seed"], case["shares"])
        is_whole = isinstance(reports, list) and len(reports) == len(case["shares"])
        if not is_whole or not all(isinstance(report, dict) for report in reports):
            raise Wrong(f"In a run with {kind}, not every rank gave its gradients.")
        for rank, report in enumerate(reports):
            _judge_gradients(expected, report, f"with {kind}, on rank {rank}", len(set(case["shares"])) == 1)


_AVERAGED = {
    True: "Is it this rank's own gradient, a sum, or the mean of all ranks?",
    False: "What weight does the mean of a smaller share deserve?",
}


def _judge_gradients(expected: dict[str, Any], found: dict[str, Any], where: str, is_even: bool) -> None:
    import torch

    for name, gradient in expected.items():
        if name not in found or found[name].shape != gradient.shape:
            raise Wrong(
                f"In a run {where}, the gradient of {name!r} is missing. Does every rank end up with all of them?"
            )
        if torch.allclose(found[name], gradient, rtol=1e-3, atol=1e-5):
            continue
        raise Wrong(
            f"In a run {where}, the gradient of {name!r} has length {float(found[name].norm()):.4g}; one process with "
            f"all images gets {float(gradient.norm()):.4g}, and other values. {_AVERAGED[is_even]}"
        )
    extra = [name for name in found if name not in expected and float(found[name].abs().max()) > 0]
    if extra:
        raise Wrong(f"In a run {where}, {extra[0]!r} got a gradient although no loss depends on it, or it is frozen.")


@grades("final.global_recipe", wrong=WRONG_RECIPES)
def global_recipe(sub: Submission, rng: np.random.Generator) -> None:
    """One rank: unchanged. Four ranks: trained for real, and as accurate as one rank with the base recipe."""
    from accelerando.checks import final_recipe

    final_recipe.judge(sub, rng)


@grades("final.resume", wrong=WRONG_RESUMES)
def resume(sub: Submission, rng: np.random.Generator) -> None:
    """Fewer ranks, more, and as many; within an epoch, at its end and beyond: the steps of the undisturbed run."""
    for run, world_size in final_shares.draw_breaks(rng):
        final_shares.judge_resumed(sub, run, world_size)


@grades("final.claims", wrong=WRONG_CLAIMS)
def claims(sub: Submission, rng: np.random.Generator) -> None:
    """A table that can be read; whether "all together" is true is compared with the session by ``./course assess``."""
    rows = read_claims(sub.value("claims"))
    if not rows:
        raise Wrong("not answered yet")
    techniques = [row["technique"] for row in rows if row["technique"] != TOGETHER]
    if len(set(techniques)) < FEWEST_CLAIMS - 1:
        raise Wrong(f"{len(set(techniques))} technique(s) named. Give at least {FEWEST_CLAIMS - 1}, and {TOGETHER!r}.")
    if len(rows) == len(techniques):
        raise Wrong(f"The row {TOGETHER!r} is missing: what did you expect of all changes, and what came?")


def read_claims(value: Any) -> list[dict[str, Any]]:
    """The learner's table: "technique" (text), "predicted" and "measured" (times faster than the starter alone).

    Raises:
        Wrong: If a row is something else.
    """
    if not isinstance(value, list):
        raise Wrong(f"`claims` is of type {type(value).__name__}. It should be a list of rows.")
    for number, row in enumerate(value, 1):
        if not isinstance(row, dict) or set(row) != {"technique", "predicted", "measured"}:
            raise Wrong(f'Row {number} should have "technique", "predicted" and "measured".')
        if not isinstance(row["technique"], str) or not row["technique"].strip():
            raise Wrong(f"Row {number}: the technique should be named in a few words.")
        for name in ("predicted", "measured"):
            factor = row[name]
            if isinstance(factor, bool) or not isinstance(factor, int | float) or not 0.01 <= factor <= 1000:
                raise Wrong(
                    f'Row {number}: "{name}" is {factor!r}. It should say how many times faster: 1.0 is no change.'
                )
    return value


@grades("final.quiz", wrong=WRONG_QUIZ)
def quiz(sub: Submission, rng: np.random.Generator) -> None:
    """Every answer right; the message says how many are, and which lesson to read again."""
    from accelerando.quizzes import final as exam

    answers = sub.value("quiz")
    if not isinstance(answers, dict):
        raise Wrong(f"`quiz` is of type {type(answers).__name__}. It should be a dictionary from question to letter.")
    questions = exam.draw()
    missing = [question.id for question in questions if answers.get(question.id) is None]
    if len(missing) == len(questions):
        raise Wrong("not answered yet")
    if missing:
        raise Wrong(f"{len(missing)} of {len(questions)} questions have no answer yet: {', '.join(missing)}.")
    wrong = [question for question in questions if answers[question.id] != question.right]
    if wrong:
        raise Wrong(
            f"{len(questions) - len(wrong)} of {len(questions)} are right. Look again at {wrong[0].id!r}: the section "
            f"*{wrong[0].section}* of its lesson measures it."
        )
