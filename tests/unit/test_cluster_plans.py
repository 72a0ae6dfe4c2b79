"""The cluster's words and numbers: speeds, nodes, command lines, traffic control. `tests/distributed` runs it."""

import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from accelerando import programs
from accelerando.cluster import hosts, launch, network, runs, slurm

NODES = hosts.make_nodes(2)


@pytest.mark.parametrize(
    ("text", "bytes_per_s"), [("200mbit", 25e6), ("1 Gbit", 125e6), ("64kbit", 8e3), ("2.5mbit/s", 312500)]
)
def test_a_speed_is_read_in_bytes_per_second(text: str, bytes_per_s: float) -> None:
    assert hosts.parse_bandwidth(text) == bytes_per_s


@pytest.mark.parametrize("text", ["0", "0mbit", "fast", "", "-5mbit", "200", "200mb", "1e9gbit", "63kbit", "101gbit"])
def test_no_other_speed_is_read(text: str) -> None:
    with pytest.raises(ValueError, match=r"for example 200mbit"):
        hosts.parse_bandwidth(text)


def test_a_latency_is_read_in_seconds() -> None:
    assert [hosts.parse_latency(text) for text in ("1ms", "250us", "0.5 s", "0ms")] == pytest.approx(
        [1e-3, 2.5e-4, 0.5, 0.0]
    )


@pytest.mark.parametrize("text", ["soon", "1", "-1ms", "2s", "ms"])
def test_no_other_latency_is_read(text: str) -> None:
    with pytest.raises(ValueError, match="for example 1ms"):
        hosts.parse_latency(text)


@pytest.mark.parametrize("count", [0, 17, -1, True, 2.0])
def test_nodes_are_one_to_sixteen(count: object) -> None:
    with pytest.raises(ValueError, match="from 1 to 16"):
        hosts.make_nodes(count)  # type: ignore[arg-type]


def test_all_addresses_differ_and_none_is_the_login_nodes_or_plain_localhost() -> None:
    for has_own, other in ((True, hosts.login_address()), (False, "127.0.0.1")):
        addresses = [node.address for node in hosts.make_nodes(16, has_own_addresses=has_own)]
        assert len({*addresses, other}) == 17


def test_nodes_are_chosen_by_name_in_the_order_given() -> None:
    assert hosts.choose(NODES, "node2, node1") == NODES[::-1]
    assert hosts.choose(NODES, None) == NODES
    for names in ("node3", "node1,node1", "", "10.77.0.1"):
        with pytest.raises(ValueError, match="node"):
            hosts.choose(NODES, names)


def test_a_simulated_link_adds_what_the_transfer_lacked(monkeypatch: pytest.MonkeyPatch) -> None:
    assert hosts.simulated_wait_s(1e9, 0.0) == 0
    monkeypatch.setenv(hosts.SIMULATED_LINK_VARIABLE, json.dumps({"bandwidth_bytes_per_s": 25e6, "latency_s": 0.01}))
    assert hosts.simulated_wait_s(10e6, 0.1, messages=2) == pytest.approx(0.4 + 0.02 - 0.1)
    assert hosts.simulated_wait_s(10e6, 5.0) == 0


WORDS = ("train.py", "--x", "a b")


def made(launcher: str, tmp_path: Path, words: Sequence[str] = WORDS, agent: str | None = None, **place) -> launch.Plan:
    where = launch.Place(NODES, **place)
    return launch.plan(launcher, words, where, port=20001, interface="eth0", folder=tmp_path, agent=agent)


def test_torchrun_is_typed_on_every_node_with_its_own_rank_and_one_meeting_point(tmp_path: Path) -> None:
    plan = made("torchrun", tmp_path, ranks_per_node=2)
    assert (plan.ranks, [step.place for step in plan.steps]) == (4, ["node1", "node2"])
    for number, step in enumerate(plan.steps):
        assert f"--node-rank={number}" in step.command
        assert {"--master-addr=10.77.0.1", "--master-port=20001", "--nproc-per-node=2"} <= set(step.command)
        assert step.command[-3:] == WORDS
        assert step.typed.startswith("torchrun --nnodes=2 ")
        assert step.typed.endswith(" train.py --x 'a b'")


def test_an_elastic_torchrun_has_the_same_words_on_every_node(tmp_path: Path) -> None:
    plan = made("torchrun", tmp_path, fewest=1)
    first, second = (set(step.command) for step in plan.steps)
    assert {"--nnodes=1:2", "--rdzv-endpoint=10.77.0.1:20001", "--max-restarts=3"} <= first
    assert first ^ second == {"--local-addr=10.77.0.1", "--local-addr=10.77.0.2"}
    for launcher, fewest in (("mpirun", 1), ("torchrun", 3), ("torchrun", 0)):
        with pytest.raises(ValueError, match="only torchrun goes on"):
            made(launcher, tmp_path, agent="/a/enter", fewest=fewest)


class Ends:
    """A command that has ended, or not."""

    def __init__(self, code: int | None) -> None:
        self.code = code

    def poll(self) -> int | None:
        return self.code


