"""Runs a lesson's notebook headless and stores what it showed. The only door to nbclient.

The stored notebook says by which code, on which machine and when its outputs were made; `check_lesson` tells whether
code and outputs still belong together.
"""

import copy
import datetime
import hashlib
import importlib.metadata
import os
import platform
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from .. import work
from ..catalog import Lesson
from .cells import KERNEL, Notebook, source_hash
from .notebooks import read_notebook, write_notebook
from .outputs import normalise, plain_text

Budget = Literal["smoke", "quick", "full"]
SCHEMA = 1
STAMP = "accelerando"
_CELL_LIMIT_S = {"smoke": 120, "quick": 300, "full": 3600}
_VERSIONS = ("torch", "numpy", "matplotlib", "ipywidgets")

Progress = Callable[[int, int, str], None]  # cells done, cells in all, first words of the cell that runs now


class LessonFailed(Exception):
    """A cell raised, took too long, or took its kernel with it; the message shows cell and error."""


@dataclass(frozen=True)
class LessonRun:
    """What came of running a lesson."""

    path: Path
    cells: int
    elapsed_s: float
    is_stored: bool
    remarks: tuple[str, ...]  # for the author: words on stderr, large outputs


def notebook_path(lesson: Lesson, root: Path | None = None) -> Path:
    """Where a lesson's notebook stands."""
    return (root or work.checkout()) / "notebooks" / f"{lesson.folder}.ipynb"


def run_lesson(
    lesson: Lesson,
    budget: Budget = "quick",
    *,
    store: bool = True,
    root: Path | None = None,
    progress: Progress = lambda done, total, text: None,
) -> LessonRun:
    """Run a lesson from its first cell to its last in a fresh kernel of this Python.

    Args:
        lesson: Which one.
        budget: How much it measures; the notebook reads it from ``ACCELERANDO_BUDGET``.
        store: Write the outputs into the notebook; else it stays as it is.
        root: The checkout; that of this package when left out.
        progress: Told before each code cell.

    Raises:
        LessonFailed: With cell and error; the file is unchanged.
        Unreadable: If the notebook is none.
        ValueError: If the budget is not known.
    """
    if budget not in get_args(Budget):
        raise ValueError(f"there is no budget {budget!r}; say one of {', '.join(get_args(Budget))}")
    root = root or work.checkout()
    path = notebook_path(lesson, root)
    source, repairs = read_notebook(path)
    started_s = time.monotonic()
    with (
        tempfile.TemporaryDirectory(prefix="accelerando-lesson-") as scratch,
        tempfile.TemporaryDirectory(prefix="accelerando-") as sockets,
    ):
        ran, widgets = _execute(source, scratch, sockets, budget, progress)
        folders = {scratch: "scratch", str(root): ".", sys.prefix: "<environment>", str(Path.home()): "~"}
        remarks = normalise(ran, {os.path.realpath(f): n for f, n in folders.items()} | folders, widgets)
    elapsed_s = time.monotonic() - started_s
    if store:
        ran["metadata"] = source["metadata"] | {"kernelspec": dict(KERNEL), "language_info": {"name": "python"}}
        ran["metadata"][STAMP] = _stamp(lesson, source, root, budget, elapsed_s)
        write_notebook(path, ran)
    count = sum(cell["cell_type"] == "code" for cell in ran["cells"])
    return LessonRun(path, count, elapsed_s, store, (*repairs, *remarks))


def check_lesson(lesson: Lesson, root: Path | None = None) -> list[str]:
    """Tell why a lesson's stored outputs do not belong to its code; empty when they do."""
    root = root or work.checkout()
    notebook, repairs = read_notebook(notebook_path(lesson, root))
    name = f"notebooks/{lesson.folder}.ipynb"
    cure = f"run ./course lesson {lesson.number}"
    stamp = notebook["metadata"].get(STAMP)
    if not isinstance(stamp, dict) or stamp.get("schema") != SCHEMA:
        return [f"{name}: has no stored run: {cure}"]
    problems = [f"{name}: {repair}" for repair in repairs]
    if stamp.get("code_sha256") != code_hash(notebook):
        problems.append(f"{name}: its code was changed after its outputs were stored: {cure}")
    if stamp.get("module_sha256") != module_hash(lesson, root):
        problems.append(f"{name}: lessons/{lesson.slug} or its quiz was changed after its outputs were stored: {cure}")
    if stamp.get("budget") != "quick":
        problems.append(f"{name}: its outputs are of a {stamp.get('budget')} run, not of a quick one: {cure}")
    for number, cell in enumerate(notebook["cells"], 1):
        if any(output["output_type"] == "error" for output in cell.get("outputs", ())):
            problems.append(f"{name}: cell {number} stores an error: {cure}")
    return problems


