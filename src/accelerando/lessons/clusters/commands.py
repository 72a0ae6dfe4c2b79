"""Command lines for a real cluster, from a host file or an allocation: what is typed where. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass

from accelerando import readers

PORT = 29500
CORES_PER_RANK = 4
"""An example: a node's cores over its ranks."""
HOST_FILE = """\
# our two machines
gpu01 slots=8
gpu02 slots=8
"""
ALLOCATION = """\
SLURM_JOB_ID=8812
SLURM_JOB_NODELIST=gpu[01-03,07]
SLURM_JOB_NUM_NODES=4
SLURM_NTASKS=32
SLURM_TASKS_PER_NODE=8(x4)
"""
"""Examples, as Open MPI and Slurm write them; the machines are made up."""


@dataclass(frozen=True)
class Allocation:
    """Where a job may run.

    Args:
        slots: Host -> ranks, in order; rank 0 is on the first.
        rule: How the ranks of a host were found.
        warnings: What was odd.
    """

    slots: Mapping[str, int]
    rule: str = ""
    warnings: tuple[str, ...] = ()

    @property
    def world_size(self) -> int:
        """Ranks of all hosts together."""
        return sum(self.slots.values())


def read_allocation(text: str, ranks_per_host: int | None = None) -> Allocation:
    """Read a host file or a job's variables.

    Args:
        text: As `readers.parse("hosts", …)` takes it.
        ranks_per_host: For lists that name hosts only.

    Raises:
        readers.Unreadable: If no host is in it.
        ValueError: If it does not say how many ranks a host takes, and ``ranks_per_host`` does not either.
    """
    found = readers.parse("hosts", text)
    slots = found["slots"] or {}
    told = {host: slots.get(host) or ranks_per_host for host in found["hosts"]}
    unknown = [host for host, count in told.items() if count is None]
    if unknown:
        raise ValueError(
            f"how many ranks {', '.join(unknown[:3])} takes stands nowhere: write slots= in the host file, or say "
            "ranks_per_host"
        )
    return Allocation({host: int(count or 0) for host, count in told.items()}, found["rule"], tuple(found["warnings"]))


def torchrun_lines(allocation: Allocation, program: str = "train.py", port: int = PORT) -> dict[str, str]:
    """Host -> what is typed there: the same line everywhere but for the node's number and its ranks."""
    first = next(iter(allocation.slots))
    return {
        host: shlex.join(
            [
                "torchrun",
                f"--nnodes={len(allocation.slots)}",
                f"--node-rank={number}",
                f"--nproc-per-node={slots}",
                f"--master-addr={first}",
                f"--master-port={port}",
                program,
            ]
        )
        for number, (host, slots) in enumerate(allocation.slots.items())
    }


def mpirun_line(
    allocation: Allocation, program: str = "train.py", port: int = PORT, interface: str | None = None
) -> str:
    """Write what is typed once, anywhere: Open MPI starts all ranks, NCCL carries the messages.

    Args:
        allocation: Where.
        program: Started through `accelerando.rank_entry`, which gives it torchrun's variables.
        port: Free on the first host.
        interface: Of the network between the hosts; None: NCCL and Open MPI choose.
    """
    first = next(iter(allocation.slots))
    hosts = ",".join(f"{host}:{slots}" for host, slots in allocation.slots.items())
    variables = {"MASTER_ADDR": first, "MASTER_PORT": str(port), **settings(interface)}
    words = ["mpirun", "--host", hosts, "-n", str(allocation.world_size), "--bind-to", "none"]
    words += ["--prtemca", "prte_if_include", interface] if interface else []
    for name, value in variables.items():
        words += ["-x", f"{name}={value}"]
    return shlex.join([*words, "python", "-m", "accelerando.rank_entry", program])


def slurm_script(
    allocation: Allocation, program: str = "train.py", port: int = PORT, interface: str | None = None
) -> str:
    """Write a job for sbatch: Slurm chooses the hosts, so the meeting point is looked up when it runs.

    Raises:
        ValueError: If the hosts do not take equally many ranks; Slurm then needs a job with several parts.
    """
    each = set(allocation.slots.values())
    if len(each) > 1:
        raise ValueError(f"ranks on the hosts are {sorted(each)}: one --ntasks-per-node needs the same number on all")
    lines = [
        "#!/bin/sh",
        f"#SBATCH --nodes={len(allocation.slots)}",
        f"#SBATCH --ntasks-per-node={(count := each.pop())}",
        f"#SBATCH --gpus-per-node={count}",
        f"#SBATCH --cpus-per-task={CORES_PER_RANK}",
        "#SBATCH --time=12:00:00",
        "#SBATCH --requeue",
        'export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)',
        f"export MASTER_PORT={port} {_assigned(settings(interface))}",
        'srun --cpus-per-task="$SLURM_CPUS_PER_TASK" --kill-on-bad-exit=1 '  # srun asks for it anew
        f"python -m accelerando.rank_entry {shlex.quote(program)}",
    ]
    return "\n".join(lines) + "\n"


def settings(interface: str | None = None) -> dict[str, str]:
    """Variables that every rank gets, whatever starts it.

    Args:
        interface: Of the network between the hosts; None: NCCL chooses.
    """
    chosen = {"NCCL_DEBUG": "INFO", "OMP_NUM_THREADS": str(CORES_PER_RANK)}
    return chosen | ({"NCCL_SOCKET_IFNAME": interface} if interface else {})


def _assigned(variables: Mapping[str, str]) -> str:
    return " ".join(f"{name}={shlex.quote(value)}" for name, value in variables.items())


def elastic_line(fewest: int, most: int, ranks_per_node: int, first: str, program: str = "train.py") -> str:
    """Write what is typed on every node of an elastic job: nodes may go and come between ``fewest`` and ``most``."""
    if not 1 <= fewest <= most:
        raise ValueError(f"nodes are {fewest} to {most}: the first must be at least 1 and at most the second")
    words = ["torchrun", f"--nnodes={fewest}:{most}", f"--nproc-per-node={ranks_per_node}", "--max-restarts=3"]
    words += ["--rdzv-backend=c10d", f"--rdzv-endpoint={first}:{PORT}", "--rdzv-id=night-run", program]
    return shlex.join(words)


def shown(text: str, *, interface: str | None = None) -> str:
    """Markdown: the lines for torchrun, mpirun and, where it fits, Slurm, for one host file or allocation."""
    allocation = read_allocation(text)
    variables = _assigned(settings(interface))
    torchrun = "\n".join(f"{host}$ {variables} {line}" for host, line in torchrun_lines(allocation).items())
    parts = [
        f"{len(allocation.slots)} hosts, {allocation.world_size} ranks ({allocation.rule}).",
        f"```\n{torchrun}\n```",
        f"```\nlogin$ {mpirun_line(allocation, interface=interface)}\n```",
    ]
    if len(set(allocation.slots.values())) == 1:
        parts.append(f"```\n{slurm_script(allocation, interface=interface)}```")
    return "\n\n".join([*parts, *(f"*{warning}*" for warning in allocation.warnings)])
