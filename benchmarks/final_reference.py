"""The final's starter against its reference: seconds, accuracy on both tasks, and how much of the machine is used.

    python benchmarks/final_reference.py [--rounds 2] [--sessions 1] [--epochs 1]

In each round starter and reference train on the same task, one after the other in an order drawn by lot, each in a
fresh process that holds the images before the clock starts. The clock is the parent's and runs from asking for the
training until the scores are here, as in a graded session. No sandbox: that part is the engine's. ``--epochs`` also
runs the reference with fewer epochs, to see how soon it reaches the starter's accuracy.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from accelerando import counts, ledger, machine, measure, stats, workers
from accelerando.grading import final_task, starters

SOURCE = Path(__file__).parents[1] / "solutions" / "final" / "final.ipynb"
RESULT = Path(__file__).parent / "results" / "final_reference.json"
MARGIN = 0.01


def answer_cell(side: str) -> str:
    """The text of the answer to part a: of the "starter" or of the "reference"."""
    cells = json.loads(SOURCE.read_text(encoding="utf-8"))["cells"]
    (source,) = ("".join(cell["source"]) for cell in cells if starters.has_starter("".join(cell["source"])))
    setup = next("".join(cell["source"]) for cell in cells if cell["id"] == "setup")
    return setup + "\n" + (starters.starter_of if side == "starter" else starters.solution_of)(source)


def prepare_side(source: str, images: Any, labels: Any, unseen: Any, overrides: dict[str, Any]) -> Any:
    """In the child: load the answer, prepare, and return the function to be timed."""
    names: dict[str, Any] = {}
    exec(compile(source, "<answer>", "exec"), names)
    names.update(overrides)
    names["prepare"](list(images.shape), final_task.CLASSES)

    def go() -> Any:
        names["train"](images, labels, 120.0)
        return names["predict"](unseen)

    return go


def run_once(side: str, task: final_task.Task, order_seed: int, overrides: dict[str, Any] | None = None) -> Any:
    """Train and predict once; seconds, and which held-out images were right.

    The order of the training images is drawn anew for each run: the answers' own seeds are fixed.
    """
    order = np.random.default_rng(order_seed).permutation(len(task.train))
    arguments = {
        "source": answer_cell(side),
        "images": task.train.images[order],
        "labels": task.train.labels[order],
        "unseen": task.held_out.images,
        "overrides": overrides or {},
    }
    target = f"{Path(__file__).stem}:prepare_side"
    with workers.Worker(workers.Experiment(target, arguments, prepares=True)) as worker:
        scores = np.asarray(worker.call(time_limit_s=600.0))
        elapsed_s = worker.elapsed_s
    return elapsed_s, scores.argmax(1) == task.held_out.labels


def peak_flops_per_s() -> dict[str, float]:
    """What this machine's matrix product and convolution reach now, in floating-point operations per second."""
    left, right = torch.randn(1024, 1024), torch.randn(1024, 1024)
    images = torch.randn(32, 64, 28, 28).to(memory_format=torch.channels_last)
    conv = torch.nn.Conv2d(64, 64, 3, padding=1)
    with torch.inference_mode():
        product = measure.measure(lambda: left @ right, label="GEMM 1024", budget_s=2.0)
        convolution = measure.measure(lambda: conv(images), label="conv 64x64x3x3", budget_s=2.0)
    return {
        "gemm": 2 * 1024**3 / product.median_s,
        "conv": 2 * 32 * 28 * 28 * 64 * 64 * 9 / convolution.median_s,
    }


def flops_per_image(side: str) -> dict[str, int]:
    """Operations of matrix products and convolutions for one image, in training and in predicting, and the epochs."""
    names: dict[str, Any] = {}
    exec(compile(answer_cell(side), "<answer>", "exec"), names)
    example = torch.randn(2, 1, 28, 28)
    return {
        "train": counts.flops(names["network"](final_task.CLASSES), example) // 2,
        "predict": counts.flops(names["network"](final_task.CLASSES).eval(), example, is_training=False) // 2,
        "epochs": names["EPOCHS"],
    }


