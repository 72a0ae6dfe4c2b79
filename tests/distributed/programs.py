"""What the tests of `ranks` run on each rank. Most do without torch: its import is the slow part of a launch."""

import os
import signal
import subprocess
import sys
import time

from accelerando import ranks


def own_rank() -> int:
    return int(os.environ["RANK"])


def sums_with_the_others(base: int) -> dict:
    import torch
    import torch.distributed as dist

    with ranks.joined() as (rank, world_size):
        number = torch.tensor([float(base + rank)])
        dist.all_reduce(number)
        os.write(1, f"rank {rank} of {world_size}\n".encode())
        return {"sum": number, "threads": torch.get_num_threads(), "omp": os.environ["OMP_NUM_THREADS"]}


def one_raises_while_the_other_waits_for_it() -> None:
    import torch
    import torch.distributed as dist

    with ranks.joined() as (rank, _):
        if rank == 1:
            raise ValueError("no luck on rank one")
        dist.all_reduce(torch.zeros(1))


def one_hangs() -> str:
    if own_rank() == 1:
        time.sleep(600)
    return "done"


def one_hangs_after_a_word() -> None:
    if own_rank() == 0:
        sys.stdout.write("here\n")
        sys.stdout.flush()
    time.sleep(600)


def one_exits_early() -> None:
    if own_rank() == 0:
        sys.exit(3)
    time.sleep(600)


def one_ends_without_a_word() -> None:
    if own_rank() == 1:
        os._exit(7)
    time.sleep(600)


def one_is_killed() -> None:
    if own_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(600)


def prints_a_lot(lines: int) -> None:
    for number in range(lines):
        sys.stdout.write(f"rank {own_rank()} line {number} " + "x" * 100 + "\n")
    sys.stdout.flush()
    os.write(2, b"y" * 3_000_000 + b"\nlast words")


def leaves_a_child_behind() -> int:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    return child.pid


def floods_without_a_line_end(megabytes: int) -> str:
    for _ in range(megabytes):
        os.write(1, b"z" * 2**20)
    return "done"


def sums_through_oneccl_until_one_is_killed(base: int) -> None:
    import torch
    import torch.distributed as dist

    with ranks.joined("ccl", time_limit_s=120.0) as (rank, _):
        number = torch.tensor([float(base + rank)])
        dist.all_reduce(number)
        ranks.give({"sum": number.item(), "backend": dist.get_backend()})
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        dist.all_reduce(number)
