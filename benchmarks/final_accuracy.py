"""How often the final's accuracy test errs: simulated runs, and real ones drawn again from a bank.

    python benchmarks/final_accuracy.py [--record] [--sessions 1000]

*Simulated*: 10,000 held-out images of different difficulty, runs whose accuracy varies by 0.3 points between seeds, and
a candidate that truly loses a given number of points. *Real*: 12 runs of the reference and 12 of the same with one
epoch less, on the task with the true labels, each with another order of the images; a session draws its runs from the
bank. There the margin is set to what the weaker side truly loses, so "kept" is an error, and the reference against
itself at the usual margin, where "lost" is one. ``--record`` trains the bank anew.

A session looks after two runs a side and after each further one, as the engine does, and stops when it is clear.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from accelerando import ledger
from accelerando.grading import final_task, tiers

HERE = Path(__file__).parent
BANK = HERE / "traces" / "final_accuracy.npz"
RESULT = HERE / "results" / "final_accuracy.json"
MARGIN, IMAGES, ACCURACY, RUN_SD = 0.01, 10_000, 0.85, 0.003
LAST = (2, 4, 8)  # after how many runs a side the time is over
Runs = NDArray[np.bool_]
Draw = Callable[[np.random.Generator, int], tuple[Runs, Runs]]


def simulated(loss: float) -> Draw:
    """Sessions whose candidate truly loses ``loss`` (a fraction)."""

    def draw(rng: np.random.Generator, runs: int) -> tuple[Runs, Runs]:
        easiness = rng.beta(1.7, 0.3, IMAGES)  # mean 0.85; two equal runs agree on about nine images in ten

        def side(accuracy: float) -> Runs:
            change = accuracy - ACCURACY + RUN_SD * rng.standard_normal((runs, 1))
            dice, luck = rng.random((2, runs, IMAGES))
            right = dice < easiness
            return np.where(right, luck >= -change / ACCURACY, luck < change / (1 - ACCURACY))

        return side(ACCURACY), side(ACCURACY - loss)

    return draw


def drawn_again(baseline: Runs, candidate: Runs | None) -> Draw:
    """Sessions from a bank; without a candidate, both sides are different runs of the baseline."""

    def draw(rng: np.random.Generator, runs: int) -> tuple[Runs, Runs]:
        if candidate is None:
            chosen = rng.permutation(len(baseline))
            half = len(baseline) // 2
            return baseline[rng.choice(chosen[:half], runs)], baseline[rng.choice(chosen[half:], runs)]
        return baseline[rng.choice(len(baseline), runs)], candidate[rng.choice(len(candidate), runs)]

    return draw


def verdict(baseline: Runs, candidate: Runs, margin: float) -> str:
    """What a session says: it looks after every run a side and stops when it is clear."""
    runs = len(baseline)
    for pairs in range(tiers.FEWEST_PAIRS, runs + 1):
        both = {"task": (list(baseline[:pairs]), list(candidate[:pairs]))}
        found = tiers.judge_accuracy(both, margin, is_last=pairs == runs)["task"].verdict
        if found != "undecided":
            break
    return found


def shares(draw: Draw, margin: float, sessions: int, seed: int) -> dict[str, dict[str, float]]:
    """How often each verdict comes, by the number of runs a side; and what a bare comparison would say."""
    rng = np.random.default_rng(seed)
    counts: dict[str, dict[str, float]] = {}
    for runs in LAST:
        said: dict[str, float] = dict.fromkeys(("kept", "lost", "undecided", "one run each says kept"), 0.0)
        for _ in range(sessions):
            baseline, candidate = draw(rng, runs)
            said[verdict(baseline, candidate, margin)] += 1 / sessions
            said["one run each says kept"] += float(candidate[0].mean() >= baseline[0].mean() - margin) / sessions
        counts[str(runs)] = said
    return counts


def record(runs: int) -> None:
    """Train the bank and keep which images were right, packed."""
    from final_reference import run_once

    task = final_task.make_task("real", 2026)
    found: dict[str, list[Any]] = {"reference": [], "weaker": []}
    for number in range(runs):
        for side, overrides in (("reference", {}), ("weaker", {"EPOCHS": 1})):
            seconds, right = run_once("reference", task, number, overrides)
            found[side].append(np.packbits(right))
            print(f"{side} {number}: {seconds:.1f} s, {right.mean():.2%}", file=sys.stderr, flush=True)
    np.savez_compressed(BANK, reference=np.stack(found["reference"]), weaker=np.stack(found["weaker"]))


def main() -> None:
    """Draw the sessions, print a table and write the results file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--sessions", type=int, default=1000)
    parser.add_argument("--record", action="store_true")
    parser.add_argument("--runs", type=int, default=12)
    options = parser.parse_args()
    if options.record:
        record(options.runs)
    cases: dict[str, tuple[Draw, float]] = {
        f"simulated, {100 * loss:g} points lost": (simulated(loss), MARGIN)
        for loss in (-0.015, 0.0, 0.005, 0.01, 0.015, 0.02, 0.03)
    }
    bank: dict[str, Any] = {}
    if BANK.is_file():
        with np.load(BANK) as packed:
            sides = {side: np.unpackbits(packed[side], axis=1).astype(bool) for side in packed.files}
        loss = float(sides["reference"].mean() - sides["weaker"].mean())
        bank = {side: [float(run.mean()) for run in runs] for side, runs in sides.items()}
        cases["real, the reference against itself"] = drawn_again(sides["reference"], None), MARGIN
        cases[f"real, {100 * loss:.2f} points lost, which is the margin"] = drawn_again(*sides.values()), loss
    found = {}
    print(f"| case | runs a side | kept | lost | undecided | one run each says kept |\n|{'---|' * 6}")
    for place, (name, (draw, margin)) in enumerate(cases.items()):
        found[name] = shares(draw, margin, options.sessions, place)
        for runs, said in found[name].items():
            print(f"| {name} | {runs} | {' | '.join(f'{100 * share:.1f} %' for share in said.values())} |", flush=True)
    origin = {"schema": 1, **ledger.origin()}
    results = {"sessions": options.sessions, "margin": MARGIN, "bank_accuracies": bank, "shares": found}
    RESULT.write_text(json.dumps(origin | results, indent=1, default=str) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
