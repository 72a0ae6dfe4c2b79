"""One training, started by torchrun, by mpirun and by Slurm on the same two nodes: is it the same training?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from accelerando import measure, ranks
from accelerando.lessons import Budget
from accelerando.lessons.clusters.stage import Stage

TARGET = "accelerando.lessons.clusters.on_nodes:train"
STEPS = {"smoke": 3, "quick": 60, "full": 60}
SAME = 1e-6


@dataclass(frozen=True)
class Launched:
    """What came of one launcher.

    Args:
        command: As one would type it.
        loss: After the last step; the same on all ranks.
        hosts: Where the ranks ran.
        elapsed_s: From typing to the end.
    """

    command: str
    loss: float
    hosts: tuple[str, ...]
    elapsed_s: float


@dataclass(frozen=True)
class Launches:
    """The same training by every launcher that is here.

    Args:
        steps: Of the training.
        found: Launcher -> what came of it.
        failed: Launcher -> why nothing came of it.
        why_not: Which launcher is missing, and why.
    """

    steps: int
    found: Mapping[str, Launched]
    failed: Mapping[str, str] = field(default_factory=dict)
    why_not: str = ""

    def commands(self) -> str:
        """Markdown: what was typed where; paths of this machine are shortened."""
        blocks = [f"**{name}**\n```\n{_short(one.command)}\n```" for name, one in self.found.items()]
        return "\n\n".join(blocks)

    def table(self) -> str:
        """Markdown: launcher, nodes, loss, seconds."""
        lines = ["| launcher | ranks ran on | loss after the last step | from typing to the end |", "|---|---|---|---|"]
        lines += [
            f"| {name} | {', '.join(one.hosts)} | {one.loss:.9f} | {measure.duration(one.elapsed_s)} |"
            for name, one in self.found.items()
        ]
        return "\n".join([*lines, *(f"| {name} | {why} | | |" for name, why in self.failed.items())])

    def sentence(self) -> str:
        """Whether it was the same training."""
        losses = [one.loss for one in self.found.values()]
        missing = f" {self.why_not}." if self.why_not else ""
        if len(losses) < 2:
            return f"{len(losses)} launcher was tried here, so there is nothing to compare.{missing}"
        apart = max(losses) - min(losses)
        if apart < SAME:
            how = f"at most {apart:.1g} apart" if apart else "to the last bit"
            told = f"**The same loss {len(losses)} times** ({how}) after {self.steps} steps"
        else:
            told = f"The losses are {apart:.2g} apart, which should not be: somewhere another rank got other images"
        slowest = max(self.found, key=lambda name: self.found[name].elapsed_s)
        return (
            f"{told}: a launcher starts processes and tells each who it is, and has no part in the training. {slowest} "
            f"took longest from typing to the end, {measure.duration(self.found[slowest].elapsed_s)}.{missing}"
        )


def measure_launches(stage: Stage, budget: Budget) -> Launches:
    """Train on both nodes by every launcher that is here; in smoke by one."""
    steps = STEPS[budget.name]
    chosen = stage.launchers() if budget.name != "smoke" else (stage.quickest,)
    found, failed = {}, {}
    for launcher in chosen:
        try:
            result = stage.run(TARGET, {"steps": steps}, launcher=launcher)
        except ranks.RanksFailed as failure:
            failed[launcher] = failure.result.reason
            continue
        hosts = tuple(value["host"] for value in result.values)
        found[launcher] = Launched(result.command, float(result.values[0]["loss"]), hosts, result.elapsed_s)
    why_not = stage.why_not
    if "mpirun" not in stage.launchers():
        why_not = f"{why_not}. " if why_not else ""
        why_not += "Open MPI is not installed"
    return Launches(steps, found, failed, why_not)


def _short(command: str) -> str:
    """The command without folders of this machine."""
    words = command.split(" ")
    return " ".join(word.rpartition("/")[2] if word.startswith("/") and "\n" not in word else word for word in words)
