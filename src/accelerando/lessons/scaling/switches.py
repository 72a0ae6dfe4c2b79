"""Switches: one change in the program, before against after."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from accelerando import measure, models, training
from accelerando.lessons import Budget
from accelerando.lessons.scaling.subject import STEP_RECIPE, images


@dataclass(frozen=True)
class Switch:
    """One change, and what is on either side of it.

    Args:
        name: A few words.
        before: Fields of `Recipe`, and under "bias" whether convolutions before BatchNorm have one.
        after: Likewise.
        why: What the switch saves.
    """

    name: str
    before: Mapping[str, Any]
    after: Mapping[str, Any]
    why: str


SWITCHES = (
    Switch("no bias before BatchNorm", {"bias": True}, {"bias": False}, "parameters that BatchNorm cancels"),
    Switch(
        "zero_grad: forget, not fill",
        {"zero_grad_set_to_none": False},
        {"zero_grad_set_to_none": True},
        "writing zeros, and reading them again to add to them",
    ),
    Switch(
        "optimizer: foreach",
        {"optimizer_kind": "for_loop"},
        {"optimizer_kind": "foreach"},
        "starting one operator per parameter and sum",
    ),
    Switch(
        "optimizer: fused",
        {"optimizer_kind": "for_loop"},
        {"optimizer_kind": "fused"},
        "reading and writing every parameter several times",
    ),
    Switch(
        "layout: channels last",
        {"layout": "contiguous"},
        {"layout": "channels_last"},
        "reordering images inside every convolution",
    ),
)


def measure_switch(switch: Switch, budget: Budget) -> measure.Comparison:
    """Compare both sides of a switch in this process: one training step each, in turn."""
    data = images(budget)
    recipe = STEP_RECIPE.changed(optimizer="adamw", batch_size=32)
    before, after = (
        training.stepper(recipe.changed(**rest), data, model=models.CnnSizes(bias=bias))
        for bias, rest in (_split(switch.before), _split(switch.after))
    )
    return measure.compare(before, after, budget_s=budget.pair_s, labels=("before", switch.name))


def _split(fields: Mapping[str, Any]) -> tuple[bool, dict[str, Any]]:
    rest = dict(fields)
    return bool(rest.pop("bias", False)), rest


def reading(comparisons: Sequence[measure.Comparison]) -> str:
    """Say which of several switches helped in this run, which did not, and which stay open."""
    if not comparisons:
        return "Nothing was measured: the smoke budget has no time for it."
    groups: dict[str, list[str]] = {"faster": [], "slower": [], "not faster": [], "undecided": []}
    for found in comparisons:
        ratio = f"{found.ratio:.2f}" if found.pairs else "not one pair"
        groups[found.outcome].append(f"{found.candidate.label} ({ratio})")
    words = {
        "faster": "Faster here",
        "slower": "Slower here",
        "not faster": "Not faster here",
        "undecided": "Too close to call in this time",
    }
    return ". ".join(f"{words[outcome]}: {', '.join(names)}" for outcome, names in groups.items() if names) + "."
