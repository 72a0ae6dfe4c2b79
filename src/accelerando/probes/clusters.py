"""Probe of lab 10: breaks a run off after the learner's `save`, and kills a process in the middle of another one."""

from __future__ import annotations

import os
import resource
import signal
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from accelerando.submission import NotMeasurableHere, Wrong, look_up

STEPS, SAVED_AT = 8, 3
_SHARE = 3
"""A killed process has written at most one part in so many of a checkpoint."""
Parts = dict[str, Any]


def parts_of(seed: int) -> Parts:
    """Model, optimizer and schedule at the start of a run: dropout and momentum, so that everything matters."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(48, 192), nn.Tanh(), nn.Dropout(0.5), nn.Linear(192, 5))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)
    return {"model": model, "optimizer": optimizer, "schedule": schedule}


def train(parts: Parts, first: int, steps: int, seed: int) -> None:
    """Train from step ``first`` to ``steps``."""
    for step in range(first, steps):
        draw = torch.Generator().manual_seed(1000 * seed + step)
        images, labels = torch.randn(16, 48, generator=draw), torch.randint(5, (16,), generator=draw)
        parts["optimizer"].zero_grad()
        nn.functional.cross_entropy(parts["model"](images), labels).backward()
        parts["optimizer"].step()
        parts["schedule"].step()


def load(path: Path, parts: Parts) -> dict[str, int]:
    """The lab's own loader."""
    found = torch.load(path, weights_only=True)
    for name, part in parts.items():
        part.load_state_dict(found["parts"][name])
    torch.set_rng_state(found["rng"])
    place: dict[str, int] = found["place"]
    return place


def save(namespace: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """Try the learner's `save`.

    Args:
        namespace: The learner's names.
        seed: Of weights and images.

    Returns:
        ``expected`` and ``found``: weights of a run left in peace, and of one taken up again, float32 (P,); ``place``:
        what came back; ``loaded``: why the file could not be read, or empty; ``killed``: whether a process died while
        it wrote; ``after_kill``: "old", "new", or why the file could not be read; ``again``: the same after one more
        save.
    """
    function = look_up(namespace, "save")
    if not hasattr(os, "fork"):
        raise NotMeasurableHere("this system cannot copy a process, so none can be killed while it saves")
    state = torch.get_rng_state()
    with tempfile.TemporaryDirectory(prefix="accelerando-save-") as folder:
        try:
            return _try(function, Path(folder) / "checkpoint.pt", seed)
        finally:
            torch.set_rng_state(state)


def _try(function: Callable[..., object], path: Path, seed: int) -> dict[str, Any]:
    parts = parts_of(seed)
    train(parts, 0, SAVED_AT, seed)
    before = torch.get_rng_state()
    function(str(path), parts, {"step": SAVED_AT, "seed": seed})
    if not torch.equal(torch.get_rng_state(), before):
        raise Wrong("`save` draws random numbers or sets a seed: the run that goes on is no longer the same.")
    train(parts, SAVED_AT, STEPS, seed)
    expected = _flat(parts)
    told: dict[str, Any] = {"expected": expected, "found": None, "place": None, "loaded": ""}
    told |= {"killed": False, "after_kill": "", "again": ""}
    again = parts_of(seed + 1)
    try:
        told["place"] = load(path, again)
    except Exception as error:
        told["loaded"] = _sentence(error)
        return told
    train(again, SAVED_AT, STEPS, seed)
    told["found"] = _flat(again)
    whole = max(file.stat().st_size for file in path.parent.iterdir())
    told["killed"] = _die_saving(function, path, parts, seed, whole // _SHARE)
    told["after_kill"] = _which(path)
    function(str(path), parts, {"step": STEPS, "seed": seed})
    told["again"] = _which(path)
    return told


def _die_saving(function: Callable[..., object], path: Path, parts: Parts, seed: int, limit_bytes: int) -> bool:
    """Let a copy of this process save, and die as soon as a file has grown too large; whether it died of that."""
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if not child:
        try:
            signal.signal(signal.SIGXFSZ, signal.SIG_DFL)  # Python ignores it by itself
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, limit_bytes))
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            function(str(path), parts, {"step": STEPS, "seed": seed})
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status)


def _which(path: Path) -> str:
    try:
        place = load(path, parts_of(0))
        return "old" if place.get("step") == SAVED_AT else "new"
    except Exception as error:
        return _sentence(error)


def _sentence(error: Exception) -> str:
    words = str(error).partition(": '")[0].splitlines()  # without the name of a file that is gone already
    return f"{type(error).__name__}: {words[0][:160]}" if words else type(error).__name__


def _flat(parts: Parts) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in parts["model"].parameters()])
