"""A node is killed in the middle of training: what is told, what is lost, and how it goes on."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from accelerando import ranks
from accelerando.lessons import Budget
from accelerando.lessons.clusters import stage as stages
from accelerando.lessons.clusters.stage import Stage

TARGET = "accelerando.lessons.clusters.on_nodes:train"
STEPS, SAVE_EVERY, KILL_AT, PAUSE_S = 60, 10, 37, 0.02
SAME = 1e-5
ALONE, RENEWED = "the node that was left, alone", "two nodes again"


def predict_lost_steps(kill_at: int, save_every: int) -> int:
    """Predict how many steps have to be done again: those since the last checkpoint.

    Args:
        kill_at: The last step that was finished, from 1.
        save_every: Steps between checkpoints, at least 1.
    """
    if save_every < 1:
        raise ValueError(f"save_every is {save_every}: it must be at least 1")
    return kill_at % save_every


def predict_best_interval_s(save_s: float, between_failures_s: float) -> float:
    """Predict how often a checkpoint pays best: seconds between two of them.

    Rarely saved, much is done again after a failure; often saved, the saving itself costs.

    Args:
        save_s: Seconds that training stands still for one checkpoint.
        between_failures_s: Mean seconds between failures of the whole job.

    Source:
        Young (1974), A first order approximation to the optimum checkpoint interval.
    """
    if not (save_s > 0 and between_failures_s > 0):
        raise ValueError(f"save_s is {save_s} and between_failures_s {between_failures_s}: both must be above 0")
    return float((2 * save_s * between_failures_s) ** 0.5)


@dataclass(frozen=True)
class End:
    """How a run ended that was taken up again.

    Args:
        loss: Over all images, after the last step.
        first_step: At which it began.
        hosts: Where its ranks ran.
        losses: Of each global batch from there on.
    """

    loss: float
    first_step: int
    hosts: tuple[str, ...]
    losses: tuple[float, ...]


@dataclass(frozen=True)
class Failure:
    """A run whose node was killed, and what became of it; without ``ends`` nothing was tried.

    Args:
        killed: What was killed, in words.
        reason: What the caller was told.
        undisturbed: The same run, left in peace.
        ends: Who went on -> how it ended.
        why_not: Why nothing, or not all, was tried.
    """

    killed: str = ""
    reason: str = ""
    undisturbed: End | None = None
    ends: Mapping[str, End] = field(default_factory=dict)
    why_not: str = ""

    def lines(self) -> dict[str, tuple[Sequence[int], Sequence[float]]]:
        """Name -> steps and losses of global batches."""
        runs = {"left in peace": self.undisturbed, **self.ends} if self.undisturbed else {}
        return {
            name: (range(end.first_step + 1, end.first_step + 1 + len(end.losses)), end.losses)
            for name, end in runs.items()
            if end is not None
        }

    def table(self) -> str:
        """Markdown: who went on, from where, and where it ended."""
        lines = ["| who | ranks ran on | from step | loss over all images, at the end |", "|---|---|---|---|"]
        runs = {"left in peace": self.undisturbed, **self.ends} if self.undisturbed else {}
        lines += [
            f"| {name} | {', '.join(end.hosts)} | {end.first_step} | {end.loss:.9f} |"
            for name, end in runs.items()
            if end is not None
        ]
        return "\n".join(lines)

    def sentence(self) -> str:
        """What this run showed."""
        if self.undisturbed is None or not self.ends:
            return f"Nothing to compare: {(self.why_not or 'nothing was tried').removesuffix('.')}."
        first = next(iter(self.ends.values())).first_step
        told = (
            f"{self.killed} was killed with `kill -9` after step {KILL_AT}, and the course's cluster ended the rest: “"
            f"{self.reason}” (no launcher has such a sentence). The last checkpoint was of step {first}, so "
            f"{KILL_AT - first} steps had to be done again (predicted: {predict_lost_steps(KILL_AT, SAVE_EVERY)})."
        )
        apart = {name: abs(end.loss - self.undisturbed.loss) for name, end in self.ends.items()}
        words = {name: f"{off:.1g} apart" if off else "to the last bit" for name, off in apart.items()}
        same = [f"{name} ({words[name]})" for name, off in apart.items() if off < SAME]
        other = [f"{name} ({words[name]})" for name, off in apart.items() if off >= SAME]
        if same:
            told += f" **The same loss as if nothing had happened**: {', '.join(same)}."
        if other:
            told += f" Not the same loss: {', '.join(other)}; something is missing in the checkpoint."
        return f"{told} {self.why_not}".strip()


def measure_failure(budget: Budget) -> Failure:
    """Train on a cluster of its own, kill a node in the middle, and go on from the checkpoint, twice.

    First on the node that was left, alone, with the whole batch; then, from the same checkpoint, on two new nodes.
    """
    if budget.name == "smoke":
        return Failure(why_not="the smoke budget leaves it out")
    folder = Path(tempfile.mkdtemp(prefix="accelerando-checkpoints-"))
    stage = stages.open_stage(budget, megabits_per_s=None, with_slurm=False, part="fail")
    try:
        return _tell(budget, stage, folder)
    finally:
        stage.close()
        shutil.rmtree(folder, ignore_errors=True)


def _tell(budget: Budget, stage: Stage, folder: Path) -> Failure:
    for name in ("left", "renewed"):
        (folder / name).mkdir()
    try:
        undisturbed = end_of(stage.run(TARGET, {"steps": STEPS}).values)
    except ranks.RanksFailed as failure:
        return Failure(why_not=f"the run that nobody disturbed failed: {failure.result.reason}")
    plug = Plug(stage)
    try:
        stage.run(TARGET, payload(folder / "left"), on_line=plug.pull)
        return Failure(why_not=f"the node outlived its `kill -9`, and the run its step {KILL_AT}")
    except ranks.RanksFailed as failure:
        reason = failure.result.reason
    shutil.copytree(folder / "left", folder / "renewed", dirs_exist_ok=True)
    ends, failed = {}, ""
    try:
        ends[ALONE] = end_of(stage.run(TARGET, payload(folder / "left"), on="node1").values)
    except ranks.RanksFailed as failure:
        failed = f"The node that was left did not get to the end: {failure.result.reason}. "
    stage.close()
    renewed = stages.open_stage(budget, megabits_per_s=None, with_slurm=False, part="new")
    try:
        ends[RENEWED] = end_of(renewed.run(TARGET, payload(folder / "renewed")).values)
    except ranks.RanksFailed as failure:
        failed += f"Two new nodes did not get to the end: {failure.result.reason}. "
    finally:
        renewed.close()
    return Failure(plug.pulled, reason, undisturbed, ends, failed.strip())


def payload(folder: Path) -> dict[str, Any]:
    """Arguments of a run that saves into a folder, slowly enough to be killed at a certain step."""
    return {"steps": STEPS, "folder": str(folder), "save_every": SAVE_EVERY, "pause_s": PAUSE_S}


def end_of(values: Sequence[Mapping[str, Any]]) -> End:
    """Read what the ranks returned."""
    first = values[0]
    return End(
        float(first["loss"]),
        int(first["first_step"]),
        tuple(value["host"] for value in values if value is not None),
        tuple(first["losses"].values()),
    )


class Plug:
    """Kills the second node when its rank has finished step `KILL_AT`: by its first process, where it has one."""

    def __init__(self, stage: Stage) -> None:
        """Find out what is to be killed."""
        self.at_s: float | None = None
        self.pulled = "The process of rank 1 (here a node is only an address)"
        self._process: int | None = None
        if stage.cluster is not None:
            node = stage.cluster.status()["nodes"][1]
            if node["process"] is not None:
                self._process, self.pulled = int(node["process"]), f"The first process of `{node['name']}`"

    def pull(self, rank: int, line: str) -> None:
        """Take a line of a rank."""
        if rank != 1:
            return
        words = line.split()
        if self._process is None and words[:1] == ["process"]:
            self._process = int(words[1])
        if line == f"step {KILL_AT}" and self._process is not None:
            os.kill(self._process, signal.SIGKILL)
            self.at_s = time.monotonic()
