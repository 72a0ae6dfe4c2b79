"""The secret rule of the final assessment: labels that follow from the images and that nobody knows beforehand.

Two layers of random filters, drawn from the session's secret seed, describe each image by a few numbers. Cells are laid
into that space where the images are dense, and the cells are dealt out to the classes, so that each class has equally
many images. Whoever trains on the pairs can find the rule; a network stored before the session cannot hold it.

The rule is blind to what the starter's augmentation does: a mirrored image has its twin's label (both are described
together), and answers are averaged over quarters of the image, so that a shift of two pixels changes little.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class RuleSizes:
    """How hard the rule is; chosen so that the starter scores on it what it scores on the true labels.

    Args:
        edges: Filters of the first layer, 5 x 5 pixels.
        shapes: Filters of the second layer, 3 x 3 pooled answers.
        numbers: Length of an image's description. More make the rule harder.
        cells: Regions that the descriptions are divided into. More make the rule harder.
    """

    edges: int = 12
    shapes: int = 24
    numbers: int = 8
    cells: int = 14


SIZES = RuleSizes()
_CHUNK = 500
_SCALE_IMAGES = 2000
_BALANCE_ROUNDS = 400


def label(images: NDArray[np.uint8], rng: np.random.Generator, classes: int = 10, sizes: RuleSizes = SIZES) -> NDArray:
    """Label images by a rule drawn from ``rng``.

    Args:
        images: uint8, (N, 28, 28), at least 50 of them for each cell.
        rng: The session's secret; two equal ones give equal labels.
        classes: Number of classes.
        sizes: How hard.

    Returns:
        int64, (N,): every class has N / classes images, give or take a few.

    Raises:
        ValueError: If there are too few images for the rule.
    """
    from scipy.cluster.vq import kmeans2

    if len(images) < 50 * sizes.cells or sizes.cells < classes:
        raise ValueError(f"{len(images)} images: a rule with {sizes.cells} cells needs at least {50 * sizes.cells}")
    described = _principal(_describe(images, rng, sizes), sizes.numbers)
    centers, cell = kmeans2(described, sizes.cells, minit="++", iter=30, seed=rng, missing="raise")
    owner = _deal(np.bincount(cell, minlength=sizes.cells), classes, rng)
    distances = ((described[:, None, :] - centers[None]) ** 2).sum(2)
    nearness = np.stack([-distances[:, owner == number].min(1) for number in range(classes)], 1)
    return _balanced(nearness)


def _describe(images: NDArray[np.uint8], rng: np.random.Generator, sizes: RuleSizes) -> NDArray[np.float64]:
    """Describe every image by the answers of random filters, (N, 4 * shapes)."""
    import torch
    from torch.nn import functional as F  # noqa: N812  # torch's own custom

    edges = torch.from_numpy(_smooth(rng.standard_normal((sizes.edges, 1, 7, 7)))).float()
    shapes = torch.from_numpy(rng.standard_normal((sizes.shapes, sizes.edges, 3, 3))).float()
    edge_levels = torch.from_numpy(0.3 * rng.standard_normal((1, sizes.edges, 1, 1))).float()
    shape_levels = torch.from_numpy(0.5 * rng.standard_normal((1, sizes.shapes, 1, 1))).float()
    pixels = torch.from_numpy(images).unsqueeze(1)
    some = pixels[:_SCALE_IMAGES].float()
    scale = F.conv2d(some, edges, padding=2).std((0, 2, 3), keepdim=True)

    def first(batch: torch.Tensor) -> torch.Tensor:
        return F.avg_pool2d(F.relu(F.conv2d(batch, edges, padding=2) / scale - edge_levels), 4)

    middle = first(some).mean(0, keepdim=True)
    spread = F.conv2d(first(some) - middle, shapes, padding=1).std((0, 2, 3), keepdim=True)

    def both(batch: torch.Tensor) -> torch.Tensor:
        found = F.relu(F.conv2d(first(batch) - middle, shapes, padding=1) / spread - shape_levels)
        return F.adaptive_avg_pool2d(found, 2).flatten(1)

    with torch.inference_mode():
        parts = [both(part.float()) + both(part.float().flip(3)) for part in pixels.split(_CHUNK)]
        described: NDArray[np.float64] = torch.cat(parts).double().numpy()
    return described


def _smooth(noise: NDArray) -> NDArray:
    """Turn 7 x 7 noise into 5 x 5 filters without its finest grain, of mean 0 and length 1."""
    rows = noise[:, :, :-2] + noise[:, :, 1:-1] + noise[:, :, 2:]
    filters = rows[..., :-2] + rows[..., 1:-1] + rows[..., 2:]
    filters = filters - filters.mean((2, 3), keepdims=True)
    return filters / np.sqrt((filters**2).sum((2, 3), keepdims=True))


def _principal(described: NDArray, numbers: int) -> NDArray:
    """Keep the directions in which the images differ most, each scaled to deviation 1."""
    centered = described - described.mean(0)
    _, vectors = np.linalg.eigh(centered.T @ centered)
    kept = centered @ vectors[:, ::-1][:, :numbers]
    return kept / kept.std(0)


def _deal(counts: NDArray, classes: int, rng: np.random.Generator) -> NDArray:
    """Give every cell to a class, the largest first, each to the class with the fewest images so far."""
    owner, load = np.zeros(len(counts), np.int64), np.zeros(classes)
    names = rng.permutation(classes)
    for cell in np.argsort(-counts, kind="stable"):
        emptiest = int(np.argmin(load))
        owner[cell] = names[emptiest]
        load[emptiest] += counts[cell]
    return owner


def _balanced(nearness: NDArray) -> NDArray[np.int64]:
    """Move the borders between classes until all have equally many images: the prior must not give anything away."""
    count, classes = nearness.shape
    offsets = np.zeros(classes)
    best, least = np.argmax(nearness, 1), np.inf
    for step in range(_BALANCE_ROUNDS):
        labels = np.argmax(nearness + offsets, 1)
        excess = np.bincount(labels, minlength=classes) / count - 1 / classes
        if np.abs(excess).max() < least:
            best, least = labels, float(np.abs(excess).max())
        offsets -= 4.0 * excess / (1 + step / 50)
    return best.astype(np.int64)
