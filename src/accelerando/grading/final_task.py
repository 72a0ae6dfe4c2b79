"""The two tasks of one session of the final assessment, made from a secret seed and the images in the package.

Everybody has these images and their labels, so everything that decides a grade is drawn anew for each session: which
images are for training and which are held out, how all of them are turned, mirrored and shaded, and which number a
class has. The task "real" has the true labels under secret numbers. The task "rule" has labels by a secret rule
(`final_rule`). A network that somebody stored may help with the first; time and accuracy must hold on both.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from . import final_rule

if TYPE_CHECKING:
    from ..datasets import ImageSet

TaskName = Literal["real", "rule"]
TASKS: tuple[TaskName, ...] = get_args(TaskName)
TRAIN_IMAGES, HELD_OUT_IMAGES = 12_000, 10_000
CLASSES = 10
PIXELS = 28


@dataclass(frozen=True)
class Task:
    """One task: what a submission gets, and what only the grader knows.

    Args:
        name: "real" or "rule".
        train: Images and labels that are sent to `train`.
        held_out: Images that are sent to `predict`. Its labels never leave the grader.
        classes: Number of classes.
    """

    name: TaskName
    train: ImageSet
    held_out: ImageSet
    classes: int = CLASSES

    @property
    def shape(self) -> tuple[int, int, int]:
        """Of the training images, as `prepare` is told it."""
        return (len(self.train), PIXELS, PIXELS)


@dataclass(frozen=True)
class Disguise:
    """One change of all images of a task.

    Args:
        is_mirrored: Left becomes right, before turning.
        angle_degrees: Turned about the centre, -25 to 25.
        gamma: Exponent of the brightness on a scale of 0 to 1, 0.67 to 1.5.
        darkest: Value that black becomes, 0 to 30.
        brightest: Value that white becomes, 200 to 255.
    """

    is_mirrored: bool
    angle_degrees: float
    gamma: float
    darkest: float
    brightest: float

    @staticmethod
    def draw(rng: np.random.Generator) -> Disguise:
        """Draw one."""
        return Disguise(
            is_mirrored=bool(rng.integers(2)),
            angle_degrees=float(rng.uniform(-25, 25)),
            gamma=float(math.exp(rng.uniform(-0.4, 0.4))),
            darkest=float(rng.uniform(0, 30)),
            brightest=float(rng.uniform(200, 255)),
        )

    def apply(self, images: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Change images, uint8 (N, 28, 28); corners that come from outside are black before shading."""
        if self.is_mirrored:
            images = images[:, :, ::-1]
        turned = _turn(images.reshape(len(images), -1), self.angle_degrees)
        shades = self.darkest + (self.brightest - self.darkest) * (np.arange(256) / 255) ** self.gamma
        table = np.rint(shades).astype(np.uint8)
        return np.ascontiguousarray(table[turned].reshape(images.shape))


def make_session(
    seed: int, *, train_images: int = TRAIN_IMAGES, held_out_images: int = HELD_OUT_IMAGES
) -> tuple[Task, Task]:
    """Make both tasks of a session.

    Args:
        seed: The session's secret, a non-negative whole number: draw it from ``secrets`` and keep it in the grader.
        train_images: Images for training, in each task.
        held_out_images: Images held out, in each task.

    Returns:
        The tasks "real" and "rule", each with its own split and disguise.

    Raises:
        ValueError: If more images are asked for than the package has.
    """
    return make_task("real", seed, train_images=train_images, held_out_images=held_out_images), make_task(
        "rule", seed, train_images=train_images, held_out_images=held_out_images
    )


def make_task(
    name: TaskName, seed: int, *, train_images: int = TRAIN_IMAGES, held_out_images: int = HELD_OUT_IMAGES
) -> Task:
    """Make one task; see `make_session`."""
    from ..datasets import ImageSet, fashion_mnist

    if name not in TASKS:
        raise ValueError(f"there is no task {name!r}: it is one of {', '.join(TASKS)}")
    rng = np.random.default_rng([seed, TASKS.index(name)])
    known = fashion_mnist(embedded_only=True)
    images = np.concatenate([known.train.images, known.test.images])
    labels = np.concatenate([known.train.labels, known.test.labels])
    chosen, held_out = split(labels, train_images, held_out_images, rng)
    both = np.concatenate([chosen, held_out])
    disguised = Disguise.draw(rng).apply(images[both])
    if name == "real":
        secret = rng.permutation(CLASSES)[labels[both]].astype(np.int64)
    else:
        secret = final_rule.draw(disguised, rng, CLASSES).label(disguised)
    whole = ImageSet(disguised, secret)
    return Task(name, whole.subset(np.arange(train_images)), whole.subset(np.arange(train_images, len(both))))


def split(
    labels: NDArray[np.int64], train_images: int, held_out_images: int, rng: np.random.Generator
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Draw two sets of images without a common one, each with equally many of every class, in random order.

    Args:
        labels: int64, (N,): the true classes of all images.
        train_images: Size of the first set, a multiple of the number of classes.
        held_out_images: Size of the second, likewise.
        rng: The draw.

    Returns:
        Indices of the first and of the second set.

    Raises:
        ValueError: If the sizes do not divide by the classes, or a class has too few images.
    """
    classes = np.unique(labels)
    if min(train_images, held_out_images) < 1 or train_images % len(classes) or held_out_images % len(classes):
        raise ValueError(
            f"{train_images} and {held_out_images} images: both must be positive multiples of {len(classes)} classes"
        )
    first, second = train_images // len(classes), held_out_images // len(classes)
    parts: tuple[list[NDArray], list[NDArray]] = ([], [])
    for number in classes:
        own = rng.permutation(np.flatnonzero(labels == number))
        if len(own) < first + second:
            raise ValueError(f"class {number} has {len(own)} images, {first + second} are asked for")
        parts[0].append(own[:first])
        parts[1].append(own[first : first + second])
    return rng.permutation(np.concatenate(parts[0])), rng.permutation(np.concatenate(parts[1]))


def _turn(images: NDArray[np.uint8], angle_degrees: float) -> NDArray[np.uint8]:
    """Turn flat images (N, 784) about their centre, each new pixel mixed from the four it falls between."""
    angle, middle = math.radians(angle_degrees), (PIXELS - 1) / 2
    rows, columns = (axis.ravel() - middle for axis in np.mgrid[:PIXELS, :PIXELS])
    from_row = middle + math.cos(angle) * rows - math.sin(angle) * columns
    from_column = middle + math.sin(angle) * rows + math.cos(angle) * columns
    top, left = np.floor(from_row).astype(int), np.floor(from_column).astype(int)
    mixed = np.zeros(images.shape, np.float32)
    for row_step in (0, 1):
        for column_step in (0, 1):
            row, column = top + row_step, left + column_step
            share = (1 - np.abs(from_row - row)) * (1 - np.abs(from_column - column))
            is_inside = (row >= 0) & (row < PIXELS) & (column >= 0) & (column < PIXELS)
            source = np.where(is_inside, row * PIXELS + column, 0)
            mixed += images[:, source] * np.where(is_inside, share, 0.0).astype(np.float32)
    return np.rint(mixed).clip(0, 255).astype(np.uint8)
