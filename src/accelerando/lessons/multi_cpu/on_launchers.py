"""What a rank can see of its launcher: no torch is needed for that."""

from __future__ import annotations

import os
from typing import Any

VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "OMP_NUM_THREADS")


def tell() -> dict[str, Any]:
    """Return the variables and the CPUs that this rank finds."""
    cpus = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None
    return {"variables": {name: os.environ.get(name) for name in VARIABLES}, "cpus": cpus}
