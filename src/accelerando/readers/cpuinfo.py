"""Reader of ``/proc/cpuinfo``, x86 and Arm, and what RISC-V and POWER say there. Called by `lscpu.parse`."""

from __future__ import annotations

import re
from typing import Any

from accelerando.readers.isa import features
from accelerando.readers.text import Line, Pasted, Unreadable

_FIELD = re.compile(r"^\s*([A-Za-z][A-Za-z0-9_/() -]*?)\s*:(?:\s+(.*))?$")
_KEYS = re.compile(
    r"^\s*(?:processor\s*:\s*\d+|vendor_id\s*:|model name\s*:|CPU implementer\s*:|cpu cores\s*:"
    r"|hart\s*:\s*\d|isa\s*:\s*rv\d|cpu\s*:\s*POWER|Features\s*:)",
    re.M,
)

# Decoding tables of Arm's main ID register, as far as machines for training go.
_IMPLEMENTERS = {
    0x41: "ARM", 0x42: "Broadcom", 0x43: "Cavium", 0x46: "FUJITSU", 0x48: "HiSilicon", 0x4E: "NVIDIA",
    0x50: "APM", 0x51: "Qualcomm", 0x61: "Apple", 0x6D: "Microsoft", 0xC0: "Ampere",
}  # fmt: skip
_PARTS = {
    0x41: {
        0xD03: "Cortex-A53", 0xD04: "Cortex-A35", 0xD05: "Cortex-A55", 0xD07: "Cortex-A57", 0xD08: "Cortex-A72",
        0xD09: "Cortex-A73", 0xD0A: "Cortex-A75", 0xD0B: "Cortex-A76", 0xD0C: "Neoverse-N1", 0xD0D: "Cortex-A77",
        0xD40: "Neoverse-V1", 0xD41: "Cortex-A78", 0xD44: "Cortex-X1", 0xD46: "Cortex-A510", 0xD47: "Cortex-A710",
        0xD48: "Cortex-X2", 0xD49: "Neoverse-N2", 0xD4F: "Neoverse-V2", 0xD83: "Neoverse-V3", 0xD84: "Neoverse-V3",
        0xD8E: "Neoverse-N3", 0xC07: "Cortex-A7", 0xC09: "Cortex-A9", 0xC0F: "Cortex-A15",
    },
    0x46: {0x001: "A64FX"},
    0x48: {0xD01: "TaiShan-v110", 0xD02: "TaiShan-v120"},
    0x4E: {0x004: "Carmel"},
    0xC0: {0xAC3: "Ampere-1", 0xAC4: "Ampere-1a"},
}  # fmt: skip


def is_cpuinfo(text: str) -> bool:
    """True when a text has lines that only ``/proc/cpuinfo`` has."""
    return len({match.group(0).split(":")[0].strip() for match in _KEYS.finditer(text)}) >= 2


def parse(pasted: Pasted) -> dict[str, Any]:
    """Read ``/proc/cpuinfo``. It lists logical CPUs that are on-line, and says nothing of NUMA or single caches.

    Raises:
        Unreadable: If no processor is in it.
    """
    warnings = list(pasted.warnings)
    blocks, tail = _blocks(pasted.lines)
    if not blocks:
        raise Unreadable("no processor in this /proc/cpuinfo: its head is cut off", pasted.lines[0].number)
    whole = _whole_blocks(blocks, pasted, warnings)
    first = blocks[0]
    complete = whole or blocks[:1]
    flag_sets = [set(block[key].split()) for block in complete for key in ("flags", "Features") if block.get(key)]
    flags = set.intersection(*flag_sets) if flag_sets else None
    if flag_sets and any(one != flag_sets[0] for one in flag_sets):
        warnings.append("the cores do not all have the same flags: only what all have counts")
    skills = features(flags)
    is_partial = len(whole) < len(blocks) or _is_partial(blocks, warnings)
    sockets, cores, threads = _topology(blocks, is_partial, warnings)
    vendor, model = _names(first, blocks, tail)
    return {
        "vendor": vendor,
        "model": model,
        "sockets": sockets,
        "cores": cores,
        "logical_online": None if is_partial else len(blocks),
        "logical_installed": None,
        "threads_per_core": threads,
        "numa_nodes": None,
        "caches": None,
        "simd": skills.simd,
        "bf16": skills.has_bf16,
        "fp16": skills.has_fp16,
        "warnings": warnings,
    }


