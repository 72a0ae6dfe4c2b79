"""What compiling costs, what it brings, and after how many steps the second has paid for the first."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from accelerando import costs, measure, models, rounds, seeds, torch_compile, workers
from accelerando.figures import Picture
from accelerando.figures import compilation as pictures
from accelerando.lessons import Budget
from accelerando.lessons.compilation.toolchain import Toolchain
from accelerando.models import Sizes
from accelerando.workers import Experiment

HERE = "accelerando.lessons.compilation.payback"
_LIBRARY = ("conv", "addmm", "aten::mm", "aten::bmm", "linear", "gemm")
_EAGER, _COMPILED = 0, 1
_CURVE_POINTS = 240


@dataclass(frozen=True)
class Subject:
    """A network to be trained eagerly and compiled.

    Args:
        name: A few words.
        sizes: Of the network.
        batch_size: Examples per step.
    """

    name: str
    sizes: Sizes
    batch_size: int


GATES = Subject("gates, elementwise work", models.GatedSizes(inputs=32, width=256, blocks=2), 1024)
ONE_GATE = Subject("one block of gates", models.GatedSizes(inputs=32, width=256, blocks=1), 1024)
LINEAR = Subject("wide linear layers", models.MlpSizes(hidden=(1024, 1024)), 256)
WIDE_CNN = models.CnnSizes(channels=(64, 128, 128), kernel=5, batch_norm=False, bias=True)
CONVOLUTIONS = Subject("wide convolutions", WIDE_CNN, 16)
SUBJECTS = (GATES, LINEAR, CONVOLUTIONS)


@dataclass(frozen=True)
class Payback:
    """A training step eager and compiled.

    Args:
        subject: What was trained.
        start_s: Compiling a trifle before that: the C++ compiler is looked up, tried out and prepared, once per process
            that finds empty caches.
        compile_s: The first compiled steps, less what they would have taken later: translating, generating, compiling.
        recompile_s: The same for a batch of another size, once; NaN when that was not tried.
        eager_step_s: Median.
        compiled_step_s: Median, once everything is compiled.
        ratio: Eager time / compiled time.
        interval: 95 % interval for it; (0, inf) with too few rounds.
        library_share: Share of an eager step spent in convolutions and matrix products, 0 to 1: library calls that the
            compiler leaves as they are.
        loss_difference: Between both sides' losses of the same steps, relative.
        toolchain: How far compiling went.
    """

    subject: Subject
    start_s: float
    compile_s: float
    recompile_s: float
    eager_step_s: float
    compiled_step_s: float
    ratio: float
    interval: tuple[float, float]
    library_share: float
    loss_difference: float
    toolchain: Toolchain

    @property
    def break_even_steps(self) -> float:
        """Steps after which compiling has paid for itself; infinity when it never does."""
        return costs.predict_break_even_steps(self.compile_s, self.eager_step_s, self.compiled_step_s)

    @property
    def cold_break_even_steps(self) -> float:
        """The same for a program that finds empty caches and has to prepare the compiler, too."""
        return costs.predict_break_even_steps(self.start_s + self.compile_s, self.eager_step_s, self.compiled_step_s)

    @property
    def ceiling(self) -> float:
        """The gain if everything but library calls took no time at all (Amdahl)."""
        return 1 / max(self.library_share, 1e-3)

    @property
    def verdict(self) -> str:
        """``faster``, ``slower`` or ``no difference`` that can be told from noise."""
        low, high = self.interval
        return "faster" if low > 1 else "slower" if high < 1 else "no difference"

    def sentence(self) -> str:
        """What this run showed."""
        low, high = self.interval
        spread = f" (95 % interval {low:.2f} to {high:.2f})" if high < math.inf else ""
        start = f"{self.toolchain.why} " if self.toolchain.why else ""
        start += (
            f"**{self.subject.name}**: {self.ratio:.2f} times as fast{spread}; a step took "
            f"{measure.duration(self.eager_step_s)} eager, {measure.duration(self.compiled_step_s)} compiled, and "
            f"compiling took {measure.duration(self.compile_s)}"
        )
        if self.verdict == "faster":
            cold = f"{self.start_s:.1f} s for getting the compiler ready, once: {self.cold_break_even_steps:,.0f}"
            more = f" (with {cold})" if self.start_s > 0.5 else ""
            return f"{start}. That is paid back after about {self.break_even_steps:,.0f} steps{more}."
        if self.verdict == "slower":
            return f"{start}. That is never paid back: compiled, each step takes longer."
        return f"{start}. Whether that is ever paid back cannot be told: the steps do not differ by more than noise."

    def ceiling_sentence(self) -> str:
        """What the share of library calls had said beforehand."""
        limit = f"{self.library_share:.0%} of an eager step are library calls, so at most {self.ceiling:.2f} times"
        if self.interval[0] > self.ceiling:
            return f"{limit}, and it is more: the library was called in another way, with another layout for example."
        return f"{limit}."

    def check_sentence(self) -> str:
        """Whether both sides computed the same, and what a second shape costs."""
        said = f"The losses of both sides differ by {self.loss_difference:.1g} of their size at most."
        if math.isnan(self.recompile_s) or not self.toolchain.generates_code:
            return said
        return f"{said} A batch of another size, once, cost another {measure.duration(self.recompile_s)}."


def measure_payback(subject: Subject, budget: Budget, toolchain: Toolchain) -> Payback:
    """Measure a training step eager and compiled, in turns, in a process of its own with fresh compile caches.

    Args:
        subject: What to train.
        budget: How many rounds; "smoke" starts no process.
        toolchain: How far compiling goes.
    """
    return _payback(
        subject, toolchain, _in_own_process("steps_in_child", _arguments(subject, budget, toolchain), budget)
    )


def _arguments(subject: Subject, budget: Budget, toolchain: Toolchain) -> dict[str, Any]:
    return {
        "sizes": models.sizes_to_dict(subject.sizes),
        "batch_size": subject.batch_size if budget.process_s else 16,
        "backend": toolchain.backend,
        "count": 2 * budget.rounds + 1 if budget.process_s else 1,
        "recompiles": False,
        "race_s": 0.0,
    }


def _payback(subject: Subject, toolchain: Toolchain, found: Mapping[str, Any]) -> Payback:
    low, high = found["interval"]
    names = ("start_s", "compile_s", "recompile_s", "eager_step_s", "compiled_step_s", "ratio", "library_share")
    rest = {name: found[name] for name in (*names, "loss_difference")}
    return Payback(subject, interval=(low, high), toolchain=toolchain, **rest)


def ceilings(found: Sequence[Payback]) -> Picture:
    """Each network's gain, below the most that it could be."""
    rows = [
        pictures.Ceiling(one.subject.name, one.library_share, one.ceiling, one.ratio, one.interval) for one in found
    ]
    return pictures.ceilings(rows)


