"""The lab's timed question: two ranks of this machine train over a simulated slow link, by a plan."""

from __future__ import annotations

import datetime
import multiprocessing
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from accelerando import costs, datasets, workers
from accelerando.lessons.clusters.plans import RANKS, TEST_IMAGES, TRAIN_IMAGES, Plan, check_plan
from accelerando.workers import Experiment

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    import numpy as np

PREPARE, RUN_PLAN = (f"accelerando.lessons.clusters.task:{name}" for name in ("prepare", "run_plan"))
MEGABITS_PER_S, LATENCY_S = 100, 1e-3
LINK = costs.Link(LATENCY_S, MEGABITS_PER_S * 1e6 / 8)
"""It is simulated, so that the question is the same on every machine: each message waits as long as it would take."""
_START_LIMIT_S = 120.0
_ONE_THREAD = {"OMP_NUM_THREADS": "1"}


def experiment(plan: Plan) -> Experiment:
    """The trusted experiment of a plan: both ranks stay up between runs."""
    return Experiment(PREPARE, {"plan": asdict(plan)}, _ONE_THREAD, prepares=True)


def try_plan(answer: Mapping[str, Any], runs: int = 2) -> str:
    """Run the start and a plan a few times, and say what came of it; for finding your way in the lab.

    Args:
        answer: As `plans.check_plan` takes it.
        runs: Of each, at least 1.

    Raises:
        ValueError: If it is no plan.
    """
    told = []
    for plan in (Plan(), check_plan(answer)):
        found = workers.run(Experiment(RUN_PLAN, {"plan": asdict(plan), "runs": runs}, _ONE_THREAD)).value
        told.append((sum(found["seconds"]) / runs, sum(found["correct"]) / runs / TEST_IMAGES))
    (start_s, start_accuracy), (own_s, own_accuracy) = told
    return (
        f"The start: {start_s:.2f} s and {start_accuracy:.1%}. Your plan: {own_s:.2f} s and {own_accuracy:.1%}, "
        f"{start_s / own_s:.1f} times as fast. (`./course check 10` measures in turns, and longer.)"
    )


def run_plan(plan: Mapping[str, Any], runs: int) -> dict[str, list[float]]:
    """Train ``runs`` times, in a process of its own; seconds and right answers of each."""
    train = prepare(plan)
    found = [train(seed=seed) for seed in range(runs)]
    right = [float((one["predictions"] == labels()).sum()) for one in found]
    return {"seconds": [one["seconds"] for one in found], "correct": right}


@cache
def labels() -> np.ndarray:
    """The right classes of the held-out images, int64 (`TEST_IMAGES`,)."""
    data = datasets.fashion_mnist(embedded_only=True, train_images=TRAIN_IMAGES, test_images=TEST_IMAGES)
    return data.test.labels


def prepare(plan: Mapping[str, Any]) -> Callable[..., dict[str, Any]]:
    """Start the second rank, join it, and return the function that trains once.

    Args:
        plan: As `plans.check_plan` takes it.

    Returns:
        A function of ``seed`` that returns ``seconds`` and ``predictions``.
    """
    checked = check_plan(plan)
    meeting = tempfile.mkdtemp(prefix="accelerando-pair-")
    ours, theirs = multiprocessing.Pipe()
    spawned = multiprocessing.get_context("spawn")
    spawned.Process(target=_follow, args=(str(meeting), asdict(checked), theirs), daemon=True).start()
    run = _join(Path(meeting), 0, checked)
    run(0)
    shutil.rmtree(meeting, ignore_errors=True)  # they have met

    def train(seed: int) -> dict[str, Any]:
        ours.send(seed)
        found = run(seed)
        return {"seconds": found["seconds"], "predictions": found["predictions"]}

    return train


def _follow(meeting: str, plan: Mapping[str, Any], commands: Connection) -> None:
    """Be rank 1: train whenever rank 0 does, with the same seed."""
    run = _join(Path(meeting), 1, check_plan(plan))
    run(0)
    while True:
        try:
            seed = commands.recv()
        except EOFError:
            return
        run(seed)


def _join(meeting: Path, rank: int, plan: Plan) -> Callable[[int], dict[str, Any]]:
    import torch
    import torch.distributed as dist

    from accelerando.lessons.clusters import on_plans, slow_wire

    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{meeting / 'store'}",
        rank=rank,
        world_size=RANKS,
        timeout=datetime.timedelta(seconds=_START_LIMIT_S),
    )
    images, wait = on_plans.load(rank), slow_wire.of(LINK)
    return lambda seed: on_plans.train(plan, seed, images, wait)