def _blocks(lines: tuple[Line, ...]) -> tuple[list[dict[str, str]], dict[str, str]]:
    """One dictionary per ``processor`` line, and what stands outside them (old Arm kernels)."""
    blocks: list[dict[str, str]] = []
    tail: dict[str, str] = {}
    last_key = ""
    for line in lines:
        match = _FIELD.match(line.text)
        if not match:
            if blocks and last_key in ("flags", "Features") and re.fullmatch(r"\s*[a-z0-9_ ]+", line.text):
                blocks[-1][last_key] += " " + line.text.strip()
            continue
        key, value = match.group(1), (match.group(2) or "").strip()
        if key == "processor" and value.isdecimal():
            blocks.append({})
        elif key in ("Hardware", "Model", "Revision", "Serial"):
            tail[key] = value
            continue
        (blocks[-1] if blocks else tail)[key] = value
        last_key = key
    return blocks, tail


def _whole_blocks(blocks: list[dict[str, str]], pasted: Pasted, warnings: list[str]) -> list[dict[str, str]]:
    """Leave the last processor out where the text stops inside it; of a single one keep what is whole."""
    first, last = blocks[0], blocks[-1]
    is_x86 = "vendor_id" in first or "flags" in first
    if len(blocks) > 1:
        is_cut = any(key not in last for key in first)
    else:
        is_cut = "power management" not in first if is_x86 else not {"CPU revision", "isa", "clock"} & set(first)
    if not is_cut:
        return blocks
    warnings.append("the text stops inside a processor: how many there are is unknown")
    if len(blocks) > 1:
        return blocks[:-1]
    if not pasted.ends_with_newline or list(first)[-1] in ("flags", "Features"):
        first.pop(list(first)[-1])
    return []


def _is_partial(blocks: list[dict[str, str]], warnings: list[str]) -> bool:
    """True when a package says it has more siblings than are listed (a paste of the first processors only)."""
    listed: dict[str, int] = {}
    said: dict[str, int] = {}
    for block in blocks:
        package, siblings = block.get("physical id"), block.get("siblings", "")
        if package is not None and siblings.isdecimal():
            listed[package] = listed.get(package, 0) + 1
            said[package] = int(siblings)
    short = next((package for package in said if listed[package] < said[package]), None)
    if short is not None:
        warnings.append(f"socket {short} has {said[short]} logical CPUs, only {listed[short]} are listed here")
    return short is not None


def _topology(
    blocks: list[dict[str, str]], is_partial: bool, warnings: list[str]
) -> tuple[int | None, int | None, int | None]:
    first = blocks[0]
    per_package, siblings = first.get("cpu cores", ""), first.get("siblings", "")
    threads = None
    if per_package.isdecimal() and siblings.isdecimal() and int(per_package):
        if int(siblings) % int(per_package) == 0:
            threads = int(siblings) // int(per_package)
        else:
            warnings.append(f"hybrid: {per_package} cores have {siblings} threads")
    packages = {block["physical id"] for block in blocks if "physical id" in block}
    if is_partial or not packages:
        return None, None, threads
    ids = {(block["physical id"], block["core id"]) for block in blocks if {"physical id", "core id"} <= set(block)}
    return len(packages), len(ids) or None, threads


def _names(first: dict[str, str], blocks: list[dict[str, str]], tail: dict[str, str]) -> tuple[str | None, str | None]:
    implementer = _hex(first.get("CPU implementer"))
    vendor = first.get("vendor_id") or _IMPLEMENTERS.get(implementer or -1)
    names = []
    for block in blocks:
        name = block.get("model name") or block.get("cpu")
        part = _PARTS.get(_hex(block.get("CPU implementer")) or -1, {}).get(_hex(block.get("CPU part")) or -1)
        names.append(part or name or tail.get("Processor") or tail.get("model name"))
    model = " + ".join(dict.fromkeys(name for name in names if name))
    return vendor or None, model or None


def _hex(text: str | None) -> int | None:
    return int(text, 16) if text and re.fullmatch(r"0x[0-9a-fA-F]{1,8}", text) else None
