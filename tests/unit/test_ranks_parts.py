"""The parts of `ranks` that need no process: what is sent, how a launcher's words are read, what is kept of output."""

import dataclasses
import importlib.util
import math
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from accelerando import rank_entry, wire
from accelerando.ranks import exchange, functions, launchers, outputs, record


@pytest.fixture
def cell(tmp_path: Path) -> Callable[[str], dict[str, Any]]:
    """Runs the text of a cell as a notebook does: in `__main__`-like names, with its text in reach."""

    def run(text: str) -> dict[str, Any]:
        path = tmp_path / "cell.py"
        path.write_text(text, encoding="utf-8")
        module = ModuleType("__main__")
        module.__dict__["__file__"] = str(path)
        exec(compile(text, str(path), "exec"), module.__dict__)
        return module.__dict__

    return run


def received(folder: Path, target: str, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """What another process would import."""
    module, _, name = target.partition(":")
    monkeypatch.setenv(rank_entry.FOLDER_VARIABLE, str(folder))
    spec = importlib.util.spec_from_file_location(module, folder / f"{module}.py")
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, module, made)
    spec.loader.exec_module(made)
    return getattr(made, name)


CELL = """
import math as m
from collections import Counter
import numpy as np

weights = np.arange(3.0)
scale = 2
model = object()  # never named by what is sent

def twice(x):
    return scale * x

class Net:
    factor = 10

    def __call__(self, model: "model", x):
        return self.factor * x

def total(words, extra=m.pi):
    model = Net()
    again = lambda x: twice(model(None, x))
    return {"sum": float(again(weights).sum()), "words": dict(Counter(words)), "pi": m.floor(extra), "model": 1}
"""