def session(seed: int, rounds: int, epochs: list[int]) -> dict[str, Any]:
    """One session: both tasks in turn, starter and reference in each round."""
    rng = np.random.default_rng(seed)
    found: dict[str, Any] = {}
    for task in final_task.make_session(seed):
        seconds: dict[str, list[float]] = {"starter": [], "reference": []}
        right: dict[str, list[np.ndarray]] = {"starter": [], "reference": []}
        for number in range(rounds):
            for side in rng.permutation(list(seconds)):
                elapsed_s, correct = run_once(str(side), task, 1000 * seed + number)
                seconds[side].append(elapsed_s)
                right[side].append(correct)
                say(f"session {seed}, {task.name}, {side}: {elapsed_s:.2f} s, {correct.mean():.2%}")
        verdict = stats.paired_non_inferiority(np.stack(right["starter"]), np.stack(right["reference"]), MARGIN)
        sooner = {}
        for count in epochs:
            elapsed_s, correct = run_once("reference", task, seed, {"EPOCHS": count})
            sooner[str(count)] = {"seconds": elapsed_s, "accuracy": float(correct.mean())}
            say(
                f"session {seed}, {task.name}, reference with {count} epoch(s): {elapsed_s:.2f} s, {correct.mean():.2%}"
            )
        found[task.name] = {
            "seconds": seconds,
            "accuracy": {side: [float(correct.mean()) for correct in runs] for side, runs in right.items()},
            "accuracy_verdict": verdict.verdict,
            "accuracy_difference": verdict.difference,
            "accuracy_interval": list(verdict.interval),
            "reference_with_fewer_epochs": sooner,
        }
    return found


def ratio_interval(log_ratios: list[float]) -> tuple[float, float, float]:
    """Mean ratio with its 95 % interval, from Student's t on log ratios."""
    from scipy.stats import t

    values = np.asarray(log_ratios)
    half = (
        float(t.ppf(0.975, len(values) - 1)) * values.std(ddof=1) / math.sqrt(len(values))
        if len(values) > 1
        else math.inf
    )
    return math.exp(values.mean()), math.exp(values.mean() - half), math.exp(min(values.mean() + half, 50.0))


def say(text: str) -> None:
    """Tell how far it is."""
    print(text, file=sys.stderr, flush=True)


def main() -> None:
    """Run the sessions, print a summary and write the results file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--sessions", type=int, default=1)
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--epochs", type=int, nargs="*", default=[], help="also run the reference with so few epochs")
    parser.add_argument("--output", type=Path, default=RESULT)
    options = parser.parse_args()
    peak = peak_flops_per_s()
    flops = {side: flops_per_image(side) for side in ("starter", "reference")}
    with machine.watch() as watch:
        seeds = range(options.first_seed, options.first_seed + options.sessions)
        sessions = {str(seed): session(seed, options.rounds, options.epochs) for seed in seeds}
    tasks = [task for found in sessions.values() for task in found.values()]
    pairs = [pair for task in tasks for pair in zip(*task["seconds"].values(), strict=True)]
    ratio, low, high = ratio_interval([math.log(slow / fast) for slow, fast in pairs])
    summary: dict[str, Any] = {"ratio": ratio, "ratio_interval_95": [low, high], "pairs": len(pairs)}
    for column, side in enumerate(("starter", "reference")):
        median_s = float(np.median([pair[column] for pair in pairs]))
        each = flops[side]
        work = final_task.TRAIN_IMAGES * each["epochs"] * each["train"] + final_task.HELD_OUT_IMAGES * each["predict"]
        summary[side] = {
            "median_s": median_s,
            "images_given_per_s": final_task.TRAIN_IMAGES / median_s,
            "images_trained_per_s": final_task.TRAIN_IMAGES * each["epochs"] / median_s,
            "share_of_conv_peak": work / median_s / peak["conv"],
            "share_of_gemm_peak": work / median_s / peak["gemm"],
        }
    results = {
        "summary": summary, "sessions": sessions, "peak_flops_per_s": peak, "flops_per_image": flops,
        "threads": torch.get_num_threads(), "machine_state": asdict(watch.state),
    }  # fmt: skip
    options.output.parent.mkdir(parents=True, exist_ok=True)
    origin = {"schema": 1, **ledger.origin()}
    options.output.write_text(json.dumps(origin | results, indent=1, default=str) + "\n", encoding="utf-8")
    print(json.dumps(summary, indent=1))


if __name__ == "__main__":
    main()
