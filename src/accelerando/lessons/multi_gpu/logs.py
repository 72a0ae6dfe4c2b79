"""The settings of NCCL that matter, and what its log says about whether they worked."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from accelerando import readers

FOLDER = Path(__file__).with_name("dumps")
SHOWN = ("as it should be", "somebody's old job script")
LOGS = {"as it should be": "log_fast", "somebody's old job script": "log_slow", "does not start": "log_same_gpu"}
"""Label -> file in ``dumps``. Two nodes with two GPUs each, the last log from one of them;
written for this lesson in the shape of NCCL 2.21's."""
BEST_FIRST = ("NVLS", "P2P", "SHM", "NET/IB", "NET/Socket")


@dataclass(frozen=True)
class Setting:
    """One environment variable of NCCL.

    Args:
        name: Of the variable.
        does: What it decides.
        sign: The line of the log that shows it at work.
        when: When to touch it.
    """

    name: str
    does: str
    sign: str
    when: str


SETTINGS = (
    Setting(
        "NCCL_DEBUG=INFO",
        "prints how ranks are connected",
        "every line below",
        "first, whenever it is slow or stuck",
    ),
    Setting(
        "NCCL_DEBUG_SUBSYS",
        "which parts print; left out, INIT, ENV and few others",
        "with GRAPH the rings, with TUNING the algorithm",
        "you want to see one of these, say `INIT,ENV,GRAPH,TUNING`",
    ),
    Setting(
        "NCCL_SOCKET_IFNAME",
        "the interface for meeting, and for sockets",
        "`Bootstrap : Using ib0:…`",
        "there are several: `no socket interface found`, time-outs",
    ),
    Setting(
        "NCCL_IB_HCA", "which InfiniBand cards", "`NET/IB : Using [0]mlx5_0:1/IB`", "some are down, or for storage"
    ),
    Setting(
        "NCCL_IB_DISABLE=1",
        "no InfiniBand: sockets",
        "`Using network Socket`, `via NET/Socket/0`",
        "to find out whether it is at fault; then take it away",
    ),
    Setting(
        "NCCL_P2P_DISABLE=1",
        "GPUs do not read each other's memory",
        "`via SHM/direct`",
        "it hangs inside a machine (virtualisation, IOMMU); then take it away",
    ),
    Setting(
        "NCCL_NET_GDR_LEVEL",
        "how far card and GPU may be apart to talk directly",
        "`via NET/IB/0/GDRDMA`",
        "the card is near and GDRDMA is missing",
    ),
    Setting(
        "NCCL_ALGO, NCCL_PROTO",
        "Ring, Tree, NVLS; Simple, LL, LL128",
        "lines of `NCCL_DEBUG_SUBSYS=TUNING`",
        "to measure; NCCL's own choice is rarely beaten",
    ),
    Setting(
        "NCCL_TOPO_FILE, NCCL_TOPO_DUMP_FILE",
        "reads or writes the topology as XML",
        "a file that `./course inspect topo-xml` reads",
        "virtual machines hide their switches",
    ),
)


def settings_table() -> str:
    """Markdown: what each setting does, and how a log shows it."""
    lines = ["| variable | decides | in the log | touch it when |", "|---|---|---|---|"]
    lines += [f"| `{one.name}` | {one.does} | {one.sign} | {one.when} |" for one in SETTINGS]
    return "\n".join(lines)


def text(label: str) -> str:
    """One of `LOGS`, as it would stand in a file."""
    return (FOLDER / f"{LOGS[label]}.txt").read_text(encoding="utf-8")


def excerpt(lines: int = 3) -> str:
    """The settings of the two logs `SHOWN`, and their first lines that say ``via``, without who printed them."""
    found = []
    for label in SHOWN:
        kept = [line.partition("NCCL INFO ")[2] for line in text(label).splitlines()]
        said = [line for line in kept if " via " in line][:lines]
        off = list(dict.fromkeys(line.rstrip(".") for line in kept if "_DISABLE set by" in line))
        found.append("\n".join([f"--- {label}", *off, *said]))
    return "\n".join(found)


@dataclass(frozen=True)
class LogStory:
    """What one log says.

    Args:
        label: Of the log.
        said: As the reader gives it.
        is_direct: GPUs of one machine reach each other's memory.
        is_rdma: The network card reads the GPU's memory itself.
        switched_off: Settings in the log that switch something off.
    """

    label: str
    said: dict[str, Any]
    is_direct: bool
    is_rdma: bool
    switched_off: tuple[str, ...]

    def sentence(self) -> str:
        """Did it work, and how well."""
        ranks, version = self.said["nranks"], self.said["version"]
        head = f"**{self.label}** (NCCL {version}, {ranks} ranks): "
        if self.said["verdict"] == "failed":
            return f"{head}failed in line {self.said['line']}: {self.said['root_cause']}."
        if self.said["verdict"] != "ok":
            return f"{head}{self.said['verdict']}: {self.said['root_cause'] or 'the log ends too early'}."
        ways = " and ".join(self.said["transports"] or ["no connection that is shown"])
        inside = "GPU to GPU directly" if self.is_direct else "through the memory of the CPU"
        network = "the card reads the GPU itself" if self.is_rdma else "through the CPU's memory, by sockets or copies"
        told = f"{head}it works, over {ways}. Inside a machine {inside}; between machines {network}."
        if self.switched_off:
            told += f" Somebody switched that off: {', '.join(f'`{name}`' for name in self.switched_off)}."
        return told


def read(label: str, log: str) -> LogStory:
    """Read a log.

    Args:
        label: Whose.
        log: What a run with ``NCCL_DEBUG=INFO`` printed.

    Raises:
        readers.Unreadable: If no line comes from NCCL.
    """
    said = readers.parse("nccl-log", log)
    transports = said["transports"] or []
    off = tuple(dict.fromkeys(
        name for line in log.splitlines() for name in ("NCCL_P2P_DISABLE", "NCCL_IB_DISABLE", "NCCL_SHM_DISABLE")
        if f"{name} set by environment to 1" in line
    ))  # fmt: skip
    return LogStory(label, said, "P2P" in transports or "NVLS" in transports, "/GDRDMA" in log, off)


def stories() -> str:
    """Markdown: what each of `LOGS` says."""
    return "\n\n".join(read(label, text(label)).sentence() for label in LOGS)
