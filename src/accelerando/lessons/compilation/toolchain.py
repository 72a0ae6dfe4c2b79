"""Whether this run may generate code, and what takes its place where it may not."""

from __future__ import annotations

import os
import sysconfig
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from accelerando import needs, torch_compile
from accelerando.lessons import Budget
from accelerando.machine import Machine


@dataclass(frozen=True)
class Toolchain:
    """How far ``torch.compile`` goes in this run.

    Args:
        backend: "inductor" generates and compiles code; "aot_eager" captures and differentiates graphs, no more.
        why: Why it is not "inductor"; empty when it is.
    """

    backend: str
    why: str = ""

    @property
    def generates_code(self) -> bool:
        """Whether Inductor runs."""
        return self.backend == "inductor"

    def caches(self) -> AbstractContextManager[None]:
        """Empty compile caches for what is compiled in this process during the block, where code is generated."""
        return torch_compile.empty_caches() if self.generates_code else nullcontext()

    def sentence(self) -> str:
        """What the reader should know before the first number."""
        if self.generates_code:
            return "A C++ compiler is here: everything in this lesson runs."
        return (
            f"{self.why} Graphs, guards, graph breaks and recompiles are shown all the same; wherever code would have "
            f"been generated, the backend `{self.backend}` takes its place, which saves nothing."
        )


def find(here: Machine, budget: Budget) -> Toolchain:
    """Tell how far this run goes.

    Args:
        here: From `machine.probe`.
        budget: "smoke" generates no code: it takes longer than a smoke run may.
    """
    if budget.name == "smoke":
        return Toolchain("aot_eager", "The smoke budget generates no code, which takes longer than it has.")
    missing = needs.missing(here, ("compiler",))
    if missing:
        return Toolchain("aot_eager", f"This machine has {missing[0].why}. To have one: {missing[0].how}.")
    headers = os.path.join(sysconfig.get_path("include"), "Python.h")
    if not os.path.isfile(headers):
        return Toolchain(
            "aot_eager",
            f"There is a C++ compiler, but no `Python.h` ({os.path.dirname(headers)}), which Inductor's kernels "
            "include. To have it: `apt install python3-dev`, or a Python from uv or conda.",
        )
    return Toolchain("inductor")
