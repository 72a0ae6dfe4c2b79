"""The trusted side of the lab's timed question: the slow epoch that everybody starts from."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import DataLoader

from accelerando import datasets, seeds
from accelerando.lessons.pipelines import samples
from accelerando.workers import Experiment

TASK_IMAGES, TASK_BATCH = 4000, 128


def task_images() -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """The images of the timed question, uint8 (4000, 28, 28); a label is the number of its image."""
    return samples.fashion(TASK_IMAGES).images, np.arange(TASK_IMAGES, dtype=np.int64)


def slow_experiment() -> Experiment:
    """The slow side, in a process of its own."""
    return Experiment("accelerando.lessons.pipelines.lab:slow_epoch_seconds", {})


def slow_epoch_seconds(seed: int) -> dict[str, Any]:
    """Seconds of one slow epoch over the task's images; starting and reading the images are not counted."""
    images, labels = task_images()
    started_s = time.perf_counter()
    slow_epoch(images, labels, TASK_BATCH, seed)
    return {"seconds": time.perf_counter() - started_s}


def slow_epoch(
    images: npt.NDArray[np.uint8], labels: npt.NDArray[np.int64], batch_size: int, seed: int
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """One epoch through a loader that opens each image with PIL, crops, mirrors and scales it: a list of batches."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seeds.stream_seed(seed))
        dataset = datasets.PerSample(datasets.ImageSet(images, labels), "crop_flip")
        loader = DataLoader(dataset, batch_size=batch_size, shuffle=True)
        return [(batch, told) for batch, told in loader]
