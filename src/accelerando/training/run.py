"""One training run: the loop itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from accelerando import datasets, progress
from accelerando.batches import Batch, Batches, Sampler, memory_format
from accelerando.recipes import Recipe, learning_rate_at
from accelerando.training.phases import NOT_TIMED, Clock, Phases
from accelerando.training.results import StepReport

Prepare = Callable[[nn.Module, torch.optim.Optimizer], tuple[nn.Module, torch.optim.Optimizer]]
PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


class Run:
    """What is made once, and the loop over it."""

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
        """Seconds of training so far."""
        return sum(self.epoch_seconds)

    def loss_curve(self) -> npt.NDArray[np.float32]:
        """Mean loss of each step."""
        curve: npt.NDArray[np.float32] = torch.stack(self.losses).float().cpu().numpy()
        return curve

    def diverged_at_step(self) -> int | None:
        """First step, from 1, with a loss that is no finite number; None when there is none."""
        bad = np.flatnonzero(~np.isfinite(self.loss_curve()))
        return int(bad[0]) + 1 if len(bad) else None

    def autocast(self) -> AbstractContextManager[Any]:
        """Compute in the recipe's precision."""
        if self.recipe.precision == "fp32":
            return NOT_TIMED
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
            group = self.next_group(batches)
            if not group:
                break
            rate = learning_rate_at(self.recipe, self.steps, self.total_steps)
            loss = self.step(group, rate)
            self.losses.append(loss)
            self.steps += 1
            images = sum(len(labels) for _, labels in group)
            self.images += images
            advance(images)
            if on_step is not None:
                elapsed_s = before_s + self.clock() - started_s
                on_step(StepReport(self.steps, self.total_steps, self.images, loss, rate, elapsed_s))
        self.epoch_seconds.append(self.clock() - started_s)

    def next_group(self, batches: Iterator[Batch]) -> list[Batch]:
        """Take the batches of one optimizer step."""
        group = []
        with self.phases("data"):
            for _ in range(self.recipe.accumulate_batches):
                batch = next(batches, None)
                if batch is None:
                    break
                group.append(batch)
        return group

    def step(self, group: list[Batch], rate: float) -> torch.Tensor:
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
        return NOT_TIMED if is_last or no_sync is None else no_sync()


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
