"""A model, a loader and an optimizer, made as everybody makes them: they stand where a reader's own would."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from accelerando import datasets, models
from accelerando.lessons import Budget
from accelerando.lessons.scaling.subject import images

Batches = DataLoader[tuple[torch.Tensor, ...]]


def stand_in(budget: Budget) -> tuple[nn.Module, Batches, torch.optim.Optimizer]:
    """Make what a plain training loop needs: the lesson's network, its images in a DataLoader, and SGD."""
    train = images(budget).train
    ready = TensorDataset(datasets.as_batch(train.images), torch.from_numpy(train.labels))
    model = models.build(models.SLIM_CNN)
    return model, DataLoader(ready, batch_size=64, shuffle=True), torch.optim.SGD(model.parameters(), lr=0.01)
