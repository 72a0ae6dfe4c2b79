"""The one training loop of the course: ``fit(recipe, data)``.

Lessons do not paste this loop, they change it by argument: the recipe says how to train, ``model`` what, ``sampler``
on which images, and ``phases`` lets a lesson time each part of a step without a second copy of the loop.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from accelerando import counts, datasets, models, progress, seeds
from accelerando.batches import Batch, Batches, Sampler, memory_format
from accelerando.recipes import Recipe, learning_rate_at

__all__ = [
    "PHASES",
    "FitResult",
    "PhaseTimer",
    "Recipe",
    "StepReport",
    "evaluate",
    "fit",
    "learning_rate_at",
    "stepper",
]

Clock = Callable[[], float]
Phases = Callable[[str], AbstractContextManager[None]]
Prepare = Callable[[nn.Module, torch.optim.Optimizer], tuple[nn.Module, torch.optim.Optimizer]]
PHASES = ("data", "zero_grad", "forward", "loss", "backward", "optimizer")
PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class StepReport:
    """What ``on_step`` is told after each optimizer step.

    Args:
        step: 1 after the first.
        total_steps: Steps of the whole run.
        images: Images trained on so far.
        loss: Mean loss of the step, a detached scalar tensor (reading it makes a GPU wait).
        learning_rate: Rate of the step.
        elapsed_s: Seconds of training so far.
    """

    step: int
    total_steps: int
    images: int
    loss: torch.Tensor
    learning_rate: float
    elapsed_s: float


@dataclass(frozen=True, eq=False)
class FitResult:
    """What came of a training run.

    Args:
        recipe: The recipe, as plain values.
        model: The network's sizes as plain values, or the class name of a module that was given.
        data_source: Where the images came from.
        seconds: Training only: no preparing, compiling, warming up or judging.
        images_per_s: Images trained on, per second of ``seconds``.
        images: Images trained on, repeats counted.
        steps: Optimizer steps made.
        epoch_seconds: Seconds of each epoch.
        losses: float32, (steps,), mean loss of each step; NaN or infinity where training diverged.
        diverged_at_step: First step (from 1) with a loss that is no finite number; None when there is none.
        accuracy: Share of the test images classified correctly, 0 to 1.
        predictions: int64, (N_test,), class per test image.
        is_correct: bool, (N_test,), for paired comparison with another run.
        prepare_s: Seconds to build model, optimizer and resident tensors.
        warmup_s: Seconds of one untimed forward and backward, which includes compiling.
        evaluate_s: Seconds to judge the test images.
        threads: torch's threads while training.
        parameters: Number of trained numbers in the model.
    """

    recipe: dict[str, Any]
    model: dict[str, Any]
    data_source: str
    seconds: float
    images_per_s: float
    images: int
    steps: int
    epoch_seconds: tuple[float, ...]
    losses: npt.NDArray[np.float32]
    diverged_at_step: int | None
    accuracy: float
    predictions: npt.NDArray[np.int64]
    is_correct: npt.NDArray[np.bool_]
    prepare_s: float
    warmup_s: float
    evaluate_s: float
    threads: int
    parameters: int

    def __repr__(self) -> str:
        return f"<FitResult: {self.summary()}>"

    def summary(self) -> str:
        """Say the result in one sentence."""
        if self.diverged_at_step is not None:
            return f"diverged at step {self.diverged_at_step} of {self.steps}: the loss is no number any more"
        return (
            f"{self.accuracy:.1%} of {len(self.predictions):,} test images after {self.seconds:.1f} s of training: "
            f"{self.images_per_s:,.0f} images/s, {self.steps:,} steps, {self.threads} threads"
        )


class PhaseTimer:
    """Adds up the seconds spent in each part of a training step; give its ``phase`` to ``fit`` as ``phases``.

    Args:
        clock: Seconds; a fake one in tests.
    """

    def __init__(self, clock: Clock = time.perf_counter) -> None:
        self.seconds: dict[str, float] = dict.fromkeys(PHASES, 0.0)
        self.calls: dict[str, int] = dict.fromkeys(PHASES, 0)
        self._clock = clock

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time one part."""
        started_s = self._clock()
        try:
            yield
        finally:
            self.seconds[name] += self._clock() - started_s
            self.calls[name] += 1


_NOT_TIMED = nullcontext()


def _no_phases(name: str) -> AbstractContextManager[None]:
    return _NOT_TIMED


