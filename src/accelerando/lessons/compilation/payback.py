"""What compiling costs, what it brings, and after how many steps the second has paid for the first."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from accelerando import costs, measure
from accelerando.figures import Picture
from accelerando.figures import compilation as pictures
from accelerando.lessons import Budget
from accelerando.lessons.compilation.sides import get_ready, in_own_process, make_sides, time_sides
from accelerando.lessons.compilation.subjects import Subject
from accelerando.lessons.compilation.toolchain import Toolchain


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
            f"**{self.subject.name}**: round by round {self.ratio:.2f} times as fast{spread}; the median step took "
            f"{measure.duration(self.eager_step_s)} eager, {measure.duration(self.compiled_step_s)} compiled, and "
            f"compiling took {measure.duration(self.compile_s)}"
        )
        if self.verdict == "faster":
            warm = f"{start}. That is paid back after about **{self.break_even_steps:,.0f} steps**"
            if self.start_s <= 0.5:
                return f"{warm}."
            return (
                f"{warm} where the compiler is ready already; in a fresh process, which needs another "
                f"{self.start_s:.1f} s to get it ready, after **{self.cold_break_even_steps:,.0f}**."
            )
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
        return (
            f"{said} A batch of another size, once, cost another {measure.duration(self.recompile_s)}; compiling the "
            f"first one had taken {measure.duration(self.compile_s)}."
        )


def measure_payback(subject: Subject, budget: Budget, toolchain: Toolchain) -> Payback:
    """Measure a training step eager and compiled, in turns, in a process of its own with fresh compile caches.

    Args:
        subject: What to train.
        budget: How many rounds; "smoke" starts no process.
        toolchain: How far compiling goes.
    """
    found = in_own_process(steps_in_child, step_arguments(subject, budget, toolchain), budget)
    return as_payback(subject, toolchain, found)


def step_arguments(subject: Subject, budget: Budget, toolchain: Toolchain) -> dict[str, Any]:
    """What a child process is told in order to time both sides."""
    count = 2 * budget.rounds + 1 if budget.process_s else 1
    return subject.arguments(budget) | {"backend": toolchain.backend, "count": count}


def steps_in_child(sizes: Mapping[str, Any], batch_size: int, backend: str, count: int) -> dict[str, Any]:
    """Compile, and time both sides in turns; see `Payback` for what comes back."""
    start_s = get_ready(backend)
    found, _ = time_sides(*make_sides(sizes, batch_size, backend), count)
    return found | {"start_s": start_s, "recompile_s": math.nan}


def as_payback(subject: Subject, toolchain: Toolchain, found: Mapping[str, Any]) -> Payback:
    """What a child process found, as a result."""
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
