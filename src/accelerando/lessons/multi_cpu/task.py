"""The lab's timed question: how the ranks of one machine are laid out, and what each of them gets."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

from accelerando import datasets, machine, measure
from accelerando.backends import oneccl
from accelerando.lessons import Budget
from accelerando.lessons.multi_cpu.race import can_pin, share
from accelerando.lessons.multi_cpu.teams import Team
from accelerando.workers import Experiment, ExperimentFailed

RANK = "accelerando.lessons.multi_cpu.on_teams:prepare"
PREPARE = "accelerando.lessons.multi_cpu.task:prepare"
PREPARE_BEST = "accelerando.lessons.multi_cpu.task:prepare_best"
TRAIN_IMAGES, TEST_IMAGES, EPOCHS = 6000, 2000, 3
START: dict[str, Any] = {
    "processes": 4,
    "threads": 4,
    "pinning": "one core",
    "backend": "gloo",
    "batch": 4,
    "learning_rate": 0.005,
}
"""What somebody's launch script does: four ranks of four threads each, all of them on the first core."""
PINNINGS = ("none", "own cores", "one core")
BACKENDS = ("gloo", "ccl")
LIMITS = {"processes": (1, 8), "threads": (1, 64), "batch": (1, 1024)}
_TRIALS, _TRIAL_LIMIT_S = 2, 25.0
_TRIAL_IMAGES = 1280
_PATIENCE_S = 12.0


def check_layout(layout: Any) -> dict[str, Any]:
    """Return a complete layout, or say what is wrong with it.

    Args:
        layout: Keys of `START`; what is left out stays as it is there.

    Raises:
        ValueError: In words: what was given, and what is allowed.
    """
    if not isinstance(layout, Mapping):
        raise ValueError(f"a layout is a dictionary, not {type(layout).__name__}")
    for key in layout:
        if key not in START:
            raise ValueError(f"there is no {str(key)[:40]!r}: a layout has {', '.join(START)}")
    found = {**START, **layout}
    for key, (low, high) in LIMITS.items():
        value = found[key]
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise ValueError(f"{key} is {str(value)[:40]}: it must be a whole number from {low} to {high}")
    for key, allowed in (("pinning", PINNINGS), ("backend", BACKENDS)):
        if not (isinstance(found[key], str) and found[key] in allowed):
            raise ValueError(f"{key} is {str(found[key])[:40]!r}: it must be one of {', '.join(allowed)}")
    rate = found["learning_rate"]
    if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 < rate <= 10:
        raise ValueError(f"learning_rate is {str(rate)[:40]}: it must be a number above 0, at most 10")
    together = found["processes"] * found["batch"]
    if together > TRAIN_IMAGES:
        raise ValueError(
            f"{found['processes']} processes with a batch of {found['batch']} take {together} images in a step, and "
            f"there are {TRAIN_IMAGES}"
        )
    return found


def why_not_here(layout: Mapping[str, Any]) -> str:
    """Why a layout cannot be run on this machine; empty when it can.

    Args:
        layout: As `check_layout` returns it.
    """
    if layout["backend"] == "ccl" and (reason := oneccl.why_not()):
        return f"{reason}: take gloo"
    if layout["pinning"] != "none" and not can_pin():
        return "this system cannot pin a process to cores: take pinning 'none'"
    return ""


def cpus_of(pinning: str, processes: int, cpus: Sequence[int]) -> list[tuple[int, ...] | None]:
    """For each rank the cores that it may use; None: all."""
    if pinning == "own cores":
        return [tuple(own) for own in share(cpus, processes)]
    return [(cpus[0],) if pinning == "one core" else None for _ in range(processes)]


@cache
def data() -> datasets.Dataset:
    """The images of the timed question, the same on every machine."""
    return datasets.fashion_mnist(embedded_only=True, train_images=TRAIN_IMAGES, test_images=TEST_IMAGES)


def team(processes: int, threads: int, cpus: Sequence[tuple[int, ...] | None] | None, backend: str) -> Team:
    """Ranks that train what the task trains, for a ``with`` block."""
    arguments = {"backend": backend, "train_images": TRAIN_IMAGES, "test_images": TEST_IMAGES}
    return Team(RANK, processes, threads=threads, cpus=cpus or [None] * processes, arguments=arguments)


def train(team: Team, *, batch: int, learning_rate: float, seed: int, **more: Any) -> dict[str, Any]:
    """Let a team train once.

    Returns:
        ``seconds`` of the slowest rank, and ``predictions``, int64 (2000,).
    """
    order = {"epochs": EPOCHS, "batch": batch, "learning_rate": learning_rate, "seed": seed, **more}
    answer: dict[str, Any] = team.call(**order)[0]
    return answer


def prepare(layout: Mapping[str, Any]) -> Callable[[int], dict[str, Any]]:
    """Start the ranks of a layout; what is returned trains once, by a seed, on the ranks that are up.

    Args:
        layout: As `check_layout` returns it.
    """
    cpus = cpus_of(layout["pinning"], layout["processes"], machine.allowed_cpus())
    up = team(layout["processes"], layout["threads"], cpus, layout["backend"]).start()
    return lambda seed: train(up, batch=layout["batch"], learning_rate=layout["learning_rate"], seed=seed)


