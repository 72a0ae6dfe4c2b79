"""Probes of lab 4: what must happen beside the learner's code, because workers and counting functions do not travel."""

import contextlib
import multiprocessing
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from accelerando.submission import Wrong, look_up_function

ITEMS, SHAPE = 24, (8, 8)
BATCH = 4


class Noisy(Dataset[Any]):
    """The dataset of the question, around the learner's function."""

    def __init__(self, draw: Callable[..., Any], seed: int) -> None:
        """Keep what the function may use."""
        self.images, self.seed, self.rng = torch.zeros(ITEMS, *SHAPE), seed, np.random.default_rng(seed)
        self._draw = draw

    def __len__(self) -> int:
        """Items in all."""
        return ITEMS

    def __getitem__(self, index: int) -> Any:
        """The noise itself: the image is zero."""
        found = self._draw(self, index)
        if not isinstance(found, torch.Tensor) or found.dtype != torch.float32 or tuple(found.shape) != SHAPE:
            kind = f"{found.dtype} {tuple(found.shape)}" if isinstance(found, torch.Tensor) else type(found).__name__
            raise Wrong(f"`fresh_noise` returned {kind}. It should be a float32 tensor of the image's shape, {SHAPE}.")
        return found


def fresh_noise(namespace: Mapping[str, Any], seed: int) -> dict[str, torch.Tensor]:
    """Draw noise through real loaders.

    Args:
        namespace: The learner's names.
        seed: Of the dataset and of the loader's generator.

    Returns:
        float32 (items, 8, 8) each: two epochs of two workers (``first``, ``second``), the first epoch of a new loader
        with the same seed (``again``), and two epochs without workers (``alone``, ``alone_second``).
    """
    draw = look_up_function(namespace, "fresh_noise")
    _ = Noisy(draw, seed)[0]  # a blank or a value of another kind is told here, without a worker in between
    found: dict[str, torch.Tensor] = {}
    loader = _loader(draw, seed, 2)
    found["first"], found["second"] = _epoch(loader), _epoch(loader)
    found["again"] = _epoch(_loader(draw, seed, 2))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        loader = _loader(draw, seed, 0)
        found["alone"], found["alone_second"] = _epoch(loader), _epoch(loader)
    return found


def _loader(draw: Callable[..., Any], seed: int, workers: int) -> DataLoader[Any]:
    context = "fork" if workers and "fork" in multiprocessing.get_all_start_methods() else None
    return DataLoader(
        Noisy(draw, seed), batch_size=BATCH, num_workers=workers, multiprocessing_context=context,
        generator=torch.Generator().manual_seed(seed),
    )  # fmt: skip


def _epoch(loader: DataLoader[Any]) -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of two workers on a machine with one core
        return torch.cat(list(loader))


def cached_image(namespace: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """Read through a learner's cache with functions that count.

    Args:
        namespace: The learner's names.
        seed: Draws images and the order in which they are asked for.

    Returns:
        One entry for each of the three ``kinds``: "roomy" (all images fit), "tight" (a third fits) and "in place" (the
        augmentation writes into what it is given). Each has ``asked`` (indices, in order), ``returned`` and
        ``wanted`` (float32, one row per request), ``decoded`` (times each image was decoded), ``kept`` (most images in
        the cache) and ``augmented`` (calls).
    """
    function = look_up_function(namespace, "cached_image")
    draw = np.random.default_rng(seed)
    images = torch.from_numpy(draw.normal(size=(12, 6)).astype(np.float32))
    kinds = (("roomy", 12, False), ("tight", 4, False), ("in place", 12, True))
    return {name: _read_through(function, images, draw, limit, is_in_place) for name, limit, is_in_place in kinds}


def _read_through(
    function: Callable[..., Any], images: torch.Tensor, draw: np.random.Generator, limit: int, is_in_place: bool
) -> dict[str, Any]:
    asked = [int(index) for _ in range(3) for index in draw.permutation(len(images))]
    decoded = [0] * len(images)
    cache: dict[Any, Any] = {}
    shifts: list[float] = []

    def decode(index: int) -> torch.Tensor:
        decoded[index] += 1
        return images[index].clone()

    def augment(image: torch.Tensor) -> torch.Tensor:
        shifts.append(float(draw.normal()))
        return image.add_(shifts[-1]) if is_in_place else image + shifts[-1]

    returned, wanted, kept = [], [], 0
    for index in asked:
        before = len(shifts)
        answer = function(index, cache, decode, augment, limit)
        if not isinstance(answer, torch.Tensor) or answer.shape != images[index].shape:
            raise Wrong(f"`cached_image` returned {type(answer).__name__}. It should return what `augment` returns.")
        returned.append(answer.detach().clone())
        fresh = shifts[-1] if len(shifts) > before else float("nan")  # NaN: nothing new was drawn for this request
        wanted.append(images[index] + fresh)
        with contextlib.suppress(TypeError):
            kept = max(kept, len(cache))
    return {
        "asked": asked,
        "returned": torch.stack(returned).float(),
        "wanted": torch.stack(wanted),
        "decoded": decoded,
        "kept": kept,
        "augmented": len(shifts),
    }
