"""One model dealt out to two ranks in five ways: memory and messages, predicted and counted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from accelerando import ranks, strategies, units
from accelerando.lessons import Budget

RANKS = 2
TELL = "accelerando.lessons.parallelism.on_shards:tell"
STACK = strategies.Stack(
    parameters=4 * 8 * 256**2, blocks=4, boundary_bytes=384 * 256 * 4, inner_bytes=384 * 4 * 256 * 4
)
"""Of ``on_shards``: four blocks of width 256, a batch of 384."""
WITH = {
    "data": "`DistributedDataParallel`",
    "optimizer sharded": "`ZeroRedundancyOptimizer` (memory of ZeRO 1)",
    "fully sharded": "`fully_shard` (FSDP2, ZeRO 3)",
    "tensor": "`parallelize_module`, columns then rows",
    "pipeline": "`PipelineStage`, `ScheduleGPipe`",
}


@dataclass(frozen=True)
class Dealt:
    """One strategy on real ranks.

    Args:
        predicted: Memory of one rank.
        predicted_sent_bytes: What one rank sends in a step, mean over ranks.
        memory: The largest of the ranks, counted; None when it was not run.
        sent_bytes: Mean over ranks; None when it was not counted.
        loss_error: Relative difference of the loss after two steps from that of one process.
        error: Why it does not run here; empty when it does.
    """

    predicted: strategies.Memory
    predicted_sent_bytes: float
    memory: strategies.Memory | None = None
    sent_bytes: float | None = None
    loss_error: float | None = None
    error: str = ""


@dataclass(frozen=True)
class ShardStory:
    """All strategies beside each other."""

    dealt: Mapping[str, Dealt]
    alone: strategies.Memory

    def table(self) -> str:
        """Markdown: predicted and counted bytes of one rank, and whether it learns the same."""
        lines = [
            "| strategy | in PyTorch | memory, predicted | counted | sent per step, predicted | counted | same loss? |",
            "|---|---|---|---|---|---|---|",
        ]
        for name, one in self.dealt.items():
            counted = one.error or ("not run" if one.memory is None else units.decimal_size(one.memory.total))
            sent = "" if one.sent_bytes is None else units.decimal_size(one.sent_bytes)
            same = "" if one.loss_error is None else "yes" if one.loss_error < 1e-4 else f"off by {one.loss_error:.1%}"
            memory, message = (units.decimal_size(n) for n in (one.predicted.total, one.predicted_sent_bytes))
            lines.append(f"| {name} | {WITH[name]} | {memory} | {counted} | {message} | {sent} | {same} |")
        return "\n".join(lines)

    def sentence(self) -> str:
        """What this run showed."""
        totals = {name: one.memory.total for name, one in self.dealt.items() if one.memory is not None}
        if not totals:
            return "Predicted only: the smoke budget starts no ranks."
        off = {name: abs(total / self.dealt[name].predicted.total - 1) for name, total in totals.items()}
        worst = max(off, key=lambda name: off[name])
        least = [name for name, total in totals.items() if total < 1.005 * min(totals.values())]
        counted = {name: one.sent_bytes for name, one in self.dealt.items() if one.sent_bytes is not None}
        close = "less than 1 %" if off[worst] < 0.01 else f"at most {off[worst]:.0%} ({worst})"
        told = (
            f"One process needs {units.decimal_size(self.alone.total)} for this model. Memory predicted and counted: "
            f"{close} apart. Least: **{' and '.join(least)}**, "
            f"{units.decimal_size(totals[least[0]])} on each of {RANKS} ranks."
        )
        if counted:
            quiet = min(counted, key=lambda name: counted[name])
            ratios = {name: sent / self.dealt[name].predicted_sent_bytes for name, sent in counted.items()}
            more = [f"{name} ({ratio:.1f} times)" for name, ratio in ratios.items() if ratio > 1.1]
            told += f" **{quiet}** sends least, {units.decimal_size(counted[quiet])}."
            if more:
                told += (
                    f" More than predicted: {', '.join(more)}; on a CPU this library's reduce-scatter is an all-reduce "
                    "of which each rank keeps its part."
                )
        broken = [name for name, one in self.dealt.items() if one.error]
        return told + (f" Not running with this version here: {', '.join(broken)}." if broken else "")


def measure_shards(budget: Budget) -> ShardStory:
    """Train two steps by every strategy on two ranks, in one launch; predictions only in smoke."""
    values = [] if budget.name == "smoke" else ranks.run(TELL, RANKS, time_limit_s=240.0).values
    return read_story(list(values))


def read_story(values: Sequence[Mapping[str, Any]]) -> ShardStory:
    """Put together what the ranks told."""
    dealt = {}
    for name in strategies.NAMES:
        predicted = strategies.predict_memory(name, STACK, RANKS)
        sent = strategies.predict_sent_bytes(name, STACK, RANKS)
        dealt[name] = _dealt(name, predicted, sent, values) if values else Dealt(predicted, sent)
    return ShardStory(dealt, strategies.predict_memory("data", STACK, 1))


def _dealt(name: str, predicted: strategies.Memory, sent: float, values: Sequence[Mapping[str, Any]]) -> Dealt:
    rows = [value[name] for value in values]
    errors = [row["error"] for row in rows if "error" in row]
    if errors:
        return Dealt(predicted, sent, error=errors[0][:160])
    memories = [strategies.Memory(*(row[part] for part in predicted.parts())) for row in rows]
    counted = [row["sent_bytes"] for row in rows if row["sent_bytes"] is not None]
    right = values[0]["alone"].get("loss")
    return Dealt(
        predicted,
        sent,
        max(memories, key=lambda memory: memory.total),
        sum(counted) / len(counted) if counted else None,
        None if not right else abs(rows[0]["loss"] / right - 1),
    )
