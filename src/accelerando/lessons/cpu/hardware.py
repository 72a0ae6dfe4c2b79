"""What this processor is, on one page, and what else may compute beside it: integrated GPUs, Arm's own instructions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from accelerando import measure, seeds
from accelerando.lessons import Budget
from accelerando.lessons.cpu.turns import measure_in_turns, time_once
from accelerando.workers import Experiment

if TYPE_CHECKING:
    from accelerando.machine import Machine

PREPARE_PRODUCT = "accelerando.lessons.cpu.hardware:prepare_product"


def passport(here: Machine) -> str:
    """The processor as a Markdown table, each line with what it means for a training step."""
    caches = ", ".join(
        f"{name} {cache.each_bytes / 1024:,.0f} KiB × {cache.instances}"
        for name, cache in here.caches.items()
        if name != "L1i"
    )
    nodes = sum(bool(cpus) for cpus in here.numa_nodes.values())
    rows = {
        "processor": (here.model or "unknown", here.architecture),
        "cores": (
            f"{here.usable_cores} usable of {here.logical_cores or '?'} CPUs",
            f"{here.threads_per_core or '?'} hardware thread(s) per core",
        ),
        "SIMD": (here.simd or "unknown", _width(here.simd)),
        "half precision": (
            f"bf16: {_yes(here.has_bf16)}, fp16: {_yes(here.has_fp16)}",
            "units of its own, or software",
        ),
        "caches": (caches or "unknown", "one of each size belongs to a core, or is shared"),
        "NUMA nodes": (str(nodes or "unknown"), "memory that is nearer to some cores than to others"),
        "GPUs": (", ".join(_gpu(gpu) for gpu in here.gpus) or "none found", "see the end of this lesson"),
    }
    lines = [f"| {name} | {what} | {meaning} |" for name, (what, meaning) in rows.items()]
    return "\n".join(["| | here | |", "|---|---|---|", *lines])


def _yes(fact: bool | None) -> str:
    return {True: "yes", False: "no", None: "unknown"}[fact]


def _width(simd: str | None) -> str:
    widths = {"AVX512": 16, "AVX2": 8, "AVX": 8, "SSE4.2": 4, "SSE4.1": 4, "SSSE3": 4, "SSE2": 4, "NEON": 4}
    level = (simd or "").partition("+")[0]
    return f"{widths[level]} float32 numbers in one instruction" if level in widths else "a width of its own"


def _gpu(gpu: Any) -> str:
    kind = {True: "integrated", False: "discrete", None: "integrated or not: unknown"}[gpu.is_integrated]
    return f"{gpu.vendor} {gpu.name or 'graphics'} ({kind})"


def measure_other_processors(budget: Budget, here: Machine) -> str:
    """Say what computes beside the processor here, and measure it when PyTorch can use it.

    Args:
        budget: How long.
        here: The machine.

    Returns:
        Two paragraphs of Markdown: integrated GPUs, and Arm.
    """
    return f"**Integrated GPU.** {_integrated(budget, here)}\n\n**Arm.** {_arm(budget, here)}"


def shared_memory_device() -> str | None:
    """PyTorch's name of a GPU that shares the processor's memory: "mps" (Apple), "xpu" (Intel); None when none."""
    import torch

    if torch.backends.mps.is_available():
        return "mps"
    if torch.xpu.is_available() and getattr(torch.xpu.get_device_properties(0), "has_fp64", None) is not None:
        return "xpu"
    return None


def _integrated(budget: Budget, here: Machine) -> str:
    device = shared_memory_device()
    if device is not None:
        return _compare_device(device, budget)
    listed = [gpu for gpu in here.gpus if gpu.is_integrated is not False]
    if not listed:
        return (
            "None is listed on this machine. Where there is one, it shares the processor's memory: no bus lies in "
            "between, but `tensor.to(device)` still copies, and both draw on the same bandwidth. Apple's answers to "
            "PyTorch as `mps`, Intel's as `xpu` with the wheels for it; AMD's is not supported by the usual ROCm "
            "wheels."
        )
    names = ", ".join(_gpu(gpu) for gpu in listed)
    return (
        f"{names} is listed, but this PyTorch cannot use it: `torch.xpu.is_available()` and "
        "`torch.backends.mps.is_available()` say no. Intel's needs the wheels with XPU support and its driver."
    )


def _compare_device(device: str, budget: Budget) -> str:
    import torch

    size = 1024 if budget.name != "smoke" else 128
    square = torch.rand(size, size, generator=seeds.generator(0))
    there = square.to(device)
    wait: Callable[[], None] = torch.mps.synchronize if device == "mps" else torch.xpu.synchronize

    def on_device() -> None:
        torch.mm(there, there)
        wait()

    found = measure.compare(
        lambda: torch.mm(square, square), on_device, budget_s=budget.pair_s, labels=("the processor", device)
    )
    return f"PyTorch can use the one here, as `{device}`. A product of two {size} × {size} matrices: {found}."


def _arm(budget: Budget, here: Machine) -> str:
    if here.architecture not in ("aarch64", "arm64"):
        return (
            f"This is {here.architecture}. On Arm the same questions have other words: NEON (4 numbers at a time), SVE "
            "and SVE2 (a width that the processor chooses), `ATEN_CPU_CAPABILITY=default` against `sve256`, and "
            "`ONEDNN_DEFAULT_FPMATH_MODE=BF16`, which lets float32 products run in bf16 units. IPEX and Intel's OpenMP "
            "runtime do not exist there."
        )
    simd = here.simd or "an unknown level of SIMD"
    if not here.has_bf16:
        return (
            f"This is an Arm processor with {simd} and no bf16 units: NEON's four numbers at a time are what there is."
        )
    if not budget.process_s or not here.system.startswith("Linux"):
        return f"This is an Arm processor with {simd} and bf16 units; nothing was measured with them in this run."
    plain: Mapping[str, str | None] = {"ONEDNN_DEFAULT_FPMATH_MODE": None}
    turns = measure_in_turns(
        {
            "float32": Experiment(PREPARE_PRODUCT, environment=plain, prepares=True),
            "bf16": Experiment(PREPARE_PRODUCT, environment={"ONEDNN_DEFAULT_FPMATH_MODE": "BF16"}, prepares=True),
        },
        budget.rounds,
    )
    if turns.failed:
        return f"This is an Arm processor with {simd}; the comparison failed: {'; '.join(turns.failed.values())}."
    ratio = turns.readings["linear layer"]["bf16"].ratio
    return (
        f"This is an Arm processor with {simd} and bf16 units: `ONEDNN_DEFAULT_FPMATH_MODE=BF16` makes a float32 "
        f"linear layer **{ratio:.2f} times** as fast."
    )


def prepare_product() -> Callable[[], dict[str, Any]]:
    """Prepare a linear layer in a child process."""
    import torch

    layer, rows = torch.nn.Linear(1024, 1024), torch.rand(512, 1024)

    def run() -> None:
        with torch.inference_mode():
            layer(rows)

    return lambda: {"seconds": time_once({"linear layer": run}, 0.05)}
