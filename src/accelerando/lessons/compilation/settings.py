"""Backends and modes of ``torch.compile``: what each setting costs and brings."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from accelerando import measure, rounds, torch_compile
from accelerando.lessons import Budget
from accelerando.lessons.compilation.sides import compile_trifle, in_own_process, in_turns, make_sides, seconds
from accelerando.lessons.compilation.subjects import Subject
from accelerando.lessons.compilation.toolchain import Toolchain


@dataclass(frozen=True)
class Setting:
    """Arguments of ``torch.compile``.

    Args:
        name: As it would be written.
        arguments: Backend, mode, dynamic.
        note: What it does.
    """

    name: str
    arguments: Mapping[str, Any]
    note: str


SETTINGS = (
    Setting('backend="eager"', {"backend": "eager"}, "Dynamo alone: captures, then runs the operators as before"),
    Setting('backend="aot_eager"', {"backend": "aot_eager"}, "and AOTAutograd: one graph for the backward, too"),
    Setting("the default", {"backend": "inductor"}, "and Inductor: fused kernels"),
    Setting('mode="reduce-overhead"', {"mode": "reduce-overhead"}, "and CUDA graphs: on a CPU the same as the default"),
    Setting("dynamic=True", {"dynamic": True}, "Inductor, and one code for every size"),
    Setting('mode="max-autotune"', {"mode": "max-autotune"}, "and several versions of each matrix product, timed"),
)


@dataclass(frozen=True)
class SettingPoint:
    """A setting's price and gain, with the seconds of the eager step that it is set against."""

    setting: Setting
    compile_s: float
    point: rounds.RoundPoint
    eager_s: float


def measure_settings(subject: Subject, budget: Budget, toolchain: Toolchain) -> tuple[SettingPoint, ...]:
    """Compile the same step under several settings, each in fresh caches, and time all of them in turns.

    They share one process, in which a trifle was compiled first: seconds that only load the compiler are left out.

    Args:
        subject: What to train.
        budget: How many rounds; "max-autotune" takes "full".
        toolchain: Without a code generator the settings that need it are left out.
    """
    chosen = [
        number
        for number, setting in enumerate(SETTINGS)
        if (toolchain.generates_code or not _generates_code(number))
        and (budget.name == "full" or setting.arguments.get("mode") != "max-autotune")
    ]
    count = budget.rounds if budget.process_s else 1
    arguments = subject.arguments(budget) | {"chosen": chosen, "count": count}
    found = in_own_process(settings_in_child, arguments, budget)
    rows = zip(chosen, found["compile_s"], found["points"], strict=True)
    return tuple(
        SettingPoint(
            SETTINGS[number],
            compile_s,
            rounds.RoundPoint(number + 1, row["median_s"], row["ratio"], (row["low"], row["high"]), ()),
            found["eager_s"],
        )
        for number, compile_s, row in rows
    )


def settings_in_child(sizes: Mapping[str, Any], batch_size: int, chosen: Sequence[int], count: int) -> dict[str, Any]:
    """Compile under each setting, then time them all in turns, the eager step first."""
    caches = torch_compile.empty_caches if any(map(_generates_code, chosen)) else nullcontext
    if caches is not nullcontext:
        with caches():
            compile_trifle()
    eager, _ = make_sides(sizes, batch_size, "eager")
    steps: dict[int, Callable[[], object]] = {0: eager.step}
    compile_s = []
    for number in chosen:
        more = {"backend": "inductor", **SETTINGS[number].arguments}
        _, compiled = make_sides(sizes, batch_size, **more)
        with caches():
            compile_s.append(sum(seconds(compiled.step) for _ in range(2)))
        steps[number + 1] = compiled.step
    points = in_turns(steps, count)
    took = [max(seconds - 2 * point.median_s, 0.0) for seconds, point in zip(compile_s, points[1:], strict=True)]
    rows = [
        {"median_s": point.median_s, "ratio": point.ratio, "low": point.interval[0], "high": point.interval[1]}
        for point in points[1:]
    ]
    return {"compile_s": took, "points": rows, "eager_s": points[0].median_s}


def _generates_code(number: int) -> bool:
    return SETTINGS[number].arguments.get("backend") not in ("eager", "aot_eager")


def settings_table(found: Sequence[SettingPoint]) -> str:
    """Write settings as a Markdown table."""
    lines = ["| `torch.compile(…)` | compile seconds | times as fast as eager | what runs |", "|---|---|---|---|"]
    for entry in found:
        low, high = entry.point.interval
        spread = f" ({low:.2f} to {high:.2f})" if high < math.inf else ""
        lines.append(
            f"| `{entry.setting.name}` | {entry.compile_s:.1f} | {entry.point.ratio:.2f}{spread} | "
            f"{entry.setting.note} |"
        )
    eager = f"The eager step took {measure.duration(found[0].eager_s)}. " if found else ""
    listed = ", ".join(f"`{name}`" for name in torch.compiler.list_backends())
    said = (
        f"{eager}The compile seconds were measured once each. Backends that this PyTorch knows by name (those for "
        f"finding faults left out; some need a further package): {listed}."
    )
    return "\n".join([*lines, "", said])
