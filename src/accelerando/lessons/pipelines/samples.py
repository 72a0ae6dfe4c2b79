"""The datasets of this lesson. They stand in a module because loader workers must be able to import them."""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import BatchSampler, DataLoader, RandomSampler

from accelerando import datasets, seeds
from accelerando.datasets import DEVIATION, MEAN, ImageSet, PerSample

Way = Literal["PIL, one image", "tensor, one image", "tensor, whole batch"]
WAYS: tuple[Way, ...] = ("PIL, one image", "tensor, one image", "tensor, whole batch")
PAD = datasets.CROP_PADDING_PIXELS
Pair = tuple[torch.Tensor, Any]


class TensorSample(torch.utils.data.Dataset[Pair]):
    """One image at a time, transformed as a tensor, without PIL: crop, mirror, scale.

    Args:
        images: The set.
    """

    def __init__(self, images: ImageSet) -> None:
        self.images, self.labels = torch.from_numpy(images.images), torch.from_numpy(images.labels)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> Pair:
        image = self.images[index].unsqueeze(0).to(torch.float32).div_(255).sub_(MEAN).div_(DEVIATION)
        padded = torch.nn.functional.pad(image, (PAD,) * 4, value=-MEAN / DEVIATION)
        top, left = torch.randint(2 * PAD + 1, (2,)).tolist()
        image = padded[:, top : top + datasets.PIXELS, left : left + datasets.PIXELS]
        if torch.rand(()) < 0.5:
            image = image.flip(2)
        return image.contiguous(), self.labels[index]


class WholeBatch(torch.utils.data.Dataset[Pair]):
    """Takes a list of indices and transforms all their images at once; for a loader with ``batch_size=None``.

    Args:
        images: The set.
    """

    def __init__(self, images: ImageSet) -> None:
        self.images, self.labels = torch.from_numpy(images.images), torch.from_numpy(images.labels)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, indices: Sequence[int]) -> Pair:
        chosen = torch.as_tensor(indices)
        batch = datasets.as_batch(self.images[chosen])
        return datasets.augment(batch, "crop_flip", torch.default_generator), self.labels[chosen]


def make_loader(way: Way, images: ImageSet, batch_size: int, workers: int = 0) -> DataLoader[Pair]:
    """A shuffling loader that crops, mirrors and scales in one of three ways; the same tensors come out.

    Args:
        way: One of `WAYS`.
        images: The set.
        batch_size: Images per batch.
        workers: Loader processes, kept between epochs.
    """
    common: dict[str, Any] = {"num_workers": workers, "persistent_workers": workers > 0}
    if way == "tensor, whole batch":
        order = BatchSampler(RandomSampler(images.labels), batch_size, drop_last=False)
        return DataLoader(WholeBatch(images), batch_size=None, sampler=order, **common)
    dataset = PerSample(images, "crop_flip") if way == "PIL, one image" else TensorSample(images)
    return DataLoader(dataset, batch_size=batch_size, shuffle=True, **common)


class SlowStorage(torch.utils.data.Dataset[int]):
    """Batches that take their time to arrive: reading waits and needs no core, as on a disk or a network.

    Args:
        batches: How many there are.
        read_s: Seconds of waiting for one.
        slow_every: Each so many-th one takes ``slow_factor`` times as long; 0: none does.
        slow_factor: See ``slow_every``.
    """

    def __init__(self, batches: int, read_s: float, slow_every: int = 0, slow_factor: float = 1.0) -> None:
        self.batches, self.read_s, self.slow_every, self.slow_factor = batches, read_s, slow_every, slow_factor

    def __len__(self) -> int:
        return self.batches

    def __getitem__(self, index: int) -> int:
        is_slow = self.slow_every and index % self.slow_every == self.slow_every - 1
        time.sleep(self.read_s * (self.slow_factor if is_slow else 1.0))
        return index


# -- stored as files --------------------------------------------------------------------------------------------------

Format = Literal["raw", "PNG", "JPEG"]


