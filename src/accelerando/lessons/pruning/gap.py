"""The difference between masking a channel and removing it: what BatchNorm makes of a zero."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from accelerando import training
from accelerando.lessons import Budget
from accelerando.lessons.pruning.config import config_list
from accelerando.lessons.pruning.removal import apply_masks, find_masks, remove_channels
from accelerando.lessons.pruning.subject import STEP_RECIPE, Subject, example, images, tune


@dataclass(frozen=True)
class GapReport:
    """One set of masks, applied as zeros and carried out as a removal.

    Args:
        masked_accuracy: With the filters at zero.
        removed_accuracy: With the channels gone.
        same_answers: Share of the test images that both put into the same class.
        tuned_accuracy: Of the small net after one more epoch.
    """

    masked_accuracy: float
    removed_accuracy: float
    same_answers: float
    tuned_accuracy: float

    def sentence(self) -> str:
        """What this run showed."""
        start = (
            f"Masked: {self.masked_accuracy:.1%}. The same channels removed: {self.removed_accuracy:.1%}; the two "
            f"agree on {self.same_answers:.0%} of the images"
        )
        if self.same_answers > 0.999:
            end = "here the constants happened to be small."
        else:
            end = "**so they are not the same net**, although every remaining filter is the same."
        return f"{start}; {end} One more epoch brings the small one to {self.tuned_accuracy:.1%}."


def compare_masked_and_removed(subject: Subject, budget: Budget, *, sparsity: float = 0.5) -> GapReport:
    """Mask channels of the trained net, and remove the same ones.

    Args:
        subject: The trained net.
        budget: How many images.
        sparsity: Share of channels.
    """
    test = images(budget).test
    masks = find_masks(subject.model, config_list(subject.model, sparsity, example()))
    masked, removed = apply_masks(subject.model, masks), remove_channels(subject.model, masks, example())
    answers = [training.evaluate(model, test, layout=STEP_RECIPE.layout) for model in (masked, removed)]
    right = [float(np.mean(found == test.labels)) for found in answers]
    same = float(np.mean(answers[0] == answers[1]))
    return GapReport(right[0], right[1], same, tune(removed, budget).accuracy)
