"""Slurm on the virtual cluster: its configuration and the daemons to start. Needs Debian's slurm-wlm and munge."""

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from accelerando.cluster import places
from accelerando.cluster.hosts import LOGIN, Node, login_address

PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "sinfo")
COMMANDS = ("sbatch", "scancel", "scontrol", "sinfo", "squeue")
"""What one may type on the login node without waiting for a job's end."""
# An ordinary user is root in his own namespaces, but may not change groups there, which Slurm's daemons do when they
# are root. So they run as nobody special, one user namespace further in.
USER, USER_ID = "learner", 64000
AS_USER = ("unshare", "--user", f"--map-user={USER_ID}", f"--map-group={USER_ID}")


def missing() -> list[str]:
    """Name the programs that are not installed."""
    return [name for name in PROGRAMS if shutil.which(name, path=places.path()) is None]


def configuration(folder: Path, nodes: Sequence[Node], *, is_root: bool) -> str:
    """Write slurm.conf: every path is in ``folder``, every daemon in its own network."""
    user = "root" if is_root else USER
    cpus = len(os.sched_getaffinity(0))
    settings = {
        "ClusterName": "accelerando",
        "SlurmctldHost": f"{LOGIN}({login_address()})",
        "SlurmUser": user,
        "SlurmdUser": user,
        "AuthType": "auth/munge",
        "AuthInfo": f"socket={folder}/munge.socket",
        "CredType": "cred/munge",
        "ProctrackType": "proctrack/linuxproc",
        "TaskPlugin": "task/none",
        "MpiDefault": "none",
        "SelectType": "select/cons_tres",
        "SelectTypeParameters": "CR_Core",
        "ReturnToService": "2",
        "SlurmdParameters": "config_overrides",
        "KillWait": "2",
        "StateSaveLocation": f"{folder}/slurmctld",
        "SlurmctldPidFile": f"{folder}/slurmctld.pid",
        "SlurmctldLogFile": f"{folder}/slurmctld.log",
        "SlurmdPidFile": f"{folder}/slurmd-%n.pid",
        "SlurmdLogFile": f"{folder}/slurmd-%n.log",
        "SlurmdSpoolDir": f"{folder}/slurmd-%n",
    }
    lines = [f"{name}={value}" for name, value in settings.items()]
    lines += [f"NodeName={node.name} NodeAddr={node.address} CPUs={cpus}" for node in nodes]
    lines.append("PartitionName=all Nodes=ALL Default=YES State=UP OverSubscribe=FORCE:8")
    return "\n".join(lines) + "\n"


def prepare(folder: Path, nodes: Sequence[Node], *, is_root: bool) -> None:
    """Make the files that the daemons need."""
    (folder / "slurmctld").mkdir()
    key = folder / "munge.key"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o400)
    (folder / "slurm.conf").write_text(configuration(folder, nodes, is_root=is_root), encoding="utf-8")


def munged(folder: Path) -> list[str]:
    """Command line of the daemon that vouches for users."""
    paths = [f"--{option}={folder}/munge.{end}" for option, end in _MUNGE_FILES.items()]
    return ["munged", "--foreground", "--force", *paths]


_MUNGE_FILES = {"key-file": "key", "socket": "socket", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
