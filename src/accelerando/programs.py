"""Programs that the course can use when they are there: compilers, MPI launchers, GPU tools, the sandbox.

Each is asked with a time limit; one that hangs, fails or is missing is simply not there. `machine` calls this.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

QUESTION_LIMIT_S = 10.0


@dataclass(frozen=True)
class Program:
    """A program that answered: its command, what it is, its version (None: it did not say) and where it lies."""

    command: str
    kind: str
    version: str | None
    path: str


@dataclass(frozen=True)
class Gpu:
    """One graphics processor; None is unknown. An integrated one shares the memory of the CPU."""

    vendor: str
    name: str | None
    memory_bytes: int | None
    driver: str | None
    is_integrated: bool | None
    compute_capability: str | None = None


@dataclass(frozen=True)
class Sandbox:
    """Whether learner code can be locked in here, tried rather than looked up."""

    kind: str | None
    is_usable: bool
    reason: str


def ask(*command: str, limit_s: float = QUESTION_LIMIT_S) -> str | None:
    """Run a program and return what it prints; None if it is missing, fails or is not done in time."""
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=limit_s,
            check=False,
            start_new_session=True,
            env={**os.environ, "LC_ALL": "C"},
        )
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
    return done.stdout.decode("utf-8", errors="replace") if done.returncode == 0 else None


def find_compilers() -> tuple[Program, ...]:
    """Find the C++ compilers that `torch.compile` and compiled backends can use."""
    found = []
    for command in ("c++", "g++", "clang++", "clang", "icpx"):
        path = shutil.which(command)
        answer = ask(path, "--version") if path else None
        if path and answer:
            found.append(Program(command, compiler_kind(answer), _version(answer), path))
    return tuple(found)


def compiler_kind(answer: str) -> str:
    """Name a compiler by what it prints for ``--version``."""
    for kind, mark in (
        ("Intel", "oneAPI"),
        ("Apple clang", "Apple clang"),
        ("clang", "clang"),
        ("GCC", "Free Software"),
    ):
        if mark in answer:
            return kind
    return "unknown"


def find_mpi() -> tuple[Program, ...]:
    """Find MPI launchers by asking them who they are: several packages install a program named ``mpirun``."""
    found: dict[str, Program] = {}
    for folder in (str(Path(sys.prefix) / "bin"), *os.environ.get("PATH", "").split(os.pathsep)):
        for command in ("mpirun", "mpiexec"):
            path = shutil.which(command, path=folder) if folder else None
            if not path or os.path.realpath(path) in found:
                continue
            answer = ask(path, "--version")
            if answer:
                found[os.path.realpath(path)] = Program(command, mpi_kind(answer), _version(answer), path)
    if not any(_is_open_mpirun(program) for program in found.values()):
        words = _wheels_open_mpi()
        answer = ask(*words, "--version") or ""
        if mpi_kind(answer) == "Open MPI":
            found[words[-1]] = Program("mpirun", "Open MPI", _version(answer), words[-1])
    return tuple(found.values())


def find_open_mpi() -> tuple[str, ...] | None:
    """Find the words that start Open MPI's mpirun; None if there is none."""
    wheels = _wheels_open_mpi()
    for program in filter(_is_open_mpirun, find_mpi()):
        return wheels if program.path == wheels[-1] else (program.path,)
    return None


def _is_open_mpirun(program: Program) -> bool:
    return (program.kind, program.command) == ("Open MPI", "mpirun")


def _wheels_open_mpi() -> tuple[str, ...]:
    """The wheel's real program: its mpirun does no more than to say where it lies, and to call that.

    Several packages install a program named mpirun, and in one environment the last one wins.
    """
    return ("env", f"OPAL_PREFIX={sys.prefix}", str(Path(sys.prefix) / "bin" / "ompirun_wrapper"))


def mpi_kind(answer: str) -> str:
    """Name an MPI by what ``mpirun --version`` prints."""
    for kind, mark in (
        ("Open MPI", r"Open MPI|OpenRTE|Open RTE"),
        ("Intel MPI", r"Intel\(R\) MPI"),
        ("MPICH", r"HYDRA|MPICH"),
    ):
        if re.search(mark, answer):
            return kind
    return "unknown"


def _version(answer: str) -> str | None:
    match = re.search(r"(?<![\w.])(\d+\.\d+(?:\.\d+)*)", answer)
    return match.group(1) if match else None


def find_gpus() -> tuple[Gpu, ...]:
    """Ask ``nvidia-smi`` and ``rocm-smi`` which discrete GPUs there are."""
    query = "--query-gpu=name,memory.total,driver_version,compute_cap"
    nvidia = ask("nvidia-smi", query, "--format=csv,noheader,nounits")
    if nvidia is None:  # drivers before 2021 do not know compute_cap
        nvidia = ask("nvidia-smi", query.removesuffix(",compute_cap"), "--format=csv,noheader,nounits")
    return read_nvidia_query(nvidia or "") + read_rocm_query(
        ask("rocm-smi", "--showproductname", "--showmeminfo", "vram", "--csv") or ""
    )


def read_nvidia_query(answer: str) -> tuple[Gpu, ...]:
    """Read the comma-separated answer of ``nvidia-smi --query-gpu``: name, MiB, driver, compute capability."""
    gpus = []
    for line in answer.splitlines():
        name, memory, driver, capability = ([field.strip() for field in line.split(",")] + [""] * 3)[:4]
        if not driver:
            continue
        gpus.append(
            Gpu(
                vendor="NVIDIA",
                name=name or None,
                memory_bytes=int(memory) * 2**20 if memory.isdigit() else None,
                driver=driver,
                is_integrated=False if memory.isdigit() else None,
                compute_capability=capability if re.fullmatch(r"\d+\.\d+", capability) else None,
            )
        )
    return tuple(gpus)


def read_rocm_query(answer: str) -> tuple[Gpu, ...]:
    """Read the comma-separated answer of ``rocm-smi --csv``, whose columns differ from version to version."""
    lines = [line for line in answer.splitlines() if "," in line]
    if not lines or not lines[0].lower().startswith("device"):
        return ()
    header = [column.strip().lower() for column in lines[0].split(",")]
    gpus = []
    for line in lines[1:]:
        row = dict(zip(header, (field.strip() for field in line.split(",")), strict=False))
        if not row["device"].startswith("card"):
            continue
        memory = row.get("vram total memory (b)", "")
        name = row.get("card series") or row.get("card model")
        gpus.append(Gpu("AMD", name or None, int(memory) if memory.isdigit() else None, None, None))
    return tuple(gpus)


def try_sandbox() -> Sandbox:
    """Start a bubblewrap sandbox that does nothing, to see whether one may be made here."""
    path = shutil.which("bwrap")
    if path is None:
        return Sandbox(None, False, "bubblewrap (bwrap) is not installed")
    command = (
        path,
        "--unshare-all",
        "--die-with-parent",
        "--ro-bind",
        "/",
        "/",
        "--proc",
        "/proc",
        "--dev",
        "/dev",
        "true",
    )
    if ask(*command) is None:
        return Sandbox("bubblewrap", False, "bubblewrap is installed, but may not make namespaces here")
    return Sandbox("bubblewrap", True, "a sandbox was started")
