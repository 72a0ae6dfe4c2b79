"""The networks whose training step is compiled."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from accelerando import models
from accelerando.lessons import Budget
from accelerando.models import Sizes


@dataclass(frozen=True)
class Subject:
    """A network to be trained eagerly and compiled.

    Args:
        name: A few words.
        sizes: Of the network.
        batch_size: Examples per step.
    """

    name: str
    sizes: Sizes
    batch_size: int

    def arguments(self, budget: Budget) -> dict[str, Any]:
        """Sizes and batch as plain values, for a child process; the batch is small in a "smoke" run."""
        return {
            "sizes": models.sizes_to_dict(self.sizes),
            "batch_size": self.batch_size if budget.process_s else 16,
        }


GATES = Subject("gates, elementwise work", models.GatedSizes(inputs=32, width=256, blocks=2), 1024)
ONE_GATE = Subject("one block of gates", models.GatedSizes(inputs=32, width=256, blocks=1), 1024)
LINEAR = Subject("wide linear layers", models.MlpSizes(hidden=(1024, 1024)), 256)
WIDE_CNN = models.CnnSizes(channels=(64, 128, 128), kernel=5, batch_norm=False, bias=True)
CONVOLUTIONS = Subject("wide convolutions", WIDE_CNN, 16)
SUBJECTS = (GATES, LINEAR, CONVOLUTIONS)
