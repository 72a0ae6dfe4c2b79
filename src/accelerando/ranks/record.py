"""What came of a program on several ranks, and the sentence that says why it did not come to its end."""

import re
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from accelerando.plain_errors import PlainError

SCHEMA = 2


@dataclass(frozen=True)
class RanksResult:
    """What came of a run.

    Attributes:
        schema: Of this record.
        launcher: torchrun, mpirun, srun or sbatch.
        command: What one would type in a shell for the same, one command a line.
        ranks: Processes.
        threads_per_rank: Threads that each was allowed.
        is_complete: Every rank came to its end.
        reason: One sentence: how it ended.
        failed_rank: The rank that failed first; None when none did, or when it cannot be told.
        elapsed_s: From starting the launcher until everything had ended, imports included.
        outputs: What each rank printed: the beginning and the end.
        launcher_output: What the launcher itself printed.
        values: What each rank gave (`give`, or a function's return value); None where nothing came.
    """

    schema: int
    launcher: str
    command: str
    ranks: int
    threads_per_rank: int
    is_complete: bool
    reason: str
    failed_rank: int | None
    elapsed_s: float
    outputs: tuple[str, ...]
    launcher_output: str
    values: tuple[Any, ...]

    @property
    def has_missed(self) -> bool:
        """Whether ranks did not meet in a collective call: one waited in vain, or lost the one that had gone on."""
        told = self.reason.lower()
        return any(word in told for word in ("timed out", "timeout", "connection", "gloo"))


class RanksFailed(PlainError):
    """Not every rank came to its end; ``result`` has the details."""

    def __init__(self, result: RanksResult) -> None:
        """Keep the record; the message ends with the last lines of the rank that failed."""
        rank = 0 if result.failed_rank is None else result.failed_rank
        last = result.outputs[rank].strip().splitlines()[-8:]
        super().__init__(result.reason + "".join(f"\n  [rank {rank}] {line[:300]}" for line in last))
        self.result = result


def why(
    statuses: Sequence[Mapping[str, Any]], launchers_said: Sequence[str], limit_s: float | None, ending: str
) -> tuple[int | None, str]:
    """Find the rank that failed first, and say what it did.

    A rank that dies takes the others with it: they find their connections closed. So one that was killed counts
    before those that complained, and of those the first.

    Args:
        statuses: What each rank wrote of itself.
        launchers_said: What each launcher printed.
        limit_s: The time limit, if it was over; else None.
        ending: How the launcher ended, for when nothing else is known.
    """
    for rank, code in exits("\n".join(launchers_said)):
        if rank < len(statuses) and not {"error", "finished"} & set(statuses[rank]) and code != -signal.SIGTERM:
            return rank, f"rank {rank} {epitaph(code)}"
    errors = [(status["at_s"], rank) for rank, status in enumerate(statuses) if "error" in status]
    if errors:
        rank = min(errors)[1]
        return rank, f"rank {rank} {statuses[rank]['error']}"
    missing = [rank for rank, status in enumerate(statuses) if not status]
    unfinished = [rank for rank, status in enumerate(statuses) if "finished" not in status]
    only = unfinished[0] if len(unfinished) == 1 else None
    if not unfinished:
        ending = ending if limit_s is None else f"had not ended after {limit_s:g} s"
        return None, f"all ranks came to their end, but the launcher {ending}"
    if limit_s is not None and missing:
        return None, f"after {limit_s:g} s rank {missing[0]} had not even started; all ranks were ended"
    if limit_s is not None:
        names = ", ".join(map(str, unfinished))
        return only, f"not finished after {limit_s:g} s (still running: rank {names}); all ranks were ended"
    said = [line for text in launchers_said for line in text.strip().splitlines() if line.strip(" -")][-1:]
    return only, f"the launcher {ending} before the ranks came to their end" + "".join(f": {x[:300]}" for x in said)


def exits(launcher_said: str) -> list[tuple[int, int]]:
    """Read from a launcher's words which rank ended how: (rank, status), a negative status being a signal."""
    found = [(int(rank), int(code)) for pattern in _CODES for rank, code in pattern.findall(launcher_said)]
    found += [(int(rank), -int(number)) for rank, number in _MPIRUN_SIGNAL.findall(launcher_said)]
    for rank, words in _SRUN_SIGNAL.findall(launcher_said):
        found.append((int(rank), -_SIGNALS[words]))
    return found


_CODES = (
    re.compile(r"rank\s*:\s*(\d+) \(local_rank: \d+\)\s*exitcode\s*:\s*(-?\d+)"),  # torchrun
    re.compile(r"Process name: \[[^\]]*,(\d+)\]\s+Exit code:\s+(\d+)"),  # mpirun
    re.compile(r"srun: error: \S+ tasks? (\d+)(?:[-,]\d+)*: Exited with exit code (\d+)"),
)
_MPIRUN_SIGNAL = re.compile(
    r"process\s+rank\s+(\d+)\s+with\s+PID\s+\d+\s+on\s+node\s+\S+\s+exited\s+on\s+signal\s+(\d+)"
)
_SIGNALS = {"Killed": signal.SIGKILL, "Segmentation fault": signal.SIGSEGV, "Aborted": signal.SIGABRT}
_SRUN_SIGNAL = re.compile(rf"srun: error: \S+ tasks? (\d+)(?:[-,]\d+)*: ({'|'.join(_SIGNALS)})")


def epitaph(code: int) -> str:
    """Say how a process ended whose status was ``code``."""
    if code >= 0:
        return f"ended with status {code} in the middle"
    name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
    return f"was ended by {name}" + (" (often: out of memory)" if name == "SIGKILL" else "")
