"""The checks of lab 9. Each one starts from the mistakes that people make."""

import itertools
import math
from typing import Any

import numpy as np

from accelerando import catalog, stats
from accelerando.checks import multi_gpu_mistakes as mistakes
from accelerando.checks.quiz import judge_quiz
from accelerando.submission import Submission, Undecided, Wrong, grades, is_same

Matrix = list[list[float]]
LOOKS = (2, 4)  # after so many seeds the accuracies are compared; the second time only when the first did not tell
CONFIDENCE = 1 - 0.05 / len(LOOKS)  # so that both looks together err as seldom as one of 95 %


# -- 1 the ring -------------------------------------------------------------------------------------------------------


@grades("multi_gpu.best_ring", wrong=mistakes.RINGS)
def best_ring(sub: Submission, rng: np.random.Generator) -> None:
    """Machines are drawn until every shortcut gives a slower ring than there is."""
    example = [[0.0, 10, 40, 10], [10, 0.0, 40, 40], [40, 40, 0.0, 10], [10, 40, 10, 0.0]]
    _judge_ring(sub, example, "With the example")
    for gpus in (4, 5, 6, 7):
        for shortcut in _SHORTCUTS:
            matrix = _draw_machine(rng, gpus, shortcut)
            _judge_ring(sub, matrix, f"With another machine of {gpus} GPUs", _SHORTCUTS[shortcut][1])
    _judge_ring(sub, [[0.0, 5.0], [5.0, 0.0]], "With two GPUs")


def _judge_ring(sub: Submission, matrix: Matrix, kind: str, question: str = "Which hop sets its pace?") -> None:
    where = "See *One slow hop* in the lesson."
    found = sub.best_ring([list(row) for row in matrix])
    if not isinstance(found, list) or not all(isinstance(gpu, int) and not isinstance(gpu, bool) for gpu in found):
        raise Wrong("`best_ring` should return a list of whole numbers: the GPUs in the order of the ring.")
    if sorted(found) != list(range(len(matrix))):
        raise Wrong(f"{kind} your ring does not visit each of its {len(matrix)} GPUs exactly once.")
    reached, possible = _pace(matrix, found), max(_pace(matrix, ring) for ring in _rings(len(matrix)))
    if reached < possible:
        raise Wrong(
            f"{kind} the slowest hop of your ring has {reached / possible:.0%} of the bandwidth that the slowest hop "
            f"of the best one has. {question} {where}"
        )


def _pace(matrix: Matrix, ring: list[int]) -> float:
    return min(matrix[a][b] for a, b in itertools.pairwise([*ring, ring[0]]))


def _rings(gpus: int) -> list[list[int]]:
    return [[0, *rest] for rest in itertools.permutations(range(1, gpus))]


def _greedy(matrix: Matrix) -> list[int]:
    order, left = [0], set(range(1, len(matrix)))
    while left:
        here = order[-1]
        order.append(max(left, key=lambda gpu: matrix[here][gpu]))
        left.remove(order[-1])
    return order


def _most(matrix: Matrix) -> list[int]:
    return max(_rings(len(matrix)), key=lambda r: sum(matrix[a][b] for a, b in itertools.pairwise([*r, r[0]])))


def _line(matrix: Matrix) -> list[int]:
    lines = itertools.permutations(range(len(matrix)))
    return list(max(lines, key=lambda line: min(matrix[a][b] for a, b in itertools.pairwise(line))))


_SHORTCUTS = {
    "by number": (lambda matrix: list(range(len(matrix))), "Are neighbours in number neighbours in the machine?"),
    "greedy": (_greedy, "Over which hop does it come home, after always taking the fastest one?"),
    "sum": (_most, "Does a very fast hop make up for a slow one?"),
    "line": (_line, "Is the hop from the last GPU back to the first one counted?"),
}


