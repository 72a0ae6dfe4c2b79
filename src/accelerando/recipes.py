"""A recipe: everything that decides how a network is trained, as data.

A recipe can be printed, stored beside its result, changed by one field, sent to another process, or written down
by a learner as a dictionary. It says what is wrong with it in words.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args, get_origin, get_type_hints

from accelerando import seeds

Number = tuple[float, float]


def _range(low: float, high: float, default: Any) -> Any:
    """Declare a numeric field with what it may be."""
    return field(default=default, metadata={"range": (low, high)})


@dataclass(frozen=True)
class Recipe:
    """How to train: batches, optimizer, schedule, numerics, loader, seed.

    Args:
        batch_size: Images per optimizer step.
        epochs: Times the training set is gone through.
        max_steps: Stop after this many optimizer steps, if sooner; None for no limit.
        optimizer: "sgd", "adam" or "adamw".
        optimizer_kind: How torch runs the update: "default", "for_loop" (a few operators per parameter),
            "foreach" (lists of parameters at once) or "fused" (one pass over each).
        learning_rate: Highest learning rate of the schedule.
        momentum: SGD's momentum; Adam's first beta stays 0.9.
        nesterov: SGD looks ahead along its momentum.
        weight_decay: L2 penalty (sgd, adam) or decoupled decay (adamw).
        schedule: "constant", "cosine" (down to 0) or "one_cycle" (up, then straight down to 0).
        warmup_fraction: Share of the steps in which the rate climbs from a 25th to its height; None: 0.25 for
            "one_cycle", 0 for the others.
        label_smoothing: Share of the target spread over all classes.
        clip_norm: Clip the gradient to this length; None not to.
        layout: "contiguous" (NCHW) or "channels_last" (NHWC), for the model's weights and the images.
        precision: "fp32", or autocast to "bf16" or "fp16" (with loss scaling).
        compile: Train through torch.compile.
        compile_mode: "default", "reduce-overhead" or "max-autotune".
        threads: torch's threads while training; None leaves them as they are.
        augmentation: "none", "flip" or "crop_flip".
        loader: "resident" (the set is one tensor, batches are taken by index) or "per_sample" (DataLoader and PIL).
        num_workers: Loader processes; "per_sample" only.
        prefetch_factor: Batches each worker prepares ahead; None for torch's 2.
        persistent_workers: Keep the workers between epochs.
        drop_last: Leave out the last batch when it is smaller.
        zero_grad_set_to_none: Forget gradients rather than fill them with zeros.
        accumulate_batches: Batches whose gradients are summed before one optimizer step.
        train_images: Use this many training images; None for all.
        test_images: Judge on this many test images; None for all.
        eval_batch_size: Images per batch when judging.
        seed: Initial weights, order and augmentation follow from it.
    """

    batch_size: int = _range(1, 65_536, 128)
    epochs: int = _range(1, 1000, 2)
    max_steps: int | None = _range(1, 10**7, None)
    optimizer: Literal["sgd", "adam", "adamw"] = "sgd"
    optimizer_kind: Literal["default", "for_loop", "foreach", "fused"] = "default"
    learning_rate: float = _range(0, 100, 0.1)
    momentum: float = _range(0, 0.9999, 0.9)
    nesterov: bool = False
    weight_decay: float = _range(0, 1, 5e-4)
    schedule: Literal["constant", "cosine", "one_cycle"] = "one_cycle"
    warmup_fraction: float | None = _range(0, 0.9, None)
    label_smoothing: float = _range(0, 0.9, 0.0)
    clip_norm: float | None = _range(1e-6, 1e6, None)
    layout: Literal["contiguous", "channels_last"] = "contiguous"
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    compile: bool = False
    compile_mode: Literal["default", "reduce-overhead", "max-autotune"] = "default"
    threads: int | None = _range(1, 1024, None)
    augmentation: Literal["none", "flip", "crop_flip"] = "none"
    loader: Literal["resident", "per_sample"] = "resident"
    num_workers: int = _range(0, 64, 0)
    prefetch_factor: int | None = _range(1, 64, None)
    persistent_workers: bool = False
    drop_last: bool = False
    zero_grad_set_to_none: bool = True
    accumulate_batches: int = _range(1, 1024, 1)
    train_images: int | None = _range(1, 10**7, None)
    test_images: int | None = _range(1, 10**7, None)
    eval_batch_size: int = _range(1, 65_536, 500)
    seed: int = _range(0, seeds.MAX_SEED, 0)

    def __post_init__(self) -> None:
        for entry in dataclasses.fields(self):
            problem = _problem(_HINTS[entry.name], entry.metadata.get("range"), getattr(self, entry.name))
            if problem:
                raise ValueError(f"Recipe.{entry.name} is {getattr(self, entry.name)!r}: {problem}")
        self._check_together()

    def _check_together(self) -> None:
        if self.nesterov and (self.optimizer != "sgd" or self.momentum == 0):
            raise ValueError("Recipe.nesterov is true: it needs optimizer 'sgd' and a momentum above 0")
        loads = {"num_workers": 0, "prefetch_factor": None, "persistent_workers": False}
        if self.loader == "resident" and any(getattr(self, name) != default for name, default in loads.items()):
            raise ValueError(f"Recipe.loader is 'resident': {', '.join(loads)} need loader 'per_sample'")
        if self.num_workers == 0 and (self.prefetch_factor is not None or self.persistent_workers):
            raise ValueError("Recipe.num_workers is 0: prefetch_factor and persistent_workers need at least 1 worker")

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Recipe:
        """Make a recipe from plain values, such as a learner's dictionary; what is left out keeps its default.

        Raises:
            ValueError: If a key is unknown or a value is not allowed; the message says what is.
        """
        if not isinstance(values, Mapping):
            raise ValueError(f"a recipe is a dictionary like {{'batch_size': 128}}, not {type(values).__name__}")
        names = [entry.name for entry in dataclasses.fields(cls)]
        for key in values:
            if key not in names:
                close = difflib.get_close_matches(str(key), names, n=1)
                hint = f"did you mean {close[0]!r}?" if close else f"a recipe has {', '.join(names)}"
                raise ValueError(f"a recipe has no {key!r}: {hint}")
        return cls(**values)

    def to_dict(self) -> dict[str, Any]:
        """Turn the recipe into plain JSON values, every field; the inverse of ``from_dict``."""
        return dataclasses.asdict(self)

    def changed(self, **changes: Any) -> Recipe:
        """Make the same recipe with some fields changed; unknown fields are refused."""
        return Recipe.from_dict({**self.to_dict(), **changes})

    def difference(self, other: Recipe) -> dict[str, tuple[Any, Any]]:
        """List the fields in which two recipes differ: name -> (here, there)."""
        here, there = self.to_dict(), other.to_dict()
        return {name: (here[name], there[name]) for name in here if here[name] != there[name]}


_HINTS = get_type_hints(Recipe)


def _problem(hint: Any, limits: Number | None, value: object) -> str | None:
    """Say what a value must be, or None when it is that."""
    options = get_args(hint)
    if get_origin(hint) is Literal:
        return None if isinstance(value, str) and value in options else f"it must be one of {', '.join(options)}"
    if hint is bool:
        return None if isinstance(value, bool) else "it must be true or false"
    if type(None) in options:
        if value is None:
            return None
        hint = next(option for option in options if option is not type(None))
    low, high = limits or (-math.inf, math.inf)
    words = "a whole number" if hint is int else "a number"
    is_number = isinstance(value, int if hint is int else (int, float)) and not isinstance(value, bool)
    if is_number and low <= value <= high:  # type: ignore[operator]
        return None
    return f"it must be {words} from {low:,g} to {high:,g}{' or null' if type(None) in options else ''}"


def learning_rate_at(recipe: Recipe, step: int, total_steps: int) -> float:
    """Compute the learning rate of one optimizer step.

    Args:
        recipe: Height, shape and warm-up.
        step: 0 for the first step.
        total_steps: Steps of the whole run, at least 1.

    Returns:
        The rate; it climbs in a straight line from a 25th of the height while warming up, and is never above it.
    """
    share = recipe.warmup_fraction
    if share is None:
        share = 0.25 if recipe.schedule == "one_cycle" else 0.0
    warmup_steps = round(share * total_steps)
    if step < warmup_steps:
        return recipe.learning_rate * (1 / 25 + (1 - 1 / 25) * step / warmup_steps)
    done = (step - warmup_steps) / max(1, total_steps - warmup_steps)
    if recipe.schedule == "cosine":
        return recipe.learning_rate * 0.5 * (1 + math.cos(math.pi * done))
    if recipe.schedule == "one_cycle":
        return recipe.learning_rate * (1 - done)
    return recipe.learning_rate
