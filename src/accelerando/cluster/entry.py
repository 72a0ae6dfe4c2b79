"""Runs a program as one rank when mpirun or srun started it: gives it the variables that torchrun would.

``python -m accelerando.cluster.entry PROGRAM arguments…``. The address of rank 0 comes with the environment.
"""

import os
import runpy
import sys

# torchrun's name -> what Open MPI and Slurm call it.
NAMES = {
    "RANK": ("OMPI_COMM_WORLD_RANK", "SLURM_PROCID"),
    "WORLD_SIZE": ("OMPI_COMM_WORLD_SIZE", "SLURM_NTASKS"),
    "LOCAL_RANK": ("OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID"),
    "LOCAL_WORLD_SIZE": ("OMPI_COMM_WORLD_LOCAL_SIZE", "SLURM_NTASKS_PER_NODE"),
}


def translate(variables: dict[str, str]) -> dict[str, str]:
    """Return the variables of torchrun that these stand for.

    Raises:
        ValueError: If neither Open MPI nor Slurm started this process.
    """
    index = 0 if NAMES["RANK"][0] in variables else 1
    if NAMES["RANK"][index] not in variables:
        raise ValueError("no rank is set: start this through mpirun or srun")
    return {name: variables[theirs[index]] for name, theirs in NAMES.items() if theirs[index] in variables}


def main() -> None:
    """Set the variables, then become the program."""
    os.environ.update(translate(dict(os.environ)))
    program = sys.argv[1]
    sys.argv[:] = sys.argv[1:]
    if program.endswith(".py"):
        sys.path.insert(0, os.path.dirname(os.path.abspath(program)))
        runpy.run_path(program, run_name="__main__")
    else:
        runpy.run_module(program, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
