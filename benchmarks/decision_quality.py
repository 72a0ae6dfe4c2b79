"""How often `measure.compare` decides rightly, and how long it takes: the evidence behind every graded speed-up.

    python benchmarks/decision_quality.py              record, replay, write results/: about ten minutes
    python benchmarks/decision_quality.py --quick      the same in miniature, under a minute, writes nothing
    python benchmarks/decision_quality.py --replay     replay the stored traces only
    python benchmarks/decision_quality.py --live 20    20 real comparisons of equal code and of a true 1.15x as well

A *trace* is a long series of pairs: training steps in one process against training steps in another, order by
coin, exactly as `compare` takes them. A true 1.15x is made by real work: 23 steps against 20. Each trace is
recorded twice, as the machine is and with a child that keeps one core busy. The stopping rule is then replayed
from 1,000 random places, never using a pair twice, and so are the rules people use instead.
"""

import argparse
import datetime
import json
import math
import platform
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from accelerando import ledger, machine, stats
from accelerando.looks import plan_looks
from accelerando.measure import MAX_PAIRS, MIN_SAMPLE_S, compare
from accelerando.noise import watch
from accelerando.timing import calm, open_side
from accelerando.workers import Experiment

FOLDER = Path(__file__).parent
TRACES, RESULTS = FOLDER / "traces", FOLDER / "results"
BASE_STEPS = 20
CANDIDATES = {"A/A": 20, "1.05x": 21, "1.10x": 22, "1.15x": 23, "1.25x": 25}
"""Steps of the baseline; the candidate always does BASE_STEPS."""
BUDGET_S = 60.0  # of the live runs; a replay has the seconds of its trace