def fit(
    recipe: Recipe,
    data: datasets.Dataset,
    *,
    model: models.Sizes | Mapping[str, Any] | nn.Module | None = None,
    sampler: Sampler | None = None,
    progress: bool = False,
    on_step: Callable[[StepReport], None] | None = None,
    phases: Phases | None = None,
    prepare: Prepare | None = None,
    clock: Clock = time.perf_counter,
) -> FitResult:
    """Train a network by a recipe, then judge it on the test images.

    The random generators and torch's thread count are as before when it returns.

    Args:
        recipe: How to train.
        data: What to train and judge on.
        model: Sizes of a network to build, or a module to train in place; None for the slim CNN. A module wrapped for
            distributed training must have the recipe's layout before it is wrapped.
        sampler: The indices of each epoch, in order; None shuffles everything.
        progress: Show a bar with images/s and time left, where somebody is watching.
        on_step: Called after each optimizer step, inside the timed part.
        phases: ``phases(name)`` is entered around each part of a step (``PHASES``).
        prepare: Given model and optimizer before the first step, what to train with instead: how a library comes in.
        clock: Seconds.

    Returns:
        Speed, accuracy, predictions, losses.

    Raises:
        ValueError: If recipe and data do not fit together.
    """
    data = data.limited(recipe.train_images, recipe.test_images)
    with ExitStack() as stack:
        stack.enter_context(seeds.preserved())
        stack.enter_context(_threads(recipe.threads))
        started_s = clock()
        seeds.seed(recipe.seed)
        run = _Run(recipe, data, _module(model, data), sampler, phases or _no_phases, clock, prepare)
        prepared_s = clock()
        run.warm_up()
        warm_s = clock()
        run.train(on_step, progress)
        trained_s = clock()
        predictions = evaluate(run.plain, data.test, batch_size=recipe.eval_batch_size, layout=recipe.layout)
        return FitResult(
            recipe=recipe.to_dict(),
            model=_described(model),
            data_source=data.source,
            seconds=run.seconds,
            images_per_s=run.images / run.seconds if run.seconds > 0 else math.inf,
            images=run.images,
            steps=run.steps,
            epoch_seconds=tuple(run.epoch_seconds),
            losses=run.loss_curve(),
            diverged_at_step=run.diverged_at_step(),
            accuracy=float((predictions == data.test.labels).mean()),
            predictions=predictions,
            is_correct=predictions == data.test.labels,
            prepare_s=prepared_s - started_s,
            warmup_s=warm_s - prepared_s,
            evaluate_s=clock() - trained_s,
            threads=torch.get_num_threads(),
            parameters=counts.parameters(run.plain),
        )


def stepper(
    recipe: Recipe,
    data: datasets.Dataset,
    *,
    model: models.Sizes | Mapping[str, Any] | nn.Module | None = None,
    phases: Phases | None = None,
    prepare: Prepare | None = None,
) -> Callable[[], float]:
    """Make a function that trains one optimizer step per call, for ever: what `measure.compare` sets against another.

    The recipe's learning rate is used without its schedule, since there is no last step. Random generators and torch's
    thread count are as before after each call.

    Args:
        recipe: How to train.
        data: What to train on; gone through again and again.
        model: As for `fit`.
        phases: As for `fit`.
        prepare: As for `fit`.

    Returns:
        The function; it returns the mean loss of its step.
    """
    data = data.limited(recipe.train_images, recipe.test_images)
    with seeds.preserved(), _threads(recipe.threads):
        seeds.seed(recipe.seed)
        run = _Run(recipe, data, _module(model, data), None, phases or _no_phases, time.perf_counter, prepare)
        run.warm_up()
    batches = itertools.chain.from_iterable(run.batches.epoch(epoch) for epoch in itertools.count())

    def step() -> float:
        with _threads(recipe.threads):
            return float(run._step(run._next_group(batches), recipe.learning_rate))

    return step


def evaluate(
    module: nn.Module, images: datasets.ImageSet, *, batch_size: int = 500, layout: str = "contiguous"
) -> npt.NDArray[np.int64]:
    """Classify images in evaluation mode and full precision; the module's mode is put back.

    Args:
        module: Gives logits (B, classes).
        images: What to classify.
        batch_size: Images per call.
        layout: "contiguous" or "channels_last", as the module was trained.

    Returns:
        int64, (N,), the class with the highest logit; class 0 where logits are not numbers.
    """
    was_training = module.training
    module.eval()
    found = []
    memory = torch.channels_last if layout == "channels_last" else torch.contiguous_format
    with torch.inference_mode():
        for start in range(0, len(images), batch_size):
            batch = datasets.as_batch(images.images[start : start + batch_size]).contiguous(memory_format=memory)
            found.append(torch.nan_to_num(module(batch), nan=-math.inf).argmax(1))
    module.train(was_training)
    predictions: npt.NDArray[np.int64] = torch.cat(found).numpy()
    return predictions


