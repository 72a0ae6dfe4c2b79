"""Judges how images are dealt out to ranks: the shards of an epoch, and the steps of a run that goes on elsewhere."""

from typing import Any

import numpy as np

from accelerando.submission import Submission, Wrong

Run = dict[str, int]
"""A run as its checkpoint tells it: "images", "seed", "batch_size", "ranks", "epoch", "step"."""

_PLACE = "See *A node dies* in lesson 10."


def judge_shards(sub: Submission, n: int, world_size: int) -> None:
    """Two epochs of `n` images on `world_size` ranks.

    Raises:
        Wrong: If an image comes twice or not at all, shares are uneven, or the epochs are dealt out alike.
    """
    before: list[np.ndarray] | None = None
    for epoch in (0, 1):
        shares = [as_indices(sub.shard(n, rank, world_size, epoch), "shard") for rank in range(world_size)]
        _judge_shares(shares, n)
        if before is not None and n > 100:
            _judge_order(before, shares)
        before = shares


def as_indices(value: Any, function: str) -> np.ndarray:
    """What a learner's function returned, as an integer array of one dimension.

    Raises:
        Wrong: If it is something else.
    """
    try:
        found = np.asarray(value)
    except ValueError:  # rows of different lengths
        found = np.zeros((0, 0))
    if found.ndim != 1 or (found.size and found.dtype.kind not in "iu"):
        raise Wrong(
            f"`{function}` returned {type(value).__name__} of shape {found.shape}. It should be a list of indices."
        )
    return found.astype(np.int64)


def _together(shares: list[np.ndarray], images: int) -> np.ndarray:
    given = np.concatenate(shares)
    outside = given[(given < 0) | (given >= images)]
    if outside.size:
        raise Wrong(f"With {images} images, an index is {outside[0]}. Which are allowed?")
    return given


def _judge_shares(shares: list[np.ndarray], n: int) -> None:
    world_size = len(shares)
    counts = np.bincount(_together(shares, n), minlength=n)
    if counts.max(initial=0) > 1:
        raise Wrong(
            f"With {n} images on {world_size} ranks, {int((counts > 1).sum())} image(s) came more than once. Two ranks "
            "that train on the same image do the same work twice: where do their shares overlap?"
        )
    if counts.min(initial=1) < 1:
        raise Wrong(
            f"With {n} images on {world_size} ranks, {int((counts < 1).sum())} image(s) were left out. Who takes the "
            "rest when the shares do not divide?"
        )
    _judge_evenness(shares, f"With {n} images on {world_size} ranks")


def _judge_evenness(shares: list[np.ndarray], where: str) -> None:
    sizes = [len(share) for share in shares]
    if max(sizes) - min(sizes) > 1:
        raise Wrong(
            f"{where}, the shares have from {min(sizes)} to {max(sizes)} images. Everybody waits for the longest: can "
            "they be more even?"
        )


def _judge_order(before: list[np.ndarray], after: list[np.ndarray]) -> None:
    if all(set(old) == set(new) for old, new in zip(before, after, strict=True)):
        raise Wrong(
            "Each rank has the same images in every epoch. Its gradients then know one part of the data only: should "
            "the images be dealt out before or after shuffling?"
        )
    if np.array_equal(after[0], np.sort(after[0])):
        raise Wrong("The indices come in ascending order. What happens when the images are stored class by class?")


def draw_breaks(rng: np.random.Generator) -> list[tuple[Run, int]]:
    """Runs that were broken off, each with the number of ranks that go on; the first is the notebook's example."""
    found: list[tuple[Run, int]] = [(_run(10, 2, 2, epoch=0, step=1, seed=0), 3)]
    for old, new in ((4, 2), (2, 2), (3, 5), (4, 3)):
        batch, steps = int(rng.integers(4, 9)), int(rng.integers(6, 12))
        images = old * batch * steps - int(rng.integers(1, old * batch))
        epoch, step = int(rng.integers(1, 6)), int(rng.integers(2, steps - 2))
        found.append((_run(images, batch, old, epoch=epoch, step=step, seed=int(rng.integers(2**31))), new))
    run, new = found[-1]
    found.append(({**run, "step": _steps(run)}, new))
    found.append(({**run, "images": 5 * _global_batch(run), "step": 0}, new))
    found.append((_run(5, 2, 4, epoch=3, step=0, seed=1), 6))
    return found


