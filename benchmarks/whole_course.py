"""The whole course in one run: every lesson, every lab by its solution, and the final by its reference; what each took.

    python benchmarks/whole_course.py [lessons] [smoke] [labs] [final] [--only 1 2] [--times 3] [--loaded] [--table]

Lessons run with the quick budget and "smoke" with the tests' own; with ``--store`` the outputs of quick ones go into
their notebooks, as with `./course lesson`. Labs and the final are graded as `./course check --solution` and `./course
assess` do. ``--times`` grades each lab so often in a row, ``--loaded`` keeps one core busy meanwhile. The file of
results is written after each row; a later call replaces the rows that it makes anew.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from accelerando import catalog, ledger, machine, work
from accelerando.grading import lesson_run

RESULT = Path(__file__).parent / "results" / "whole_course.json"
PARTS = ("lessons", "smoke", "labs", "final")
BURN = "while True: pass"


@contextmanager
def load(is_loaded: bool) -> Iterator[None]:
    """Keep the first core busy that this process may use, if so told."""
    if not is_loaded:
        yield
        return
    core = sorted(os.sched_getaffinity(0))[0]
    burner = subprocess.Popen([sys.executable, "-c", BURN], preexec_fn=lambda: os.sched_setaffinity(0, {core}))
    try:
        yield
    finally:
        burner.kill()
        burner.wait()


def run_lesson(number: int, budget: lesson_run.Budget, store: bool) -> dict[str, Any]:
    """Run a lesson's notebook from its first cell to its last."""
    with machine.watch() as watch:
        ran = lesson_run.run_lesson(catalog.find(str(number)), budget, store=store and budget == "quick")
    return {"seconds": ran.elapsed_s, "cells": ran.cells, "others_fraction": watch.state.others_fraction}


def grade(*command: str) -> dict[str, Any]:
    """Grade by the course's own command line; what came of it in short."""
    began_s = time.monotonic()
    process = subprocess.run(
        [sys.executable, "-m", "accelerando", *command, "--json"], capture_output=True, text=True, check=False
    )
    seconds = time.monotonic() - began_s
    if not process.stdout.strip():
        sys.exit(f"{' '.join(command)} ended with {process.returncode}: {process.stderr.strip()}")
    told = json.loads(process.stdout)
    measured = next(filter(None, map(_measured, told["results"])), {})
    missing = [row for row in told["results"] if row["points"] < row["maximum"]]
    return {
        "seconds": seconds,
        "exit_code": process.returncode,
        "points": told["points"],
        "maximum": told["maximum"],
        "missing": {row["question"]: [row["status"], row["message"]] for row in missing},
        "ratio": measured.get("ratio"),
        "interval": measured.get("interval"),
        "others_fraction": measured.get("machine", {}).get("others_fraction"),
    }


def _measured(result: dict[str, Any]) -> dict[str, Any]:
    """What was timed for a question: of the final's tasks the one with the smaller gain; empty when nothing was."""
    evidence: dict[str, Any] = result["evidence"]
    tasks = evidence.get("tasks")
    return min(tasks.values(), key=lambda task: task["ratio"]) if tasks else evidence if "ratio" in evidence else {}


def rows(part: str, numbers: list[int], times: int, store: bool) -> Iterator[tuple[str, dict[str, Any]]]:
    """The rows of one part, each with its name, as they are made."""
    if part == "final":
        reference = work.checkout() / "solutions" / "final" / "final.ipynb"
        yield "final", {"graded": [grade("assess", "--submission", str(reference))]}
        return
    for number in numbers:
        if part == "labs":
            yield f"lab {number}", {"graded": [grade("check", str(number), "--solution") for _ in range(times)]}
        else:
            yield f"lesson {number}", run_lesson(number, "quick" if part == "lessons" else "smoke", store)


def tell(name: str, row: dict[str, Any]) -> str:
    """One row as a line of Markdown's table."""
    if "cells" in row:
        return f"| {name} | {row['seconds']:.0f} s | {row['cells']} cells |"
    graded = row["graded"]
    seconds = ", ".join(f"{each['seconds']:.0f}" for each in graded)
    points = ", ".join(f"{each['points']}/{each['maximum']}" for each in graded)
    timed = [(each["ratio"], *each["interval"]) for each in graded if each["ratio"]]
    ratios = ", ".join(f"{ratio:.2f} ({low:.2f} to {high:.2f})" for ratio, low, high in timed)
    missing = "; ".join(f"{status}: {said}" for each in graded for status, said in each["missing"].values())
    return f"| {name} | {seconds} s | {points}{ratios and f'; {ratios} times as fast'}{missing and f'; {missing}'} |"


def main() -> int:
    """Run the parts asked for; status 1 if a point that was judged is missing."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("parts", nargs="*", default=[], help=f"{', '.join(PARTS)}; all when left out")
    parser.add_argument("--only", nargs="+", type=int, default=[lesson.number for lesson in catalog.lessons()])
    parser.add_argument("--times", type=int, default=1)
    parser.add_argument("--loaded", action="store_true")
    parser.add_argument("--store", action="store_true")
    parser.add_argument("--table", action="store_true", help="only print what is there")
    parser.add_argument("--output", type=Path, default=RESULT)
    options = parser.parse_args()
    if unknown := set(options.parts) - set(PARTS):
        parser.error(f"{', '.join(sorted(unknown))}: not one of {', '.join(PARTS)}")
    record: dict[str, Any] = {"schema": 1}
    if options.output.is_file():
        record = json.loads(options.output.read_text(encoding="utf-8"))
    began_s, lost = time.monotonic(), False
    with load(options.loaded):
        for part in () if options.table else options.parts or PARTS:
            kept = record.setdefault(f"{part}, one core loaded" if options.loaded else part, {})
            for name, row in rows(part, options.only, options.times, options.store):
                kept[name] = row
                print(tell(name, row), flush=True)
                lost |= any(each["exit_code"] in (1, 2) for each in row.get("graded", ()))
                record |= ledger.origin()
                options.output.write_text(json.dumps(record, indent=1, default=str) + "\n", encoding="utf-8")
    if options.table:
        for part, kept in record.items():
            if part.split(",")[0] in PARTS:
                print(f"\n**{part}**\n\n| | time | |\n|---|---|---|", *(tell(*each) for each in kept.items()), sep="\n")
    else:
        print(f"{time.monotonic() - began_s:.0f} s in all")
    return int(lost)


if __name__ == "__main__":
    sys.exit(main())
