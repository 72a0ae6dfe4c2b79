"""Probes of lab 3: what must be watched inside the learner's process, because functions do not travel on a pipe."""

from collections import UserDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from accelerando.submission import Wrong, look_up_function

OPERATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "halve": lambda part: part * 0.5,
    "add": lambda part: part + 1.5,
    "square": lambda part: part * part,
    "tanh": torch.tanh,
    "negate": torch.neg,
    "relu": torch.relu,
}


def in_blocks(namespace: Mapping[str, Any], cases: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Give the learner's function values and operations, and write down in which order it calls them on what.

    Args:
        namespace: The learner's names.
        cases: ``{"values": tensor, "operations": names of `OPERATIONS`, "block": int}`` each.

    Returns:
        For each case ``{"result", "calls": [[operation's place, numbers]], "kept": the input is unchanged}``.
    """
    function = look_up_function(namespace, "in_blocks")
    found = []
    for case in cases:
        values = case["values"].clone()
        calls: list[list[int]] = []
        operations = [_recorded(name, place, calls) for place, name in enumerate(case["operations"])]
        result = function(values, operations, case["block"])
        if not isinstance(result, torch.Tensor):
            raise Wrong(f"`in_blocks` returned {type(result).__name__}. It should return a tensor.")
        if result.layout != torch.strided:
            raise Wrong("`in_blocks` returned a sparse tensor. It should return an ordinary one.")
        kept = torch.equal(values, case["values"])
        found.append({"result": result.detach(), "calls": calls[:100_000], "kept": kept})
    return found


def _recorded(name: str, place: int, calls: list[list[int]]) -> Callable[[torch.Tensor], torch.Tensor]:
    def operation(part: torch.Tensor) -> torch.Tensor:
        calls.append([place, part.numel()])
        return OPERATIONS[name](part)

    return operation


class Environment(UserDict[str, str]):
    """Like ``os.environ``: names and values are text."""

    def __setitem__(self, name: str, value: str) -> None:
        """Refuse what is no text, as the real one does."""
        for given in (name, value):
            if not isinstance(given, str):
                raise TypeError(f"str expected, not {type(given).__name__}")
        super().__setitem__(name, value)


class Library:
    """Behaves like torch with its OpenMP runtime: reads its variables as it is loaded, and never again.

    Args:
        environ: The variables.
        cores: Of the machine; as many threads as that unless OMP_NUM_THREADS says otherwise.
    """

    def __init__(self, environ: Environment, cores: int) -> None:
        """Read the variables."""
        text = environ.get("OMP_NUM_THREADS", "")
        self.threads = int(text) if text.isascii() and text.isdecimal() and int(text) else cores
        self.bind = environ.get("OMP_PROC_BIND", "")
        self.interop, self.products, self.was_refused = cores, 0, False

    def set_num_threads(self, count: int) -> None:
        """At any time, like torch's."""
        _check_count("set_num_threads", count)
        self.threads = count

    def get_num_threads(self) -> int:
        """Threads that share one operator."""
        return self.threads

    def set_num_interop_threads(self, count: int) -> None:
        """Before the first work: stricter than torch's, which refuses once operators have run side by side."""
        if self.products:
            self.was_refused = True
            raise RuntimeError("cannot set number of interop threads after work has started")
        _check_count("set_num_interop_threads", count)
        self.interop = count

    def multiply(self) -> None:
        """The first work."""
        self.products += 1


def _check_count(name: str, count: int) -> None:
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count < 2**31:
        raise RuntimeError(f"{name} expects a positive integer")


def begin_worker(namespace: Mapping[str, Any], cases: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Let the learner's function set up a worker, and look at the library that comes of it.

    Args:
        namespace: The learner's names.
        cases: ``{"processes", "cores", "inherited": variables}`` each.

    Returns:
        For each case ``{"loads", "is_returned", "threads", "bind", "interop", "products"}``.
    """
    function = look_up_function(namespace, "begin_worker")
    return [_begin(function, **case) for case in cases]


def _begin(function: Callable[..., Any], processes: int, cores: int, inherited: Mapping[str, str]) -> dict[str, Any]:
    environ, loaded = Environment(inherited), []

    def load() -> Library:
        loaded.append(Library(environ, cores))
        return loaded[-1]

    try:
        returned = function(processes, cores, environ, load)
    except RuntimeError:
        if loaded and loaded[-1].was_refused:
            raise Wrong(
                "The library refused `set_num_interop_threads`: work had started. What was its first "
                "work? See *Set too late* in the lesson."
            ) from None
        raise
    if not loaded:
        raise Wrong("`begin_worker` never called `load()`. Without a library there is nothing to set up.")
    library = loaded[-1]
    facts = {name: getattr(library, name) for name in ("threads", "bind", "interop", "products")}
    return {"loads": len(loaded), "is_returned": returned is library, **facts}
