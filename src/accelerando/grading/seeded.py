"""Runs a timed experiment again and again in one process, each time with the next seed. Loaded by `workers`."""

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any


def prepare(
    target: str, arguments: Mapping[str, Any], seeds: Sequence[int], prepares: bool = False
) -> Callable[[], Any]:
    """Return a function whose calls run ``target`` with the seeds in turn.

    Args:
        target: ``"package.module:function"``; the function takes ``arguments`` and ``seed``.
        arguments: Its keyword arguments.
        seeds: Used in order, then again from the beginning.
        prepares: The function takes only ``arguments``, once and untimed, and returns the one that takes ``seed``.
    """
    module, _, name = target.partition(":")
    function = getattr(importlib.import_module(module), name)
    if prepares:
        function, arguments = function(**arguments), {}
    calls = 0

    def run() -> Any:
        nonlocal calls
        seed = seeds[calls % len(seeds)]
        calls += 1
        return function(**arguments, seed=seed)

    return run
