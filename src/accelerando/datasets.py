"""Where the images come from: Fashion-MNIST from five places, made-up sets, and text that every machine has.

Fashion-MNIST is looked for in this order, and the result says which one it was: a folder the user names, the
Debian package's folder, the cache, a download (only when asked for), and the subset that ships with the package.
Every file is checked by SHA-256, so a set under the right name is the right set.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt
import torch

from accelerando import fashion_files, seeds

if TYPE_CHECKING:
    from PIL import Image

PIXELS = 28
FASHION_CLASSES = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)
MEAN, DEVIATION = 0.2860, 0.3530
"""Of Fashion-MNIST's 60,000 training images, on a scale of 0 to 1."""

Augmentation = Literal["none", "flip", "crop_flip"]
CROP_PADDING_PIXELS = 2


@dataclass(frozen=True, eq=False)
class ImageSet:
    """Images with their labels.

    Args:
        images: uint8, (N, 28, 28), 0 to 255.
        labels: int64, (N,), class numbers from 0.
    """

    images: npt.NDArray[np.uint8]
    labels: npt.NDArray[np.int64]

    def __post_init__(self) -> None:
        if self.images.dtype != np.uint8 or self.images.ndim != 3:
            raise ValueError(f"images are {self.images.dtype} {self.images.shape}: they must be uint8 (N, 28, 28)")
        if self.labels.dtype != np.int64 or self.labels.shape != (len(self.images),):
            raise ValueError(
                f"labels are {self.labels.dtype} {self.labels.shape}: "
                f"they must be int64, one for each of the {len(self.images):,} images"
            )

    def __len__(self) -> int:
        return len(self.labels)

    def __repr__(self) -> str:
        return f"<{len(self):,} images of {len(np.unique(self.labels))} classes>"

    def subset(self, indices: npt.ArrayLike) -> ImageSet:
        """Take the images at ``indices``, in that order."""
        chosen = np.asarray(indices)
        return ImageSet(self.images[chosen], self.labels[chosen])

    def first_of_each_class(self, count: int) -> ImageSet:
        """Take ``count`` images, as evenly from the classes as they divide, the earliest of each, in stored order.

        The same ``count`` gives the same images, always: a result on 2,000 images can be repeated.

        Raises:
            ValueError: If ``count`` is below 1, above what is there, or a class has too few images for its share.
        """
        if isinstance(count, bool) or not isinstance(count, (int, np.integer)) or not 1 <= count <= len(self):
            raise ValueError(f"{count!r} images asked for: there are {len(self):,}; ask for 1 to {len(self):,}")
        if count == len(self):
            return self
        classes = np.unique(self.labels)
        share, extra = divmod(int(count), len(classes))
        kept = []
        for place, label in enumerate(classes):
            wanted = share + (place < extra)
            found = np.flatnonzero(self.labels == label)[:wanted]
            if len(found) < wanted:
                raise ValueError(f"class {label} has {len(found):,} images, its share of {count:,} would be {wanted:,}")
            kept.append(found)
        return self.subset(np.sort(np.concatenate(kept)))


@dataclass(frozen=True, eq=False)
class Dataset:
    """A training and a test set.

    Args:
        train: Images to learn from.
        test: Images to judge by.
        source: One sentence: where the images came from and how many there are.
        classes: Names of the classes, in the order of their numbers.
    """

    train: ImageSet
    test: ImageSet
    source: str
    classes: tuple[str, ...]

    def limited(self, train_images: int | None = None, test_images: int | None = None) -> Dataset:
        """Take fewer images, class-balanced and always the same ones; None keeps all. ``source`` says so."""
        train = self.train if train_images is None else self.train.first_of_each_class(train_images)
        test = self.test if test_images is None else self.test.first_of_each_class(test_images)
        if len(train) == len(self.train) and len(test) == len(self.test):
            return self
        source = f"{self.source}; used here: {len(train):,} training and {len(test):,} test images"
        return Dataset(train, test, source, self.classes)


def fashion_mnist(
    folder: str | Path | None = None,
    *,
    train_images: int | None = None,
    test_images: int | None = None,
    embedded_only: bool = False,
    download: bool = False,
    time_limit_s: float = 300.0,
) -> Dataset:
    """Load Fashion-MNIST from the first place that has it.

    Args:
        folder: Where to read the four files, as .gz or unpacked, in the folder itself or under FashionMNIST/raw.
            None: the environment variable ACCELERANDO_DATA, when it is set.
        train_images: How many training images, class-balanced; None for all the source has.
        test_images: How many test images; None for all 10,000.
        embedded_only: Use the subset inside the package whatever else is there, so that everybody has the same.
        download: When no folder has the set, fetch it (31 MB) into the cache.
        time_limit_s: The longest a download may take, in seconds.

    Returns:
        The set; ``source`` says where it came from and how many images it has.

    Raises:
        ValueError: If a file is missing from a named folder, damaged, or not what its name says; or the download
            failed. The message names the file and the cure.
    """
    if embedded_only and (folder is not None or download):
        raise ValueError("embedded_only=True reads the package's own images: leave out folder and download")
    found = fashion_files.embedded() if embedded_only else fashion_files.find(folder, download, time_limit_s)
    train = ImageSet(found.train_images, found.train_labels)
    test = ImageSet(found.test_images, found.test_labels)
    counted = f"{len(train):,} training and {len(test):,} test images"
    whole = Dataset(train, test, f"Fashion-MNIST from {found.place}: {counted}", FASHION_CLASSES)
    return whole.limited(train_images, test_images)