def _run(images: int, batch: int, ranks: int, *, epoch: int, step: int, seed: int) -> Run:
    return {"images": images, "seed": seed, "batch_size": batch, "ranks": ranks, "epoch": epoch, "step": step}


def judge_resumed(sub: Submission, run: Run, world_size: int) -> None:
    """Steps after a restart on `world_size` ranks: the first, the last of the epoch, and beyond.

    Raises:
        Wrong: If one of them is not the step that the undisturbed run would have made.
    """
    left = _steps(run) - run["step"]
    for ahead in sorted({0, 1, max(0, left - 1), left, left + _steps(run)}):
        found = [sub.resume(dict(run), rank, world_size, ahead) for rank in range(world_size)]
        _judge_step([as_indices(share, "resume") for share in found], run, ahead)


def _judge_step(shares: list[np.ndarray], run: Run, ahead: int) -> None:
    world_size = len(shares)
    where = f"With {run['ranks']} ranks before, {world_size} now and ahead={ahead}"
    given, right = _together(shares, run["images"]), set(_undisturbed(run, ahead))
    taken = set(given)
    if not taken:
        raise Wrong(f"{where}, no rank takes an image. Which step does the run make next?")
    for symptom, images in _likely_mistakes(run, world_size, ahead):
        if taken == set(images) != right:
            raise Wrong(f"{where}, {symptom} {_PLACE}")
    if taken > right:
        raise Wrong(
            f"{where}, the ranks take {len(taken)} images together, the undisturbed run {len(right)}. Where does "
            "this step end: is it the last one of its epoch?"
        )
    if len(taken) < len(given):
        raise Wrong(
            f"{where}, {len(given) - len(taken)} image(s) came more than once in one step. Where do the shares overlap?"
        )
    if taken == right:
        return _judge_evenness(shares, where)
    if taken < right:
        raise Wrong(
            f"{where}, {len(right - taken)} of the step's {len(right)} images are on no rank. Who takes the rest when "
            "they do not divide?"
        )
    raise Wrong(
        f"{where}, {len(taken - right)} of {len(taken)} images belong to another step of the undisturbed run. Which "
        f"part of which epoch's order do *all* ranks together take next? {_PLACE}"
    )


def _likely_mistakes(run: Run, world_size: int, ahead: int) -> list[tuple[str, np.ndarray]]:
    together, kept = _global_batch(run), run["batch_size"] * world_size
    whole_steps = run["images"] // together
    epochs, step = divmod(run["step"] + ahead, _steps(run))
    order = _order(run, run["epoch"])
    begin = run["step"] * together + ahead * kept
    batch = (
        f"a step is cut from global batches of {kept} images; before the failure they had {together}, and the learning "
        "rate was made for those. Does the global batch belong to the run or to the number of its ranks?"
    )
    found = [
        (
            f"the images are taken from the front of epoch {run['epoch']} again. How many had all ranks taken since it "
            "began?",
            _undisturbed({**run, "step": 0}, ahead),
        ),
        (batch, _undisturbed({**run, "ranks": world_size}, ahead)),
        (batch, order[begin : begin + kept]),
        (
            f"epoch {run['epoch'] + epochs} runs, and the images come in the order of epoch {run['epoch']}. On what "
            "does an order depend?",
            order[step * together : (step + 1) * together],
        ),
    ]
    if whole_steps:
        epochs, step = divmod(run["step"] + ahead, whole_steps)
        order = _order(run, run["epoch"] + epochs)
        lost = f"the last {run['images'] % together} images of an epoch are passed over. How large is its last step?"
        found.append((lost, order[step * together : (step + 1) * together]))
    return found


def _undisturbed(run: Run, ahead: int) -> np.ndarray:
    """Images that all ranks together take in a step, had nothing happened."""
    epochs, step = divmod(run["step"] + ahead, _steps(run))
    together = _global_batch(run)
    return _order(run, run["epoch"] + epochs)[step * together : (step + 1) * together]


def _order(run: Run, epoch: int) -> np.ndarray:
    return np.random.default_rng([run["seed"], epoch]).permutation(run["images"])


def _global_batch(run: Run) -> int:
    return run["batch_size"] * run["ranks"]


def _steps(run: Run) -> int:
    return -(-run["images"] // _global_batch(run))
