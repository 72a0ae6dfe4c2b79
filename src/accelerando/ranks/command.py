"""``./course ranks PROGRAM``: shows the command line, streams each rank, exit codes 0, 1 (it failed) and 2 (usage)."""

import sys
from collections.abc import Sequence
from pathlib import Path

from accelerando import cluster, ranks


def ranks_command(
    program: str, arguments: Sequence[str], world_size: int, launcher: str, threads: int, time_limit_s: float
) -> int:
    """Run a program on ranks of this machine.

    Args:
        program: A Python file, a module, or a module's function.
        arguments: Its own.
        world_size: Processes.
        launcher: torchrun, mpirun, srun or sbatch.
        threads: OpenMP threads of each process.
        time_limit_s: For all of it.
    """
    try:
        result = ranks.run(
            Path(program) if program.endswith(".py") else program,
            world_size,
            launcher=launcher,
            threads_per_rank=threads,
            time_limit_s=time_limit_s,
            arguments=arguments,
            on_line=ranks.show,
        )
    except ValueError as error:
        return _refuse(error, 2)
    except ranks.RanksFailed as failure:
        return _refuse(failure.result.reason, 1)
    except cluster.ClusterError as error:
        return _refuse(error, 1)
    for rank, value in enumerate(result.values):
        if value is not None:
            sys.stdout.write(f"rank {rank} gave {value!r}\n")
    sys.stderr.write(f"{result.reason} after {result.elapsed_s:.1f} s\n")
    return 0


def _refuse(reason: object, status: int) -> int:
    sys.stdout.flush()
    sys.stderr.write(f"course ranks: {reason}\n")
    return status
