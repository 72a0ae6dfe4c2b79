"""What half the bits bring on this machine: products, training steps, and the decision."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from accelerando import formats, machine, measure, training
from accelerando.lessons import Budget
from accelerando.lessons.precision.gradients import images
from accelerando.lessons.precision.task import NETS, WIDE_MLP
from accelerando.recipes import Recipe

HALVES = ("bf16", "fp16")
BY_HAND = ", by way of fp32"
STEP_RECIPE = Recipe(batch_size=256, learning_rate=0.01, schedule="constant", test_images=10)


def describe_hardware(here: machine.Machine) -> str:
    """Say what the processor computes in, by its flags, and what should follow from that."""
    words = {
        True: "computes in it",
        False: "has no units for it, so it is computed in fp32 and rounded",
        None: "does not say",
    }
    told = (
        f"By its flags this processor ({here.simd or 'SIMD unknown'}): **bf16**, {words[here.has_bf16]}; "
        f"**fp16**, {words[here.has_fp16]}."
    )
    gpus = [gpu.name for gpu in here.gpus if gpu.name and not gpu.is_integrated]
    return f"{told} Discrete GPUs: {', '.join(gpus) if gpus else 'none, so nothing below was measured on one'}."


# -- measured ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SpeedRow:
    """Half precision against fp32, for one kind of work.

    Args:
        work: What was run.
        precision: "bf16", "fp16", or what was done in place of it.
        comparison: fp32 is the baseline.
        has_units: By the processor's flags.
    """

    work: str
    precision: str
    comparison: measure.Comparison
    has_units: bool | None


@dataclass(frozen=True)
class SpeedTable:
    """All that was measured about speed."""

    rows: tuple[SpeedRow, ...]

    @property
    def comparisons(self) -> tuple[measure.Comparison, ...]:
        """For `figures.ratios`."""
        return tuple(row.comparison for row in self.rows)

    def find(self, work: str, precision: str) -> SpeedRow:
        """One row; raises StopIteration if it was not measured."""
        return next(row for row in self.rows if row.work == work and row.precision == precision)

    def sentence(self) -> str:
        """What this run showed, whichever way it came out."""
        told = []
        for precision in dict.fromkeys(row.precision for row in self.rows):
            rows = [row for row in self.rows if row.precision == precision and row.comparison.pairs]
            if not rows:
                told.append(f"**{precision}**: not one pair fitted into the time.")
                continue
            ratios = [row.comparison.ratio for row in rows]
            low, high = min(ratios), max(ratios)
            spread = f"{low:.2g}" if math.isclose(low, high, rel_tol=0.1) else f"{low:.2g} to {high:.2g}"
            told.append(
                f"**{precision}**: {spread} times the speed of fp32. {_verdict(rows)}{self._by_hand(precision)}"
            )
        return "\n\n".join(told)

    def _by_hand(self, precision: str) -> str:
        """What a row of the same product by way of fp32 says about where the time goes."""
        own = [row.comparison for row in self.rows if row.precision == precision and row.comparison.pairs]
        hand = [row.comparison for row in self.rows if row.precision == precision + BY_HAND and row.comparison.pairs]
        if not hand or max(found.ratio for found in own) > 0.5 * hand[0].ratio:
            return ""
        return (
            f" The conversions are not to blame: with the next row's detour through fp32, which makes all of them, the "
            f"same product takes {1 / hand[0].ratio:.2g} times as long as in fp32, and torch's own way "
            f"{1 / own[0].ratio:.2g} times. What is left is the kernel: probably one that nobody has tuned."
        )


def _verdict(rows: Sequence[SpeedRow]) -> str:
    """What the ends of the intervals allow to say: against 1, and against the 2 of the belief."""
    low, high = (pick(row.comparison.interval[end] for row in rows) for end, pick in ((0, min), (1, max)))
    most_proven, has_units = max(row.comparison.interval[0] for row in rows), rows[0].has_units
    each = "" if len(rows) == 1 else " in each of the rows"
    surprise = "" if has_units else ", although the flags name no units for it"
    if low > 1:
        if low > 2:
            return f"Faster{each}{surprise}, and more than twice as fast."
        twice = ", and not twice as fast" if high < 2 else ". Whether it is twice as fast the intervals do not tell"
        return f"Faster{each}{surprise}{twice}."
    if most_proven > 1:
        return f"It depends on what is computed{surprise}: not every row's interval lies above 1."
    if high < 1:
        why = "The flags said so." if has_units is False else "The flags promised more: trust the measurement."
        if rows[0].precision.endswith(BY_HAND):
            why = "That is what widening, narrowing and the product between them cost together."
        return f"Slower{each}, at least {1 / high:.2g} times. {why}"
    return "No interval lies above 1, so nothing is shown to be won."


def compare_gains(products: SpeedTable, steps: SpeedTable, precision: str = "bf16") -> str:
    """Say whether whole steps gain less than one product does, as far as the intervals tell.

    Args:
        products: Of `measure_products`.
        steps: Of `measure_steps`.
        precision: Of which both have rows.
    """
    product = next(row.comparison for row in products.rows if row.precision == precision)
    rows = [row for row in steps.rows if row.precision == precision and row.comparison.pairs]
    less = [row.work for row in rows if row.comparison.interval[1] < product.interval[0]]
    more = [row.work for row in rows if row.comparison.interval[0] > product.interval[1]]
    open_ = [row.work for row in rows if row.work not in (*less, *more)]
    told = []
    if less:
        told.append(f"the step of the {' and of the '.join(less)} gains less than the product did")
    if more:
        told.append(f"the step of the {' and of the '.join(more)} gains more than the product did")
    if open_:
        told.append(f"for the step of the {' and of the '.join(open_)} the two intervals overlap, so nothing is shown")
    return f"Beside the product above, in {precision}: {'; '.join(told)}." if told else ""


def measure_products(budget: Budget, here: machine.Machine, size: int = 512) -> SpeedTable:
    """Time a product of two square matrices in fp32, against bf16 and fp16.

    Where the flags name no units for a precision, a row more does it by hand: widens both matrices, multiplies in fp32,
    narrows the result. The last row leaves the tensors in fp32 and allows torch to compute them in bf16
    (``torch.set_float32_matmul_precision("medium")``).
    """
    if budget.name == "smoke":
        size = 128
    draw = torch.Generator().manual_seed(0)
    left, right = (torch.randn(size, size, generator=draw) for _ in range(2))
    work = f"product {size} x {size}"

    def multiply(dtype: torch.dtype) -> Callable[[], object]:
        a, b = left.to(dtype), right.to(dtype)
        return lambda: torch.mm(a, b)

    rows = []
    for precision, dtype in (("bf16", torch.bfloat16), ("fp16", torch.float16)):
        labels = ("fp32", f"{work}, {precision}")
        found = measure.compare(multiply(torch.float32), multiply(dtype), budget_s=budget.pair_s, labels=labels)
        rows.append(SpeedRow(work, precision, found, _has_units(here, precision)))
        if not _has_units(here, precision):
            a, b = left.to(dtype), right.to(dtype)
            by_hand = functools.partial(_by_way_of_fp32, a, b)
            labels = ("fp32", f"the same{BY_HAND}")
            found = measure.compare(multiply(torch.float32), by_hand, budget_s=budget.pair_s, labels=labels)
            rows.append(SpeedRow(work, precision + BY_HAND, found, False))
    labels = ("fp32", f"{work}, fp32 'medium'")
    medium = _with_precision("medium", left, right)
    found = measure.compare(multiply(torch.float32), medium, budget_s=budget.pair_s, labels=labels)
    rows.append(SpeedRow(work, "fp32 'medium'", found, here.has_bf16))
    return SpeedTable(tuple(rows))


def _by_way_of_fp32(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    return torch.mm(left.float(), right.float()).to(left.dtype)


def _with_precision(setting: str, left: torch.Tensor, right: torch.Tensor) -> Callable[[], torch.Tensor]:
    def multiply() -> torch.Tensor:
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision(setting)
        try:
            return torch.mm(left, right)
        finally:
            torch.set_float32_matmul_precision(before)

    return multiply


@dataclass(frozen=True)
class MatmulErrors:
    """Errors of an fp32 product, relative to an exact one.

    Args:
        predicted: Format -> error if the inputs are rounded to it and all else is exact.
        measured: What `torch.set_float32_matmul_precision` was given -> error.
    """

    predicted: dict[str, float]
    measured: dict[str, float]

    def nearest(self, setting: str) -> str:
        """The format whose predicted error is nearest to what a setting gave."""
        return min(self.predicted, key=lambda name: abs(math.log(self.predicted[name] / self.measured[setting])))

    def sentence(self) -> str:
        """What this run showed."""
        told = [
            f'"{setting}" gave {error:.1g}, as with inputs in {self.nearest(setting)}'
            for setting, error in self.measured.items()
        ]
        rounded = ", ".join(f"{error:.1g} for {name}" for name, error in self.predicted.items())
        is_used = self.nearest("medium") != "fp32"
        end = (
            "So fp32 tensors were multiplied in fewer bits, once that was allowed."
            if is_used
            else "So nothing was rounded away here, although it was allowed. If 'medium' above is faster all "
            "the same, another library did the product, in full precision."
        )
        return f"Rounding the inputs should give a relative error of {rounded}. Measured: {'; '.join(told)}. {end}"


def measure_matmul_errors(size: int = 512) -> MatmulErrors:
    """Multiply fp32 matrices under each setting of the matmul precision, and compare the errors with predicted ones."""
    draw = torch.Generator().manual_seed(0)
    left, right = (torch.randn(size, size, generator=draw) for _ in range(2))
    exact = left.double().numpy() @ right.double().numpy()

    def error(found: npt.NDArray[np.float64]) -> float:
        return float(np.linalg.norm(found - exact) / np.linalg.norm(exact))

    predicted = {}
    for form in (formats.FP32, formats.TF32, formats.BF16):
        # A random fp32 number is already a number of fp32: its products and sums are what is rounded.
        inputs = (form.round(side.double().numpy()) for side in (left, right))
        predicted[form.name] = max(error(next(inputs) @ next(inputs)), formats.FP32.epsilon)
    measured = {}
    for setting in ("highest", "high", "medium"):
        measured[setting] = error(_with_precision(setting, left, right)().double().numpy())
    return MatmulErrors(predicted, measured)


def measure_steps(budget: Budget, here: machine.Machine, precisions: Sequence[str] = HALVES) -> SpeedTable:
    """Time a training step of a wide MLP and of a small CNN under autocast, against fp32.

    Where the processor has no units for a precision, a small batch keeps the time within reason.
    """
    data, rows = images(budget), []
    for net, sizes in NETS.items():
        for precision in precisions if budget.name != "smoke" else precisions[:1]:
            is_small = budget.name == "smoke" or not _has_units(here, precision)
            recipe = STEP_RECIPE.changed(batch_size=16) if is_small else STEP_RECIPE
            kinds = ("fp32", precision)
            sides = [training.stepper(recipe.changed(precision=kind), data, model=sizes) for kind in kinds]
            labels = ("fp32", f"{net}, {precision}, batch {recipe.batch_size}")
            found = measure.compare(*sides, budget_s=budget.pair_s, labels=labels)
            rows.append(SpeedRow(net, precision, found, _has_units(here, precision)))
    return SpeedTable(tuple(rows))


def _has_units(here: machine.Machine, precision: str) -> bool | None:
    return here.has_bf16 if precision == "bf16" else here.has_fp16


@dataclass(frozen=True)
class BatchTable:
    """The wide MLP's step under bf16, over batch sizes.

    Args:
        comparisons: Batch size -> bf16 against fp32.
    """

    comparisons: dict[int, measure.Comparison]

    @property
    def rows(self) -> dict[int, tuple[float, float, float]]:
        """Batch size -> ratio, lower and upper end; without those of which no pair fitted into the time."""
        return {size: (found.ratio, *found.interval) for size, found in self.comparisons.items() if found.pairs}

    def sentence(self) -> str:
        """What this run showed."""
        if len(self.rows) < 2:
            return "Too little was measured to compare batch sizes."
        (small, low), *_, (large, high) = ((size, row[0]) for size, row in self.rows.items())
        start = f"bf16 made the step {low:.2f} times as fast at batch {small} and {high:.2f} times at batch {large}"
        if high > 1.1 * low:
            return (
                f"{start}. Autocast casts all weights once per step and the optimizer updates them once, however many "
                "images there are: the more images, the less both of them count."
            )
        if low > 1.1 * high:
            return f"{start}: something else decides here than what is done once per step (casting weights, updating)."
        return f"{start}: what is done once per step, casting weights and updating them, hardly counts here."


def measure_batches(budget: Budget, sizes: Sequence[int] = (16, 64, 256, 1024)) -> BatchTable:
    """Time the wide MLP's step in bf16 against fp32 over batch sizes: what a cast of the weights costs."""
    data = images(budget)
    found = {}
    for size in sizes if budget.name != "smoke" else sizes[:1]:
        recipe = STEP_RECIPE.changed(batch_size=size)
        sides = [training.stepper(recipe.changed(precision=kind), data, model=WIDE_MLP) for kind in ("fp32", "bf16")]
        labels = ("fp32", f"wide MLP, bf16, batch {size}")
        found[size] = measure.compare(*sides, budget_s=budget.pair_s, labels=labels)
    return BatchTable(found)
