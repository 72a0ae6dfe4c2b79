"""Turns a session of the final into results: the tiers of part a, and the claim about all changes. Pure."""

import math
from collections.abc import Sequence
from typing import Any

from .. import catalog, noise, stats
from ..catalog import Question
from ..checks.final import TOGETHER
from ..submission import Result, Status
from . import tiers
from .session import RUN_LIMIT_S, SessionResult

NOISY_SD = 0.24  # of log(starter / reference) between rounds: above it a machine is restless; 0.15 is usual
_CONTROL = 1.25  # times the highest threshold: what the reference reaches on a machine that is fit to measure
_CLAIM_FACTOR = 2.0  # a claim may be so far from what the grader measured on this machine, at this time
_AGAIN = "Close other programs and run it again."


def judge_tiers(
    session: SessionResult, questions: Sequence[Question], state: noise.MachineState = noise.UNKNOWN_STATE
) -> list[Result]:
    """One result for each tier of part a.

    Args:
        session: What was measured.
        questions: The timed ones, each with its threshold and margin.
        state: How calm the machine was.
    """
    return [_judge_tier(session, question, state) for question in questions]


def _judge_tier(session: SessionResult, question: Question, state: noise.MachineState) -> Result:
    threshold, margin = question.threshold or 1.0, question.margin or 0.01
    evidence = _evidence(session, threshold, margin)
    speed = session.ratios.against(threshold)
    ended_early = _ended_early(session)
    if session.failure and not ended_early:
        message = f"{session.failure}; the starter took {session.starter_s:.0f} s" if session.is_slow else ""
        return _result(question, "failed", message or session.failure, evidence)
    verdicts = [verdict.verdict for verdict in session.accuracy.values()]
    is_passed = speed == "reached" and bool(verdicts) and set(verdicts) == {"kept"}
    is_open = not is_passed and speed != "missed" and "lost" not in verdicts
    if ended_early and is_open:  # what whole rounds have shown before stays
        return _result(question, "undecided", f"{ended_early}. {_AGAIN}", evidence)
    told = f"{tell_speed(session)}; wanted: {threshold:g}{_mean_of_tasks(session, threshold, speed)}"
    if speed == "missed":
        if excuses := _excuses(session, state):
            message = f"{told}. But {' and '.join(excuses)}, so it does not count. {_AGAIN}"
            return _result(question, "undecided", message, evidence)
        return _result(question, "failed", f"{told}. Where does the time of a run go now?", evidence)
    accuracy = tell_accuracy(session)
    if "lost" in verdicts:
        message = f"{accuracy}. At most {_points(margin)} may be lost. Which of your changes costs it?"
        return _result(question, "failed", message, evidence)
    if speed == "undecided":
        disturbed = disturbances(session, state)
        why = f" {disturbed[0].upper()}{disturbed[1:]}." if disturbed else ""
        return _result(question, "undecided", f"{told}. That is too close to call here.{why} {_AGAIN}", evidence)
    if not is_passed:
        message = f"{told}; {accuracy}. Whether at most {_points(margin)} is lost is too close to call"
        return _result(question, "undecided", f"{message}: run it again.", evidence)
    return _result(question, "passed", f"{told}; {accuracy}", evidence)


def _ended_early(session: SessionResult) -> str:
    """Why a session that ended before its time says nothing against the submission; empty when it does, or did not."""
    if session.is_slow:
        if math.isnan(session.starter_s) or 1.5 * session.starter_s > RUN_LIMIT_S:
            return f"{session.failure}, and the starter is slow here, too"
        if slow_control := _slow_control(session):
            return f"{session.failure}. But {slow_control}, so it does not count"
    elif session.is_broken_off and not session.failure:
        return "one of the course's own sides gave no time any more, so the session ended early"
    return ""


def _evidence(session: SessionResult, threshold: float, margin: float) -> dict[str, Any]:
    return {
        "announced": threshold,
        "starter_s": session.starter_s,
        "judged_at": threshold / stats.TOLERANCE,
        "margin": margin,
        "noise_sd": session.noise_sd,
        "together": {
            "ratio": session.ratios.together.ratio,
            "interval": [session.ratios.together.low, session.ratios.together.high],
            "are_alike": session.ratios.are_alike,
        },
        "tasks": {
            task: {
                "ratio": found.ratio,
                "interval": [found.low, found.high],
                "pairs": found.pairs,
                "accuracy_starter": session.mean_accuracy("starter", task),
                "accuracy_submission": session.mean_accuracy("submission", task),
            }
            for task, found in session.intervals.items()
        },
    }


def slower(session: SessionResult) -> str:
    """The task on which the submission gained less; empty before every task has a pair."""
    if not session.intervals or any(not found.pairs for found in session.intervals.values()):
        return ""
    return min(session.intervals, key=lambda task: session.intervals[task].ratio)


