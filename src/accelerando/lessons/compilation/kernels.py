"""The kernels that Inductor writes."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from accelerando import torch_compile
from accelerando.lessons.compilation.stages import run_both_ways


@dataclass(frozen=True)
class Kernel:
    """One generated kernel.

    Args:
        name: Inductor names it after the operators that it holds.
        language: "C++", or "Triton" on a GPU.
        text: Its source, without includes.
    """

    name: str
    language: str
    text: str


def generate(function: Callable[..., Any], *args: Any) -> tuple[Kernel, ...]:
    """Compile a function with Inductor in fresh caches and return the kernels that it wrote, forward and backward."""
    with torch_compile.empty_caches():
        from torch._inductor.utils import run_and_get_code

        _, sources = run_and_get_code(run_both_ways, torch.compile(function), args)
        torch._dynamo.reset()
    return tuple(kernel for source in sources for kernel in read_kernels(source))


def read_kernels(source: str) -> tuple[Kernel, ...]:
    """Find the kernels in the program that Inductor writes around them.

    Args:
        source: Python, with each kernel in it as a long string.
    """
    found = re.findall(r"^(\w+) = async_compile\.(\w+)\(.*?'''(.*?)'''", source, re.DOTALL | re.MULTILINE)
    return tuple(
        Kernel(
            name,
            "Triton" if kind == "triton" else "C++",
            "\n".join(line for line in text.strip().splitlines() if not line.startswith("#include")).strip(),
        )
        for name, kind, text in found
    )
