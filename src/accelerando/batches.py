"""Batches for the training loop: from a resident tensor, or one image at a time through a DataLoader."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch

from accelerando import datasets, seeds
from accelerando.recipes import Recipe

Batch = tuple[torch.Tensor, torch.Tensor]
Sampler = Callable[[int], Sequence[int] | torch.Tensor]
"""Given the epoch's number, the indices to train on, in order. A rank of a distributed run gives its share."""

SHUFFLING, AUGMENTING, LOADING = 1, 2, 3  # keys of separate random streams: adding one must not shift the others


class Batches:
    """The training set, cut into batches, epoch after epoch.

    Args:
        images: The training set.
        recipe: Batch size, loader, augmentation, layout, seed.
        sampler: The order of each epoch; None shuffles all images by the recipe's seed.
    """

    def __init__(self, images: datasets.ImageSet, recipe: Recipe, sampler: Sampler | None = None) -> None:
        self.recipe = recipe
        self.sampler = sampler or self._shuffled
        self.count = len(images)
        self.memory_format = memory_format(recipe)
        self._order: torch.Tensor = torch.empty(0, dtype=torch.int64)
        self._loader: torch.utils.data.DataLoader[Batch] | None = None
        if recipe.loader == "resident":
            self._images = datasets.as_batch(images.images).contiguous(memory_format=self.memory_format)
            self._labels = torch.from_numpy(images.labels)
        else:
            self._loader = self._make_loader(images)

    def _shuffled(self, epoch: int) -> torch.Tensor:
        return torch.randperm(self.count, generator=seeds.generator(self.recipe.seed, SHUFFLING, epoch))

    def _make_loader(self, images: datasets.ImageSet) -> torch.utils.data.DataLoader[Batch]:
        recipe = self.recipe
        return torch.utils.data.DataLoader(
            datasets.PerSample(images, recipe.augmentation),  # type: ignore[arg-type]
            batch_size=recipe.batch_size,
            sampler=_Order(self),
            num_workers=recipe.num_workers,
            prefetch_factor=recipe.prefetch_factor,
            persistent_workers=recipe.persistent_workers,
            drop_last=recipe.drop_last,
            worker_init_fn=seeds.seed_worker,
            generator=seeds.generator(recipe.seed, LOADING),
        )

    def per_epoch(self) -> int:
        """Batches in one epoch; at least 1.

        Raises:
            ValueError: If dropping the last batch leaves none.
        """
        images, size = len(self.sampler(0)), self.recipe.batch_size
        batches = images // size if self.recipe.drop_last else -(-images // size)
        if batches < 1:
            raise ValueError(
                f"drop_last leaves no batch: {images:,} images, batch_size {size:,}; lower it or set drop_last to false"
            )
        return batches

    def epoch(self, number: int) -> Iterator[Batch]:
        """Go through the set once: float32 (B, 1, 28, 28) in the recipe's layout, and int64 (B,)."""
        self._order = torch.as_tensor(self.sampler(number))
        if self._loader is not None:
            for images, labels in self._loader:
                yield images.contiguous(memory_format=self.memory_format), labels
            return
        size = self.recipe.batch_size
        generator = seeds.generator(self.recipe.seed, AUGMENTING, number)
        for start in range(0, len(self._order), size):
            chosen = self._order[start : start + size]
            if self.recipe.drop_last and len(chosen) < size:
                return
            images = self._images[chosen]
            if self.recipe.augmentation != "none":
                images = datasets.augment(images, self.recipe.augmentation, generator)
            yield images.contiguous(memory_format=self.memory_format), self._labels[chosen]


class _Order(torch.utils.data.Sampler[int]):
    """Hands the current epoch's order to the DataLoader, which would otherwise fix its own when it is made."""

    def __init__(self, batches: Batches) -> None:
        self.batches = batches

    def __iter__(self) -> Iterator[int]:
        return iter(self.batches._order.tolist())

    def __len__(self) -> int:
        return len(self.batches._order) or self.batches.count


def memory_format(recipe: Recipe) -> torch.memory_format:
    """Translate the recipe's layout into torch's constant."""
    return torch.channels_last if recipe.layout == "channels_last" else torch.contiguous_format
