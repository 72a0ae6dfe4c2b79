"""Grades a submission of the final: correctness first, then one session alone on the machine, then the sum."""

import contextlib
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from .. import catalog, noise
from ..catalog import Lesson, Question
from ..checks.final import read_claims
from ..submission import Result, Ungradable, Wrong
from . import final_task, isolation, score, verdict
from .final_task import Task
from .lane import lane
from .sandbox import Limits, Sandbox, clean
from .session import SessionResult, Train, run_session
from .sides import SIZE_CAP_BYTES, TRAINING, FinalSubmission, course_sides, read_final
from .trainer import SandboxTrainer

BUDGET_S = 480.0
_LEAST_SESSION_S = 30.0
_USUAL_S = 330.0  # of all together on two cores, for the time left while answers are checked
_CLAIMS = "final.claims"
_MESSAGE = 1000
MakeTasks = Callable[[int], Sequence[Task]]


@dataclass(frozen=True)
class Assessment:
    """What came of a submission.

    Attributes:
        report: Results of all questions, as `check` gives them.
        session: What was timed; None when there was no session.
        state: How calm the machine was meanwhile.
        pass_points: What the certificate needs.
        compressed_bytes: Size of the answers.
    """

    report: score.Report
    session: SessionResult | None
    state: noise.MachineState
    pass_points: int
    compressed_bytes: int

    @property
    def has_passed(self) -> bool:
        """Whether the points suffice for the certificate."""
        return self.report.points >= self.pass_points

    @property
    def is_isolated(self) -> bool:
        """Whether the submission ran in a sandbox."""
        return not self.report.isolation.startswith("not isolated")

    def as_json(self) -> dict[str, Any]:
        """The report with what the session measured; the seed is nowhere in it."""
        found = self.report.as_json()
        found |= {"pass_points": self.pass_points, "has_passed": self.has_passed}
        found |= {"compressed_bytes": self.compressed_bytes, "session": None}
        if self.session is None:
            return found
        session = self.session
        runs = [
            {
                "round": run.round,
                "task": run.task,
                "side": run.side,
                "seconds": run.seconds,
                "accuracy": run.accuracy,
                "losses": [round(loss, 4) for loss in run.losses],
            }
            for run in session.runs
        ]
        found["session"] = score.plain(
            {
                "runs": runs,
                "train_images": session.train_images,
                "reference_ratio": dict(session.reference_ratio),
                "noise_sd": session.noise_sd,
                "accuracy_difference": {
                    task: {"difference": found.difference, "interval": list(found.interval), "verdict": found.verdict}
                    for task, found in session.accuracy.items()
                },
                "steal_fraction": self.state.steal_fraction,
                "load_1min": self.state.load_1min,
                "seconds": session.seconds,
            }
        )
        return found


