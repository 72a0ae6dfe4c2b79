"""From memory to a GPU: pinned memory, copies that do not block, and copying one batch while another is computed."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from accelerando import measure, timelines
from accelerando.lessons import Budget

MODES: tuple[timelines.Copies, ...] = ("blocking", "non_blocking", "own_stream")
BATCH_SHAPE = (256, 3, 224, 224)


@dataclass(frozen=True)
class Copied:
    """What copies to a GPU cost here.

    Args:
        comparisons: Each candidate against copies from ordinary memory that block.
        device: Name of the GPU; "" without one.
        reason: Why nothing was measured.
    """

    comparisons: tuple[measure.Comparison, ...]
    device: str
    reason: str = ""

    def sentence(self) -> str:
        """What this run showed, or that nothing was."""
        if self.reason:
            return f"Not measurable here: {self.reason}. The pictures are the simulator's, from invented times."
        told = "; ".join(
            f"*{found.candidate.label}* {found.ratio:.2f} times ({found.verdict})" for found in self.comparisons
        )
        return f"On {self.device}, against ordinary memory and a copy that blocks: {told}."


def measure_copies(budget: Budget) -> Copied:
    """Train on batches that come from ordinary and from pinned memory; on a machine with a GPU only."""
    if not torch.cuda.is_available():
        return Copied((), "", "PyTorch finds no GPU")
    batch = torch.rand(BATCH_SHAPE)
    weights = torch.rand(16, 3, 7, 7, device="cuda")

    def run(source: torch.Tensor, *, is_ahead: bool, is_blocking: bool) -> None:
        batches: Iterable[torch.Tensor] = [source] * 8
        if is_ahead:
            batches = copy_ahead(batches, torch.device("cuda"))
        for images in batches:
            images = images if is_ahead else images.to("cuda", non_blocking=not is_blocking)
            for _ in range(8):
                torch.nn.functional.conv2d(images, weights, stride=2)
        torch.cuda.synchronize()

    pinned = batch.pin_memory()
    candidates = {
        "pinned": lambda: run(pinned, is_ahead=False, is_blocking=True),
        "pinned, non_blocking": lambda: run(pinned, is_ahead=False, is_blocking=False),
        "pinned, a stream of its own": lambda: run(pinned, is_ahead=True, is_blocking=False),
    }
    found = [
        measure.compare(
            lambda: run(batch, is_ahead=False, is_blocking=True), candidate, budget_s=budget.pair_s,
            labels=("ordinary memory, blocking", name),
        )
        for name, candidate in candidates.items()
    ]  # fmt: skip
    return Copied(tuple(found), torch.cuda.get_device_name())


def copy_ahead(batches: Iterable[Any], device: torch.device) -> Iterator[Any]:
    """Yield batches on the GPU, the next one already on its way while the caller computes with this one.

    Args:
        batches: Tensors in pinned memory.
        device: A GPU.
    """
    stream = torch.cuda.Stream(device)  # a second queue of orders
    ready: Any = None
    for batch in itertools.chain(batches, [None]):
        computing = torch.cuda.current_stream(device)
        computing.wait_stream(stream)  # what is computed from here on finds `ready` complete
        coming = None
        if batch is not None:
            with torch.cuda.stream(stream):
                coming = batch.to(device, non_blocking=True)
        if ready is not None:
            ready.record_stream(computing)  # keeps its memory from the next copy until it was computed with
            yield ready
        ready = coming


def shown_code() -> str:
    """The function above as Markdown, as it stands here."""
    return f"```python\n{inspect.getsource(copy_ahead)}```"


def example_plans(
    load_s: float = 0.012, step_s: float = 0.010, copy_s: float = 0.004, pinned_copy_s: float = 0.002
) -> tuple[timelines.Plan, ...]:
    """The same pipeline with each way of copying; the times are an example, not a measurement.

    Args:
        load_s: Seconds to load a batch, on one core.
        step_s: Seconds of a step on the GPU.
        copy_s: Seconds of a copy from ordinary memory.
        pinned_copy_s: Seconds of a copy from pinned memory.
    """
    plan = timelines.Plan(load_s, step_s, workers=4, cores=4, step_threads=0, copy_s=copy_s, copies="blocking")
    return plan, *(plan.changed(copies=mode, copy_s=pinned_copy_s) for mode in MODES[1:])


def predict_copies(plans: tuple[timelines.Plan, ...]) -> str:
    """What the simulator says of these pipelines, in a sentence."""
    periods = [timelines.simulate(plan).period_s for plan in plans]
    ordinary, pinned = plans[0], plans[-1]
    names = {
        "blocking": "a copy that blocks",
        "non_blocking": "pinned and non_blocking",
        "own_stream": "pinned, on a stream of its own",
    }
    told = ", ".join(
        f"{names[plan.copies]} {measure.duration(period)}" for plan, period in zip(plans, periods, strict=True)
    )
    return (
        f"Predicted for a step of {measure.duration(ordinary.step_s)} and a copy of "
        f"{measure.duration(ordinary.copy_s)} from ordinary memory, {measure.duration(pinned.copy_s)} from pinned "
        f"memory (invented numbers), time per batch: {told}."
    )
