"""Checkpoints that survive being killed: written beside the old one, then renamed over it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch


def save(path: Path, parts: Mapping[str, Any], place: Mapping[str, int]) -> None:
    """Write a checkpoint whole or not at all.

    A rename within one folder is atomic: whoever looks sees the old file or the new one. The data must be on the disk
    first, else a power cut can leave the new name on an empty file.

    Args:
        path: Of the checkpoint; its folder must exist.
        parts: Name -> what has a ``state_dict``: model, optimizer, schedule.
        place: Where the run stands: step, seed.
    """
    beside = path.with_suffix(".new")
    with beside.open("wb") as file:
        torch.save({"parts": {name: part.state_dict() for name, part in parts.items()}, **place}, file)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)


def load(path: Path, parts: Mapping[str, Any]) -> dict[str, Any]:
    """Put every part into the state that was saved.

    Returns:
        The place: step, seed.
    """
    found: dict[str, Any] = torch.load(path, weights_only=True)
    states = found.pop("parts")
    for name, part in parts.items():
        part.load_state_dict(states[name])
    return found
