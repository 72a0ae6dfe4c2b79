"""A processor without bf16 units, as far as the libraries of one with them can be made to play it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from accelerando import machine, measure, training
from accelerando.lessons import Budget
from accelerando.lessons.precision.gradients import images
from accelerando.lessons.precision.speed import STEP_RECIPE
from accelerando.lessons.precision.task import NETS
from accelerando.workers import Experiment, ExperimentFailed

PREPARE = "accelerando.lessons.precision.lowered:prepare_step"
NO_UNITS = {"ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"}
"""oneDNN, torch's own kernels and MKL (which does fp32's products), each told to know no more than AVX2."""
BATCH_SIZE = 16


def prepare_step(net: str, precision: str, train_images: int, test_images: int) -> Callable[[], float]:
    """Prepare a training step in a child process.

    Args:
        net: One of ``NETS``.
        precision: "fp32" or "bf16".
        train_images: Of the budget.
        test_images: Of the budget.
    """
    budget = Budget("child", 0.0, 0.0, 1, train_images, test_images)
    recipe = STEP_RECIPE.changed(batch_size=BATCH_SIZE, precision=precision)
    return training.stepper(recipe, images(budget), model=NETS[net])


@dataclass(frozen=True)
class Lowered:
    """bf16 against fp32 with the libraries held at AVX2.

    Args:
        comparisons: One per network; empty when nothing was measured.
        why_not: Why nothing was measured, or empty.
    """

    comparisons: tuple[measure.Comparison, ...]
    why_not: str = ""

    def sentence(self) -> str:
        """What this run showed."""
        found = [row for row in self.comparisons if row.pairs]
        if not found:
            return self.why_not or "Held at AVX2 not one pair of steps fitted into the time."
        said = ", ".join(f"{row.ratio:.2g} times ({row.interval[0]:.2g} to {row.interval[1]:.2g})" for row in found)
        if all(row.interval[1] < 1 for row in found):
            so = "slower, as it would be on an AVX2 processor too, if not by the same factor"
        elif all(row.interval[0] > 1 for row in found):
            so = "still faster, so it is not the units alone that make it so here"
        else:
            so = "too close to call, or too short a time"
        return (
            "**Without the units.** In a process whose libraries were told to know nothing beyond AVX2, bf16 makes the "
            f"step {said} as fast as fp32 in a process told the same: {so}. Clock, caches and memory are still this "
            "machine's."
        )


def measure_lowered(budget: Budget, here: machine.Machine, nets: Sequence[str] = ("wide MLP",)) -> Lowered:
    """Time a step under bf16 autocast against fp32 in processes whose libraries use nothing beyond AVX2.

    Args:
        budget: Seconds for each comparison; the smoke budget starts no process.
        here: Only an x86 processor with bf16 units has something to be taken away.
        nets: Of ``NETS``.
    """
    if not here.has_bf16 or here.architecture not in ("x86_64", "AMD64"):
        return Lowered(
            (), "" if here.has_bf16 else "This processor has no bf16 units: the rows above show what that means."
        )
    if not budget.process_s:
        return Lowered((), "Without the units nothing was measured: the smoke budget has no time for processes.")
    rows = []
    for net in nets:
        sizes = {"train_images": budget.train_images, "test_images": budget.test_images}
        sides = [
            Experiment(PREPARE, {"net": net, "precision": kind, **sizes}, NO_UNITS, prepares=True)
            for kind in ("fp32", "bf16")
        ]
        labels = ("fp32", f"{net}, bf16, batch {BATCH_SIZE}, held at AVX2")
        try:
            rows.append(measure.compare(*sides, budget_s=budget.process_s, labels=labels))
        except ExperimentFailed as error:
            return Lowered(tuple(rows), f"Held at AVX2 the step did not run: {str(error).splitlines()[0]}")
    return Lowered(tuple(rows))
