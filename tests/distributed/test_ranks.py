"""`ranks.run` on real processes: values come back, failures are named, and nothing is ever left behind."""

import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from accelerando import rank_entry, ranks
from accelerando.backends import oneccl
from accelerando.programs import find_open_mpi

HERE = Path(__file__).parent
MARK_VARIABLE = "ACCELERANDO_TEST_MARK"
LIMIT_S = 240.0  # of a machine that has much else to do
LAUNCHERS = ("torchrun", "mpirun") if find_open_mpi() else ("torchrun",)


def carriers(mark: str) -> list[int]:
    """The processes that carry a mark in their environment."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK_VARIABLE) == mark:
                found.append(process.pid)
        except psutil.Error:
            continue
    return found


def gone_within(mark: str, limit_s: float) -> bool:
    deadline = time.monotonic() + limit_s
    while carriers(mark):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


@pytest.fixture
def mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Marks every process of a test; afterwards no process and no file of it may be there."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.syspath_prepend(str(HERE))
    mark = secrets.token_hex(8)
    yield mark
    assert carriers(mark) == []
    assert list(tmp_path.glob("accelerando-ranks-*")) == []


def run(name: str, mark: str, count: int = 2, **options) -> ranks.RanksResult:
    options = {"time_limit_s": LIMIT_S, **options}
    return ranks.run(f"programs:{name}", count, environment={MARK_VARIABLE: mark}, **options)


def failure(name: str, mark: str, **options) -> ranks.RanksResult:
    with pytest.raises(ranks.RanksFailed) as caught:
        run(name, mark, **options)
    assert caught.value.result.reason in str(caught.value)
    return caught.value.result


def test_ranks_reduce_together_and_their_values_and_lines_come_back_by_rank(mark: str) -> None:
    lines: list[tuple[int, str]] = []

    def listener(rank: int, line: str) -> None:
        lines.append((rank, line))

    result = run("sums_with_the_others", mark, 3, threads_per_rank=2, payload={"base": 10}, on_line=listener)
    assert [value["sum"].item() for value in result.values] == [33.0] * 3
    assert [(value["threads"], value["omp"]) for value in result.values] == [(2, "2")] * 3
    assert [output.strip() for output in result.outputs] == [f"rank {rank} of 3" for rank in range(3)]
    assert sorted(line for line in lines if line[0] >= 0) == [(rank, f"rank {rank} of 3") for rank in range(3)]
    assert result.is_complete
    assert result.failed_rank is None


NOTEBOOK = """
import os
import numpy as np
from accelerando import ranks

offsets = np.array([10.0, 20.0])

class Shifted:
    def __init__(self, by):
        self.by = by

def shift(rank):
    return Shifted(offsets[rank]).by

def shifted(base):
    rank = int(os.environ["RANK"])
    print(f"rank {rank} has {base + shift(rank)}")
    return {"sum": base + shift(rank)}
