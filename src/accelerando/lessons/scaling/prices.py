"""What hardware buys: time and price of a job on machines that can be rented."""

from __future__ import annotations

import math
from collections.abc import Sequence

from accelerando import costs
from accelerando.costs import Offer
from accelerando.lessons.scaling import disturbance
from accelerando.lessons.scaling.threads import SpeedupCurve

EXAMPLE_OFFERS = (
    Offer("like this one, 2 cores", 0.10, 2),
    Offer("older generation, 8 cores", 0.24, 8, 0.7),
    Offer("newest generation, 8 cores", 0.40, 8, 1.4),
    Offer("newest generation, 64 cores", 3.20, 64, 1.4),
)
"""Invented, to show the arithmetic: put in what your provider asks today."""


def price_table(curve: SpeedupCurve, offers: Sequence[Offer] = EXAMPLE_OFFERS) -> str:
    """Predict time and price of a thousand steps on each offer, as a Markdown table.

    Args:
        curve: Measured here, by `measure_threads`: gives the step's time on one core and its serial share.
        offers: What can be rented.
    """
    fraction = 0.0 if math.isnan(curve.serial_fraction) else curve.serial_fraction
    lines = [
        "| offer | € per hour | cores | speed of one core | speed-up | 1000 steps take | and cost |",
        "|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {row['name']} | {row['price_per_hour']:.2f} | {row['cores']} | {row['core_speed']:g} | "
        f"{row['speedup']:.1f} | {60 * float(row['minutes']):.1f} s | {100 * float(row['price']):.3f} cents |"
        for row in costs.price_rows(curve.points[0].median_s, fraction, offers)
    ]
    if curve.is_disturbed:
        lines += ["", f"The table rests on the step's speed-up by threads. {disturbance.advice(curve.causes)}"]
    return "\n".join(lines)