def tell_speed(session: SessionResult) -> str:
    """The ratio that counts, with its interval, in words."""
    task = slower(session)
    if not task:
        return "the time was too short for a round on each task"
    found = session.intervals[task]
    if not found.is_telling:
        return f"about {found.ratio:.2f} times as fast, from too few rounds to say more"
    return (
        f"{found.ratio:.2f} times as fast ({found.low:.2f} to {found.high:.2f}, {found.pairs} rounds on the task "
        f"{task!r}, where you gain less)"
    )


def _mean_of_tasks(session: SessionResult, threshold: float, speed: tiers.Speed) -> str:
    """The mean of both tasks, where it decided because no task by itself did; else empty."""
    own = {found.against(threshold) for found in session.intervals.values()}
    if speed == "undecided" or "missed" in own or own == {"reached"}:
        return ""
    found = session.ratios.together
    return f"; both tasks together {found.ratio:.2f} times ({found.low:.2f} to {found.high:.2f})"


def tell_accuracy(session: SessionResult) -> str:
    """Accuracy on each task beside the starter's, in words."""
    parts = []
    for task in session.accuracy:
        own, before = session.mean_accuracy("submission", task), session.mean_accuracy("starter", task)
        parts.append(f"{own:.1%} on {task!r} (starter {before:.1%})")
    return f"accuracy {' and '.join(parts)}" if parts else "accuracy not measured"


def disturbances(session: SessionResult, state: noise.MachineState) -> str:
    """What made the measurement restless, in words; empty when nothing did."""
    found = _excuses(session, state)
    if state.throttled:  # which slows all sides alike
        found.append("the processor was slowed down")
    return " and ".join(found)


def _excuses(session: SessionResult, state: noise.MachineState) -> list[str]:
    """Why slowness may be somebody else's fault; usual noise in the repeats is in the interval already."""
    found = [told] if (told := _slow_control(session)) else []
    if session.noise_sd > NOISY_SD:
        found.append(f"the ratio of the course's own two sides varied by {session.noise_sd:.0%} between rounds")
    if (state.steal_fraction or 0) > noise.SLOWING_STEAL:
        found.append(f"the host kept {state.steal_fraction:.0%} of this machine's time")
    return found


def _points(margin: float) -> str:
    return f"{100 * margin:g} percentage point{'' if margin == 0.01 else 's'}"


def _slow_control(session: SessionResult) -> str:
    """What the course's own reference shows of a machine that is not fit to measure; empty when it is."""
    highest = max(question.threshold or 1.0 for question in catalog.final().questions if question.is_timed)
    ratios = [*session.reference_ratio.values()]
    if session.is_slow or not ratios:
        ratios.append(session.starter_s / session.reference_s)
    reached = min(ratios)
    if reached == 0:
        return "the course's own reference gave no time then, either"
    if not reached < _CONTROL * highest:
        return ""
    return f"the course's own reference was only {reached:.1f} times as fast as the starter"


def judge_claim(
    result: Result, claims: Any, session: SessionResult | None, state: noise.MachineState = noise.UNKNOWN_STATE
) -> Result:
    """Compare the row "all together" with what the session measured.

    Args:
        result: Of the claims' own check; only a passed one is looked at again.
        claims: The learner's table.
        session: None when there was none.
        state: How calm the machine was.
    """
    if result.status != "passed":
        return result
    claimed = next((row["measured"] for row in claims if row["technique"] == TOGETHER), None)
    known = list(session.intervals.values()) if session else []
    if claimed is None or not known or any(found.pairs < tiers.FEWEST_PAIRS for found in known):
        why = "part a was not timed" if session is None else session.failure or "too few rounds were measured"
        again = _AGAIN if session is not None and not session.failure else "Part a comes first."
        message = f"the table is complete; nothing is there to compare {TOGETHER!r} with, as {why}. {again}"
        return Result(result.question, "undecided", 0, result.maximum, message)
    ratios = " and ".join(f"{found.ratio:.2f}" for found in known)
    near = min(found.ratio for found in known), max(found.ratio for found in known)
    sure = min(found.low for found in known), max(found.high for found in known)
    evidence = {"claimed": claimed, "measured": list(near), "intervals": list(sure), "factor": _CLAIM_FACTOR}
    if near[0] / _CLAIM_FACTOR <= claimed <= near[1] * _CLAIM_FACTOR:
        message = f"you measured {claimed:g} all together, the grader {ratios}; the other rows are for a person to read"
        return Result(result.question, "passed", result.maximum, result.maximum, message, evidence)
    message = f"{TOGETHER!r} claims {claimed:g}; the grader measured {ratios} on its two tasks."
    if sure[0] / _CLAIM_FACTOR <= claimed <= sure[1] * _CLAIM_FACTOR or (session and _excuses(session, state)):
        message = f"{message} The machine was too restless to say that this is wrong. {_AGAIN}"
        return Result(result.question, "undecided", 0, result.maximum, message, evidence)
    message = f"{message} How did you time a whole run?"
    return Result(result.question, "failed", 0, result.maximum, message, evidence)


def _result(question: Question, status: Status, message: str, evidence: dict[str, Any]) -> Result:
    points = question.points if status == "passed" else 0
    return Result(question.id, status, points, question.points, message, evidence)
