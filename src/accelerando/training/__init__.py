"""The one training loop of the course: ``fit(recipe, data)``.

Lessons do not paste this loop, they change it by argument: the recipe says how to train, ``model`` what, ``sampler``
on which images, and ``phases`` lets a lesson time each part of a step without a second copy of the loop.
"""

from accelerando.recipes import Recipe, learning_rate_at
from accelerando.training.fitting import fit, stepper
from accelerando.training.judging import evaluate
from accelerando.training.phases import PHASES, PhaseTimer
from accelerando.training.results import FitResult, StepReport

__all__ = [
    "PHASES",
    "FitResult",
    "PhaseTimer",
    "Recipe",
    "StepReport",
    "evaluate",
    "fit",
    "learning_rate_at",
    "stepper",
]
