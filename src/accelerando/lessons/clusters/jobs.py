"""A job in Slurm's queue: a script is handed in, `squeue` shows it beside one that has to wait."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

from accelerando import cluster, measure, ranks
from accelerando.lessons import Budget
from accelerando.lessons.clusters.stage import NODES, Stage

TARGET = "accelerando.lessons.clusters.on_nodes:train"
STEPS, PAUSE_S = 30, 0.02
_COLUMNS = "%.6i %.10P %.3t %.6M %.11l %.6D  %R"
_LATER = ("--parsable", "--begin=now+1hour", "--time=00:30:00", f"--nodes={NODES}", "--output=/dev/null", "--wrap=true")


@dataclass(frozen=True)
class Queue:
    """What the queue showed while a job ran; without ``shown`` nothing was handed in.

    Args:
        command: What was typed, and the script below it.
        shown: By `squeue`.
        hosts: Where the job's ranks ran.
        elapsed_s: From handing in to the end.
        why_not: Why nothing was.
    """

    command: str = ""
    shown: str = ""
    hosts: tuple[str, ...] = ()
    elapsed_s: float = 0.0
    why_not: str = ""

    def blocks(self) -> str:
        """Markdown: the command with its script, and the queue."""
        if not self.shown:
            return ""
        later = " ".join(word for word in _LATER if word != "--parsable")
        return f"```\n{self.command}\n```\n\n```\nlogin$ sbatch {later}\nlogin$ squeue\n{self.shown}\n```"

    def sentence(self) -> str:
        """What this run showed."""
        if not self.shown:
            return f"Nothing was handed in: {self.why_not.removesuffix('.')}."
        return (
            f"The job ran on {' and '.join(dict.fromkeys(self.hosts))}, and was over "
            f"{measure.duration(self.elapsed_s)} after it had been handed in."
        )


def measure_queue(stage: Stage, budget: Budget) -> Queue:
    """Hand in a job that trains, and one that may begin in an hour only; look at the queue while the first runs."""
    if budget.name == "smoke" or stage.cluster is None or not stage.cluster.has_slurm:
        return Queue(why_not=stage.why_not or "Slurm is left out of the smoke budget")
    slurm = stage.cluster.slurm
    seen: list[str] = []
    try:
        later = slurm("sbatch", *_LATER).strip()
    except cluster.ClusterError as error:
        return Queue(why_not=str(error))

    def look(rank: int, line: str) -> None:
        if not seen and rank == 0 and line.startswith("step "):
            seen.append(slurm("squeue", f"--format={_COLUMNS}").rstrip())

    try:
        result = stage.run(TARGET, {"steps": STEPS, "pause_s": PAUSE_S}, launcher="sbatch", on_line=look)
    except (cluster.ClusterError, ranks.RanksFailed) as failure:
        return Queue(why_not=str(failure).splitlines()[0])
    finally:
        with contextlib.suppress(cluster.ClusterError):
            slurm("scancel", later)
    hosts = tuple(value["host"] for value in result.values)
    return Queue(result.command, seen[0] if seen else "", hosts, result.elapsed_s, "nothing was seen while it ran")
