"""Cache sizes as ``lscpu`` prints them: the size of one in old versions, the sum of all in new ones."""

from __future__ import annotations

import math
import re
from typing import Any

_SIZE = re.compile(r"([\d.]+)\s*([KMG]?)(i?B)?\s*(?:\((\d+) instances?\))?")
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}


def read_caches(
    fields: dict[str, str], *, cores: int | None, is_hybrid: bool
) -> tuple[dict[str, dict[str, int | None]] | None, list[str]]:
    """Read the lines ``L1d``, ``L1i``, ``L2``, ``L3``… of one ``lscpu``.

    util-linux up to 2.33 prints the size of one cache ("32K"), 2.34 to 2.36 the sum of all without saying how many
    ("768 KiB"), later versions the sum and the number ("5.3 MiB (112 instances)"). The sum is rounded to a tenth, so
    the size of one is the roundest number that fits.

    Args:
        fields: Label to value; labels that are no caches are passed over.
        cores: Physical cores, if known: only to word a warning.
        is_hybrid: True when the cores are of two kinds, so that an equal share means nothing.

    Returns:
        Label to ``{"each_bytes", "instances"}`` (None: no cache lines at all), and warnings.
    """
    caches: dict[str, dict[str, Any]] = {}
    warnings: list[str] = []
    for label, value in fields.items():
        if not re.fullmatch(r"L\d[di]?", label):
            continue
        match = _SIZE.fullmatch(value.strip())
        if not match:
            if value.strip():
                warnings.append(f"{label}: {value.strip()[:40]!r} is no cache size")
            continue
        number, unit, suffix, count = match.groups()
        try:
            size = float(number) * _UNITS[unit]
        except ValueError:
            warnings.append(f"{label}: {value.strip()[:40]!r} is no cache size")
            continue
        if count:
            instances = int(count)
            each = _each(size, 0.05 * _UNITS[unit], instances, is_hybrid)
            if each is None:
                warnings.append(f"{label}: {value.strip()} do not share out evenly: the size of one is unknown")
            caches[label] = {"each_bytes": each, "instances": instances}
        elif suffix:
            warnings.append(f"{label}: {value.strip()} is the sum of all; how many there are is not said")
            caches[label] = {"each_bytes": None, "instances": None}
        else:
            caches[label] = {"each_bytes": int(size), "instances": None}
    return caches or None, warnings


def _each(total: float, half_step: float, instances: int, is_hybrid: bool) -> int | None:
    """Share a rounded sum out: the multiple of the largest power of two that prints as this sum."""
    if instances < 1 or (is_hybrid and instances > 1):
        return None
    low, high = (total - half_step) / instances, (total + half_step) / instances
    for power in range(40, 9, -1):
        step = 2**power
        candidate = math.ceil(low / step) * step
        if candidate and candidate < high:
            is_plausible = instances <= 2 or candidate // step < 16 or candidate * instances == total
            return candidate if is_plausible else None
    return None
