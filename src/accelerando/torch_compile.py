"""PyTorch's compiler as a guest: without its asides, and with caches that hold nothing yet."""

from __future__ import annotations

import importlib
import logging
import os
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quiet() -> Iterator[None]:
    """Keep it from writing to standard error what the caller counts and tells anyway: breaks, recompiles, no GPU."""
    speakers = [logging.getLogger(name) for name in ("torch._dynamo", "torch.utils.cpp_extension")]
    before = [speaker.level for speaker in speakers]
    for speaker in speakers:
        speaker.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for speaker, level in zip(speakers, before, strict=True):
            speaker.setLevel(level)


def load() -> None:
    """Import what Inductor needs; on a machine without a GPU it would say so on standard error, once."""
    with quiet():
        for name in ("torch.utils.cpp_extension", "torch._inductor.compile_fx"):
            importlib.import_module(name)


@contextmanager
def fresh_caches() -> Iterator[dict[str, str]]:
    """Variables that make a child process find empty compile caches; the folder is gone afterwards.

    A second run finds the first one's code on disk and would report a compile time of almost nothing. Processes that
    wait for GPU kernels to compile (``TORCH_WARM_POOL``) are left out: on a CPU they only take time from the others.
    """
    with tempfile.TemporaryDirectory(prefix="accelerando-compile-", ignore_cleanup_errors=True) as folder:
        yield {
            "TORCHINDUCTOR_CACHE_DIR": folder,
            "TRITON_CACHE_DIR": os.path.join(folder, "triton"),
            "TORCH_WARM_POOL": "0",
        }


@contextmanager
def empty_caches() -> Iterator[None]:
    """The same for what is compiled in this process during the block."""
    load()
    from torch._inductor.utils import fresh_cache

    with fresh_cache():
        yield
