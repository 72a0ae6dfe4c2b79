"""What training tells: of each step, and at the end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch


@dataclass(frozen=True)
class StepReport:
    """What ``on_step`` is told after each optimizer step.

    Args:
        step: 1 after the first.
        total_steps: Steps of the whole run.
        images: Images trained on so far.
        loss: Mean loss of the step, a detached scalar tensor (reading it makes a GPU wait).
        learning_rate: Rate of the step.
        elapsed_s: Seconds of training so far.
    """

    step: int
    total_steps: int
    images: int
    loss: torch.Tensor
    learning_rate: float
    elapsed_s: float


@dataclass(frozen=True, eq=False)
class FitResult:
    """What came of a training run.

    Args:
        recipe: The recipe, as plain values.
        model: The network's sizes as plain values, or the class name of a module that was given.
        data_source: Where the images came from.
        seconds: Training only: no preparing, compiling, warming up or judging.
        images_per_s: Images trained on, per second of ``seconds``.
        images: Images trained on, repeats counted.
        steps: Optimizer steps made.
        epoch_seconds: Seconds of each epoch.
        losses: float32, (steps,), mean loss of each step; NaN or infinity where training diverged.
        diverged_at_step: First step (from 1) with a loss that is no finite number; None when there is none.
        accuracy: Share of the test images classified correctly, 0 to 1.
        predictions: int64, (N_test,), class per test image.
        is_correct: bool, (N_test,), for paired comparison with another run.
        prepare_s: Seconds to build model, optimizer and resident tensors.
        warmup_s: Seconds of one untimed forward and backward, which includes compiling.
        evaluate_s: Seconds to judge the test images.
        threads: torch's threads while training.
        parameters: Number of trained numbers in the model.
    """

    recipe: dict[str, Any]
    model: dict[str, Any]
    data_source: str
    seconds: float
    images_per_s: float
    images: int
    steps: int
    epoch_seconds: tuple[float, ...]
    losses: npt.NDArray[np.float32]
    diverged_at_step: int | None
    accuracy: float
    predictions: npt.NDArray[np.int64]
    is_correct: npt.NDArray[np.bool_]
    prepare_s: float
    warmup_s: float
    evaluate_s: float
    threads: int
    parameters: int

    def __repr__(self) -> str:
        return f"<FitResult: {self.summary()}>"

    def summary(self) -> str:
        """Say the result in one sentence."""
        if self.diverged_at_step is not None:
            return f"diverged at step {self.diverged_at_step} of {self.steps}: the loss is no number any more"
        return (
            f"{self.accuracy:.1%} of {len(self.predictions):,} test images after {self.seconds:.1f} s of training: "
            f"{self.images_per_s:,.0f} images/s, {self.steps:,} steps, {self.threads} threads"
        )
