"""What a program calls on a rank: what it was sent, what it gives back, and how it joins the others."""

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from accelerando import wire
from accelerando.rank_entry import FOLDER_VARIABLE


def payload() -> dict[str, Any]:
    """Return what the caller of `run` sent, inside a rank."""
    sent: dict[str, Any] = _read("payload")
    return sent


def names() -> dict[str, Any]:
    """Return the values that a function of a notebook names there."""
    sent: dict[str, Any] = _read("names")
    return sent


def give(value: Any) -> None:
    """Hand a value back to the caller of `run`, inside a rank; the last one counts."""
    path = _own_folder() / f"{os.environ['RANK']}.value"
    with path.with_suffix(".new").open("wb") as stream:
        wire.write_message(stream, value)
    path.with_suffix(".new").replace(path)


@contextlib.contextmanager
def joined(backend: str = "gloo", *, time_limit_s: float = 60.0) -> Iterator[tuple[int, int]]:
    """Join the other ranks, inside a rank: ``with ranks.joined() as (rank, world_size):``.

    Args:
        backend: "gloo", or "ccl" for oneCCL; where that cannot be had, rank 0 says why, and gloo is taken.
        time_limit_s: The longest that one collective may wait for the others.
    """
    import datetime

    import torch.distributed as dist

    if backend == "ccl":
        from accelerando.backends import oneccl

        choice = oneccl.choose()
        backend = choice.backend
        if choice.reason and os.environ["RANK"] == "0":
            sys.stdout.write(f"gloo in place of oneCCL: {choice.reason}\n")
            sys.stdout.flush()
    dist.init_process_group(backend, timeout=datetime.timedelta(seconds=time_limit_s))
    yield dist.get_rank(), dist.get_world_size()
    dist.destroy_process_group()  # not after an error: the others may never come


def _read(name: str) -> Any:
    with (_own_folder() / name).open("rb") as stream:
        return wire.read_message(stream)


def _own_folder() -> Path:
    folder = os.environ.get(FOLDER_VARIABLE)
    if folder is None:
        raise ValueError("this process is no rank of `ranks.run`: nothing was sent to it")
    return Path(folder)