def _draw_machine(rng: np.random.Generator, gpus: int, shortcut: str) -> Matrix:
    """Bandwidths for which a shortcut's ring is slower than the best, by a fifth at least."""
    for _ in range(10_000):
        upper = np.triu(rng.choice([5.0, 10.0, 12.0, 25.0, 50.0, 100.0, 200.0], size=(gpus, gpus)), 1)
        matrix: Matrix = (upper + upper.T).tolist()
        best = max(_pace(matrix, ring) for ring in _rings(gpus))
        if _pace(matrix, _SHORTCUTS[shortcut][0](matrix)) < 0.8 * best:
            return matrix
    raise AssertionError(f"no machine was found on which {shortcut!r} goes wrong")


# -- 2 the log --------------------------------------------------------------------------------------------------------


@grades("multi_gpu.suspects", wrong=mistakes.SUSPECTS)
def suspects(sub: Submission, rng: np.random.Generator) -> None:
    """Every way that NCCL writes, inside a machine and between two, in an order that is drawn."""
    where = "See *Did it work? Ask the log* in the lesson."
    kinds = [(is_same_host, via) for is_same_host, ways in _WAYS.items() for via in ways]
    for _ in range(3):
        drawn = [kinds[place] for place in rng.permutation(len(kinds))]
        connections = [_connection(rng, is_same_host, via) for is_same_host, via in drawn]
        found = sub.suspects(connections)
        if not isinstance(found, list) or len(found) != len(connections):
            raise Wrong(
                "`suspects` should return a list with one entry for each connection: a variable's name or None."
            )
        for (is_same_host, via), entry in zip(drawn, found, strict=True):
            if not isinstance(entry, str | None) or entry not in (None, *_SUSPECTS):
                raise Wrong(
                    f"An entry is {str(entry)[:30]}: say None or one of {', '.join(_SUSPECTS)}, the names in the "
                    f"table of the task. {where}"
                )
            if not is_same(entry, _WAYS[is_same_host][via]) or (entry is None) != (_WAYS[is_same_host][via] is None):
                place = "inside a machine" if is_same_host else "between two machines"
                raise Wrong(
                    f"A connection {place} that goes via {via.replace('/1', '/0')}: you answer {str(entry)[:30]}. Is "
                    f"there a better way for it, and which variable would you look at first? {where}"
                )
    if not is_same(sub.suspects([]), []):
        raise Wrong("Without any connection there is nothing to suspect: expected an empty list.")


_SUSPECTS = ("NCCL_P2P_DISABLE", "NCCL_IB_DISABLE", "NCCL_NET_GDR_LEVEL")
_WAYS: dict[bool, dict[str, str | None]] = {
    True: {
        "P2P/CUMEM": None,
        "P2P/IPC/read": None,
        "P2P/direct pointer": None,
        "SHM/direct/direct": "NCCL_P2P_DISABLE",
        "NET/Socket/1": "NCCL_P2P_DISABLE",
        "NET/IB/1/GDRDMA": "NCCL_P2P_DISABLE",
    },
    False: {
        "NET/IB/1/GDRDMA": None,
        "NET/IB/1": "NCCL_NET_GDR_LEVEL",
        "NET/Socket/1": "NCCL_IB_DISABLE",
    },
}


def _connection(rng: np.random.Generator, is_same_host: bool, via: str) -> dict[str, Any]:
    hosts = [f"gpu{int(number)}" for number in rng.choice(90, size=2, replace=False)]
    first, second = (int(number) for number in rng.choice(64, size=2, replace=False))
    card = int(rng.integers(8))
    return {
        "from_rank": first,
        "to_rank": second,
        "from_host": hosts[0],
        "to_host": hosts[0] if is_same_host else hosts[1],
        "via": via.replace("/1", f"/{card}"),
    }


# -- 3 statistics of all ranks ----------------------------------------------------------------------------------------


