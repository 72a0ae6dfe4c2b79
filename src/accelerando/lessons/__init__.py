"""The experiments of the lessons, one package each. Lessons do not import each other."""

import os
from dataclasses import dataclass


@dataclass(frozen=True)
class Budget:
    """How much a lesson measures. The notebook asks for it once; every experiment takes what it needs from it.

    Args:
        name: "smoke" (does it run at all: its numbers mean little), "quick" (three minutes) or "full".
        pair_s: Seconds for one paired comparison inside the kernel.
        process_s: Seconds for one between two child processes, their start not counted; 0: not measured at all.
        rounds: Times that a series of settings is gone through.
        train_images: Training images of one run; they are gone through twice.
        test_images: Images to judge it by.
    """

    name: str
    pair_s: float
    process_s: float
    rounds: int
    train_images: int
    test_images: int


BUDGETS = {
    "smoke": Budget("smoke", pair_s=0.1, process_s=0.0, rounds=1, train_images=128, test_images=50),
    "quick": Budget("quick", pair_s=3.0, process_s=3.0, rounds=7, train_images=4000, test_images=2000),
    "full": Budget("full", pair_s=20.0, process_s=20.0, rounds=15, train_images=12_000, test_images=10_000),
}


def budget() -> Budget:
    """How much to measure in this run: what the environment variable ACCELERANDO_BUDGET says, else "quick".

    Raises:
        ValueError: If it says something else than smoke, quick or full.
    """
    name = os.environ.get("ACCELERANDO_BUDGET", "quick")
    if name not in BUDGETS:
        raise ValueError(f"ACCELERANDO_BUDGET is {name!r}: it must be one of {', '.join(BUDGETS)}")
    return BUDGETS[name]
