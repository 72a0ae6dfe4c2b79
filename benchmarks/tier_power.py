"""What a session of the final can tell at a given scatter of single runs: simulated sessions, judged as real ones.

    python benchmarks/tier_power.py [--scatter 0.1] [--sessions 400]

Rounds go on until the threshold is decided or ``rounds`` on each task are made, which is what fits into eight minutes
for a submission of that speed. No training is run: seconds of a minute, no quiet machine needed.
"""

from __future__ import annotations

import argparse
import itertools
import math
from collections import Counter

import numpy as np

from accelerando import catalog, stats
from accelerando.grading import tiers
from accelerando.grading.session import FEWEST_ROUNDS

REFERENCE = 8.0


def simulate(
    ratios: tuple[float, float], announced: float, scatter: float, rounds: int, rng: np.random.Generator
) -> str:
    """Judge one session of a submission that is ``ratios`` times as fast as the starter, one number for each task."""
    true = dict(zip(("real", "rule"), ratios, strict=True))
    own: dict[str, list[float]] = {task: [] for task in true}
    control: dict[str, list[float]] = {task: [] for task in true}
    judged = "undecided"
    for pairs in range(1, rounds + 1):
        for task, ratio in true.items():
            starter, submission, reference = rng.normal(0, scatter, 3)
            own[task].append(math.log(ratio) + starter - submission)
            if pairs <= FEWEST_ROUNDS // len(own):  # later rounds spare the reference
                control[task].append(math.log(REFERENCE) + starter - reference)
        found = tiers.ratio_intervals(own, control=list(control.values()), is_last=pairs == rounds)
        judged = found.against(announced)
        if judged != "undecided":
            break
    return judged


def main() -> None:
    """Print one row for each case."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--scatter", type=float, default=0.10, help="standard deviation of the log of a run's seconds")
    parser.add_argument("--sessions", type=int, default=400)
    options = parser.parse_args()
    first, second, third = (q.threshold or 0.0 for q in catalog.final().questions if q.is_timed)
    bars = [threshold / stats.TOLERANCE for threshold in (first, second, third)]
    middle = [math.sqrt(low * high) for low, high in itertools.pairwise(bars)]
    cases = [
        ("equal speed, tier 1", 1.0, first, 4),
        ("at the border of tier 1", bars[0], first, 4),
        ("at the border of tier 3", bars[2], third, 6),
        ("middle of tier 1, tier 1", middle[0], first, 4),
        ("middle of tier 1, tier 2", middle[0], second, 4),
        ("middle of tier 2, tier 2", middle[1], second, 5),
        ("middle of tier 2, tier 3", middle[1], third, 5),
    ]
    both = [(name, (ratio, ratio), announced, rounds) for name, ratio, announced, rounds in cases]
    both += [
        ("at the border of tier 1 on one task, 1.25 times above it on the other", (1.25 * bars[0], bars[0]), first, 5),
        ("the same, and 5 % below it on the first", (1.25 * bars[0], 0.95 * bars[0]), first, 5),
    ]
    rng = np.random.default_rng(5)
    print("| submission, threshold | rounds a task | reached | missed | undecided |\n|---|---|---|---|---|")
    for name, ratios, announced, rounds in both:
        counted = Counter(simulate(ratios, announced, options.scatter, rounds, rng) for _ in range(options.sessions))
        shares = [f"{counted[judged] / options.sessions:.1%}" for judged in ("reached", "missed", "undecided")]
        print(f"| {name} | {rounds} | {' | '.join(shares)} |")


if __name__ == "__main__":
    main()
