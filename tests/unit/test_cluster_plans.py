"""The cluster's words and numbers: speeds, nodes, command lines, traffic control. `tests/distributed` runs it."""

import json
import sys
from pathlib import Path

import pytest

from accelerando.cluster import entry, hosts, launch, network, slurm, streams

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
    for has_own in (True, False):
        addresses = [node.address for node in hosts.make_nodes(16, has_own_addresses=has_own)]
        assert len({*addresses, hosts.login_address(has_own_addresses=has_own)}) == 17


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


def made(launcher: str, **options) -> launch.Plan:
    return launch.plan(launcher, ("train.py", "--x", "a b"), NODES, port=20001, interface="eth0", **options)


def test_torchrun_is_typed_on_every_node_with_its_own_rank_and_one_meeting_point() -> None:
    plan = made("torchrun", ranks_per_node=2)
    assert (plan.ranks, [step.place for step in plan.steps]) == (4, ["node1", "node2"])
    for number, step in enumerate(plan.steps):
        assert f"--node-rank={number}" in step.command
        assert {"--master-addr=10.77.0.1", "--master-port=20001", "--nproc-per-node=2"} <= set(step.command)
        assert step.command[-3:] == ("train.py", "--x", "a b")
    assert plan.shown.count("'a b'") == 2


def test_mpirun_and_srun_are_typed_once_and_tell_ranks_where_to_meet() -> None:
    for launcher in ("mpirun", "srun"):
        plan = made(launcher, agent="/a/enter", threads_per_rank=3)
        (step,) = plan.steps
        assert step.place == "login"
        assert step.command[-6:-3] == ("-u", "-m", "accelerando.cluster.entry")
        assert plan.environment["MASTER_ADDR"] == "10.77.0.1"
        assert plan.environment["OMP_NUM_THREADS"] == "3"
    assert "10.77.0.1:1,10.77.0.2:1" in made("mpirun", agent="/a/enter").steps[0].command
    assert "localhost:2" in made("mpirun").steps[0].command
    assert "--nodelist=node1,node2" in made("srun").steps[0].command


@pytest.mark.parametrize("options", [{"ranks_per_node": 0}, {"ranks_per_node": 65}, {"threads_per_rank": 0}])
def test_a_plan_that_makes_no_sense_is_refused(options: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="must be"):
        made("torchrun", **options)
    with pytest.raises(ValueError, match="torchrun, mpirun or srun"):
        made("ssh")


def test_a_program_is_a_file_that_exists_or_a_module(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no such Python file"):
        launch.check_program(tmp_path / "none.py", ())
    with pytest.raises(ValueError, match="a module such as"):
        launch.check_program("rm -rf", ())
    assert launch.check_program("package.module", ("1",)) == ("package.module", "1")


def test_open_mpi_is_found_behind_another_mpirun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, answer in (("mpirun", "Intel(R) MPI Library 2021"), ("ompirun_wrapper", "ompirun (Open MPI) 5.0.11")):
        (folder / name).write_text(f"#!/bin/sh\necho '{answer}'\n")
        (folder / name).chmod(0o700)
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    (folder / "env").symlink_to("/usr/bin/env")
    monkeypatch.setenv("PATH", str(folder))
    assert launch.find_open_mpi() == ("env", f"OPAL_PREFIX={tmp_path}", str(folder / "ompirun_wrapper"))
    (folder / "ompirun_wrapper").unlink()
    assert launch.find_open_mpi() is None


def test_ranks_are_translated_from_open_mpi_and_slurm_and_from_nothing_else() -> None:
    open_mpi = {"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_RANK": "1"}
    assert entry.translate(open_mpi) == {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1"}
    in_slurm = {"SLURM_PROCID": "0", "SLURM_NTASKS": "2", "SLURM_LOCALID": "0"}
    assert entry.translate(open_mpi | in_slurm)["RANK"] == "3"
    assert entry.translate(in_slurm) == {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0"}
    with pytest.raises(ValueError, match="mpirun or srun"):
        entry.translate({})


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


def test_output_is_cut_into_lines_of_bounded_length_and_number() -> None:
    lines: list[str] = []
    output = streams.Output("node1", lambda place, line: lines.append(line))
    output.take(b"one\ntw")
    output.take(b"o\n[Gloo] Rank 0 is connected\n" + b"x" * 10_000)
    output.take(b"last")
    output.take(b"")
    assert lines[:2] == ["one", "two"]
    assert lines[2:] == ["x" * 4096, "last"]
    output.take(b"y\n" * 5000)
    assert output.text().count("\n") == 999