class _Run:
    """One training run: what is made once, and the loop over it."""

    def __init__(
        self,
        recipe: Recipe,
        data: datasets.Dataset,
        plain: nn.Module,
        sampler: Sampler | None,
        phases: Phases,
        clock: Clock,
        prepare: Prepare | None = None,
    ) -> None:
        self.recipe, self.phases, self.clock = recipe, phases, clock
        self.plain = plain.to(memory_format=memory_format(recipe)).train()  # type: ignore[call-overload]
        self.optimizer = make_optimizer(recipe, plain)
        if prepare is not None:
            self.plain, self.optimizer = prepare(self.plain, self.optimizer)
        self.compiled: Callable[..., Any] = self.plain
        if recipe.compile:
            self.compiled = torch.compile(self.plain, mode=recipe.compile_mode)
        self.batches = Batches(data.train, recipe, sampler)
        self.scaler = torch.amp.GradScaler("cpu", enabled=recipe.precision == "fp16")
        self.loss_of = nn.CrossEntropyLoss(label_smoothing=recipe.label_smoothing)
        per_epoch = -(-self.batches.per_epoch() // recipe.accumulate_batches)
        whole_steps = per_epoch * recipe.epochs
        self.total_steps = whole_steps if recipe.max_steps is None else min(whole_steps, recipe.max_steps)
        self.steps = self.images = 0
        self.epoch_seconds: list[float] = []
        self.losses: list[torch.Tensor] = []

    @property
    def seconds(self) -> float:
        return sum(self.epoch_seconds)

    def loss_curve(self) -> npt.NDArray[np.float32]:
        curve: npt.NDArray[np.float32] = torch.stack(self.losses).float().cpu().numpy()
        return curve

    def diverged_at_step(self) -> int | None:
        bad = np.flatnonzero(~np.isfinite(self.loss_curve()))
        return int(bad[0]) + 1 if len(bad) else None

    def autocast(self) -> AbstractContextManager[Any]:
        if self.recipe.precision == "fp32":
            return _NOT_TIMED
        return torch.autocast("cpu", PRECISIONS[self.recipe.precision])

    def warm_up(self) -> None:
        """Run one forward and backward that leaves no trace: compiles, and lets libraries pick their kernels."""
        kept = {name: value.clone() for name, value in self.plain.named_buffers()}
        size = min(self.recipe.batch_size, self.batches.count)
        images = torch.zeros(size, 1, datasets.PIXELS, datasets.PIXELS)
        images = images.contiguous(memory_format=memory_format(self.recipe))
        with self.autocast():
            loss = self.loss_of(self.compiled(images), torch.zeros(size, dtype=torch.int64))
        loss.backward()
        self.optimizer.zero_grad(set_to_none=True)
        with torch.no_grad():
            for name, value in self.plain.named_buffers():
                value.copy_(kept[name])

    def train(self, on_step: Callable[[StepReport], None] | None, is_shown: bool) -> None:
        """Go through the epochs; stops after an epoch in which the loss stopped being a number."""
        total = self.total_steps * self.recipe.batch_size * self.recipe.accumulate_batches
        with progress.bar(total, "training", is_shown=is_shown) as advance:
            for epoch in range(self.recipe.epochs):
                self._train_epoch(epoch, on_step, advance)
                if self.steps >= self.total_steps or not bool(torch.isfinite(self.losses[-1])):
                    return

    def _train_epoch(self, epoch: int, on_step: Callable[[StepReport], None] | None, advance: progress.Advance) -> None:
        before_s, started_s = self.seconds, self.clock()
        batches = self.batches.epoch(epoch)
        while self.steps < self.total_steps:
            group = self._next_group(batches)
            if not group:
                break
            rate = learning_rate_at(self.recipe, self.steps, self.total_steps)
            loss = self._step(group, rate)
            self.losses.append(loss)
            self.steps += 1
            images = sum(len(labels) for _, labels in group)
            self.images += images
            advance(images)
            if on_step is not None:
                elapsed_s = before_s + self.clock() - started_s
                on_step(StepReport(self.steps, self.total_steps, self.images, loss, rate, elapsed_s))
        self.epoch_seconds.append(self.clock() - started_s)

    def _next_group(self, batches: Iterator[Batch]) -> list[Batch]:
        """Take the batches of one optimizer step."""
        group = []
        with self.phases("data"):
            for _ in range(self.recipe.accumulate_batches):
                batch = next(batches, None)
                if batch is None:
                    break
                group.append(batch)
        return group

    def _step(self, group: list[Batch], rate: float) -> torch.Tensor:
        """Make one optimizer step from one or more batches; returns their mean loss, detached."""
        for settings in self.optimizer.param_groups:
            settings["lr"] = rate
        with self.phases("zero_grad"):
            self.optimizer.zero_grad(set_to_none=self.recipe.zero_grad_set_to_none)
        total = sum(len(labels) for _, labels in group)
        mean_loss = torch.zeros(())
        for place, (images, labels) in enumerate(group):
            with self._syncing(is_last=place == len(group) - 1):
                with self.phases("forward"), self.autocast():
                    logits = self.compiled(images)
                with self.phases("loss"):
                    loss = self.loss_of(logits.float(), labels) * (len(labels) / total)
                with self.phases("backward"):
                    self.scaler.scale(loss).backward()
            mean_loss = mean_loss + loss.detach()
        with self.phases("optimizer"):
            if self.recipe.clip_norm is not None:
                self.scaler.unscale_(self.optimizer)  # clipping scaled gradients would clip by the wrong length
                nn.utils.clip_grad_norm_(self.plain.parameters(), self.recipe.clip_norm)
            self.scaler.step(self.optimizer)
            self.scaler.update()
        return mean_loss

    def _syncing(self, is_last: bool) -> AbstractContextManager[Any]:
        """Let a distributed model wait with its all-reduce until the last of several batches."""
        no_sync = getattr(self.plain, "no_sync", None)
        return _NOT_TIMED if is_last or no_sync is None else no_sync()


def make_optimizer(recipe: Recipe, module: nn.Module) -> torch.optim.Optimizer:
    """Make the recipe's optimizer over a module's parameters."""
    kinds: dict[str, dict[str, bool]] = {
        "default": {},
        "for_loop": {"foreach": False},
        "foreach": {"foreach": True},
        "fused": {"fused": True},
    }
    common = {"lr": recipe.learning_rate, "weight_decay": recipe.weight_decay, **kinds[recipe.optimizer_kind]}
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
    if not parameters:
        raise ValueError("the model has no parameter to train")
    if recipe.optimizer == "sgd":
        return torch.optim.SGD(parameters, momentum=recipe.momentum, nesterov=recipe.nesterov, **common)  # type: ignore[arg-type]
    family = torch.optim.Adam if recipe.optimizer == "adam" else torch.optim.AdamW
    return family(parameters, **common)  # type: ignore[arg-type]


def _module(model: models.Sizes | Mapping[str, Any] | nn.Module | None, data: datasets.Dataset) -> nn.Module:
    """Return the module that was given, or build it from its sizes."""
    if isinstance(model, nn.Module):
        return model
    sizes = _sizes(model)
    if isinstance(sizes, models.TransformerSizes):
        raise ValueError("fit trains image models: give MlpSizes, CnnSizes or a module, not TransformerSizes")
    if sizes.classes < len(data.classes):
        raise ValueError(
            f"the model has {sizes.classes} classes, the data {len(data.classes)}: set classes in its sizes"
        )
    return models.build(sizes)


def _sizes(model: models.Sizes | Mapping[str, Any] | None) -> models.Sizes:
    if model is None:
        return models.SLIM_CNN
    return models.sizes_from_dict(model) if isinstance(model, Mapping) else model


def _described(model: models.Sizes | Mapping[str, Any] | nn.Module | None) -> dict[str, Any]:
    if isinstance(model, nn.Module):
        return {"kind": "module", "name": type(model).__name__}
    return models.sizes_to_dict(_sizes(model))


@contextmanager
def _threads(count: int | None) -> Iterator[None]:
    """Use ``count`` torch threads inside the block, and what was before after it."""
    before = torch.get_num_threads()
    try:
        if count is not None:
            torch.set_num_threads(count)
        yield
    finally:
        torch.set_num_threads(before)
