"""Functions that the workers of test_workers and test_measure run: honest ones and awkward ones."""

# ruff: noqa: T201 - printing is what they are for
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np


def add(a: float, b: float) -> float:
    return a + b


def settings(names: list[str]) -> dict[str, Any]:
    was_loaded = "torch" in sys.modules
    import torch

    return {
        "variables": {name: os.environ.get(name) for name in names},
        "torch_threads": torch.get_num_threads(),
        "torch_was_loaded": was_loaded,
        "cpus": sorted(os.sched_getaffinity(0)),
        "leads_group": os.getpgrp() == os.getpid(),
    }


def counter(start: int) -> Callable[[], int]:
    calls = [start]

    def count() -> int:
        calls[0] += 1
        return calls[0]

    return count


def mean(images: np.ndarray) -> dict[str, Any]:
    return {"mean": float(images.mean()), "doubled": images * 2}


def raises(text: str) -> None:
    print("about to fail")
    raise KeyError(text)


def leaves(how: str) -> None:
    print("last words", flush=True)
    if how == "exit":
        sys.exit(7)
    if how == "_exit":
        os._exit(7)
    os.kill(os.getpid(), signal.SIGKILL)


def hangs(seconds: float) -> None:
    print("going to sleep")
    time.sleep(seconds)


def prints(megabytes: int) -> str:
    print("the beginning")
    for _ in range(megabytes):
        sys.stdout.write("x" * 2**20)
    print("the end")
    return "printed"


def unsendable() -> object:
    return {"model": object()}


def with_grandchild(dies: bool) -> int:
    """Start a sleeper that inherits everything, then perhaps die without it."""
    sleeper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    print(f"grandchild {sleeper.pid}", flush=True)
    if dies:
        os._exit(3)
    return sleeper.pid


def forks_and_dies() -> None:
    if os.fork() == 0:
        time.sleep(600)
    os._exit(5)


def scribbles_on_descriptors() -> int:
    """Close standard output and print into the void: the reply must still arrive."""
    os.close(1)
    return 5


def spins(milliseconds: float) -> Callable[[], None]:
    def spin() -> None:
        end = time.perf_counter() + milliseconds / 1000
        while time.perf_counter() < end:
            pass

    return spin


not_a_function = 3
