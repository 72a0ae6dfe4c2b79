"""Training by a recipe: a whole run, or one step per call."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn

from accelerando import counts, datasets, models, seeds
from accelerando.batches import Sampler
from accelerando.recipes import Recipe
from accelerando.training.judging import evaluate
from accelerando.training.phases import Clock, Phases, no_phases
from accelerando.training.results import FitResult, StepReport
from accelerando.training.run import Prepare, Run


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
        run = Run(recipe, data, _module(model, data), sampler, phases or no_phases, clock, prepare)
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
        run = Run(recipe, data, _module(model, data), None, phases or no_phases, time.perf_counter, prepare)
        run.warm_up()
    batches = itertools.chain.from_iterable(run.batches.epoch(epoch) for epoch in itertools.count())

    def step() -> float:
        with _threads(recipe.threads):
            return float(run.step(run.next_group(batches), recipe.learning_rate))

    return step


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
