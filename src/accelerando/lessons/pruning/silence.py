"""NNI without its prints, logs, warnings and threads."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator

import torch

from accelerando import seeds


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Let NNI work without prints, logs, warnings and threads; the random generators are put back afterwards."""
    said = io.StringIO()
    with (
        seeds.preserved(),
        contextlib.redirect_stdout(said),
        contextlib.redirect_stderr(said),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        import nni

        nni.silence_stdout()  # its handler would go on writing to whatever stdout was at its import
        log = logging.getLogger("nni")
        level, threads = log.level, torch.get_num_threads()
        log.setLevel(logging.CRITICAL + 1)  # the root's handlers, if there are any, would hear it too
        torch.set_num_threads(1)  # thousands of tiny operations: threads would mostly wait for each other
        try:
            yield
        finally:
            log.setLevel(level)
            torch.set_num_threads(threads)