"""


def test_a_function_written_in_a_cell_runs_on_every_rank_and_its_lines_and_values_come_to_the_notebook() -> None:
    import nbformat
    from nbclient import NotebookClient

    call = "result = ranks.run(shifted, 2, payload={'base': 1.0}, on_line=ranks.show)\nprint(result.values)"
    cells = [nbformat.v4.new_code_cell(text) for text in (NOTEBOOK, call)]
    notebook = nbformat.v4.new_notebook(cells=cells)
    NotebookClient(notebook, timeout=int(LIMIT_S), kernel_name="python3").execute()
    said = "".join(output.text for output in notebook.cells[1].outputs if output.output_type == "stream")
    command, *lines = said.splitlines()
    assert command.startswith("$ OMP_NUM_THREADS=1 ")
    assert "torchrun --standalone" in command
    assert sorted(lines[:-1]) == ["[rank 0] rank 0 has 11.0", "[rank 1] rank 1 has 21.0"]
    assert lines[-1] == "({'sum': 11.0}, {'sum': 21.0})"


def test_rank_that_raises_is_named_though_the_others_lose_their_connection(mark: str) -> None:
    result = failure("one_raises_while_the_other_waits_for_it", mark, launcher=LAUNCHERS[-1])
    assert (result.failed_rank, result.reason) == (1, "rank 1 raised ValueError: no luck on rank one")
    assert "no luck on rank one" in result.outputs[1]


def test_rank_that_hangs_is_ended_at_the_limit_and_the_finished_value_is_kept(mark: str) -> None:
    deadline_s = 8.0
    result = failure("one_hangs", mark, launcher=LAUNCHERS[-1], time_limit_s=deadline_s)
    assert "8 s" in result.reason
    assert result.elapsed_s < 4 * deadline_s
    if result.values[0] is not None:  # a machine so busy that not even rank 0 got so far says another sentence
        assert result.values == ("done", None)
        assert result.failed_rank == 1


@pytest.mark.parametrize(
    ("name", "rank", "words"),
    [
        ("one_exits_early", 0, "rank 0 exited with status 3"),
        ("one_ends_without_a_word", 1, "rank 1 ended with status 7 in the middle"),
        ("one_is_killed", 1, "rank 1 was ended by SIGKILL (often: out of memory)"),
    ],
)
def test_rank_that_goes_early_ends_the_run_and_is_named(name: str, rank: int, words: str, mark: str) -> None:
    for launcher in LAUNCHERS:
        result = failure(name, mark, launcher=launcher)
        assert (result.failed_rank, result.reason) == (rank, words), launcher


def test_a_launcher_that_is_killed_takes_its_ranks_along_and_is_named(mark: str) -> None:
    for launcher in LAUNCHERS:

        def listener(rank: int, line: str) -> None:
            if rank == 0:
                variables = {pid: psutil.Process(pid).environ() for pid in carriers(mark)}
                one = next(pid for pid, found in variables.items() if {"RANK", "OMPI_COMM_WORLD_RANK"} & set(found))
                psutil.Process(one).parent().kill()

        result = failure("one_hangs_after_a_word", mark, launcher=launcher, on_line=listener)
        assert "was ended by SIGKILL" in result.reason, result


def test_endless_output_is_cut_and_its_beginning_and_end_are_kept(mark: str) -> None:
    result = run("prints_a_lot", mark, payload={"lines": 20_000})
    for rank, output in enumerate(result.outputs):
        assert output.startswith(f"rank {rank} line 0 ")
        assert output.endswith("last words\n")
        assert "bytes left out" in output
        assert len(output) < 40_000


def test_a_hundred_megabytes_without_a_line_end_are_bounded_whoever_launches(mark: str) -> None:
    for launcher in LAUNCHERS:
        result = run("floods_without_a_line_end", mark, launcher=launcher, payload={"megabytes": 100})
        assert result.values == ("done", "done")
        assert all(0 < len(output) < 40_000 for output in result.outputs)


def test_oneccl_is_joined_like_gloo_and_a_killed_rank_leaves_no_shared_memory(mark: str) -> None:
    if reason := oneccl.why_not():
        pytest.skip(reason)
    before = dead_regions()  # of somebody else
    result = failure("sums_through_oneccl_until_one_is_killed", mark, launcher=LAUNCHERS[-1], payload={"base": 1})
    assert result.values == ({"sum": 3.0, "backend": "ccl"},) * 2
    assert result.reason == "rank 1 was ended by SIGKILL (often: out of memory)"
    assert dead_regions() - before == set()


def dead_regions() -> set[str]:
    """List oneCCL's shared memory of processes that are gone."""
    regions = {name for name in os.listdir("/dev/shm") if re.fullmatch(r"\d+:\d+:\d+", name)}
    return {name for name in regions if not psutil.pid_exists(int(name.partition(":")[0]))}


def test_a_port_in_use_is_nobodys_problem(mark: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(taken.getsockname()[1])}
        with pytest.MonkeyPatch.context() as patch:
            for name, value in meeting.items():
                patch.setenv(name, value)
            result = run("sums_with_the_others", mark, launcher=LAUNCHERS[-1], payload={"base": 1})
    assert [value["sum"].item() for value in result.values] == [3.0, 3.0]


def test_child_that_a_rank_left_in_a_session_of_its_own_is_ended_too(mark: str) -> None:
    result = run("leaves_a_child_behind", mark)
    assert len(set(result.values)) == 2  # the children's numbers: both were really there
    assert carriers(mark) == []


def test_listener_that_raises_ends_the_run(mark: str) -> None:
    def listener(rank: int, line: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run("prints_a_lot", mark, payload={"lines": 5}, on_line=listener)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=["ctrl-c", "killed"])
