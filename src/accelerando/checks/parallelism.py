"""The checks of lab 7. Each one starts from the mistakes that people make."""

import math
from typing import Any

import numpy as np

from accelerando import catalog
from accelerando.checks import parallelism_mistakes as mistakes
from accelerando.checks.quiz import judge_quiz
from accelerando.submission import NotMeasurableHere, Submission, Wrong, grades

BY_HAND = "See *All-reduce by hand* in the lesson."
ALIKE = "See *When ranks are not alike* in the lesson."
HOLDS = "See *Who holds what* in the lesson."
TO_DDP = "See *From averaging by hand to DDP* in the lesson."
LEAST_BYTES = 1
"""That a number of a gradient can be sent in, without spoiling the weights: float32 has 4, compressed ones 2."""


@grades("parallelism.ring_step", wrong=mistakes.RING_STEPS)
def ring_step(sub: Submission, rng: np.random.Generator) -> None:
    """Every rank is asked for every step, and the answers are followed with sets of contributions."""
    for world_size in (3, 2, 4, int(rng.integers(5, 10))):
        plan = [
            [_move(sub.ring_step(rank, step, world_size), world_size) for rank in range(world_size)]
            for step in range(2 * (world_size - 1))
        ]
        _judge_ring(plan, world_size)


def _move(value: Any, world_size: int) -> dict[str, Any]:
    keys = ("to", "send", "receive", "adds")
    if not isinstance(value, dict) or set(value) != set(keys):
        raise Wrong(
            '`ring_step` should return {"to": ..., "send": ..., "receive": ..., "adds": ...}: found another thing.'
        )
    for name in keys[:3]:
        number = value[name]
        if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < world_size:
            raise Wrong(f'With {world_size} ranks "{name}" is {str(number)[:20]}. Ranks and pieces are counted from 0.')
    if not isinstance(value["adds"], bool):
        raise Wrong('"adds" should be True (add what arrives) or False (keep it in place of the own piece).')
    return value


def _judge_ring(plan: list[list[dict[str, Any]]], world_size: int) -> None:
    ranks = range(world_size)
    if not any(all(row[rank]["to"] == (rank + way) % world_size for row in plan for rank in ranks) for way in (1, -1)):
        raise Wrong(
            f"With {world_size} ranks somebody sends to a rank that is not its neighbour, or turns around in the "
            f"middle. In a ring, to whom does each rank send, in every step? {BY_HAND}"
        )
    held = [[{rank} for _ in ranks] for rank in ranks]
    for step, row in enumerate(plan):
        before = [[set(piece) for piece in own] for own in held]
        for rank in ranks:
            target, piece = row[rank]["to"], row[rank]["send"]
            if row[target]["receive"] != piece:
                raise Wrong(
                    f"With {world_size} ranks, in step {step}: rank {rank} sends piece {piece}, and rank {target}, to "
                    f"which it goes, expects piece {row[target]['receive']}. Who sent it, and what did that rank send? "
                    f"{BY_HAND}"
                )
            arriving, own = before[rank][piece], held[target][piece]
            if row[target]["adds"] and arriving & own:
                raise Wrong(
                    f"With {world_size} ranks, in step {step}, rank {target} adds a piece that already holds its own "
                    f"numbers: they count twice. After how many steps is a piece complete? {BY_HAND}"
                )
            held[target][piece] = arriving | own if row[target]["adds"] else arriving
        if step == world_size - 2 and not all(any(len(held[r][piece]) == world_size for r in ranks) for piece in ranks):
            raise Wrong(
                f"With {world_size} ranks: after the first {world_size - 1} steps every piece should be complete "
                "somewhere, and some is not. Which piece did a rank just make larger, and so should pass on next? "
                f"{BY_HAND}"
            )
    missing = sum(len(piece) < world_size for own in held for piece in own)
    if missing:
        raise Wrong(
            f"With {world_size} ranks: the sums are right after the first half, but at the end {missing} of "
            f"{world_size**2} pieces are not the whole sum. Which piece does a rank have complete when the second half "
            f"begins? {BY_HAND}"
        )