def training_steps(steps: int) -> Callable[[], None]:
    """Prepare a small network and return a function that trains it for ``steps`` steps (about a millisecond each)."""
    import torch

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(784, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    images, labels = torch.randn(128, 784), torch.randint(10, (128,))

    def train() -> None:
        for _ in range(steps):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()

    return train


def experiment(steps: int, threads: int) -> Experiment:
    """Return the experiment that a worker runs."""
    environment = {"OMP_NUM_THREADS": str(threads)}
    return Experiment(f"{Path(__file__).stem}:training_steps", {"steps": steps}, environment, prepares=True)


@dataclass(frozen=True)
class Trace:
    """Pairs in the order measured.

    Attributes:
        name: Key of CANDIDATES.
        load: "as it is" or "one core busy".
        segments: For each pair, which couple of processes it came from.
        baseline_s: Seconds per call.
        candidate_s: Seconds per call.
        pair_s: Wall time of the whole pair, rests included.
    """

    name: str
    load: str
    segments: NDArray
    baseline_s: NDArray
    candidate_s: NDArray
    pair_s: NDArray

    @property
    def log_ratios(self) -> NDArray:
        """Baseline / candidate, as logarithms."""
        return np.log(self.baseline_s.astype(float) / self.candidate_s.astype(float))


@contextmanager
def busy_core() -> Iterator[None]:
    """Keep one core busy with a child."""
    alone = "import os\nparent = os.getppid()\nwhile os.getppid() == parent: pass"  # it never outlives us
    child = subprocess.Popen([sys.executable, "-c", alone])
    try:
        yield
    finally:
        child.kill()
        child.wait()


def record(name: str, load: str, segments: int, seconds: float, seed: int, threads: int) -> Trace:
    """Take pairs for ``seconds`` in each of ``segments`` fresh couples of processes."""
    rng = np.random.default_rng(seed)
    rows: list[tuple[int, float, float, float]] = []
    for segment in range(segments):
        with ExitStack() as stack:
            if load == "one core busy":
                stack.enter_context(busy_core())
            steps = (CANDIDATES[name], BASE_STEPS)
            sides = [open_side(experiment(n, threads), str(n), time.perf_counter, 120.0, stack) for n in steps]
            for side in sides:
                side.warm_up(1, MIN_SAMPLE_S)
            stack.enter_context(calm(sides))
            end = time.perf_counter() + seconds
            while (begun := time.perf_counter()) < end:
                pair = [0.0, 0.0]
                for which in (0, 1) if rng.integers(2) else (1, 0):
                    pair[which] = sides[which].sample()
                rows.append((segment, pair[0], pair[1], time.perf_counter() - begun))
    columns = np.array(rows, dtype=np.float32).T
    return Trace(name, load, columns[0].astype(np.int8), *columns[1:])


def decide_by_rule(log_ratios: NDArray, pair_s: NDArray, threshold: float) -> tuple[str, float]:
    """Replay `compare` on pairs already taken, with the time they took as its budget: verdict and seconds."""
    last = len(log_ratios)
    verdict = "undecided"
    for look in plan_looks(last):
        seen = log_ratios[:look]
        verdict = stats.decide_speedup(
            seen, threshold, planned_pairs=last, is_last=look == last, systematic=stats.BETWEEN_PROCESSES
        ).verdict
        if verdict != "undecided":
            break
    return verdict, float(pair_s[:look].sum())


def gate(statistic: Callable[[NDArray], float], runs: int, ratio: float) -> Callable[..., tuple[str, float]]:
    """Return the usual rule: so many runs of one, then so many of the other, and a gate on the ratio."""

    def decide(baseline_s: NDArray, candidate_s: NDArray, pair_s: NDArray) -> tuple[str, float]:
        won = statistic(baseline_s[:runs]) / statistic(candidate_s[runs : 2 * runs]) > ratio
        return ("faster" if won else "not faster"), float(pair_s[: 2 * runs].sum() / 2)

    return decide


ALTERNATIVES = {
    "one run each, any gain": (1, gate(np.min, 1, 1.0)),
    "one run each, 5 % gate": (1, gate(np.min, 1, 1.05)),
    "best of 5, 5 % gate": (5, gate(np.min, 5, 1.05)),
    "mean of 10, 5 % gate": (10, gate(np.mean, 10, 1.05)),
    "median of 25 (torch Timer), 5 % gate": (25, gate(np.median, 25, 1.05)),
}
"""Name: how many runs of each side it needs, and the rule."""


def replay(trace: Trace, stretches: int, seed: int, threshold: float = 1.0) -> dict[str, Any]:
    """Start at ``stretches`` random places of a trace; how often each verdict came, and how long it took."""
    rng = np.random.default_rng(seed)
    found: dict[str, list[tuple[str, float]]] = {}
    for _ in range(stretches):
        rows = np.flatnonzero(trace.segments == rng.choice(np.unique(trace.segments)))
        # Round the seam at the end, but no pair twice: repeated noise would pass for evidence.
        order = np.roll(rows, -int(rng.integers(rows.size)))[:MAX_PAIRS]
        pair_s, ratios = trace.pair_s[order], trace.log_ratios[order]
        found.setdefault("compare", []).append(decide_by_rule(ratios, pair_s, threshold))
        if trace.name == "A/A":  # equal code: which of a pair is the baseline may be drawn anew, a fresh experiment
            signs = rng.choice([-1, 1], order.size)
            found.setdefault("compare, labels drawn anew", []).append(decide_by_rule(ratios * signs, pair_s, threshold))
        if threshold == 1.0:
            for name, (runs, rule) in ALTERNATIVES.items():
                if 2 * runs > order.size:
                    continue
                found.setdefault(name, []).append(rule(trace.baseline_s[order], trace.candidate_s[order], pair_s))
    return {name: summary(outcomes) for name, outcomes in found.items()}


def summary(outcomes: Sequence[tuple[str, float]]) -> dict[str, float]:
    """Share of each verdict; median and 95th percentile of the seconds."""
    counts, seconds = Counter(verdict for verdict, _ in outcomes), [took for _, took in outcomes]
    shares = {verdict: counts[verdict] / len(outcomes) for verdict in ("faster", "not faster", "undecided")}
    return {**shares, "median_s": float(np.median(seconds)), "p95_s": float(np.quantile(seconds, 0.95))}


def live(runs: int, threads: int) -> dict[str, Any]:
    """Compare for real, each time in fresh processes."""
    results = {}
    for name in ("A/A", "1.15x"):
        outcomes = []
        for run in range(runs):
            result = compare(experiment(CANDIDATES[name], threads), experiment(BASE_STEPS, threads), budget_s=BUDGET_S)
            outcomes.append((result.verdict, result.elapsed_s))
            print(f"live {name} {run + 1}/{runs}: {result}", flush=True)
        results[name] = summary(outcomes)
    return results


def save_traces(traces: list[Trace], circumstances: dict[str, Any], path: Path) -> None:
    """Store traces and circumstances in one compressed file, without pickle."""
    path.parent.mkdir(exist_ok=True)
    arrays = {
        f"{i}_{key}": getattr(trace, key)
        for i, trace in enumerate(traces)
        for key in ("segments", "baseline_s", "candidate_s", "pair_s")
    }
    about = json.dumps({"traces": [[t.name, t.load] for t in traces], "circumstances": circumstances})
    np.savez_compressed(path, about=np.array(about), **arrays)


def load_traces(path: Path) -> tuple[list[Trace], dict[str, Any]]:
    """Read what `save_traces` stored."""
    with np.load(path, allow_pickle=False) as stored:
        about = json.loads(str(stored["about"]))
        keys = ("segments", "baseline_s", "candidate_s", "pair_s")
        traces = [
            Trace(name, load, *(stored[f"{i}_{key}"] for key in keys)) for i, (name, load) in enumerate(about["traces"])
        ]
    return traces, about["circumstances"]


def record_all(quick: bool, threads: int, seconds: float, path: Path | None) -> tuple[list[Trace], dict[str, Any]]:
    """Record every trace, and store what there is after each load, so that an interrupted hour is not lost."""
    names = ("A/A", "1.15x") if quick else tuple(CANDIDATES)
    loads = ("as it is",) if quick else ("as it is", "one core busy")
    traces: list[Trace] = []
    circumstances = {**surroundings(), "threads": threads, "state": {}, "machine_was_shared": False}
    for load in loads:
        with watch() as watched:
            for name in names:
                segments = 4 if name == "A/A" and not quick else 1
                print(f"recording {name}, {load}: {segments} x {seconds:g} s", flush=True)
                traces.append(record(name, load, segments, seconds, len(traces), threads))
        circumstances["state"][load] = asdict(watched.state)
        if load == "as it is":
            circumstances["machine_was_shared"] = (watched.state.others_fraction or 0.0) > 0.15
        if path:
            save_traces(traces, circumstances, path)
    return traces, circumstances


def surroundings() -> dict[str, Any]:
    """Machine, versions and date."""
    here = machine.probe()
    return {
        "machine": {"model": here.model, "usable_cores": here.usable_cores, "system": platform.system()},
        "versions": ledger.versions(),
        "date": datetime.date.today().isoformat(),
    }


def replay_all(traces: list[Trace], stretches: int) -> list[dict[str, Any]]:
    """Replay all traces, and the one of 1.15x against a threshold that it only just reaches, too."""
    rows = []
    for seed, trace in enumerate(traces):
        true_ratio = CANDIDATES[trace.name] / BASE_STEPS
        spread = trace.log_ratios.std()
        for threshold in (1.0, 1.15) if trace.name in ("1.15x", "1.25x") else (1.0,):
            print(f"replaying {trace.name}, {trace.load}, threshold {threshold:g}", flush=True)
            rows.append(
                {
                    "trace": trace.name,
                    "load": trace.load,
                    "pairs": int(trace.pair_s.size),
                    "spread_of_log_ratio": float(spread),
                    "true_ratio": true_ratio,
                    "median_ratio": float(math.exp(np.median(trace.log_ratios))),
                    "threshold": threshold,
                    "stretches": stretches,
                    "budget_s": float(trace.pair_s.sum() / np.unique(trace.segments).size),
                    "couples": couples(trace),
                    "rules": replay(trace, stretches, seed, threshold),
                }
            )
    return rows


def couples(trace: Trace) -> list[list[float]]:
    """Ratio and 95 % interval of each couple of processes: for A/A, how far two copies of the same code lie apart."""
    found = [stats.hodges_lehmann(trace.log_ratios[trace.segments == i]) for i in np.unique(trace.segments)]
    return [[round(float(np.exp(value)), 4) for value in ends] for ends in found]


def as_table(results: dict[str, Any]) -> str:
    """The results as Markdown."""
    about = results["circumstances"]
    shared = "; the machine was shared with other jobs" if about["machine_was_shared"] else ""
    lines = [
        "# How often each verdict came, and how long it took",
        "",
        f"{about['machine']['model']}, {about['machine']['usable_cores']} cores, {about['threads']} threads,"
        f" torch {about['versions'].get('torch')}, {about['date']}{shared}. Made by `benchmarks/decision_quality.py`.",
        "",
    ]
    for load, state in about["state"].items():
        others, steal = state["others_fraction"] or 0.0, state["steal_fraction"] or 0.0
        lines.append(
            f"* Recorded {load}: other processes used {others:.0%} of the CPU time, the hypervisor {steal:.1%}."
        )
    lines += [
        "",
        "| trace | load | threshold | rule | faster | not faster | undecided | median s | 95 % s |",
        "|---|---|---|---|---|---|---|---|---|",
    ]

    def row(first: str, rule: str, cell: dict[str, float]) -> str:
        shares = " | ".join(f"{100 * cell[v]:.1f} %" for v in ("faster", "not faster", "undecided"))
        return f"| {first} | {rule} | {shares} | {cell['median_s']:.2g} | {cell['p95_s']:.2g} |"

    for entry in results["replay"]:
        first = (
            f"{entry['trace']} (spread {entry['spread_of_log_ratio']:.2f}) | {entry['load']} | {entry['threshold']:g}"
        )
        lines += [row(first, rule, cell) for rule, cell in entry["rules"].items()]
    for name, cell in results.get("live", {}).items():
        lines.append(row(f"{name} | live, {results['live_runs']} runs | 1", "compare", cell))
    lines += ["", "Each couple of processes on its own, ratio and 95 % interval (equal code lies this far apart):", ""]
    for entry in results["replay"]:
        if entry["trace"] == "A/A":
            ratios = "; ".join(f"{ratio:.3f} ({low:.3f}-{high:.3f})" for ratio, low, high in entry["couples"])
            lines.append(f"* A/A, {entry['load']}: {ratios}")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Do what the command line asks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="in miniature; writes nothing")
    parser.add_argument("--replay", action="store_true", help="replay the stored traces")
    parser.add_argument("--live", type=int, default=0, metavar="N", help="N real comparisons of each kind as well")
    parser.add_argument("--stretches", type=int, default=0, help="replays of each trace (default 1000, quick 100)")
    cores = machine.probe().usable_cores or 1
    parser.add_argument("--threads", type=int, default=cores, help="of each process (default: all cores)")
    parser.add_argument("--seconds", type=float, default=0.0, help="of each trace (default 25, quick 8)")
    given = parser.parse_args()
    given.seconds = given.seconds or (8.0 if given.quick else 25.0)
    path = TRACES / "training_steps.npz"
    if given.replay:
        traces, circumstances = load_traces(path)
    else:
        kept = None if given.quick else path
        traces, circumstances = record_all(given.quick, given.threads, given.seconds, kept)
    stretches = given.stretches or (100 if given.quick else 1000)
    results = {"schema": 1, "circumstances": circumstances, "replay": replay_all(traces, stretches)}
    if given.live:
        results |= {"live": live(given.live, circumstances["threads"]), "live_runs": given.live}
    table = as_table(results)
    print(table)
    if not given.quick:
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / "decision_quality.json").write_text(json.dumps(results, indent=1) + "\n")
        (RESULTS / "decision_quality.md").write_text(table)


if __name__ == "__main__":
    main()
