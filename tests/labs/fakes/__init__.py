"""One simple truth per timed question, one module per lesson: a right answer gains by it, a listed mistake does not.

Each module maps question ids to what a side would show: ``RUNS = {"scaling.faster_recipe": fake_training}``. That the
course's own answer really is faster and as accurate is measured by ``./course check --solution`` and in benchmarks/.
"""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pkgutil import iter_modules

from accelerando.submission import LearnerCall
from accelerando.workers import Experiment


@dataclass(frozen=True)
class FakeRun:
    """What a timed question's side would show."""

    seconds: float
    accuracy: float


def runs() -> dict[str, Callable[[Experiment | LearnerCall], FakeRun]]:
    """Question id -> what a side shows, of every lesson."""
    found = {}
    for module in iter_modules(__path__):
        found.update(import_module(f"{__name__}.{module.name}").RUNS)
    return found
