"""When a measurement says more about what else the machine was doing than about what was measured."""

from __future__ import annotations

import math
from collections.abc import Sequence

WIDE = 2.0
"""An interval whose ends lie further apart than this factor answers no question of this lesson."""


def is_wide(interval: tuple[float, float]) -> bool:
    """Whether an interval's ends lie more than ``WIDE`` apart; one without an upper end had too few samples to tell."""
    low, high = interval
    return high < math.inf and high > WIDE * low


def advice(causes: Sequence[str] = ()) -> str:
    """What to do about a disturbed measurement, with what is known of its causes."""
    known = f" ({'; '.join(causes)})" if causes else ""
    return (
        f"**This measurement was disturbed**: something else was probably at work on this machine{known}. Close it, "
        "run this cell again, and conclude nothing before."
    )


def note(causes: Sequence[str]) -> str:
    """What a reader should know of the machine when the intervals are narrow all the same; empty when it was calm."""
    return f" (Meanwhile {'; '.join(causes)}: a calm machine may show something else.)" if causes else ""
