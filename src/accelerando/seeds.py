"""One call seeds everything that draws: python, numpy, torch, and the loader's workers.

A run that cannot be repeated cannot be compared. Every rank of a distributed run gets its own stream (else all
ranks would draw the same augmentation), and every stream follows from one number.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

MAX_SEED = 2**32 - 1  # numpy's legacy generator takes no more


def stream_seed(seed: int, *keys: int) -> int:
    """Derive the seed of one independent stream, such as a rank or a worker.

    Adding the rank to the seed would make (seed 0, rank 1) and (seed 1, rank 0) the same run; hashing keeps
    neighbours apart.

    Args:
        seed: The run's seed, 0 to ``2**32 - 1``.
        keys: What tells this stream from the others: rank, epoch, worker number.

    Returns:
        A number from 0 to ``2**32 - 1``; the seed itself when there are no keys.

    Raises:
        ValueError: If the seed is out of range or not a whole number.
    """
    checked = check_seed(seed)
    if not keys:
        return checked
    return int(np.random.SeedSequence([checked, *keys]).generate_state(1)[0])


def check_seed(seed: int) -> int:
    """Return ``seed`` when it is a whole number from 0 to ``2**32 - 1``, else raise ``ValueError``."""
    if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)) or not 0 <= seed <= MAX_SEED:
        raise ValueError(f"seed is {seed!r}: it must be a whole number from 0 to {MAX_SEED}, for example 0")
    return int(seed)


def seed(value: int = 0, *, rank: int = 0) -> int:
    """Seed python, numpy and torch (CPU and every GPU) for one rank.

    Args:
        value: The run's seed, 0 to ``2**32 - 1``.
        rank: This process's rank; rank 0 uses ``value`` as it stands, so that a single process and rank 0 agree.

    Returns:
        The seed that this rank uses.
    """
    own = stream_seed(value, rank) if rank else check_seed(value)
    random.seed(own)
    np.random.seed(own)
    torch.manual_seed(own)
    return own


def generator(value: int = 0, *keys: int) -> torch.Generator:
    """Make a torch generator of its own stream, for shuffling and augmentation.

    Its draws depend on ``value`` and ``keys`` only, not on what else the program drew from the global generator.
    """
    return torch.Generator().manual_seed(stream_seed(value, *keys))


def seed_worker(worker_id: int) -> None:
    """Seed python and numpy in a DataLoader worker: pass it as ``worker_init_fn``.

    torch 2.8 seeds both by itself (lesson 4 looks); this says so in one rule, from torch's own seed of the worker. A
    generator that the dataset made for itself is still the same in every worker: make it anew in each.
    """
    own = torch.initial_seed() % (MAX_SEED + 1)
    random.seed(own)
    np.random.seed(own)


@contextmanager
def preserved() -> Iterator[None]:
    """Put the global generators back on leaving, so that a measurement does not change what the reader draws next."""
    python_state, numpy_state = random.getstate(), np.random.get_state()
    torch_state = torch.get_rng_state()
    try:
        yield
    finally:
        random.setstate(python_state)
        np.random.set_state(numpy_state)
        torch.set_rng_state(torch_state)
