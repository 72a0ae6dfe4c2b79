"""What pruning costs: accuracy against the dense net, with what chance alone would do."""

from __future__ import annotations

from dataclasses import dataclass

from accelerando import stats, training


@dataclass(frozen=True)
class AccuracyChange:
    """Accuracy against the dense net that was trained as long, on the same images.

    Args:
        label: What was done.
        accuracy: Share of the test images classified correctly, 0 to 1.
        difference: To the dense net; below 0 is a loss.
        interval: 95 % interval for the difference.
    """

    label: str
    accuracy: float
    difference: float
    interval: tuple[float, float]


def change(label: str, dense: training.FitResult, pruned: training.FitResult) -> AccuracyChange:
    """Compare a pruned net with the dense one, image by image."""
    found = stats.paired_non_inferiority(dense.is_correct, pruned.is_correct)
    return AccuracyChange(label, pruned.accuracy, found.difference, found.interval)
