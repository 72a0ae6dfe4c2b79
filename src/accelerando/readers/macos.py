"""Reader of macOS' ``sysctl``: the few values that say which CPU this is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from accelerando.readers.isa import features

_KEYS = {
    "vendor": "machdep.cpu.vendor",
    "model": "machdep.cpu.brand_string",
    "sockets": "hw.packages",
    "cores": "hw.physicalcpu",
    "logical": "hw.logicalcpu",
    "features": "machdep.cpu.features",
    "leaf7": "machdep.cpu.leaf7_features",
    "is_arm": "hw.optional.arm64",
    "bf16": "hw.optional.arm.FEAT_BF16",
    "fp16": "hw.optional.arm.FEAT_FP16",
}


def read_cpu(ask: Callable[[str], str | None]) -> dict[str, Any]:
    """Read the CPU's description.

    Args:
        ask: Returns a ``sysctl`` value by its key, None where there is none (everywhere but on macOS).

    Returns:
        The keys that `cpuinfo.parse` gives too: vendor, model, sockets, cores, threads_per_core, simd, bf16, fp16.
    """
    said = {name: (ask(key) or "").strip() for name, key in _KEYS.items()}
    number = {name: int(said[name]) if said[name].isdecimal() else None for name in ("sockets", "cores", "logical")}
    words = f"{said['features']} {said['leaf7']}".lower().replace("sse4.", "sse4_").replace("avx1.0", "avx")
    skills = features(words.split())
    is_arm = said["is_arm"] == "1"
    flag = {"1": True, "0": False}
    cores, logical = number["cores"], number["logical"]
    return {
        "vendor": said["vendor"] or ("Apple" if is_arm else None),
        "model": said["model"] or None,
        "sockets": number["sockets"],
        "cores": cores,
        "threads_per_core": logical // cores if cores and logical else None,
        "simd": "NEON" if is_arm else skills.simd,
        "bf16": flag.get(said["bf16"]) if is_arm else skills.has_bf16,
        "fp16": flag.get(said["fp16"]) if is_arm else skills.has_fp16,
    }
