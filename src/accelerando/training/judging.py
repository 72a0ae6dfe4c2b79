"""How well a network classifies."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from accelerando import datasets


def evaluate(
    module: nn.Module, images: datasets.ImageSet, *, batch_size: int = 500, layout: str = "contiguous"
) -> npt.NDArray[np.int64]:
    """Classify images in evaluation mode and full precision; the module's mode is put back.

    Args:
        module: Gives logits (B, classes).
        images: What to classify.
        batch_size: Images per call.
        layout: "contiguous" or "channels_last", as the module was trained.

    Returns:
        int64, (N,), the class with the highest logit; class 0 where logits are not numbers.
    """
    was_training = module.training
    module.eval()
    found = []
    memory = torch.channels_last if layout == "channels_last" else torch.contiguous_format
    with torch.inference_mode():
        for start in range(0, len(images), batch_size):
            batch = datasets.as_batch(images.images[start : start + batch_size]).contiguous(memory_format=memory)
            found.append(torch.nan_to_num(module(batch), nan=-math.inf).argmax(1))
    module.train(was_training)
    predictions: npt.NDArray[np.int64] = torch.cat(found).numpy()
    return predictions