@grades("multi_gpu.synced_statistics", wrong=mistakes.STATISTICS)
def synced_statistics(sub: Submission, rng: np.random.Generator) -> None:
    """The numbers themselves are drawn and dealt out, so the right answer is simply their mean and variance."""
    kinds = {
        "equal shares": ([6, 6, 6], 0.0, 1.0),
        "uneven shares": ([3, 40, 11, 7], 0.0, 3.0),
        "ranks whose numbers lie far apart": ([20, 5], 2.0, 50.0),
        "a rank that has no images": ([4, 0, 9], 1.0, 4.0),
        "numbers far away from 0": ([16, 30, 8], 1e7, 1e-1),
        "one image in all": ([1, 0], 3.0, 1.0),
    }
    for kind, (counts, middle, apart) in kinds.items():
        parts = [middle + apart * (rng.standard_normal() + rng.standard_normal(count)) for count in counts]
        means = [float(part.mean()) if len(part) else 0.0 for part in parts]
        variances = [float(part.var()) if len(part) else 0.0 for part in parts]
        whole = np.concatenate(parts)
        expected = (float(whole.mean()), float(whole.var()))
        _judge_statistics(sub.synced_statistics(counts, means, variances), expected, kind)


def _judge_statistics(found: Any, expected: tuple[float, float], kind: str) -> None:
    where = "See *BatchNorm sees only its own images* in the lesson."
    numbers = list(found) if isinstance(found, list | tuple) else []
    if len(numbers) != 2 or not all(
        isinstance(one, int | float) and not isinstance(one, bool) and abs(one) < 1e100 for one in numbers
    ):
        raise Wrong("`synced_statistics` should return two numbers: the mean and the variance.")
    if not math.isclose(numbers[0], expected[0], rel_tol=1e-9, abs_tol=1e-9):
        raise Wrong(f"With {kind} the mean is not that of all images together. How much does each rank count? {where}")
    if not math.isclose(numbers[1], expected[1], rel_tol=1e-4, abs_tol=1e-9):
        way = "too small" if numbers[1] < expected[1] else "too large"
        question = (
            "How far are the ranks' means from the common one?" if way == "too small" else "By what is it divided?"
        )
        if kind == "numbers far away from 0":
            question = "What is left when two huge, nearly equal numbers are subtracted?"
        raise Wrong(f"With {kind} the mean is right and the variance {way}. {question} {where}")


# -- 4 the bug hunt ---------------------------------------------------------------------------------------------------


@grades("multi_gpu.train_step", wrong=mistakes.STEPS)
def train_step(sub: Submission, rng: np.random.Generator) -> None:
    """Ranks are played by threads: each must be left with the clipped gradient of one big batch."""
    import torch

    from accelerando.probes import multi_gpu as probes

    where = "See *Clip the average* in the lesson."
    seed = int(rng.integers(2**31))
    found = sub.probe("multi_gpu.train_step", seed=seed)
    if not isinstance(found, list) or len(found) != len(probes.CASES):
        raise Wrong("`train_step` did not come back from every case.")
    for case, report in zip(probes.CASES, found, strict=True):
        expected = probes.whole(seed, case)
        ranks, batches, longest = case
        kind = f"On {ranks} ranks with {batches} batch(es) each" + (
            "" if longest < 1e3 else " and a limit that is never reached"
        )
        gradients = report.get("gradients") if isinstance(report, dict) else None
        if not (
            isinstance(gradients, list)
            and len(gradients) == ranks
            and all(isinstance(one, torch.Tensor) and one.shape == expected.shape for one in gradients)
            and all(one.dtype == expected.dtype for one in gradients)
        ):
            raise Wrong(f"{kind}, the gradients did not come back from every rank.")
        if not all(one.isfinite().all() for one in gradients):
            raise Wrong(f"{kind}, a parameter was left without its gradient, or with one that holds no numbers.")
        if any(float((one - gradients[0]).abs().max()) > 1e-5 for one in gradients):
            raise Wrong(
                f"{kind}, the ranks hold different gradients at the end. What did each do by itself after the "
                f"all-reduce? {where}"
            )
        _judge_gradient(gradients[0], expected, longest, f"{kind},", where)
        if not is_same(report.get("moved"), [False] * ranks):
            raise Wrong(f"{kind}, the weights have moved. That is the optimizer's part, which comes later.")