@pytest.mark.parametrize(
    ("fewest", "codes", "lost", "cause"),
    [(2, (None, 137), {"node2"}, "node"), (1, (None, 137), {"node2"}, None), (1, (0, 137), {"node2"}, "done"),
     (1, (1, 137), {"node2"}, "command"), (1, (None, None), {"node1", "node2"}, "node")],
)  # fmt: skip
def test_a_run_goes_on_with_as_many_nodes_as_it_needs(
    fewest: int, codes: tuple[int | None, ...], lost: set[str], cause: str | None
) -> None:
    request = {"nodes": ["node1", "node2"], "limit_s": 60, "in_slurm": False, "fewest": fewest}
    run = runs.Run(None, "mark", request)  # type: ignore[arg-type]
    run.processes = [(f"node{number}", Ends(code)) for number, code in enumerate(codes, 1)]  # type: ignore[misc]
    answer = run.outcome(lost)
    assert (answer and answer.get("cause", "done")) == cause


def test_mpirun_and_srun_are_typed_once_and_tell_ranks_where_to_meet(tmp_path: Path) -> None:
    for launcher in ("mpirun", "srun"):
        plan = made(launcher, tmp_path, agent="/a/enter", threads_per_rank=3)
        (step,) = plan.steps
        assert step.place == "login"
        assert step.command[-3:] == WORDS
        assert step.typed.endswith("python -m accelerando.rank_entry train.py --x 'a b'")
        assert plan.environment["MASTER_ADDR"] == "10.77.0.1"
        assert plan.environment["OMP_NUM_THREADS"] == "3"
        assert plan.shown.startswith("login$ MASTER_ADDR=10.77.0.1 MASTER_PORT=20001 ")
    assert "10.77.0.1:1,10.77.0.2:1" in made("mpirun", tmp_path, agent="/a/enter").steps[0].command
    assert "localhost:2" in made("mpirun", tmp_path).steps[0].command
    assert "--nodelist=node1,node2" in made("srun", tmp_path).steps[0].command


def test_sbatch_gets_a_script_that_is_shown_as_one_would_write_it(tmp_path: Path) -> None:
    plan = made("sbatch", tmp_path, ranks_per_node=2)
    script = (tmp_path / "job.sh").read_text()
    assert "#SBATCH --ntasks=4\n" in script
    assert "srun --kill-on-bad-exit=1" in script
    first, *rest = plan.shown.splitlines()
    assert first.endswith("sbatch --wait job.sh")
    assert rest[:2] == ["#!/bin/sh", "#SBATCH --nodes=2"]
    assert rest[-1].endswith("python -m accelerando.rank_entry train.py --x 'a b'")


@pytest.mark.parametrize(
    ("words", "typed"),
    [
        (("package.module",), "-m package.module"),
        (("package.module:function",), "-m accelerando.rank_entry package.module:function"),
    ],
)
def test_what_is_no_file_is_typed_as_a_module(words: tuple[str, ...], typed: str, tmp_path: Path) -> None:
    assert made("torchrun", tmp_path, words).steps[0].typed.endswith(f" {typed}")


@pytest.mark.parametrize("options", [{"ranks_per_node": 0}, {"ranks_per_node": 65}, {"threads_per_rank": 0}])
def test_a_plan_that_makes_no_sense_is_refused(options: dict[str, int], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="must be"):
        made("torchrun", tmp_path, **options)
    with pytest.raises(ValueError, match="torchrun, mpirun, srun or sbatch"):
        made("ssh", tmp_path)


def test_open_mpi_is_found_behind_another_mpirun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, answer in (("mpirun", "Intel(R) MPI Library 2021"), ("ompirun_wrapper", "ompirun (Open MPI) 5.0.11")):
        (folder / name).write_text(f"#!/bin/sh\necho '{answer}'\n")
        (folder / name).chmod(0o700)
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    (folder / "env").symlink_to("/usr/bin/env")
    monkeypatch.setenv("PATH", str(folder))
    assert programs.find_open_mpi() == ("env", f"OPAL_PREFIX={tmp_path}", str(folder / "ompirun_wrapper"))
    assert [(found.kind, found.command) for found in programs.find_mpi()] == [
        ("Intel MPI", "mpirun"), ("Open MPI", "mpirun"),
    ]  # fmt: skip
    (folder / "ompirun_wrapper").unlink()
    assert programs.find_open_mpi() is None


def test_a_link_is_shaped_only_as_far_as_asked() -> None:
    assert network.shaping("eth0", None, 0.0) == []
    (slow,) = network.shaping("eth0", 25e6, 0.0)
    assert slow[slow.index("rate") + 1] == "200000000bit"
    (late,) = network.shaping("eth0", None, 1e-3)
    assert "root" in late
    assert late[-2:] == ("delay", "1000us")
    both = network.shaping("eth0", 25e6, 1e-3)
    assert [words[words.index("dev") + 2] for words in both] == ["root", "parent"]


def test_slurms_files_are_all_in_the_clusters_folder() -> None:
    text = slurm.configuration(Path("/f"), NODES, is_root=False)
    paths = [value.removeprefix("socket=") for line in text.splitlines() if "/" in (value := line.partition("=")[2])]
    assert {path for path in paths if path.startswith("/") and not path.startswith("/f/")} == set()
    assert sum(path.startswith("/f/") for path in paths) == 7
    assert "SlurmUser=learner" in text
    assert "SlurmUser=root" in slurm.configuration(Path("/f"), NODES, is_root=True)


def test_the_switch_keeps_its_address_when_a_node_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[tuple[str, ...]] = []
    monkeypatch.setattr(network, "command", lambda *words: said.append(words))
    network.lay_bridge()
    made = next(words for words in said if "bridge" in words)
    assert re.fullmatch(r"02(:[0-9a-f]{2}){5}", made[made.index("address") + 1]), "a bridge's own follows its cables"
