"""The lab's timed question: train a pruned net further, beside the one that was there."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from torch import nn

from accelerando import datasets, models, seeds, stats, training
from accelerando.lessons import Budget
from accelerando.lessons.pruning.config import config_list
from accelerando.lessons.pruning.nets import WIDE_CNN
from accelerando.lessons.pruning.removal import METHODS, apply_masks, find_masks, remove_channels
from accelerando.lessons.pruning.subject import TRAIN_RECIPE, TUNE_RECIPE, batches_of, embedded, example, images
from accelerando.lessons.pruning.tracing import layers, trace

TRAIN_PLAN = "accelerando.lessons.pruning.task:train_plan"
START: dict[str, Any] = {
    "config_list": [{"op_types": ["Conv2d"], "sparse_ratio": 0.2}],
    "method": "l1",
    "multiple": 1,
    "remove": False,
    "learning_rate": 0.003,
}
"""The plan that the question hands out: a fifth of the channels masked, and nothing removed."""
_ENTRY = ("op_names", "op_types", "exclude_op_names", "sparse_ratio")


@cache
def prunable() -> dict[str, tuple[str, int]]:
    """Layer -> class and output channels of the net of this question, for the layers that may lose some."""
    graph = trace(models.build(WIDE_CNN))
    return {name: (type(layer).__name__, len(graph.get_parameter(f"{name}.weight"))) for name, layer in layers(graph)}


def check_plan(plan: Mapping[str, Any]) -> dict[str, float]:
    """Look through a plan before anything is trained.

    Returns:
        Layer -> share of its channels to go.

    Raises:
        ValueError: In words, if it is none.
    """
    unknown = [key for key in plan if key not in START]
    if unknown:
        raise ValueError(f"a plan has no {str(unknown[0])[:40]!r}: it has {', '.join(START)}")
    plan = {**START, **plan}
    if not isinstance(plan["method"], str) or plan["method"] not in METHODS:
        raise ValueError(f"method is {plan['method']!r:.40}: it must be one of {', '.join(METHODS)}")
    _whole(plan["multiple"])
    if not isinstance(plan["remove"], bool):
        raise ValueError(f"remove is {plan['remove']!r:.40}: it must be True or False")
    rate = plan["learning_rate"]
    if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 < rate <= 10:
        raise ValueError(f"learning_rate is {rate!r:.40}: it must be above 0 and at most 10")
    return read_config(plan["config_list"])


def _whole(multiple: Any) -> None:
    if isinstance(multiple, bool) or not isinstance(multiple, int) or not 1 <= multiple <= 128:
        raise ValueError(f"multiple is {multiple!r:.40}: it must be a whole number from 1 to 128")


def read_config(config: Any) -> dict[str, float]:
    """Read a list as NNI does, for the net of this question: the first entry that names a layer counts.

    Raises:
        ValueError: If it is no such list, names a layer that must keep its channels, or a share out of range.
    """
    if not isinstance(config, list) or not config or not all(isinstance(entry, dict) for entry in config):
        raise ValueError("config_list must be a list of dictionaries, at least one")
    shares: dict[str, float] = {}
    for entry in config:
        for name in _named(entry):
            shares.setdefault(name, float(entry["sparse_ratio"]))
    return shares


def _named(entry: dict[str, Any]) -> list[str]:
    for key, value in entry.items():
        if key not in _ENTRY:
            raise ValueError(f"an entry of config_list has no {str(key)[:40]!r} here: it has {', '.join(_ENTRY)}")
        if key != "sparse_ratio" and not (isinstance(value, list) and all(isinstance(name, str) for name in value)):
            raise ValueError(f"{key} must be a list of names, such as ['0', '4']")
    ratio = entry.get("sparse_ratio")
    if not isinstance(ratio, float) or not 0 <= ratio < 1:
        raise ValueError(f"sparse_ratio is {ratio!r:.40}: NNI wants a float from 0.0 up to, not including, 1.0")
    known, kinds = prunable(), entry.get("op_types")
    for name in entry.get("op_names", []):
        if name not in known:
            raise ValueError(f"op_names has {name[:40]!r}: layers that may lose channels are {', '.join(known)}")
    for kind in kinds or []:
        if kind not in {found for found, _ in known.values()}:
            raise ValueError(f"op_types has {kind[:40]!r}: the last layer must keep its ten classes, so only 'Conv2d'")
    if "op_names" not in entry and kinds is None:
        raise ValueError("an entry of config_list names no layer: give op_types or op_names")
    names = entry.get("op_names", list(known))
    chosen = [name for name in names if kinds is None or known[name][0] in kinds]
    found = [name for name in chosen if name not in entry.get("exclude_op_names", [])]
    if not found:
        raise ValueError("an entry of config_list names no layer of this net")
    return found


def task_data() -> datasets.Dataset:
    """The images of the timed question: 4,000 to train on and 2,000 to judge by, the same on every machine."""
    return embedded(4000, 2000)


def train_plan(plan: dict[str, Any], seed: int = 0) -> dict[str, Any]:
    """Warm the dense net up for an epoch, prune it by the plan, train it for another: the lab's trusted experiment.

    Args:
        plan: As `START`; what is left out is taken from there.
        seed: Initial weights and order of the images.

    Returns:
        ``seconds`` of training after pruning (neither warming up nor pruning nor judging) and ``predictions``, int64
        (2000,).
    """
    return _train(plan, seed, task_data())


def _train(plan: Mapping[str, Any], seed: int, data: datasets.Dataset) -> dict[str, Any]:
    shares, plan = check_plan(plan), {**START, **plan}
    with seeds.preserved():
        seeds.seed(seed)
        dense = models.build(WIDE_CNN)
    training.fit(TRAIN_RECIPE.changed(epochs=1, seed=seed), data, model=dense)
    model = carry_out(dense, shares, plan, data)
    # One thread: its time is calmer than that of several, and both sides have it.
    recipe = TUNE_RECIPE.changed(learning_rate=float(plan["learning_rate"]), seed=seed, threads=1)
    found = training.fit(recipe, data, model=model)
    return {"seconds": found.seconds, "predictions": found.predictions}


def carry_out(
    dense: nn.Module, shares: Mapping[str, float], plan: Mapping[str, Any], data: datasets.Dataset
) -> nn.Module:
    """Prune by a plan: mask, and remove if it says so."""
    config = config_list(dense, shares, example(), multiple=plan["multiple"])
    masks = find_masks(dense, config, plan["method"], batches_of(data))
    return remove_channels(dense, masks, example()) if plan["remove"] else apply_masks(dense, masks)


@dataclass(frozen=True)
class PlanTrial:
    """Two plans, trained in turn with the same seeds.

    Args:
        ratio: Of the speeds: above 1 the second plan is faster.
        run_ratios: The same for each run.
        accuracy_before: With the first plan.
        accuracy_after: With the second plan.
        accuracy: Whether the second one kept it.
        margin: Accuracy that may be lost, as a fraction.
        is_removing: Whether either plan takes channels out.
    """

    ratio: float
    run_ratios: tuple[float, ...]
    accuracy_before: float
    accuracy_after: float
    accuracy: stats.AccuracyVerdict
    margin: float
    is_removing: bool

    def sentence(self) -> str:
        """What this run showed."""
        allowed = f"{100 * self.margin:g} points may be lost"
        runs = "one run" if self.accuracy.runs[0] == 1 else f"{self.accuracy.runs[0]} runs"
        told = ", ".join(f"{ratio:.2f}" for ratio in self.run_ratios)
        noise = "Neither plan removes a channel: what differs from 1.00 here can only be noise."
        end = "" if self.is_removing else f" {noise}"
        return (
            f"**{self.ratio:.2f} times** as fast (run by run: {told}); accuracy {self.accuracy_before:.1%} with the "
            f"first plan, {self.accuracy_after:.1%} with the second: {self.accuracy.verdict} ({allowed}; {runs} of "
            f"each; `./course check` measures longer, on a quiet machine).{end}"
        )


def try_plan(start: dict[str, Any], plan: dict[str, Any], budget: Budget, *, margin: float = 0.02) -> PlanTrial:
    """Train by two plans in turn, in this process, and compare; for finding your way in the lab.

    Args:
        start: The plan that is there.
        plan: The one that is proposed; keys left out are as in `START`.
        budget: How many images.
        margin: Accuracy that may be lost, as a fraction.
    """
    data = images(budget)
    sides: tuple[list[dict[str, Any]], list[dict[str, Any]]] = ([], [])
    for seed in range(1 if budget.name == "smoke" else 2):
        for place in (0, 1) if seed % 2 == 0 else (1, 0):  # who comes first alternates
            sides[place].append(_train((start, plan)[place], seed, data))
    before, after = (np.stack([run["predictions"] == data.test.labels for run in side]) for side in sides)
    ratios = [math.log(old["seconds"] / new["seconds"]) for old, new in zip(*sides, strict=True)]
    kept = stats.paired_non_inferiority(before, after, margin)
    return PlanTrial(
        ratio=math.exp(float(np.mean(ratios))),
        run_ratios=tuple(math.exp(ratio) for ratio in ratios),
        accuracy_before=float(before.mean()),
        accuracy_after=float(after.mean()),
        accuracy=kept,
        margin=margin,
        is_removing=any({**START, **each}["remove"] for each in (start, plan)),
    )