@grades("parallelism.share", wrong=mistakes.SHARES)
def share(sub: Submission, rng: np.random.Generator) -> None:
    """Training: equal lengths, everybody's, anew in each epoch. Evaluation: each image exactly once."""
    for n, world_size in (
        (int(rng.integers(300, 900)) * 3 + 1, 3),
        (int(rng.integers(100, 300)) * 8 + 3, 8),
        (40, 4),
        (3, 5),
    ):
        judged = [_indices(sub.share(n, rank, world_size, 0, False), n) for rank in range(world_size)]
        _judge_evaluation(judged, n, world_size)
        epochs = [
            [_indices(sub.share(n, rank, world_size, epoch, True), n) for rank in range(world_size)] for epoch in (0, 1)
        ]
        for shares in epochs:
            _judge_training(shares, n, world_size)
        if n > 100 and any(set(a) == set(b) or a == b for a, b in zip(*epochs, strict=True)):
            raise Wrong(
                "In epoch 1 a rank gets the same images as in epoch 0. What does the sampler have to be told between "
                f"epochs? {ALIKE}"
            )
        if n > 100 and epochs[0][0] == sorted(epochs[0][0]):
            raise Wrong(
                f"In training the images come in the order in which they are stored. Who shuffles them? {ALIKE}"
            )
    if _indices(sub.share(1001, 1, 3, 5, True), 1001) != _indices(sub.share(1001, 1, 3, 5, True), 1001):
        raise Wrong(
            "Asked twice for the same share, it gave two different ones. The ranks do not talk about it: how do they "
            f"agree on one order? {ALIKE}"
        )


def _indices(value: Any, n: int) -> list[int]:
    if not isinstance(value, list) or not all(isinstance(i, int) and not isinstance(i, bool) for i in value):
        raise Wrong(f"`share` returned {type(value).__name__}. It should be a list of whole numbers.")
    outside = [i for i in value if not 0 <= i < n]
    if outside:
        raise Wrong(f"With {n} images, an index is {str(outside[0])[:20]}. Which are allowed?")
    return value


def _judge_evaluation(shares: list[list[int]], n: int, world_size: int) -> None:
    given = np.bincount(np.array([i for own in shares for i in own], dtype=np.int64), minlength=n)
    if given.max() > 1:
        raise Wrong(
            f"In evaluation, with {n} images on {world_size} ranks, {int((given > 1).sum())} image(s) are judged more "
            "than once: the accuracy is wrong. Why does the sampler repeat images, and is that reason there in "
            f"evaluation? {ALIKE}"
        )
    if given.min() < 1:
        raise Wrong(
            f"In evaluation, with {n} images on {world_size} ranks, {int((given < 1).sum())} image(s) are never "
            f"judged. Who takes the rest when the shares do not divide? {ALIKE}"
        )
    _judge_balance(shares, n, world_size)


def _judge_balance(shares: list[list[int]], n: int, world_size: int) -> None:
    lengths = [len(own) for own in shares]
    if max(lengths) - min(lengths) > 1:
        raise Wrong(
            f"In evaluation, with {n} images on {world_size} ranks, the shares have from {min(lengths)} to "
            f"{max(lengths)} images. Everybody waits for the longest: can they be more even?"
        )


def _judge_training(shares: list[list[int]], n: int, world_size: int) -> None:
    lengths = [len(own) for own in shares]
    if min(lengths) != max(lengths):
        raise Wrong(
            f"In training, with {n} images on {world_size} ranks, the shares have from {min(lengths)} to "
            f"{max(lengths)} images. What does a rank with one batch more do in its last all-reduce? {ALIKE}"
        )
    given = np.bincount(np.array([i for own in shares for i in own], dtype=np.int64), minlength=n)
    if given.min() < 1:
        raise Wrong(
            f"In training, with {n} images on {world_size} ranks, {int((given < 1).sum())} image(s) belong to nobody "
            f"in an epoch. Do all ranks deal out the same order? {ALIKE}"
        )
    repeats = int(given.sum()) - n
    if repeats >= world_size:
        raise Wrong(
            f"In training, with {n} images on {world_size} ranks, {repeats} of those dealt out are repeats. How many "
            "are needed to make the shares equal?"
        )