def _in_own_process(target: str, arguments: dict[str, Any], budget: Budget) -> dict[str, Any]:
    """Run a function of this module in a fresh process with fresh caches; in this one when the budget has no time."""
    if not budget.process_s:
        torch._dynamo.reset()
        value: dict[str, Any] = globals()[target](**arguments)
        return value
    with torch_compile.fresh_caches() as variables:
        found: dict[str, Any] = workers.run(Experiment(f"{HERE}:{target}", arguments, variables)).value
    return found


class _Training:
    """One side: a network, its optimizer and the function that is compiled, forward and loss together."""

    def __init__(self, model: nn.Module, loss_of: Callable[..., torch.Tensor], inputs: torch.Tensor) -> None:
        self.model, self.loss_of, self.inputs = model, loss_of, inputs
        self.labels = torch.arange(len(inputs)) % 10
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step(self, rows: int | None = None) -> float:
        """Train on the batch, or on its first rows; returns the loss."""
        self.optimizer.zero_grad()
        loss = self.loss_of(self.model, self.inputs[:rows], self.labels[:rows])
        loss.backward()
        self.optimizer.step()
        return float(loss.detach())


def loss_of(model: nn.Module, inputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """What is compiled: forward and loss; backward follows from it."""
    return nn.functional.cross_entropy(model(inputs), labels)


def _sides(sizes: Mapping[str, Any], batch_size: int, backend: str, **more: Any) -> tuple[_Training, _Training]:
    seeds.seed(0)
    family = models.sizes_from_dict(sizes)
    model, inputs = models.build(family).train(), models.example_input(family, batch_size)
    compiled: Callable[..., torch.Tensor] = torch.compile(loss_of, backend=backend, **more)
    return _Training(copy.deepcopy(model), loss_of, inputs), _Training(model, compiled, inputs)


def steps_in_child(
    sizes: Mapping[str, Any], batch_size: int, backend: str, count: int, recompiles: bool, race_s: float
) -> dict[str, Any]:
    """Compile, time both sides in turns, and race if asked to; see `Payback` and `Race` for what comes back."""
    start_s = _get_ready() if backend == "inductor" else 0.0
    eager, compiled = _sides(sizes, batch_size, backend)
    first_s, losses = zip(*(_first_steps(side) for side in (eager, compiled)), strict=True)
    points = _in_turns({_EAGER: eager.step, _COMPILED: compiled.step}, count)
    step_s = [point.median_s for point in points]
    found = {
        "start_s": start_s,
        "compile_s": max(sum(first_s[_COMPILED]) - len(first_s[_COMPILED]) * step_s[_COMPILED], 0.0),
        "eager_step_s": step_s[_EAGER],
        "compiled_step_s": step_s[_COMPILED],
        "ratio": points[_COMPILED].ratio,
        "interval": list(points[_COMPILED].interval),
        "library_share": library_share(eager.step),
        "loss_difference": float(np.max(np.abs(np.divide(losses[_COMPILED], losses[_EAGER]) - 1))),
    }
    if race_s:
        more = _steps_worth_racing(found, race_s) - len(first_s[_EAGER])
        took_s = _race(eager, compiled, max(more, 8))
        found |= {
            name: np.cumsum([*first_s[side], *took_s[side]]) for side, name in enumerate(("eager_s", "compiled_s"))
        }
    return found | {"recompile_s": _recompile_s(compiled, batch_size) if recompiles else math.nan}


def _get_ready() -> float:
    """Load the compiler, which is not counted, and compile a trifle; returns the seconds of that."""
    torch_compile.load()
    return _seconds(lambda: torch.compile(_trifle)(torch.ones(8)))


def _trifle(x: torch.Tensor) -> torch.Tensor:
    return x + 1


def _first_steps(side: _Training) -> tuple[list[float], list[float]]:
    """Seconds and losses of a side's first two steps; compiling happens in them."""
    seconds, losses = [], []
    for _ in range(2):
        begun = time.perf_counter()
        losses.append(side.step())
        seconds.append(time.perf_counter() - begun)
    return seconds, losses


def _steps_worth_racing(found: Mapping[str, Any], race_s: float) -> int:
    """A little beyond the predicted break-even step, as far as the time allows."""
    predicted = costs.predict_break_even_steps(found["compile_s"], found["eager_step_s"], found["compiled_step_s"])
    return int(min(1.15 * predicted + 20, race_s / found["eager_step_s"]))


def _race(eager: _Training, compiled: _Training, steps: int) -> tuple[list[float], list[float]]:
    """Seconds of each further step; the sides take turns of about a dozen steps, so that both meet the same machine."""
    took_s: tuple[list[float], list[float]] = ([], [])
    while len(took_s[_COMPILED]) < steps:
        turn = min(12, steps - len(took_s[_COMPILED]))
        for side, training in ((_EAGER, eager), (_COMPILED, compiled)):
            took_s[side].extend(_seconds(training.step) for _ in range(turn))
    return took_s


def _in_turns(steps: Mapping[int, Callable[[], object]], count: int) -> tuple[rounds.RoundPoint, ...]:
    return rounds.measure_rounds(steps, count, sample_s=0.12 if count > 1 else 0.01)


def _recompile_s(compiled: _Training, batch_size: int) -> float:
    rows = batch_size - 3
    took_s = [_seconds(lambda: compiled.step(rows)) for _ in range(4)]
    return max(sum(took_s[:2]) - sum(took_s[2:]), 0.0)


def _seconds(function: Callable[[], object]) -> float:
    begun = time.perf_counter()
    function()
    return time.perf_counter() - begun


def library_share(step: Callable[[], object], steps: int = 3) -> float:
    """Measure the share of a step that is spent inside convolutions and matrix products.

    Args:
        step: A training step, not compiled.
        steps: How many to look at.
    """
    from torch.profiler import ProfilerActivity, profile

    step()
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        for _ in range(steps):
            step()
    events = profiler.key_averages()
    total = sum(event.self_cpu_time_total for event in events)
    library = sum(event.self_cpu_time_total for event in events if any(name in event.key for name in _LIBRARY))
    return library / total if total else 0.0


# -- the break-even step, measured ------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Race:
    """Seconds since the first step, eager and compiled, over the steps of one run.

    Args:
        payback: What two short measurements say, from which the crossing is predicted.
        steps: Steps at which the seconds stand.
        eager_s: Since the start.
        compiled_s: Since the start, compiling included.
        crossed_at: First step after which the compiled run is ahead and stays so; None when it is not at the end.
    """

    payback: Payback
    steps: np.ndarray
    eager_s: np.ndarray
    compiled_s: np.ndarray
    crossed_at: int | None

    def sentence(self) -> str:
        """What this run showed."""
        predicted = self.payback.break_even_steps
        total = int(self.steps[-1])
        start = f"{self.payback.toolchain.why} " if self.payback.toolchain.why else ""
        said = f"Predicted: {predicted:,.0f} steps" if predicted < math.inf else "Predicted: never"
        if self.crossed_at is None:
            behind = self.compiled_s[-1] - self.eager_s[-1]
            return f"{start}{said}. After {total:,} steps the compiled run is still {behind:.1f} s behind."
        off = f" ({abs(self.crossed_at / predicted - 1):.0%} off)" if 0 < predicted < math.inf else ""
        met_s = float(np.interp(self.crossed_at, self.steps, self.compiled_s))
        return (
            f"{start}{said}. Measured: the compiled run is ahead from step **{self.crossed_at:,}** on{off}, after "
            f"{met_s:.1f} s. A run of fewer steps is better left alone."
        )

    def picture(self) -> Picture:
        """Both runs as curves."""
        return pictures.crossing(
            self.payback.subject.name,
            self.steps.tolist(),
            self.eager_s.tolist(),
            self.compiled_s.tolist(),
            predicted=self.payback.break_even_steps,
            crossed_at=self.crossed_at,
        )


def measure_race(subject: Subject, budget: Budget, toolchain: Toolchain, *, limit_s: float = 20.0) -> Race:
    """Train the same network twice from the first step on, eager and compiled, and see who is ahead when.

    The clock of a side runs only while it is its turn, from before its first step, compiling included; that the
    compiler is loaded and got ready is not counted. A recompile for a batch of another size is timed at the end.

    Args:
        subject: What to train.
        budget: "smoke" makes few steps, in this process.
        toolchain: How far compiling goes.
        limit_s: The eager run is made no longer than this.
    """
    arguments = _arguments(subject, budget, toolchain) | {
        "recompiles": True,
        "race_s": limit_s if budget.process_s else 1e-9,
    }
    found = _in_own_process("steps_in_child", arguments, budget)
    eager_s, compiled_s = (np.asarray(found[side]) for side in ("eager_s", "compiled_s"))
    kept = np.unique(np.linspace(0, len(eager_s) - 1, min(len(eager_s), _CURVE_POINTS)).astype(int))
    payback = _payback(subject, toolchain, found)
    return Race(payback, kept + 1, eager_s[kept], compiled_s[kept], crossing(eager_s, compiled_s))


def crossing(eager_s: Sequence[float] | np.ndarray, compiled_s: Sequence[float] | np.ndarray) -> int | None:
    """Find the first step, from 1, after which the compiled run is ahead for good; None when it is behind at the end.

    Args:
        eager_s: Seconds since the start after each step.
        compiled_s: Likewise.
    """
    behind = np.flatnonzero(np.asarray(compiled_s) > np.asarray(eager_s))
    last = int(behind[-1]) + 1 if len(behind) else 0
    return last + 1 if last < len(eager_s) else None


# -- backends and modes -----------------------------------------------------------------------------------------------


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
    Setting("dynamic=True", {"dynamic": True}, "sizes are symbols in the generated code"),
    Setting('mode="max-autotune"', {"mode": "max-autotune"}, "and several versions of each matrix product, timed"),
)


