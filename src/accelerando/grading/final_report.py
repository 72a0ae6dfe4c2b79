"""The final's report and certificate as web pages, and its files: each is written wholly or not at all."""

import base64
import hashlib
import json
import math
import os
import platform
import shutil
from datetime import datetime
from pathlib import Path
from typing import Any

import psutil

from .. import catalog, copies, figures, work
from ..cards import SIGNS
from . import final_figures, verdict
from .assess import Assessment

_TEMPLATE = "final.html"
_UNFINISHED = ".unfinished-"  # and the number of the process that writes it


def write_results(assessment: Assessment, folder: Path, when: datetime) -> list[Path]:
    """Write what came of a submission: all files at once, in a folder of their own, or none.

    Args:
        assessment: What came of it.
        folder: Gets ``final-DATE/``, for a file that is not the learner's own ``other-DATE/``, with ``report.html``,
            ``report.json``, and ``certificate.html`` when it was passed.
        when: Now, for the name.

    Returns:
        The files, the report first.

    Raises:
        OSError: If the folder cannot be written; nothing is left there then.
    """
    texts = {
        "report.html": report_page(assessment, when),
        "report.json": json.dumps(assessment.as_json(), indent=1, ensure_ascii=False, allow_nan=False) + "\n",
    }
    if assessment.has_passed:
        texts["certificate.html"] = report_page(assessment, when, is_certificate=True)
    kind = "final" if work.is_learners(Path(assessment.report.notebook)) else "other"
    folder.mkdir(parents=True, exist_ok=True)
    _sweep(folder)
    unfinished = folder / f"{_UNFINISHED}{os.getpid()}"
    try:
        unfinished.mkdir()
        for name, text in texts.items():
            (unfinished / name).write_bytes(text.encode("utf-8", "replace"))
        finished = copies.free_name(folder / f"{kind}-{when:%Y-%m-%d-%H%M%S}")
        unfinished.rename(finished)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise
    return [finished / name for name in texts]


def _sweep(folder: Path) -> None:
    """Remove what a grader that was killed while writing has left."""
    for left in folder.glob(f"{_UNFINISHED}*"):
        number = left.name.removeprefix(_UNFINISHED)
        if not number.isdecimal() or not psutil.pid_exists(int(number)) or int(number) == os.getpid():
            shutil.rmtree(left, ignore_errors=True)


def report_page(assessment: Assessment, when: datetime, *, is_certificate: bool = False) -> str:
    """The page as HTML; nothing that came from the learner's code is read as markup."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=jinja2.StrictUndefined
    )
    report, session = assessment.report, assessment.session
    return environment.get_template(_TEMPLATE).render(
        title=report.title,
        is_certificate=is_certificate,
        is_isolated=assessment.is_isolated,
        isolation=report.isolation,
        points=report.points,
        maximum=report.maximum,
        standing=standing(assessment),
        sentence=verdict.tell_speed(session) if session else "",
        notebook=Path(report.notebook).name,
        digest=_digest(Path(report.notebook)),
        when=f"{when:%Y-%m-%d %H:%M}",
        machine=f"{platform.system()} {platform.machine()}, {_cores()} cores",
        seconds=round(report.seconds),
        results=[_row(result) for result in report.results],
        warnings=report.warnings,
        pictures=[_picture(picture) for picture in _pictures(assessment)],
        runs=session.runs if session else (),
        train_images=session.train_images if session else 0,
        noise=tell_noise(assessment),
        has_own_losses=any(run.losses for run in (session.runs if session else ()) if run.side == "submission"),
    )


def standing(assessment: Assessment) -> str:
    """Passed or not, in words."""
    if assessment.has_passed:
        return "passed"
    if assessment.report.exit_code == 3:
        return f"not decided yet ({assessment.pass_points} pass)"
    return f"not passed yet ({assessment.pass_points} pass)"


def tell_noise(assessment: Assessment) -> str:
    """How restless the machine was."""
    session = assessment.session
    if session is None or math.isnan(session.noise_sd):
        return ""
    told = f"Between rounds, the ratio of the course's own two sides varied by {session.noise_sd:.1%}."
    disturbed = verdict.disturbances(session, assessment.state)
    return f"{told} Disturbed: {disturbed}." if disturbed else told


def _pictures(assessment: Assessment) -> list[figures.Picture]:
    session = assessment.session
    if session is None or not session.runs:
        return []
    timed = [question for question in catalog.final().questions if question.is_timed]
    thresholds = [question.threshold or 1.0 for question in timed]
    margin = timed[0].margin or 0.01
    found = [final_figures.ratios(session, thresholds)]
    if session.accuracy:
        found.append(final_figures.accuracies(session, margin))
    if any(run.losses for run in session.runs):
        found.append(final_figures.losses(session))
    return found


def _picture(picture: figures.Picture) -> dict[str, str]:
    return {"data": base64.b64encode(picture.png).decode(), "words": picture.words}


def _row(result: Any) -> dict[str, Any]:
    sign, colour = SIGNS[result.status]
    return {
        "sign": sign,
        "colour": colour,
        "title": catalog.question(result.question).title,
        "status": result.status,
        "points": result.points,
        "maximum": result.maximum,
        "message": result.message,
    }


def _digest(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return "unknown"


def _cores() -> int:
    from .. import machine

    return machine.probe().usable_cores