def assess(
    notebook: Path,
    *,
    seed: int | None = None,
    budget_s: float = BUDGET_S,
    progress: score.Progress = lambda doing, left_s: None,
    choice: isolation.Choice = "auto",
    limits: Limits | None = None,
    lesson: Lesson | None = None,
    read: Callable[[Path, Lesson], FinalSubmission] = read_final,
    make_tasks: MakeTasks = final_task.make_session,
    make_trainer: Callable[..., Train] = SandboxTrainer,
) -> Assessment:
    """Grade a submission.

    Args:
        notebook: The file; only read.
        seed: Draws everything secret; a fresh one when left out.
        budget_s: For all together.
        progress: Told what is being done and about how long it will still take.
        choice: ``plain`` does without bubblewrap even where it works.
        limits: Of each worker.
        lesson: The final's entry in the catalog; tests leave questions out.
        read: Reads the notebook.
        make_tasks: Makes the session's tasks from its seed.
        make_trainer: Makes what trains the sides; takes what `SandboxTrainer` takes.

    Raises:
        ValueError: If the notebook cannot be read or the final was never generated.
    """
    started_s = time.monotonic()
    lesson = lesson or catalog.final()
    seed = secrets.randbits(62) if seed is None else seed
    submission = read(notebook, lesson)
    limits = limits or Limits()
    untimed = replace(lesson, questions=tuple(q for q in lesson.questions if not q.is_timed))
    claims: list[Any] = []

    def keep_claims(sandbox: Sandbox) -> None:
        if any(question.id == _CLAIMS for question in untimed.questions):
            with contextlib.suppress(Wrong, Ungradable):
                sandbox.begin(catalog.question(_CLAIMS))
                claims.extend(read_claims(sandbox.submission.value("claims")))

    def tell(doing: str, left_s: float) -> None:
        progress(doing, max(left_s, min(budget_s, _USUAL_S) - (time.monotonic() - started_s)))

    report = score.grade(
        notebook, untimed, seed=seed, progress=tell, choice=choice, limits=limits,
        read=lambda path, which: submission.lab, afterwards=keep_claims,
    )  # fmt: skip

    def train() -> tuple[SessionResult, noise.MachineState]:
        cells = {**course_sides(), "submission": submission.training}
        trainer = make_trainer(cells, masked=lesson.masked, limits=limits, choice=choice)
        left_s = max(_LEAST_SESSION_S, budget_s - report.seconds)  # waiting for the lane costs nothing
        return _run(lesson, trainer, make_tasks, seed, left_s, progress)

    timed = [question for question in lesson.questions if question.is_timed]
    results, session, state = _time(submission, timed, train)
    results += [
        verdict.judge_claim(result, claims, session, state) if result.question == _CLAIMS else result
        for result in report.results
    ]
    order = [question.id for question in lesson.questions]
    results.sort(key=lambda result: order.index(result.question))
    results = [replace(result, message=clean(result.message, _MESSAGE)) for result in results]
    seconds = report.seconds + (session.seconds if session else 0.0)
    report = replace(report, results=tuple(results), seconds=seconds)
    return Assessment(report, session, state, lesson.pass_points or 0, submission.compressed_bytes)


def _time(
    submission: FinalSubmission,
    timed: Sequence[Question],
    train: Callable[[], tuple[SessionResult, noise.MachineState]],
) -> tuple[list[Result], SessionResult | None, noise.MachineState]:
    """Results of part a, with the session they rest on; none where it need not be run."""

    def all_are(status: Any, message: str) -> tuple[list[Result], None, noise.MachineState]:
        found = [Result(question.id, status, 0, question.points, message) for question in timed]
        return found, None, noise.UNKNOWN_STATE

    if not timed:
        return all_are("ungradable", "")
    if TRAINING in submission.lab.missing:
        return all_are("failed", "its answer cell is missing: copy it from a fresh final (`./course reset final`)")
    if submission.is_too_large:
        size = f"{submission.compressed_bytes:,} bytes compressed"
        return all_are("failed", f"your answers take {size}, {SIZE_CAP_BYTES:,} are allowed: what do they carry?")
    try:
        session, state = train()
    except Ungradable as reason:
        return all_are("ungradable", str(reason))
    except Exception as error:  # our own mistake must not cost what the other parts have earned
        return all_are("ungradable", score.own_mistake(error))
    return verdict.judge_tiers(session, timed, state), session, state


def _run(
    lesson: Lesson, trainer: Train, make_tasks: MakeTasks, seed: int, left_s: float, progress: score.Progress
) -> tuple[SessionResult, noise.MachineState]:
    """One session while nothing else of the course computes on this machine; its seconds hold the drawing, too."""
    timed = [question for question in lesson.questions if question.is_timed]

    def tell(doing: str) -> None:
        progress(doing, left_s)

    tell("drawing the tasks")
    with lane("shared", on_wait=tell):
        began_s = time.monotonic()
        tasks = make_tasks(seed)
        drawing_s = time.monotonic() - began_s
    left_s = max(_LEAST_SESSION_S, left_s - drawing_s)
    with lane("exclusive", on_wait=tell), noise.watch() as watched:
        session = run_session(
            tasks,
            trainer,
            thresholds=[question.threshold or 1.0 for question in timed],
            margin=min(question.margin or 0.01 for question in timed),
            budget_s=left_s,
            rng=np.random.default_rng([seed, 2]),
            progress=progress,
        )
    return replace(session, seconds=session.seconds + drawing_s), watched.state