@dataclass(frozen=True)
class SettingPoint:
    """A setting's price and gain."""

    setting: Setting
    compile_s: float
    point: rounds.RoundPoint


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
    arguments = {
        "sizes": models.sizes_to_dict(subject.sizes),
        "batch_size": subject.batch_size if budget.process_s else 16,
        "chosen": chosen,
        "count": budget.rounds if budget.process_s else 1,
    }
    found = _in_own_process("settings_in_child", arguments, budget)
    rows = zip(chosen, found["compile_s"], found["points"], strict=True)
    return tuple(
        SettingPoint(
            SETTINGS[number],
            compile_s,
            rounds.RoundPoint(number + 1, row["median_s"], row["ratio"], (row["low"], row["high"]), ()),
        )
        for number, compile_s, row in rows
    )


def settings_in_child(
    sizes: Mapping[str, Any], batch_size: int, chosen: Sequence[int], count: int
) -> dict[str, list[Any]]:
    """Compile under each setting, then time them all in turns, the eager step first."""
    caches = torch_compile.empty_caches if any(map(_generates_code, chosen)) else nullcontext
    if caches is not nullcontext:
        with caches():
            torch.compile(_trifle)(torch.ones(8))
    eager, _ = _sides(sizes, batch_size, "eager")
    steps: dict[int, Callable[[], object]] = {0: eager.step}
    compile_s = []
    for number in chosen:
        more = {"backend": "inductor", **SETTINGS[number].arguments}
        _, compiled = _sides(sizes, batch_size, **more)
        with caches():
            compile_s.append(sum(_seconds(compiled.step) for _ in range(2)))
        steps[number + 1] = compiled.step
    points = _in_turns(steps, count)
    took = [max(seconds - 2 * point.median_s, 0.0) for seconds, point in zip(compile_s, points[1:], strict=True)]
    rows = [
        {"median_s": point.median_s, "ratio": point.ratio, "low": point.interval[0], "high": point.interval[1]}
        for point in points[1:]
    ]
    return {"compile_s": took, "points": rows}


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
    listed = ", ".join(f"`{name}`" for name in torch.compiler.list_backends())
    return "\n".join([*lines, "", f"Backends that this PyTorch lists: {listed}."])