def code_hash(notebook: Notebook) -> str:
    """SHA-256 over the code cells, in their order."""
    hashes = [source_hash(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    return hashlib.sha256("\n".join(hashes).encode()).hexdigest()


def module_hash(lesson: Lesson, root: Path) -> str:
    """SHA-256 of the lesson's helper module, of all its files when it is a package, and of the quiz on its page."""
    package = root / "src" / "accelerando"
    home = package / "lessons"
    quiz = package / "quizzes" / f"{lesson.number:02d}.toml"
    files = [home / f"{lesson.slug}.py", *sorted((home / lesson.slug).rglob("*.py")), quiz]
    return source_hash("\n".join(file.read_text(encoding="utf-8") for file in files if file.is_file()))


def _execute(
    source: Notebook, scratch: str, sockets: str, budget: Budget, progress: Progress
) -> tuple[Notebook, dict[str, Any]]:
    """Run all code cells; always leaves without a kernel, also on Ctrl-C."""
    import json

    import nbformat
    from jupyter_client.manager import AsyncKernelManager
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

    node = nbformat.from_dict(copy.deepcopy(source))
    code = [index for index, cell in enumerate(node.cells) if cell.cell_type == "code"]
    here = [0]

    def on_cell_start(cell: Any, cell_index: int) -> None:
        if cell.cell_type == "code":
            here[0] = cell_index
            progress(code.index(cell_index), len(code), _first_words(cell.source))

    # Sockets in the file system: no port to collide on, nothing that another user could listen to.
    manager = AsyncKernelManager(
        kernel_spec_manager=_own_kernel(), transport="ipc", connection_file=os.path.join(sockets, "kernel.json")
    )
    client = NotebookClient(
        node,
        km=manager,
        timeout=_CELL_LIMIT_S[budget],
        record_timing=False,
        on_cell_start=on_cell_start,
        resources={"metadata": {"path": scratch}},
    )
    client.owns_km = True
    environment = os.environ | {"ACCELERANDO_BUDGET": budget, "PYDEVD_DISABLE_FILE_VALIDATION": "1"}
    try:
        _until_done_or_stopped(lambda: client.execute(env=environment, cwd=scratch), manager)
    except CellExecutionError as error:
        raise LessonFailed(_tell(source, here[0], f"{error.ename}: {error.evalue}", error.traceback)) from None
    except CellTimeoutError:
        raise LessonFailed(_tell(source, here[0], f"took longer than {_CELL_LIMIT_S[budget]} s")) from None
    except DeadKernelError:
        raise LessonFailed(_tell(source, here[0], "the kernel died (out of memory?)")) from None
    progress(len(code), len(code), "")
    return json.loads(json.dumps(node)), dict(client.widget_state)


def _until_done_or_stopped(execute: Callable[[], object], manager: Any) -> None:
    """Run nbclient in a thread of its own, where it leaves signals alone: Ctrl-C then ends the kernel at once."""
    with ThreadPoolExecutor(1) as executor:
        future = executor.submit(execute)
        try:
            future.result()
        except Exception:
            raise
        except BaseException:  # Ctrl-C, or a signal that somebody made an exception of
            future.cancel()
            pid = getattr(manager.provisioner, "pid", None)
            if pid:
                with suppress(ProcessLookupError):
                    os.killpg(pid, signal.SIGKILL)  # a kernel leads its own group
            raise


def _own_kernel() -> Any:
    """A kernel of this very Python, whatever kernels the user has installed elsewhere under the same name."""
    from jupyter_client.kernelspec import KernelSpec, KernelSpecManager

    class OwnKernel(KernelSpecManager):
        def get_kernel_spec(self, kernel_name: str) -> KernelSpec:
            command = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
            return KernelSpec(argv=command, display_name=KERNEL["display_name"], language="python")

    return OwnKernel()


def _tell(source: Notebook, index: int, error: str, traceback: str = "") -> str:
    code = "\n".join(f"    {line}" for line in source["cells"][index]["source"].splitlines()[:15])
    trace = plain_text(traceback.rpartition("-" * 18 + "\n")[2]).strip()
    return f"cell {index + 1} failed: {error}\n\n" + (trace or code)


def _first_words(source: str) -> str:
    lines = [line.strip() for line in source.splitlines() if line.strip()]
    return lines[0][:48] if lines else ""


def _stamp(lesson: Lesson, source: Notebook, root: Path, budget: Budget, elapsed_s: float) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "code_sha256": code_hash(source),
        "module_sha256": module_hash(lesson, root),
        "machine": _machine(),
        "versions": {"python": platform.python_version()}
        | {name: importlib.metadata.version(name) for name in _VERSIONS},
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "budget": budget,
        "elapsed_s": round(elapsed_s),
    }


def _machine() -> dict[str, Any]:
    from ..machine import probe

    found = probe()
    return {
        "model": found.model,
        "architecture": found.architecture,
        "usable_cores": found.usable_cores,
        "simd": found.simd,
        "memory_gib": round(found.memory_bytes / 2**30) if found.memory_bytes else None,
        "gpus": len(found.gpus),
    }
