"""The secret rule of the final assessment: labels that follow from the images and that nobody knows beforehand.

Two layers of random filters, drawn from the session's secret seed, describe each image by a few numbers. Cells are laid
into that space where the images are dense, and the cells are dealt out to the classes, so that each class has equally
many images. Whoever trains on the pairs can find the rule; a network stored before the session cannot hold it.

The rule is blind to what the starter's augmentation does: a mirrored image has its twin's label (both are described
together), and answers are averaged over quarters of the image, so that a shift of two pixels changes little.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
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


@dataclass(frozen=True)
class Rule:
    """A rule: gives images the labels that a training run has to find. Made by `draw`.

    Args:
        edges: float32, (edges, 1, 5, 5): filters of the first layer, scaled.
        edge_levels: float32, (1, edges, 1, 1): what an answer must exceed to count.
        middle: float32, (1, edges, 7, 7): the usual pooled answers.
        shapes: float32, (shapes, edges, 3, 3): filters of the second layer, scaled.
        shape_levels: float32, (1, shapes, 1, 1): as ``edge_levels``.
        mean: (4 * shapes,): the usual answers of the second layer.
        directions: (4 * shapes, numbers): from answers to a description.
        centers: (cells, numbers): the middles of the cells.
        owner: int64, (cells,): the class of each cell.
        offsets: (classes,): moves the borders so that all classes are equally large.
    """

    edges: torch.Tensor
    edge_levels: torch.Tensor
    middle: torch.Tensor
    shapes: torch.Tensor
    shape_levels: torch.Tensor
    mean: NDArray[np.float64]
    directions: NDArray[np.float64]
    centers: NDArray[np.float64]
    owner: NDArray[np.int64]
    offsets: NDArray[np.float64]

    def label(self, images: NDArray[np.uint8]) -> NDArray[np.int64]:
        """Label images uint8 (N, 28, 28); int64 (N,)."""
        nearness = _nearness(self.describe(images), self.centers, self.owner, len(self.offsets))
        labels: NDArray[np.int64] = np.argmax(nearness + self.offsets, 1)
        return labels

    def describe(self, images: NDArray[np.uint8]) -> NDArray[np.float64]:
        """Describe images uint8 (N, 28, 28) by a few numbers each; an image and its mirror image alike."""
        return (self.answers(images) - self.mean) @ self.directions

    def answers(self, images: NDArray[np.uint8]) -> NDArray[np.float64]:
        """What the second layer's filters say in each quarter, summed over image and mirror image."""
        import torch
        from torch.nn import functional as F  # noqa: N812  # torch's own custom

        def both_layers(batch: torch.Tensor) -> torch.Tensor:
            first = F.avg_pool2d(F.relu(F.conv2d(batch, self.edges, padding=2) - self.edge_levels), 4)
            second = F.relu(F.conv2d(first - self.middle, self.shapes, padding=1) - self.shape_levels)
            return F.adaptive_avg_pool2d(second, 2).flatten(1)

        with torch.inference_mode():
            parts = torch.from_numpy(images).unsqueeze(1).split(_CHUNK)
            summed = [both_layers(part.float()) + both_layers(part.float().flip(3)) for part in parts]
            found: NDArray[np.float64] = torch.cat(summed).double().numpy()
        return found


def draw(images: NDArray[np.uint8], rng: np.random.Generator, classes: int = 10, sizes: RuleSizes = SIZES) -> Rule:
    """Draw a rule that fits these images: it uses the ways in which they differ, and all classes are equally large.

    Args:
        images: uint8, (N, 28, 28), at least 50 of them for each cell.
        rng: The session's secret; two equal ones draw equal rules.
        classes: Number of classes.
        sizes: How hard.

    Raises:
        ValueError: If there are too few images for the rule.
    """
    from scipy.cluster.vq import kmeans2

    if len(images) < 50 * sizes.cells or sizes.cells < classes:
        raise ValueError(f"{len(images)} images: a rule with {sizes.cells} cells needs at least {50 * sizes.cells}")
    rule = _random_layers(images[:_SCALE_IMAGES], rng, sizes, classes)
    answers = rule.answers(images)
    mean = answers.mean(0)
    _, vectors = np.linalg.eigh((answers - mean).T @ (answers - mean))
    widest = vectors[:, ::-1][:, : sizes.numbers]
    rule = replace(rule, mean=mean, directions=widest / ((answers - mean) @ widest).std(0))
    described = (answers - mean) @ rule.directions
    centers, cell = kmeans2(described, sizes.cells, minit="++", iter=30, seed=rng)
    owner = _deal(np.bincount(cell, minlength=sizes.cells), classes, rng)
    return replace(rule, centers=centers, owner=owner, offsets=_balance(_nearness(described, centers, owner, classes)))


