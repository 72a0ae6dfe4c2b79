"""Which of its kernels oneDNN runs for a call: asked of itself, since nothing else tells."""

from __future__ import annotations

import ctypes
import os
import re
import sys
import tempfile
from collections.abc import Callable


def name_kernels(run: Callable[[], object], kind: str) -> str:
    """Ask oneDNN which of its kernels of a kind a call used, as ``ONEDNN_VERBOSE=1`` would print it.

    Runs inside the child: oneDNN prints to the process's standard output, which goes into a file meanwhile.

    Args:
        run: The call.
        kind: Of the kernel, such as "convolution".

    Returns:
        Its name, such as ``"jit:avx2"``; empty when oneDNN ran none of this kind.
    """
    import torch

    if not torch.backends.mkldnn.is_available():
        return ""
    sys.stdout.flush()
    kept = os.dup(1)
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), 1)
        try:
            with torch.backends.mkldnn.verbose(torch.backends.mkldnn.VERBOSE_ON):
                run()
            ctypes.CDLL(None).fflush(None)
        finally:
            os.dup2(kept, 1)
            os.close(kept)
        file.seek(0)
        lines = file.read().decode(errors="replace")
    return read_kernel(lines, kind)


def read_kernel(lines: str, kind: str) -> str:
    """Read the name of the last kernel of a kind from oneDNN's lines; empty when there is none."""
    found = re.findall(rf"^onednn_verbose,.*?exec,cpu,{kind},([^,\n]+),", lines, re.M)
    return str(found[-1]) if found else ""
