"""The same failure in torchrun's own care: a node is killed, and torchrun starts the rest again, with fewer ranks."""

from __future__ import annotations

import re
import shutil
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from accelerando import measure, ranks
from accelerando.lessons import Budget
from accelerando.lessons.clusters import stage as stages
from accelerando.lessons.clusters.failures import KILL_AT, SAME, TARGET, End, Plug, end_of, payload
from accelerando.lessons.clusters.stage import Stage

_RAISED = re.compile(r"[\w.]*(?:Error|Exception): ")
_SOURCE = re.compile(r"\[/\S+?:\d+\] ?")


@dataclass(frozen=True)
class Restart:
    """A run that torchrun took up again by itself; without ``end`` there was none.

    Args:
        command: As it was typed, on every node.
        told: What the rank that was left raised.
        told_s: How long after the kill.
        again_s: How long after the kill it was at work again.
        end: Of the run.
        undisturbed: How the same run ended that was left in peace, if it was made.
        why_not: Why there was none.
    """

    command: str = ""
    told: str = ""
    told_s: float | None = None
    again_s: float | None = None
    end: End | None = None
    undisturbed: End | None = None
    why_not: str = ""

    def commands(self) -> str:
        """Markdown: what was typed where."""
        return f"```\n{self.command}\n```" if self.command else ""

    def sentence(self) -> str:
        """What this run showed."""
        if self.end is None:
            return f"No elastic run here: {self.why_not.removesuffix('.')}."
        told = f"`node2` was killed after step {KILL_AT}. "
        if self.told_s is not None:
            told += f"{measure.duration(self.told_s)} later rank 0 raised “{self.told}”, and ended. "
        if self.again_s is not None:
            told += f"torchrun had its rank at work again {measure.duration(self.again_s)} after the kill: "
        told += f"from step {self.end.first_step}, on {' and '.join(dict.fromkeys(self.end.hosts))}. "
        if self.undisturbed is None:
            return f"{told}The loss at the end: {self.end.loss:.9f}."
        off = abs(self.end.loss - self.undisturbed.loss)
        how = f"{off:.1g} apart from the run left in peace" if off else "to the last bit that of the run left in peace"
        return f"{told}**{'The same loss' if off < SAME else 'Not the same loss'}** at the end: {how}."


def measure_restart(budget: Budget, undisturbed: End | None = None) -> Restart:
    """Kill a node of an elastic run on a cluster of its own, and let torchrun do the rest."""
    if budget.name == "smoke":
        return Restart(why_not="the smoke budget leaves it out")
    stage = stages.open_stage(budget, megabits_per_s=None, with_slurm=False, part="wide")
    folder = Path(tempfile.mkdtemp(prefix="accelerando-elastic-"))
    try:
        if not stage.is_enforced:
            return Restart(why_not=f"it needs nodes that can be lost ({_missing(stage)})")
        return _watch(stage, folder, undisturbed)
    finally:
        stage.close()
        shutil.rmtree(folder, ignore_errors=True)


def _missing(stage: Stage) -> str:
    return stage.why_not if stage.cluster is None else f"{stage.cluster.why_loopback}"


def _watch(stage: Stage, folder: Path, undisturbed: End | None) -> Restart:
    plug, raised, begun = Plug(stage), [], []

    def take(rank: int, line: str) -> None:
        plug.pull(rank, line)
        if rank == 0 and plug.at_s is not None:
            after_s = time.monotonic() - plug.at_s
            if _RAISED.match(line):
                raised.append((after_s, _SOURCE.sub("", line)))
            if line.startswith("process "):
                begun.append(after_s)

    try:
        result = stage.run(TARGET, payload(folder), launcher="torchrun", fewest=1, on_line=take)
    except ranks.RanksFailed as failure:
        return Restart(why_not=f"it did not come to its end: {failure.result.reason}")
    told_s, told = raised[-1] if raised else (None, "")
    again_s = begun[-1] if begun else None
    return Restart(result.command, told, told_s, again_s, end_of(result.values), undisturbed)