def _random_layers(images: NDArray[np.uint8], rng: np.random.Generator, sizes: RuleSizes, classes: int) -> Rule:
    """Draw the filters and scale them so that their answers on these images have deviation 1."""
    import torch
    from torch.nn import functional as F  # noqa: N812  # torch's own custom

    edges = torch.from_numpy(_smooth(rng.standard_normal((sizes.edges, 1, 7, 7)))).float()
    shapes = torch.from_numpy(rng.standard_normal((sizes.shapes, sizes.edges, 3, 3))).float()
    edge_levels = torch.from_numpy(0.3 * rng.standard_normal((1, sizes.edges, 1, 1))).float()
    shape_levels = torch.from_numpy(0.5 * rng.standard_normal((1, sizes.shapes, 1, 1))).float()
    pixels = torch.from_numpy(images).unsqueeze(1).float()
    edges /= F.conv2d(pixels, edges, padding=2).std((0, 2, 3)).view(-1, 1, 1, 1)
    first = F.avg_pool2d(F.relu(F.conv2d(pixels, edges, padding=2) - edge_levels), 4)
    middle = first.mean(0, keepdim=True)
    shapes /= F.conv2d(first - middle, shapes, padding=1).std((0, 2, 3)).view(-1, 1, 1, 1)
    nothing = np.zeros(0)
    return Rule(
        edges, edge_levels, middle, shapes, shape_levels,
        nothing, nothing, nothing, nothing.astype(np.int64), np.zeros(classes),
    )  # fmt: skip


def _nearness(described: NDArray, centers: NDArray, owner: NDArray, classes: int) -> NDArray[np.float64]:
    """Closeness of each image to the nearest cell of each class, (N, classes)."""
    distances = ((described[:, None, :] - centers[None]) ** 2).sum(2)
    return np.stack([-distances[:, owner == number].min(1) for number in range(classes)], 1)


def _smooth(noise: NDArray) -> NDArray:
    """Turn 7 x 7 noise into 5 x 5 filters without its finest grain, of mean 0 and length 1."""
    rows = noise[:, :, :-2] + noise[:, :, 1:-1] + noise[:, :, 2:]
    filters = rows[..., :-2] + rows[..., 1:-1] + rows[..., 2:]
    filters = filters - filters.mean((2, 3), keepdims=True)
    return filters / np.sqrt((filters**2).sum((2, 3), keepdims=True))


def _deal(counts: NDArray, classes: int, rng: np.random.Generator) -> NDArray:
    """Give every cell to a class, the largest first, each to the class with the fewest images so far."""
    owner, load = np.zeros(len(counts), np.int64), np.zeros(classes)
    names = rng.permutation(classes)
    for cell in np.argsort(-counts, kind="stable"):
        emptiest = int(np.argmin(load))
        owner[cell] = names[emptiest]
        load[emptiest] += counts[cell]
    return owner


def _balance(nearness: NDArray) -> NDArray[np.float64]:
    """Find offsets that give all classes equally many images: the prior must not give anything away."""
    count, classes = nearness.shape
    offsets = best = np.zeros(classes)
    least = np.inf
    for step in range(_BALANCE_ROUNDS):
        excess = np.bincount(np.argmax(nearness + offsets, 1), minlength=classes) / count - 1 / classes
        if np.abs(excess).max() < least:
            best, least = offsets, float(np.abs(excess).max())
        offsets = offsets - 4.0 * excess / (1 + step / 50)
    return best