def encode(images: npt.NDArray[np.uint8], form: Format, pixels: int = datasets.PIXELS) -> list[bytes]:
    """Images as the bytes of files.

    Args:
        images: uint8 (N, 28, 28).
        form: "raw" (a byte per pixel), "PNG" (nothing is lost) or "JPEG" (quality 90: something is).
        pixels: Width and height to enlarge them to first.
    """
    from PIL import Image

    files = []
    for image in images:
        picture = Image.fromarray(image)
        if pixels != datasets.PIXELS:
            picture = picture.resize((pixels, pixels), Image.Resampling.BICUBIC)
        if form == "raw":
            files.append(picture.tobytes())
            continue
        stream = io.BytesIO()
        picture.save(stream, form, **({"quality": 90} if form == "JPEG" else {}))
        files.append(stream.getvalue())
    return files


def decode(data: bytes, form: Format, pixels: int = datasets.PIXELS, *, draft: int = 0) -> npt.NDArray[np.uint8]:
    """The image in a file's bytes: uint8 (pixels, pixels).

    Args:
        data: From `encode`.
        form: As it was encoded.
        pixels: Its width and height.
        draft: Let a JPEG be decoded at a smaller scale, not below so many pixels; 0: at full size.
    """
    from PIL import Image

    if form == "raw":
        return np.frombuffer(data, np.uint8).reshape(pixels, pixels).copy()  # else not one byte would be read
    with Image.open(io.BytesIO(data)) as picture:
        if draft:
            picture.draft("L", (draft, draft))
        return np.asarray(picture)


# -- drawing random numbers -------------------------------------------------------------------------------------------

Source = Literal["numpy, global", "python, global", "torch, global", "numpy, its own", "numpy, its own, reseeded"]
SOURCES: tuple[Source, ...] = (
    "python, global",
    "torch, global",
    "numpy, global",
    "numpy, its own",
    "numpy, its own, reseeded",
)


class Draws(torch.utils.data.Dataset[tuple[int, float]]):
    """Each item is the number of the worker that made it, and a random number drawn in it.

    Args:
        source: Which generator draws.
        items: How many items there are.
    """

    def __init__(self, source: Source, items: int = 32) -> None:
        self.source, self.items = source, items
        self.own = np.random.default_rng(0)  # copied into every worker, and copied again for every epoch

    def __len__(self) -> int:
        return self.items

    def __getitem__(self, index: int) -> tuple[int, float]:
        import random

        info = torch.utils.data.get_worker_info()
        draws: dict[str, Callable[[], float]] = {
            "numpy, global": np.random.random,
            "python, global": random.random,
            "torch, global": lambda: float(torch.rand((), dtype=torch.float64)),
        }
        draw = draws.get(self.source, self.own.random)
        return (info.id if info else 0), float(draw())


def reseed_own(worker_id: int) -> None:
    """Give the dataset of this worker a generator of its own: pass it as ``worker_init_fn``."""
    info = torch.utils.data.get_worker_info()
    assert info is not None, "runs in a worker"
    info.dataset.own = np.random.default_rng(torch.initial_seed())  # type: ignore[attr-defined]


# -- names of files, in two kinds of memory ---------------------------------------------------------------------------

Holding = Literal["list", "array"]


class Names(torch.utils.data.Dataset[int]):
    """A million file names, as people keep them (a list of str) or in one array of bytes; an item is a name's length.

    Args:
        holding: "list" or "array".
        items: How many names.
    """

    def __init__(self, holding: Holding, items: int) -> None:
        names = [f"train/images/{number:012d}.png" for number in range(items)]
        self.names: Any = names if holding == "list" else np.array(names, dtype=np.bytes_)

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: int) -> int:
        return len(self.names[index])


class BigBatches(torch.utils.data.Dataset[torch.Tensor]):
    """Batches of a given size, to fill shared memory with.

    Args:
        batches: How many.
        batch_bytes: Size of each.
    """

    def __init__(self, batches: int, batch_bytes: int) -> None:
        self.batches, self.batch_bytes = batches, batch_bytes

    def __len__(self) -> int:
        return self.batches

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((self.batch_bytes,), index % 256, dtype=torch.uint8)


@cache
def fashion(count: int) -> ImageSet:
    """Real training images from the package, the same on every machine."""
    return datasets.fashion_mnist(embedded_only=True, train_images=count, test_images=10).train


def shuffled(count: int, epoch: int) -> npt.NDArray[np.int64]:
    """A new order for every epoch, the same in every run."""
    return np.random.default_rng(seeds.stream_seed(0, epoch)).permutation(count)
