"""Switches: one change in the program, before against after."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from accelerando import measure, models, training
from accelerando.lessons import Budget
from accelerando.lessons.scaling import disturbance
from accelerando.lessons.scaling.breakdown import StepBreakdown
from accelerando.lessons.scaling.subject import STEP_RECIPE, images

SWITCH_RECIPE = STEP_RECIPE.changed(optimizer="adamw", optimizer_kind="for_loop", batch_size=32)
"""What the switches are tried on: an optimizer with more to do than SGD, on half the images."""


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

    @property
    def is_of_optimizer(self) -> bool:
        """Whether it changes the optimizer's part of a step and no other."""
        return set(self.before) == {"optimizer_kind"}


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
    before, after = (
        training.stepper(SWITCH_RECIPE.changed(**rest), data, model=models.CnnSizes(bias=bias))
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
    said = ". ".join(f"{words[outcome]}: {', '.join(names)}" for outcome, names in groups.items() if names) + "."
    lost = [found for found in comparisons if found.outcome == "undecided" and disturbance.is_wide(found.interval)]
    causes = dict.fromkeys(cause for found in lost for cause in found.state.disturbances)
    return f"{said} {disturbance.advice(tuple(causes))}" if lost else said


def ceilings(parts: StepBreakdown, comparisons: Sequence[measure.Comparison]) -> str:
    """Set what the switches of the optimizer gave beside the most that its share of the step allows.

    Args:
        parts: Of a step by `SWITCH_RECIPE`.
        comparisons: One for each of `SWITCHES`, in their order.
    """
    if parts.is_disturbed:
        return f"What the optimizer could give at most: {disturbance.advice(parts.causes)}"
    most = parts.ceiling("optimizer")
    share = (
        f"In this step (AdamW as `for_loop`, {parts.batch_size} images, {measure.duration(parts.step_s)}) the optimizer"
        f" has {parts.share('optimizer'):.1%}, so no optimizer can make it more than **{most:.3f} times** as fast"
    )
    told = [
        f"*{found.candidate.label}* {_against(found, most)}"
        for switch, found in zip(SWITCHES, comparisons, strict=True)
        if switch.is_of_optimizer and found.pairs
    ]
    return ". ".join((share, *told)) + "."


def _against(found: measure.Comparison, most: float) -> str:
    low, high = found.interval
    start = f"gave {found.ratio:.3f} ({low:.3f} to {high:.3f})"
    if low > most:
        return f"{start}, all of it more than can be: one of the two measurements was disturbed, run the cell again"
    if found.ratio > most:
        return f"{start}: the part of the interval above {most:.3f} is noise"
    return f"{start}, which fits below it"