def test_ranks_end_with_the_process_that_started_them(number: int, mark: str, tmp_path: Path) -> None:
    program = (
        "from accelerando import ranks\n"
        f"ranks.run('programs:one_hangs', 2, time_limit_s=600, environment={{'{MARK_VARIABLE}': '{mark}'}})"
    )
    environment = os.environ | {"PYTHONPATH": str(HERE), "TMPDIR": str(tmp_path), "PYTHONUNBUFFERED": "1"}
    parent = subprocess.Popen([sys.executable, "-c", program], env=environment, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + LIMIT_S
        while len(carriers(mark)) < 3 and time.monotonic() < deadline:  # the launcher and two ranks
            time.sleep(0.1)
        parent.send_signal(number)
        parent.wait(60)
    finally:
        parent.kill()
    assert gone_within(mark, 30.0)
    if number == signal.SIGKILL:  # nobody is left to remove it; the system empties its folder for temporary files
        for folder in tmp_path.glob("accelerando-ranks-*"):
            shutil.rmtree(folder)


def test_ranks_know_nothing_of_a_job_that_their_caller_is_part_of(monkeypatch: pytest.MonkeyPatch) -> None:
    def tell(names: list[str]) -> list[str | None]:
        import os

        return [os.environ.get(name) for name in names]

    monkeypatch.setenv("SLURM_PROCID", "9")
    monkeypatch.setenv("WORLD_SIZE", "99")
    found = ranks.run(tell, 2, payload={"names": ["SLURM_PROCID", "WORLD_SIZE"]})
    assert found.values == ([None, "2"], [None, "2"])


def test_rank_that_starts_after_its_caller_has_gone_ends(mark: str, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    os.mkfifo(folder / "1.output")  # a launcher killed right after the fork leaves just this: a pipe without a reader
    variables = {"RANK": "1", rank_entry.FOLDER_VARIABLE: str(folder), "PYTHONPATH": str(HERE), MARK_VARIABLE: mark}
    command = [sys.executable, rank_entry.__file__, "programs:one_hangs"]
    assert subprocess.run(command, env=os.environ | variables, timeout=60).returncode == 1


@pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")
def test_ranks_reduce_inside_a_sandbox_without_network(tmp_path: Path) -> None:
    root = Path(ranks.__file__).parents[2]
    program = (
        "from accelerando import ranks\n"
        f"result = ranks.run('programs:sums_with_the_others', 2, payload={{'base': 1}}, time_limit_s={LIMIT_S})\n"
        "print(result.values[0]['sum'].item())"
    )
    command = ["bwrap", "--unshare-all", "--die-with-parent", "--ro-bind", "/", "/"]
    command += ["--bind", str(tmp_path), str(tmp_path)]  # not a tmpfs over /tmp: the course itself may lie there
    command += ["--proc", "/proc", "--dev", "/dev", "--chdir", str(root), sys.executable, "-c", program]
    environment = os.environ | {"PYTHONPATH": str(HERE), "TMPDIR": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, env=environment)
    if "bwrap:" in done.stderr:
        pytest.skip(f"bubblewrap does not work here: {done.stderr.strip()[:200]}")
    assert done.stdout.strip() == "3.0", done.stderr[-2000:]


@pytest.mark.parametrize(
    ("program", "options", "words"),
    [
        ("no/such/file.py", {}, "no such Python file"),
        ("not a module", {}, "program is 'not a module'"),
        ("programs", {"ranks": 0}, "ranks is 0"),
        ("programs", {"ranks": 2.0}, "ranks is 2.0"),
        ("programs", {"threads_per_rank": 0}, "threads_per_rank is 0"),
        ("programs", {"time_limit_s": 0}, "time_limit_s is 0"),
        ("programs", {"launcher": "ssh"}, "torchrun, mpirun, srun or sbatch"),
        ("programs:f", {"arguments": ["--x"]}, "as payload"),
    ],
)
def test_senseless_arguments_are_refused_in_words(program: str, options: dict, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        ranks.run(program, **{"ranks": 2, **options})


def test_payload_outside_a_rank_says_where_it_is_to_be_called() -> None:
    with pytest.raises(ValueError, match="no rank"):
        ranks.payload()


def test_the_command_shows_the_line_streams_each_rank_and_its_status_tells(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text("import os, sys\nprint('hello', sys.argv[1:])\nsys.exit(int(os.environ['RANK']) * 3)\n")
    command = [sys.executable, "-m", "accelerando", "ranks", str(program), "--world-size", "2", "--lr", "0.1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)
    lines = done.stdout.splitlines()
    assert lines[0].endswith(f"torchrun --standalone --local-addr=127.0.0.1 --nproc-per-node=2 {program} --lr 0.1")
    assert {"[rank 0] hello ['--lr', '0.1']", "[rank 1] hello ['--lr', '0.1']"} <= set(lines)
    assert (done.returncode, done.stderr) == (1, "course ranks: rank 1 exited with status 3\n")
    refused = subprocess.run([*command[:4], "none.py"], capture_output=True, text=True, timeout=LIMIT_S)
    assert (refused.returncode, refused.stderr) == (2, "course ranks: none.py: there is no such Python file\n")
