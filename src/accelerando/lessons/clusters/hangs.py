"""A job that hangs says nothing. What to look at first, in order, and what the usual silence means."""

from __future__ import annotations

import re
from dataclasses import dataclass

from accelerando import readers
from accelerando.lessons import Budget

PATIENCE_S = 1.5
SAMPLE_LOG = """\
[rank0]:[E430 10:12:01.100000000 ProcessGroupNCCL.cpp:616] [Rank 0] Watchdog caught collective operation timeout: \
WorkNCCL(SeqNum=812, OpType=ALLREDUCE, NumelIn=1048576, NumelOut=1048576, Timeout(ms)=600000) ran for 600012 \
milliseconds before timing out.
torch.distributed.DistBackendError: NCCL communicator was aborted on rank 0.
"""
"""The end of a log of a job that hung, shortened; it is not of this machine."""


@dataclass(frozen=True)
class Symptom:
    """Something that is seen, what to ask first, and what it usually is."""

    seen: str
    look: str
    usually: str


SYMPTOMS = (
    Symptom(
        "nothing at all, on every node",
        "`pgrep -fa train.py` on each node: how many processes are there, and how many should there be?",
        "a node never started (ssh asks for a password, no such file there), and all others wait for it",
    ),
    Symptom(
        "N separate trainings: N times the lines, and none waits for another",
        "print `rank` and `world_size` as the first line of the program",
        "`NNODES=1`, or variables of one launcher that the other does not set: every node believes it is alone",
    ),
    Symptom(
        "waits before the first step",
        "`nc -vz FIRST_NODE 29500` from every other node; `getent hosts FIRST_NODE`",
        "a firewall, a port in use, or a name that means 127.0.0.1 on the first node",
    ),
    Symptom(
        "all are there, and the first collective hangs",
        "`ip -br address` on every node, then NCCL_DEBUG=INFO: which interface did each rank choose?",
        "ranks talk on different networks (docker0, a second card): set NCCL_SOCKET_IFNAME or GLOO_SOCKET_IFNAME",
    ),
    Symptom(
        "hangs after hours, all GPUs at 100 %",
        "`py-spy dump --pid PID` on every rank: who stands in another line than the rest?",
        "one rank left the loop early, skipped a collective (`if rank == 0`), or died and nobody was told",
    ),
    Symptom(
        "no hang, but slow",
        "the log's transport (NET/IB or NET/Socket), and a plain `iperf3` between two nodes",
        "the fast network was not found and TCP stands in",
    ),
)


def table() -> str:
    """Markdown: what is seen, where to look first, what it usually is."""
    lines = ["| what you see | look first | usually |", "|---|---|---|"]
    return "\n".join([*lines, *(f"| {one.seen} | {one.look} | {one.usually} |" for one in SYMPTOMS)])


def read_log(text: str = SAMPLE_LOG) -> str:
    """Say what a log of NCCL means, as `./course inspect nccl-log` does.

    Raises:
        readers.Unreadable: If it is none.
    """
    found = readers.parse("nccl-log", text)
    line = "" if found["line"] is None else f" (line {found['line']})"
    return f"Verdict: **{found['verdict']}**. {found['root_cause'] or 'No cause stands in the log.'}{line}."


def shown_log() -> str:
    """Markdown: the example, and what it means."""
    return (
        f"```\n{SAMPLE_LOG}```\n{read_log()} One rank's log cannot tell which of the two: compare the last number "
        "(`SeqNum`) on every rank. Who is behind never came; if all have the same, look at the network."
    )


@dataclass(frozen=True)
class Missing:
    """What a rank is told that waits for another one which never comes.

    Args:
        told: The library's sentence; empty when nothing was tried.
        patience_s: After how long.
    """

    told: str = ""
    patience_s: float = PATIENCE_S

    def sentence(self) -> str:
        """What this run showed."""
        if not self.told:
            return "Nothing was tried in this run: the smoke budget leaves it out."
        counted = re.search(r"(\d+)/(\d+) clients joined", self.told)
        what = f"it counts: {counted[1]} of {counted[2]} came" if counted else "it does not say who is missing"
        return (
            f"One rank of two met nobody. After {self.patience_s:g} s it was told: “{self.told}” So {what}. The usual "
            "patience is 10 or 30 minutes, on as many machines as you have: until the job runs, set a short one, "
            "`init_process_group(timeout=timedelta(seconds=60))`."
        )


def measure_missing(budget: Budget) -> Missing:
    """Be the first of two ranks, with little patience, where the second one never starts."""
    if budget.name == "smoke":
        return Missing()
    import datetime

    import torch.distributed as dist

    try:
        dist.TCPStore(
            "127.0.0.1", 0, world_size=2, is_master=True, timeout=datetime.timedelta(seconds=PATIENCE_S),
            wait_for_workers=True,
        )  # fmt: skip
    except RuntimeError as error:
        return Missing(str(error).splitlines()[0].rpartition("] ")[2] or str(error).splitlines()[0])
    return Missing("nothing: the second rank was not waited for")