def test_a_function_of_a_cell_takes_along_what_it_names_and_nothing_else(
    cell: Callable[[str], dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = cell(CELL)
    target = functions.write(names["total"], tmp_path)
    function = received(tmp_path, target, monkeypatch)
    assert function(["a", "a"]) == {"sum": 60.0, "words": {"a": 2}, "pi": 3, "model": 1}
    assert set(wire.read_message((tmp_path / "names").open("rb"))) == {"weights", "scale"}


def test_what_a_closure_holds_is_sent_too(
    cell: Callable[[str], dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = cell(
        "def make(factor):\n    def times(x):\n        return factor * x\n    return times\ntriple = make(3)\n"
    )
    function = received(tmp_path, functions.write(names["triple"], tmp_path), monkeypatch)
    assert function(4) == 12


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("model = object()\ndef f():\n    return model", "'model', which cannot be sent"),
        ("f = lambda: 1", "written with `def`"),
        ("import functools\nf = functools.partial(print, 1)", "written with `def`"),
    ],
)
def test_what_cannot_be_sent_is_refused_by_name(
    cell: Callable[[str], dict[str, Any]], text: str, words: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=words):
        functions.write(cell(text)["f"], tmp_path)


def test_a_function_of_a_module_goes_by_its_name(tmp_path: Path) -> None:
    assert functions.write(dataclasses.asdict, tmp_path) == "dataclasses:asdict"
    assert list(tmp_path.iterdir()) == []


def test_a_function_has_no_command_line(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="as payload"):
        exchange.pack(tmp_path, dataclasses.asdict, ["--fast"], None)


def test_payload_and_values_cross_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from accelerando import ranks

    exchange.pack(tmp_path, "package.module:function", [], {"x": np.arange(3)})
    monkeypatch.setenv(rank_entry.FOLDER_VARIABLE, str(tmp_path))
    monkeypatch.setenv("RANK", "1")
    assert ranks.payload()["x"].tolist() == [0, 1, 2]
    ranks.give({"loss": math.inf})
    assert exchange.values(tmp_path, 2) == (None, {"loss": math.inf})


TORCHRUN = """
  rank      : 1 (local_rank: 1)
  exitcode  : -9 (pid: 4711)
"""
MPIRUN_KILLED = """--------------------------------------------------------------------------
prterun noticed that process rank 1 with PID 4711 on node node2 exited on
signal 9 (Killed).
--------------------------------------------------------------------------
"""
MPIRUN_STATUS = """prterun detected that one or more processes exited with non-zero status,
thus causing the job to be terminated. The first process to do so was:

   Process name: [prterun-login-21@1,1]
   Exit code:    7
"""


@pytest.mark.parametrize(
    ("said", "exits"),
    [
        (TORCHRUN, [(1, -9)]),
        (MPIRUN_KILLED, [(1, -9)]),
        (MPIRUN_STATUS, [(1, 7)]),
        ("srun: error: node2: task 1: Killed\n", [(1, -9)]),
        ("srun: error: node1: task 0: Exited with exit code 3\n", [(0, 3)]),
        ("srun: error: node1: tasks 0-1: Exited with exit code 1\n", [(0, 1)]),
        ("all is well\n", []),
    ],
)
def test_each_launcher_says_in_its_own_words_which_rank_ended_how(said: str, exits: list[tuple[int, int]]) -> None:
    assert record.exits(said) == exits


def test_the_rank_that_was_killed_counts_before_those_that_complained() -> None:
    statuses = [{"error": "raised RuntimeError: connection closed", "at_s": 1.0}, {"pid": 4}]
    assert record.why(statuses, [TORCHRUN], None, "ended") == (1, "rank 1 was ended by SIGKILL (often: out of memory)")
    assert record.why(statuses, [""], None, "ended")[0] == 0
    two = [{"error": "raised B", "at_s": 2.0}, {"error": "raised A", "at_s": 1.0}]
    assert record.why(two, [""], None, "ended") == (1, "rank 1 raised A")


def test_when_time_is_over_it_says_who_was_still_running() -> None:
    assert record.why([{"finished": True}, {"pid": 3}], [""], 5.0, "") == (
        1, "not finished after 5 s (still running: rank 1); all ranks were ended"
    )  # fmt: skip
    assert "had not even started" in record.why([{}, {"pid": 3}], [""], 5.0, "")[1]


def test_a_launcher_that_was_killed_is_named() -> None:
    every = [{"finished": True}, {"finished": True}]
    ended = "all ranks came to their end, but the launcher"
    assert record.why(every, [""], 5.0, "ended") == (None, f"{ended} had not ended after 5 s")
    assert record.why(every, [""], None, "was ended by SIGKILL") == (None, f"{ended} was ended by SIGKILL")
    said = record.why([{"pid": 3}], ["--\nlast words\n"], None, "was ended by SIGKILL")[1]
    assert said == "the launcher was ended by SIGKILL before the ranks came to their end: last words"


def test_output_is_cut_into_lines_of_bounded_length_and_number() -> None:
    kept = outputs.Kept()
    assert kept.lines(b"one\ntw") == [b"one"]
    assert kept.lines(b"o\n[Gloo] Rank 0 is connected\n" + b"x" * 10_000) == [b"two", b"x" * 4096 + b" [...]"]
    assert kept.lines(b"last") == []
    assert kept.rest() == [b"last"]
    for _ in range(1000):
        kept.lines(b"y" * 999 + b"\n")
    assert kept.text().startswith("one\ntwo\n")
    assert "bytes left out" in kept.text()
    assert len(kept.text()) < 40_000


def test_text_that_comes_as_a_whole_keeps_its_last_line() -> None:
    kept = outputs.Kept()
    kept.add("srun: error: node1\nlast words")
    kept.add("more")
    assert kept.text() == "srun: error: node1\nlast words\nmore\n"


def test_nothing_of_a_job_around_it_is_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "TORCHELASTIC_RUN_ID", "RANK", "MASTER_ADDR"):
        monkeypatch.setenv(name, "7")
    monkeypatch.setenv("ACCELERANDO_DATA", "/data")
    monkeypatch.setenv(rank_entry.FOLDER_VARIABLE, "/folder")
    found = launchers.own_variables(rank_entry.FOLDER_VARIABLE)
    assert "7" not in found.values()
    assert found["ACCELERANDO_DATA"] == "/data"
    assert rank_entry.FOLDER_VARIABLE not in found


def test_a_flood_is_not_passed_on_for_ever(tmp_path: Path) -> None:
    lines: list[tuple[int, str]] = []
    listening = outputs.Listener(tmp_path, 1, lambda rank, line: lines.append((rank, line)))
    with listening as listener, (tmp_path / "0.output").open("wb") as pipe:
        for _ in range(3000):
            pipe.write(b"z" * 999 + b"\n")
            pipe.flush()
            listener.read(0)
    assert 1000 < len(lines) < 1100
    assert "the rest is not shown" in lines[-1][1]
    assert listener.ranks[0].text().endswith("z\n")


def test_shown_lines_carry_their_rank_and_commands_stand_alone(capsys: pytest.CaptureFixture[str]) -> None:
    for rank, line in ((-1, "$ torchrun x.py"), (-1, "login$ srun x"), (-1, "bad news"), (3, "hello")):
        outputs.show(rank, line)
    assert capsys.readouterr().out == "$ torchrun x.py\nlogin$ srun x\n[launcher] bad news\n[rank 3] hello\n"


def test_ranks_are_translated_from_open_mpi_and_slurm_and_from_nothing_else() -> None:
    open_mpi = {"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_RANK": "1"}
    assert rank_entry.translate(open_mpi) == {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1"}
    in_slurm = {"SLURM_PROCID": "0", "SLURM_NTASKS": "2", "SLURM_LOCALID": "0"}
    assert rank_entry.translate(open_mpi | in_slurm)["RANK"] == "3"
    assert rank_entry.translate(in_slurm) == {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0"}
    assert rank_entry.translate(in_slurm | {"RANK": "1"}) == {}
    with pytest.raises(ValueError, match="torchrun, mpirun or srun"):
        rank_entry.translate({})


def test_signals_have_their_names() -> None:
    assert record.epitaph(-signal.SIGSEGV) == "was ended by SIGSEGV"
    assert record.epitaph(3) == "ended with status 3 in the middle"


def test_a_port_that_is_taken_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken, socket.socket() as other:
        for trial in (taken, other):
            trial.bind(("127.0.0.1", 0))
        free = other.getsockname()[1]
        other.close()
        drawn = iter([taken.getsockname()[1], free])
        monkeypatch.setattr(launchers, "_FIRST_PORT", 0)
        monkeypatch.setattr(launchers.secrets, "randbelow", lambda count: next(drawn))
        assert launchers._free_port() == free


def test_a_traceback_begins_in_the_program(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program = tmp_path / "program.py"
    program.write_text("def deep():\n    raise ValueError('no luck')\ndeep()\n")
    with pytest.raises(ValueError, match="no luck") as caught:
        rank_entry._run(str(program))
    caught.value.__traceback__ = caught.tb.tb_next  # a rank has no pytest around it
    rank_entry._print_traceback(caught.value)
    said = capsys.readouterr().err
    assert said.startswith(f'Traceback (most recent call last):\n  File "{program}", line 3, in <module>\n')
    assert said.endswith("ValueError: no luck\n")
