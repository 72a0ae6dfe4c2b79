"""Where submissions of known strength land, session after session, and how far the reference's ratio spreads.

    python benchmarks/final_tiers.py [--sessions 3] [--only channels_last starter] [--once] [--table]

Every session is a graded one, part a only: two secret tasks, starter, reference and submission in turn, each run in a
sandbox. Submissions: the starter and the reference themselves, and five weaker ones (`tests/grading/submissions/`; the
last words of their first lines say where they should land). The file of results is written after each session, and a
second call goes on where the first one was ended. ``--once`` only trains each submission once on each task, to see its
time.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import secrets
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from accelerando import catalog, ledger
from accelerando.grading import assess, final_task, sides
from accelerando.grading.labs import LabCell, LabNotebook
from accelerando.grading.trainer import SandboxTrainer

HERE = Path(__file__).resolve().parent
SUBMISSIONS = HERE.parent / "tests" / "grading" / "submissions"
RESULT = HERE / "results" / "final_tiers.json"
TIERS = {"no tier": 0, "tier 1": 1, "tier 2": 2, "tier 3": 3}
COURSE = {"starter": 0, "reference": 3}
TIMED = replace(catalog.final(), questions=tuple(q for q in catalog.final().questions if q.is_timed))


def submissions() -> dict[str, tuple[tuple[LabCell, ...], int]]:
    """The cells of every submission, and the tier in which it should land."""
    course = sides.course_sides()
    found = {name: (course[name], tier) for name, tier in COURSE.items()}
    for path in sorted(SUBMISSIONS.glob("*.py")):
        source = path.read_text(encoding="utf-8")
        said = re.search(r'Lands: ([^.]+)\."""', source)
        assert said, path
        cells = (course["starter"][0], LabCell("solution", sides.TRAINING, path.stem, source, 1))
        found[path.stem] = cells, TIERS[said[1]]
    return found


def session(name: str, cells: tuple[LabCell, ...], budget_s: float) -> dict[str, Any]:
    """Grade one submission as `./course assess` does, part a only."""
    path = Path(f"{name}.ipynb")
    submission = sides.FinalSubmission(LabNotebook(path, cells, (), ()), cells, sides.compressed_bytes(cells))
    found = assess.assess(
        path, lesson=TIMED, read=lambda *_: submission, budget_s=budget_s, seed=secrets.randbits(62),
        progress=lambda doing, left_s: say(f"  {name}: {doing}, about {left_s:.0f} s left"),
    )  # fmt: skip
    told = found.as_json()
    measured = told["session"]
    statuses = [result["status"] for result in told["results"]]
    return {
        "tier": statuses.count("passed"),
        "statuses": statuses,
        "message": told["results"][-1]["message"],
        "tasks": told["results"][0]["evidence"].get("tasks", {}),
        "seconds": round(found.report.seconds, 1),
        "session": measured and {key: value for key, value in measured.items() if key != "runs"},
        "runs": [{key: run[key] for key in run if key != "losses"} for run in (measured or {"runs": []})["runs"]],
    }


def once(names: Iterable[str]) -> None:
    """Train each submission once on each task and print its time and accuracy."""
    every = submissions()
    trainer = SandboxTrainer({name: every[name][0] for name in names}, masked=TIMED.masked)
    for task in final_task.make_session(secrets.randbits(62)):
        for name in names:
            trained = trainer(name, task, np.arange(len(task.train)), 120.0)
            right = float((trained.scores.argmax(1) == task.held_out.labels).mean())
            print(f"{task.name:5} {name:22} {trained.seconds:6.2f} s  {right:.2%}", flush=True)


def reference_ratios(sessions: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """How far the reference's ratio to the starter spreads between sessions."""
    logs = [
        math.log(ratio)
        for found in sessions
        if found["session"]
        for ratio in found["session"]["reference_ratio"].values()
    ]
    if len(logs) < 2:
        return {}
    return {
        "mean": math.exp(float(np.mean(logs))),
        "lowest": math.exp(min(logs)),
        "highest": math.exp(max(logs)),
        "spread": float(np.std(logs, ddof=1)),
        "sessions": len(logs) // 2,
    }


def table(results: dict[str, Any]) -> str:
    """The results as a table in Markdown."""
    lines = [
        "| submission | should land | landed | ratio on the slower task | seconds a session |",
        "|---|---|---|---|---|",
    ]
    for name, (_, expected) in submissions().items():
        found = results["submissions"].get(name, [])
        ratios = [min(t["ratio"] for t in each["tasks"].values()) for each in found if each["tasks"]]
        landed = ", ".join(_landed(each) for each in found) or "not run"
        seconds = ", ".join(f"{each['seconds']:.0f}" for each in found)
        shown = ", ".join(f"{ratio:.2f}" for ratio in ratios)
        lines.append(f"| {name} | {expected or 'none'} | {landed} | {shown} | {seconds} |")
    return "\n".join(lines)


def _landed(found: dict[str, Any]) -> str:
    text = str(found["tier"] or "none")
    undecided = found["statuses"].count("undecided")
    return f"{text} ({undecided} undecided)" if undecided else text


def say(text: str) -> None:
    """Tell how far it is."""
    print(text, file=sys.stderr, flush=True)


def main() -> None:
    """Run what is missing, and write the results after each session."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--sessions", type=int, default=3)
    parser.add_argument("--only", nargs="+", default=list(submissions()))
    parser.add_argument("--budget", type=float, default=assess.BUDGET_S)
    parser.add_argument("--once", action="store_true")
    parser.add_argument("--table", action="store_true", help="only print the table of what is there")
    parser.add_argument("--output", type=Path, default=RESULT)
    options = parser.parse_args()
    if options.once:
        once(options.only)
        return
    results: dict[str, Any] = {"submissions": {}}
    if options.output.is_file():
        results = json.loads(options.output.read_text(encoding="utf-8"))
    every = submissions()
    for number in range(0 if options.table else options.sessions):
        for name in options.only:
            done = results["submissions"].setdefault(name, [])
            if len(done) > number:
                continue
            cells, expected = every[name]
            done.append(session(name, cells, options.budget))
            say(f"{name}: {_landed(done[-1])}, expected {expected or 'none'}; {done[-1]['seconds']:.0f} s")
            sessions = [each for found in results["submissions"].values() for each in found]
            results |= {"schema": 1, "reference_ratio": reference_ratios(sessions), **ledger.origin()}
            options.output.parent.mkdir(parents=True, exist_ok=True)
            options.output.write_text(json.dumps(results, indent=1, default=str) + "\n", encoding="utf-8")
    print(table(results))
    print(json.dumps(results.get("reference_ratio", {}), indent=1))


if __name__ == "__main__":
    main()