@grades("parallelism.loss_weights", wrong=mistakes.WEIGHTS)
def loss_weights(sub: Submission, rng: np.random.Generator) -> None:
    """The weights must make DDP's plain average the mean over all images, for shares of any size."""
    drawn = [
        [int(count) for count in rng.integers(1, 40, size=rng.integers(1, 5))] for _ in range(int(rng.integers(2, 6)))
    ]
    kinds = {
        "the example": [[6, 2], [4]],
        "equal batches": [[8, 8], [8, 8], [8, 8]],
        "uneven batches": drawn,
        "a rank that has nothing to do": [[5, 7], [0], [9]],
    }
    for kind, images in kinds.items():
        found = _weights(sub.loss_weights(images), images)
        _judge_weights(found, images, kind)


def _judge_weights(found: list[list[float]], images: list[list[int]], kind: str) -> None:
    """Name the first weight that is wrong, and whether all are wrong by the same factor."""
    total, world_size = sum(map(sum, images)), len(images)
    rows = [
        (f"batch {place} of rank {rank}", weight, count * world_size / total)
        for rank, (own, counts) in enumerate(zip(found, images, strict=True))
        for place, (weight, count) in enumerate(zip(own, counts, strict=True))
    ]
    wrong = [row for row in rows if not math.isclose(row[1], row[2], rel_tol=1e-6, abs_tol=1e-9)]
    if not wrong:
        return
    factors = [weight / right for _, weight, right in rows if right]
    name, weight, right = wrong[0]
    question = "How much of the whole mean is a batch of that size?"
    if right and max(factors) - min(factors) <= 1e-6 * abs(max(factors)):
        question = "The others are off by the same factor. What does DDP do with the sum over the ranks?"
    off = f"{weight / right:.3g} times what it should be" if right else f"{weight:.3g}, though the batch is empty"
    raise Wrong(f"With {kind}: the weight of {name} (counted from 0) is {off}. {question} {TO_DDP}")


def _weights(value: Any, images: list[list[int]]) -> list[list[float]]:
    is_alike = isinstance(value, list) and len(value) == len(images)
    if not is_alike or not all(
        isinstance(own, list) and len(own) == len(counts) for own, counts in zip(value, images, strict=True)
    ):
        raise Wrong("`loss_weights` should return a list for each rank, with one number for each of its batches.")
    for own in value:
        for number in own:
            if isinstance(number, bool) or not isinstance(number, int | float) or not abs(number) < 1e100:
                raise Wrong(f"A weight is {str(number)[:20]}. Each should be a number.")
    return value