def _judge_gradient(found: Any, expected: Any, longest: float, kind: str, where: str) -> None:
    length, right = float(found.norm()), float(expected.norm())
    if not math.isfinite(length):
        raise Wrong(f"{kind} the gradient holds numbers that are none.")
    if float((found - expected).norm()) <= 1e-4 * right:
        return
    along = float((found * expected).sum()) / max(length * right, 1e-12)
    if along > 1 - 1e-5:
        limit = f", and the limit is {longest:.3g}" if longest < 1e3 else ""
        raise Wrong(
            f"{kind} the gradient points the right way and is {length / right:.2f} times as long as it should "
            f"be{limit}. Which numbers were compared with the limit, and of what is it the mean? {where}"
        )
    raise Wrong(
        f"{kind} the gradient points {math.degrees(math.acos(max(-1.0, min(1.0, along)))):.0f} degrees away from that "
        f"of one big batch. Whose gradient was shortened, and when? {where}"
    )


# -- 5 the large batch ------------------------------------------------------------------------------------------------


@grades("multi_gpu.large_batch_recipe", wrong=mistakes.RECIPES)
def large_batch_recipe(sub: Submission, rng: np.random.Generator) -> None:
    """Few enough all-reduces, counted; and as accurate as the start, trained by the course's own code."""
    from accelerando.lessons.multi_gpu import lab

    question = catalog.question("multi_gpu.large_batch_recipe")
    threshold, margin = question.threshold or 1.0, question.margin or 0.0
    answer = sub.large_batch_recipe(dict(lab.START))
    try:
        recipe = lab.check_recipe(answer)
    except ValueError as error:
        raise Wrong(f"No such recipe: {error}.") from None
    before, after = (lab.steps_of(one["global_batch"]) for one in (lab.START, recipe))
    if before / after < threshold:
        raise Wrong(
            f"{after:,} optimizer steps, so as many all-reduces; the start makes {before:,}: {before / after:.1f} "
            f"times fewer, wanted {threshold:g}. How many ranks' images make a step?"
        )
    found = _compare(recipe, margin, [int(number) for number in rng.integers(2**31, size=max(LOOKS))])
    changed = (
        f"{before / after:.1f} times fewer all-reduces, and the accuracy changed by {100 * found.difference:+.1f} "
        "points"
    )
    if found.verdict == "lost":
        raise Wrong(
            f"{changed}; at most {100 * margin:g} may be lost. There are fewer steps: what must each of them do, and "
            "can the first ones bear it? See *Eight times the batch* in the lesson."
        )
    if found.verdict == "undecided":
        low, high = (100 * end for end in found.interval)
        raise Undecided(
            f"{changed} ({low:+.1f} to {high:+.1f}), and {100 * margin:g} may be lost: too close to call. A recipe "
            "that keeps more decides it, or another try."
        )


def _compare(recipe: dict[str, Any], margin: float, seeds: list[int]) -> stats.AccuracyVerdict:
    """Train both with seeds of the grader's own until the verdict is clear, at most as often as `LOOKS` says."""
    from accelerando.lessons.multi_gpu import lab

    for look in LOOKS:
        start, other = (np.stack([lab.accuracy_of(one, seed) for seed in seeds[:look]]) for one in (lab.START, recipe))
        found = stats.paired_non_inferiority(start, other, margin, confidence=CONFIDENCE)
        if found.verdict != "undecided":
            break
    return found


@grades("multi_gpu.quiz", wrong=mistakes.QUIZ)
def quiz(sub: Submission, rng: np.random.Generator) -> None:
    """Every answer right."""
    judge_quiz(sub, "multi_gpu")
