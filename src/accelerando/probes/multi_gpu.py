"""Probe of lab 9: lets the learner's training step run on ranks that are threads, and reads the gradients."""

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from accelerando.submission import Wrong, look_up_function

CASES = ((3, 2, 0.5), (2, 3, 0.2), (4, 1, 0.5), (3, 2, 1e6))
"""(ranks, batches of each, length to which the gradient is clipped)."""
INPUTS, CLASSES, IMAGES, PATIENCE_S = 12, 4, 6, 10.0
Case = tuple[int, int, float]
Batch = tuple[torch.Tensor, torch.Tensor]


def network(seed: int) -> nn.Module:
    """The same start for everybody."""
    draw = torch.Generator().manual_seed(seed)
    model = nn.Sequential(nn.Linear(INPUTS, 16), nn.Tanh(), nn.Linear(16, CLASSES))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=draw) / 3)
    return model


def batches_of(seed: int, case: Case, rank: int) -> list[Batch]:
    """One rank's batches; some ranks have larger numbers than others, so that their gradients differ in length."""
    draw = torch.Generator().manual_seed(seed + 7919 * (rank + 1))
    return [
        (
            torch.randn(IMAGES, INPUTS, generator=draw) * (1 + 3 * rank + place),
            torch.randint(CLASSES, (IMAGES,), generator=draw),
        )
        for place in range(case[1])
    ]


def whole(seed: int, case: Case) -> torch.Tensor:
    """The clipped gradient of one big batch: the reference, float32 (P,)."""
    model = network(seed)
    every = [batch for rank in range(case[0]) for batch in batches_of(seed, case, rank)]
    images, labels = (torch.cat([batch[part] for batch in every]) for part in (0, 1))
    nn.functional.cross_entropy(model(images), labels).backward()
    nn.utils.clip_grad_norm_(model.parameters(), case[2])
    return _flat(model)


def train_step(namespace: Mapping[str, Any], seed: int) -> list[dict[str, Any]]:
    """Run the learner's function on every rank of every case.

    Args:
        namespace: The learner's names.
        seed: Of weights and images.

    Returns:
        For each of `CASES`: "gradients", one float32 (P,) for each rank, and "moved", whether its weights did.
    """
    function = look_up_function(namespace, "train_step")
    return [_run(function, seed, case) for case in CASES]


def _run(function: Callable[..., object], seed: int, case: Case) -> dict[str, Any]:
    ranks, _, longest = case
    world = _World(ranks)
    models = [network(seed) for _ in range(ranks)]
    errors: list[BaseException | None] = [None] * ranks

    def on_one_rank(rank: int) -> None:
        try:
            function(models[rank], batches_of(seed, case, rank), world.all_reduce_of(rank), ranks, longest)
        except BaseException as error:
            errors[rank] = error
            world.meeting.abort()

    threads = [threading.Thread(target=on_one_rank, args=(rank,), daemon=True) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * PATIENCE_S)
    _raise_first(errors, is_stuck=any(thread.is_alive() for thread in threads))
    start = _weights(network(seed))
    return {
        "gradients": [_flat(model) for model in models],
        "moved": [not torch.equal(_weights(model), start) for model in models],
    }


def _raise_first(errors: Sequence[BaseException | None], *, is_stuck: bool) -> None:
    """Tell the learner's own error; of ranks that waited in vain, that they did."""
    own = [error for error in errors if error is not None and not isinstance(error, threading.BrokenBarrierError)]
    if own:
        if isinstance(own[0], Exception):
            raise own[0]
        raise Wrong(f"`train_step` ended its rank with {type(own[0]).__name__}.")
    if is_stuck or any(errors):
        raise Wrong("The ranks wait for each other for ever: does each make the same all-reduces, in the same order?")


class _World:
    """An all-reduce between threads: everybody's tensor becomes the sum of all."""

    def __init__(self, ranks: int) -> None:
        self.meeting = threading.Barrier(ranks, timeout=PATIENCE_S)
        self._given: list[torch.Tensor | None] = [None] * ranks

    def all_reduce_of(self, rank: int) -> Callable[[torch.Tensor], None]:
        """The function that rank ``rank`` gets."""

        def all_reduce(tensor: torch.Tensor) -> None:
            """Replace ``tensor``, in place, by the sum over all ranks."""
            if not isinstance(tensor, torch.Tensor):
                raise TypeError(f"all_reduce takes a tensor, not {type(tensor).__name__}")
            self._given[rank] = tensor.detach().clone()
            self.meeting.wait()
            given = [one for one in self._given if one is not None]
            if any(one.shape != tensor.shape for one in given):
                raise ValueError("the ranks give all_reduce tensors of different shapes")
            total = torch.stack(given).sum(0)
            self.meeting.wait()
            with torch.no_grad():
                tensor.copy_(total)

        return all_reduce


def _flat(model: nn.Module) -> torch.Tensor:
    parts = [
        torch.full_like(parameter, torch.nan) if parameter.grad is None else parameter.grad
        for parameter in model.parameters()
    ]
    return torch.cat([part.flatten() for part in parts])


def _weights(model: nn.Module) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