@grades("parallelism.first_that_fits", wrong=mistakes.STAGES)
def first_that_fits(sub: Submission, rng: np.random.Generator) -> None:
    """Memory is drawn between what two stages need: every stage is the answer once, and each shortcut is wrong."""
    _ask_stage(sub, (10**9, 4, 2 * 10**9, 20 * 10**9), "the example with 20 GB", 0)
    _ask_stage(sub, (10**9, 4, 2 * 10**9, 8 * 10**9), "the example with 8 GB", 2)
    for _ in range(4):
        parameters, n = int(rng.integers(1, 80)) * 10**8, int(2 ** rng.integers(1, 6))
        activations = round(parameters * float(rng.uniform(1.0, 3.0)))
        needs = [round(parameters * each) + activations for each in _per_parameter(n)]
        tops = [needs[0] * 3 // 2, *needs[:3]]
        for stage, (need, top) in enumerate(zip(needs, tops, strict=True)):
            for share in (0.03, 0.5, 0.97):
                memory = round(need + (top - need) * share)
                _ask_stage(sub, (parameters, n, activations, memory), f"{n} ranks", stage)
            _ask_stage(sub, (parameters, n, activations, need), f"{n} ranks and not a byte to spare", stage)
        for share in (0.97, 0.6):
            _ask_stage(sub, (parameters, n, activations, round(needs[3] * share)), f"{n} ranks and little memory", None)


def _per_parameter(n: int) -> tuple[float, ...]:
    """Bytes for a parameter at each stage: bf16 weight 2, bf16 gradient 2, exact copy and Adam's averages 12."""
    return (16.0, 4 + 12 / n, 2 + 14 / n, 16 / n)


def _ask_stage(sub: Submission, case: tuple[int, int, int, int], kind: str, expected: int | None) -> None:
    found = sub.first_that_fits(*case)
    if found is not None and (isinstance(found, bool) or not isinstance(found, int) or not 0 <= found <= 3):
        raise Wrong(f"`first_that_fits` returned {str(found)[:20]}. It should be 0, 1, 2, 3 or None.")
    if found == expected and (found is None) == (expected is None):
        return
    if found is None or (expected is not None and found > expected):
        raise Wrong(
            f"With {kind}: an earlier stage than yours would do. How many bytes does each stage need for a parameter, "
            f"and which of them are dealt out? {HOLDS}"
        )
    raise Wrong(
        f"With {kind}: your stage does not fit. What is kept for each parameter beside its weight, and does anything "
        f"deal out what is not the model's? {HOLDS}"
    )


@grades("parallelism.train", wrong=mistakes.TRAININGS)
def train(sub: Submission, rng: np.random.Generator) -> None:
    """On two ranks: their weights equal, equal to one process with all images, and few enough bytes."""
    from accelerando.probes import parallelism as probe

    threshold = catalog.question("parallelism.train").threshold or 1.0
    seed = int(rng.integers(2**31))
    found = sub.probe("parallelism.train", seed=seed)
    expected = probe.whole(seed)
    if not isinstance(found, list) or len(found) != probe.RANKS:
        raise Wrong("The weights did not come back from both ranks.")
    weights: list[Any] = [report.get("weights") if isinstance(report, dict) else None for report in found]
    if any(getattr(one, "shape", None) != expected.shape or one.dtype != expected.dtype for one in weights):
        raise Wrong("The weights that came back have another shape than the model's.")
    moved = float((expected - _flat_start(seed)).abs().max())
    apart = float((weights[0] - weights[1]).abs().max()) / moved
    if not apart < 1e-3:
        raise Wrong(
            f"After {probe.STEPS} steps the two ranks hold different weights, {apart:.0%} of the way apart. Which call "
            f"tells DDP that a backward is coming, so that it sends? {TO_DDP}"
        )
    error = float((weights[0] - expected).abs().max()) / moved
    if not error < 2e-3:
        raise Wrong(
            f"Both ranks agree, but their weights are {error:.0%} of the way off from those of one process with all "
            "images. Which batches are in the gradient when the optimizer moves, and how much does each of them count? "
            "See *Fewer messages* in the lesson."
        )
    _judge_bytes(found, threshold, least=probe.STEPS * expected.numel() * LEAST_BYTES)


def _flat_start(seed: int) -> Any:
    import torch

    from accelerando.probes import parallelism as probe

    return torch.cat([parameter.detach().flatten() for parameter in probe.network(seed).parameters()])


def _judge_bytes(found: list[dict[str, Any]], threshold: float, least: int) -> None:
    """Enough for the gradients to have travelled, and few enough.

    Args:
        found: What each rank reports.
        threshold: So many times fewer than the usual loop.
        least: Bytes that a rank sends on average, if the gradients go by the ranks' own connections at all.
    """
    sent, plain = (
        [int(report[name]) for report in found if isinstance(report.get(name), int)]
        for name in ("sent_bytes", "plain_bytes")
    )
    if len(sent) < len(found) or len(plain) < len(found) or min(plain) <= 0:
        raise NotMeasurableHere("the result is right, but this system does not tell how many bytes were sent")
    if sum(sent) < least * len(sent):
        raise Wrong(
            f"The weights are right, but a rank sent {sum(sent) / len(sent) / 1e3:,.0f} KB by the connections that it "
            f"was given, and to average the gradients in every step takes at least {least / 1e3:,.0f} KB. On which "
            f"other way did they reach the other rank? On two machines there is none. {TO_DDP}"
        )
    ratio = sum(plain) / max(1, sum(sent))
    question = "How often does a gradient have to travel before the optimizer moves?"
    if ratio < 1.1 and any(report.get("uses_no_sync") for report in found):
        question = "Which calls stood inside `no_sync`: only `backward`, or the forward before it as well?"
    if ratio < threshold:
        raise Wrong(
            f"The weights are right. A rank sent {sum(sent) / len(sent) / 1e3:,.0f} KB, the usual loop sends "
            f"{sum(plain) / len(plain) / 1e3:,.0f} KB: {ratio:.1f} times fewer, wanted {threshold:g}. {question} "
            "See *Fewer messages* in the lesson."
        )


@grades("parallelism.quiz", wrong=mistakes.QUIZ)
def quiz(sub: Submission, rng: np.random.Generator) -> None:
    """Every answer right."""
    judge_quiz(sub, "parallelism")