def synthetic(
    train_images: int = 1000, test_images: int = 500, *, classes: int = 10, noise: float = 0.25, seed: int = 0
) -> Dataset:
    """Make up images that a network can learn: each class is one smooth pattern, shifted and covered with noise.

    Instant and the same everywhere; for tests and for questions about speed, not about accuracy.

    Args:
        train_images: At least ``classes``.
        test_images: At least ``classes``.
        classes: Number of classes, 2 to 100.
        noise: Standard deviation of the pixel noise, on a scale of 0 to 1.
        seed: Two calls with one seed give the same images.
    """
    if not 2 <= classes <= 100:
        raise ValueError(f"classes is {classes}: it must be from 2 to 100")
    if min(train_images, test_images) < classes:
        raise ValueError(f"{train_images} training, {test_images} test images: at least one of each class ({classes})")
    draw = np.random.default_rng(seeds.check_seed(seed))
    coarse = draw.random((classes, 7, 7))
    patterns = np.kron(coarse, np.ones((4, 4)))

    def images(count: int) -> ImageSet:
        labels = draw.permutation(np.arange(count) % classes)
        shifts = draw.integers(-2, 3, size=(count, 2))
        pairs = zip(labels, shifts, strict=True)
        clean = np.stack([np.roll(patterns[label], tuple(shift), (0, 1)) for label, shift in pairs])
        pixels = (clean + draw.normal(0, noise, clean.shape)).clip(0, 1) * 255
        return ImageSet(pixels.astype(np.uint8), labels.astype(np.int64))

    train, test = images(train_images), images(test_images)
    source = f"made up with seed {seed}: {train_images:,} training and {test_images:,} test images, {classes} classes"
    return Dataset(train, test, source, tuple(f"pattern {number}" for number in range(classes)))


def as_batch(images: npt.NDArray[np.uint8] | torch.Tensor) -> torch.Tensor:
    """Turn uint8 images (N, 28, 28) into the models' input: float32 (N, 1, 28, 28), mean about 0, deviation about 1."""
    pixels = torch.as_tensor(images)
    if pixels.dtype != torch.uint8 or pixels.ndim != 3:
        raise ValueError(f"images are {pixels.dtype} {tuple(pixels.shape)}: they must be uint8 (N, 28, 28)")
    return pixels.unsqueeze(1).to(torch.float32).div_(255).sub_(MEAN).div_(DEVIATION)


def augment(batch: torch.Tensor, how: Augmentation, generator: torch.Generator) -> torch.Tensor:
    """Change a whole batch (N, 1, 28, 28) at once: mirror half of the images, and shift each by up to 2 pixels."""
    if how == "none":
        return batch
    is_flipped = torch.rand(len(batch), generator=generator) < 0.5
    batch = torch.where(is_flipped.view(-1, 1, 1, 1), batch.flip(3), batch)
    if how == "flip":
        return batch
    pad = CROP_PADDING_PIXELS
    padded = torch.nn.functional.pad(batch, (pad,) * 4, value=-MEAN / DEVIATION).squeeze(1)
    top, left = torch.randint(2 * pad + 1, (2, len(batch), 1), generator=generator)
    rows, columns = top + torch.arange(PIXELS), left + torch.arange(PIXELS)
    image = torch.arange(len(batch)).view(-1, 1, 1)
    return padded[image, rows.unsqueeze(2), columns.unsqueeze(1)].unsqueeze(1)


class PerSample(torch.utils.data.Dataset[tuple[torch.Tensor, int]]):
    """The way most tutorials load images: one at a time, through PIL and a chain of transforms. Slow on purpose.

    Args:
        images: The set.
        augmentation: "none", "flip" or "crop_flip", drawn per image from torch's global generator.
    """

    def __init__(self, images: ImageSet, augmentation: Augmentation = "none") -> None:
        from torchvision import transforms

        steps: list[Any] = []
        if augmentation == "crop_flip":
            steps.append(transforms.RandomCrop(PIXELS, padding=CROP_PADDING_PIXELS))
        if augmentation != "none":
            steps.append(transforms.RandomHorizontalFlip())
        steps += [transforms.ToTensor(), transforms.Normalize((MEAN,), (DEVIATION,))]
        self.images = images
        self.transform = transforms.Compose(steps)

    def picture(self, index: int) -> Image.Image:
        """Open one image with PIL, as if it had just been read from a file."""
        from PIL import Image

        return Image.fromarray(self.images.images[index])

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.transform(self.picture(index)), int(self.images.labels[index])