def rivals(cores: int) -> list[tuple[int, int]]:
    """The layouts among which the grader looks for the fastest: (processes, threads), no more threads than cores."""
    most = min(cores, 8)
    counts = sorted({1, most, *(count for count in (2, 4) if count < most)})
    return [(count, max(1, cores // count)) for count in counts]


def prepare_best(global_batch: int, learning_rate: float) -> Callable[[int], dict[str, Any]]:
    """Try the `rivals` in turns, keep the fastest, and return what trains with it.

    Args:
        global_batch: Images of a step, all ranks together; every layout trains the same.
        learning_rate: Likewise.
    """
    teams = {layout: team(*layout, None, "gloo") for layout in rivals(machine.usable_cores())}
    spent: dict[tuple[int, int], list[float]] = {layout: [] for layout in teams}
    for one in teams.values():
        one.start()
    for trial in range(_TRIALS):
        for layout, one in list(teams.items()):
            try:
                spent[layout].append(_try(one, layout[0], global_batch, learning_rate, trial)["seconds"])
            except ExperimentFailed:  # so slow that it cannot be the fastest
                one.close()
                del teams[layout]
    if not teams:
        raise ExperimentFailed(f"no layout trained {_TRIAL_IMAGES} images within {_TRIAL_LIMIT_S:.0f} s here")
    best = min(teams, key=lambda layout: min(spent[layout]))
    for layout, one in teams.items():
        if layout != best:
            one.close()
    batch = max(1, global_batch // best[0])
    return lambda seed: train(teams[best], batch=batch, learning_rate=learning_rate, seed=seed)


def _try(one: Team, processes: int, global_batch: int, learning_rate: float, seed: int) -> dict[str, Any]:
    batch, limit = max(1, global_batch // processes), _TRIAL_IMAGES
    order = {"epochs": 1, "images": limit, "is_judged": False, "time_limit_s": _TRIAL_LIMIT_S}
    return train(one, batch=batch, learning_rate=learning_rate, seed=seed, **order)


def baseline() -> Experiment:
    """The grader's own: the fastest layout that it finds here, with the batch and the rate of the start."""
    together = START["processes"] * START["batch"]
    return Experiment(PREPARE_BEST, {"global_batch": together, "learning_rate": START["learning_rate"]}, prepares=True)


def candidate(layout: Mapping[str, Any]) -> Experiment:
    """A learner's layout.

    Args:
        layout: As `check_layout` returns it.
    """
    return Experiment(PREPARE, {"layout": dict(layout)}, prepares=True)


def try_layout(layout: Mapping[str, Any], budget: Budget, rates: Sequence[float] = ()) -> str:
    """Train with a layout, and say how fast it was and how well it learned; for finding your way in the lab.

    Args:
        layout: Keys of `START`; what is left out stays as it is there.
        budget: In smoke nothing is started.
        rates: Learning rates to try on the same ranks, one run by each; none: two runs by that of the layout.

    Raises:
        ValueError: If it is no layout.
    """
    tried = [check_layout({**layout, "learning_rate": rate}) for rate in rates] or [check_layout(layout)]
    checked = tried[0]
    name = describe(checked)
    if reason := why_not_here(checked):
        return f"{name}: not possible here, {reason}."
    if not budget.process_s:
        return f"{name}: not tried, the smoke budget starts no ranks."
    cpus = cpus_of(checked["pinning"], checked["processes"], machine.allowed_cpus())
    with team(checked["processes"], checked["threads"], cpus, checked["backend"]) as up:
        images = max(_TRIAL_IMAGES // 2, checked["processes"] * checked["batch"])
        trial = {"images": images, "epochs": 1, "is_judged": False}
        whole_s = math.inf
        for seed in range(2):  # the first may warm up, unless it is slow beyond doubt
            short_s = train(up, **_recipe(checked), seed=seed, **trial)["seconds"]
            whole_s = min(whole_s, short_s * EPOCHS * TRAIN_IMAGES / images)
            if whole_s > 3 * _PATIENCE_S:
                break
        if whole_s > _PATIENCE_S:
            speed = EPOCHS * TRAIN_IMAGES / whole_s
            told = f"{speed:,.0f} images/s; a whole run would take {whole_s:.0f} s, so its accuracy was not measured"
            return f"{name}: {told}."
        runs = 1 if len(tried) > 1 else 2
        return "\n".join(_tell(one, [train(up, **_recipe(one), seed=seed) for seed in range(runs)]) for one in tried)


def _recipe(layout: Mapping[str, Any]) -> dict[str, Any]:
    return {name: layout[name] for name in ("batch", "learning_rate")}


def _tell(layout: Mapping[str, Any], found: Sequence[Mapping[str, Any]]) -> str:
    """What whole trainings with a layout gave."""
    seconds = [row["seconds"] for row in found]
    right = np.mean([(row["predictions"] == data().test.labels).mean() for row in found])
    times = " and ".join(measure.duration(one) for one in seconds)
    speed = EPOCHS * TRAIN_IMAGES / min(seconds)
    return f"{describe(layout)}: {speed:,.0f} images/s ({times}), {right:.1%} of the held-out images."


def describe(layout: Mapping[str, Any]) -> str:
    """A layout in a few words."""
    together = layout["processes"] * layout["batch"]
    return (
        f"{layout['processes']} × {layout['threads']}, pinning {layout['pinning']}, {layout['backend']}, global batch "
        f"{together}, rate {layout['learning_rate']:g}"
    )
