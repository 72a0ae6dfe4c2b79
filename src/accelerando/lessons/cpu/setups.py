"""The lab's timed question: how a process is set up to train, from its environment to its optimizer."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from accelerando import datasets, measure, surroundings, training
from accelerando.lessons import Budget
from accelerando.lessons.cpu import extension
from accelerando.lessons.cpu.openmp import OMP_VARIABLES
from accelerando.recipes import Recipe
from accelerando.workers import Experiment

TRAIN = "accelerando.lessons.cpu.setups:train"
PREPARE_STEPS = "accelerando.lessons.cpu.setups:prepare_steps"
SLOW_SETUP: dict[str, Any] = {
    "environment": {"OMP_NUM_THREADS": "1"},
    "openmp": "libgomp",
    "layout": "contiguous",
    "optimizer_kind": "for_loop",
    "library": "stock",
}
"""The badly configured start."""
_CHOICES = {
    "openmp": ("libgomp", "libiomp5"),
    "layout": ("contiguous", "channels_last"),
    "optimizer_kind": ("default", "for_loop", "foreach", "fused"),
    "library": ("stock", "ipex"),
}
_RECIPE = Recipe(batch_size=64, epochs=2, optimizer="adam", learning_rate=0.003, schedule="one_cycle")
_MOST_THREADS = 256
_STEPS = 8


def check_setup(setup: Any) -> dict[str, Any]:
    """Return a complete setup, or say what is wrong with it.

    Args:
        setup: Keys of `SLOW_SETUP`; what is left out stays as it is there.

    Raises:
        ValueError: In words: what was given, and what is allowed.
    """
    if not isinstance(setup, Mapping):
        raise ValueError(f"a setup is a dictionary, not {type(setup).__name__}")
    for key, value in setup.items():
        if key not in SLOW_SETUP:
            raise ValueError(f"there is no {str(key)[:40]!r}: a setup has {', '.join(SLOW_SETUP)}")
        allowed = _CHOICES.get(key)
        if allowed and not (isinstance(value, str) and value in allowed):
            raise ValueError(f"{key} is {str(value)[:40]!r}: it must be one of {', '.join(allowed)}")
    found = {**SLOW_SETUP, **setup}
    _check_environment(found["environment"])
    if found["library"] == "ipex" and found["optimizer_kind"] != "default":
        raise ValueError("IPEX brings a fused update of its own: with library 'ipex', optimizer_kind must be 'default'")
    return found


def _check_environment(variables: Any) -> None:
    if not isinstance(variables, Mapping):
        raise ValueError(f"environment is of type {type(variables).__name__}: it must be a dictionary of variables")
    for name, value in variables.items():
        if name not in OMP_VARIABLES:
            raise ValueError(f"environment has {str(name)[:40]!r}: this task knows {', '.join(OMP_VARIABLES)}")
        if not isinstance(value, str):
            raise ValueError(f"{name} is of type {type(value).__name__}: environment variables are text")
        if not re.fullmatch(r"[A-Za-z0-9,:=._{}\[\]-]{1,80}", value):
            raise ValueError(f"{name} is {value[:40]!r}: that is no value that OpenMP understands")
    threads = variables.get("OMP_NUM_THREADS")
    if threads is not None and not (threads.isascii() and threads.isdecimal() and 1 <= int(threads) <= _MOST_THREADS):
        raise ValueError(f"OMP_NUM_THREADS is {threads[:20]!r}: it must be a number from 1 to {_MOST_THREADS}")


def why_not_here(setup: Mapping[str, Any]) -> str:
    """Why a setup cannot be run on this machine; empty when it can.

    Args:
        setup: As `check_setup` returns it.
    """
    if setup["openmp"] == "libiomp5" and surroundings.find_intel_openmp() is None:
        return "libiomp5 is not on this machine (the package intel-openmp is for Linux on x86-64): use libgomp"
    if setup["library"] == "ipex" and (reason := extension.why_no_ipex()):
        return f"{reason}: use stock"
    return ""


def environment_of(setup: Mapping[str, Any]) -> dict[str, str | None]:
    """Variables of the process that a setup asks for; those of this process that would disturb are removed.

    Args:
        setup: As `check_setup` returns it.
    """
    variables: dict[str, str | None] = dict.fromkeys((*OMP_VARIABLES, "LD_PRELOAD"))
    variables |= dict(setup["environment"])
    if setup["openmp"] == "libiomp5":
        variables["LD_PRELOAD"] = surroundings.find_intel_openmp()
    return variables


def experiment(setup: Mapping[str, Any]) -> Experiment:
    """The trusted experiment of a setup: its process, and what it trains.

    Args:
        setup: As `check_setup` returns it.
    """
    inside = {key: setup[key] for key in ("layout", "optimizer_kind", "library")}
    return Experiment(TRAIN, inside, environment_of(setup))


def train(layout: str, optimizer_kind: str, library: str, seed: int = 0) -> dict[str, Any]:
    """Train and judge the result: what the timed question runs in a process set up for it.

    Args:
        layout: Of `Recipe`.
        optimizer_kind: Likewise.
        library: "stock" or "ipex".
        seed: Initial weights and order of the images.

    Returns:
        ``seconds`` of training alone and ``predictions``, int64 (2000,).
    """
    recipe = _RECIPE.changed(layout=layout, optimizer_kind=optimizer_kind, seed=seed)
    prepare = extension.optimize if library == "ipex" else None
    result = training.fit(recipe, task_data(), prepare=prepare)
    return {"seconds": result.seconds, "predictions": result.predictions}


@cache
def task_data() -> datasets.Dataset:
    """The images of the timed question: 3,000 to train on, twice, and 2,000 to judge by, the same on every machine."""
    return datasets.fashion_mnist(embedded_only=True, train_images=3000, test_images=2000)


def prepare_steps(layout: str, optimizer_kind: str, library: str) -> Callable[[], None]:
    """Prepare a few training steps for a child process; arguments as for `train`."""
    recipe = _RECIPE.changed(layout=layout, optimizer_kind=optimizer_kind, schedule="constant")
    prepare = extension.optimize if library == "ipex" else None
    step = training.stepper(recipe, datasets.synthetic(1024, 10), prepare=prepare)

    def run() -> None:
        for _ in range(_STEPS):
            step()

    return run


def try_setup(start: Mapping[str, Any], setup: Mapping[str, Any], budget: Budget) -> str:
    """Race two setups in two child processes, and say what came of it; for finding your way in the lab.

    Args:
        start: The setup that is there.
        setup: The one that is proposed.
        budget: How long; the smoke budget starts no process.

    Raises:
        ValueError: If a setup is none.
    """
    sides = [check_setup(side) for side in (start, setup)]
    reasons = [reason for side in sides if (reason := why_not_here(side))]
    if reasons:
        return f"Not measurable here: {reasons[0]}."
    if not budget.process_s:
        return "Nothing was measured: the smoke budget has no time for processes."
    inside = [{key: side[key] for key in ("layout", "optimizer_kind", "library")} for side in sides]
    before, after = (
        Experiment(PREPARE_STEPS, arguments, environment_of(side), prepares=True)
        for arguments, side in zip(inside, sides, strict=True)
    )
    found = measure.compare(before, after, budget_s=2 * budget.process_s, labels=("the start", "the other"))
    return f"{found}. (`./course check` measures longer, on whole runs, and looks at the accuracy too.)"
