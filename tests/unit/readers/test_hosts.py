"""The reader of host lists."""

import pytest
from cases import SHARED, fixture
from hypothesis import given
from hypothesis import strategies as st

from accelerando.readers import hosts
from accelerando.readers.slurm import expand, expand_counts
from accelerando.readers.text import Unreadable


def test_slurm_environment_gives_hosts_slots_and_world_size() -> None:
    answer = hosts.parse(fixture("hosts_slurm_env.txt"))
    assert answer["hosts"] == ["gpu01", "gpu02", "gpu03", "gpu07"]
    assert answer["slots"] == {"gpu01": 4, "gpu02": 4, "gpu03": 4, "gpu07": 2}
    assert answer["world_size"] == 14
    assert answer["warnings"] == []


def test_environment_printed_by_a_shell_reads_the_same() -> None:
    plain = fixture("hosts_slurm_env.txt")
    exported = "".join('declare -x {}="{}"\n'.format(*line.split("=", 1)) for line in plain.strip().split("\n"))
    labelled = "".join(f"{rank}: {line}\n" for line in plain.strip().split("\n") for rank in range(2))
    assert hosts.parse(exported)["slots"] == hosts.parse(plain)["slots"]
    assert hosts.parse(labelled)["slots"] == hosts.parse(plain)["slots"]


def test_open_mpi_host_file_gives_its_slots() -> None:
    answer = hosts.parse(fixture("hosts_openmpi.txt"))
    assert (answer["slots"], answer["world_size"]) == ({"alpha": 4, "beta.cluster.local": 2}, 6)


def test_host_without_slots_is_unknown_and_the_rule_says_why() -> None:
    answer = hosts.parse("alpha\nbeta slots=2\n")
    assert answer["slots"] == {"alpha": None, "beta": 2}
    assert answer["world_size"] is None
    assert "number of cores" in answer["rule"]
    assert "world size 3" in answer["rule"]


@pytest.mark.parametrize(
    ("text", "slots"),
    [
        ("n1:4\nn2:2\n", {"n1": 4, "n2": 2}),
        ("LSB_HOSTS=a a b\n", {"a": 2, "b": 1}),
        ("LSB_MCPU_HOSTS='a 2 b 1'\n", {"a": 2, "b": 1}),
        ("a 2 b 1\n", {"a": 2, "b": 1}),
        ("a1\na1\nb1\n", {"a1": 2, "b1": 1}),
        ("2*a1 b1\n", {"a1": 2, "b1": 1}),
        ("user@10.0.0.1 slots=2\n10.0.0.2 slots = 1\n", {"10.0.0.1": 2, "10.0.0.2": 1}),
        ("n1 2 all.q@n1 UNDEFINED\nn2 1 all.q@n2 UNDEFINED\n", {"n1": 2, "n2": 1}),
    ],
)
def test_every_way_to_write_slots_is_read(text: str, slots: dict[str, int]) -> None:
    answer = hosts.parse(text)
    assert answer["slots"] == slots
    assert answer["hosts"] == list(slots)
    assert answer["world_size"] == sum(slots.values())


def test_bare_names_name_no_slots() -> None:
    answer = hosts.parse("n1\nn2\n")
    assert (answer["hosts"], answer["slots"], answer["world_size"]) == (["n1", "n2"], None, None)


def test_scontrol_job_names_tasks_but_not_where_they_run() -> None:
    answer = hosts.parse(
        "JobId=7 JobName=x\n   JobState=RUNNING Reason=None\n   ReqNodeList=z[1-9] ExcNodeList=y1\n"
        "   NodeList=n[1-2]\n   NumNodes=2 NumCPUs=8 NumTasks=6 CPUs/Task=1 ReqB:S:C:T=0:0:*:*\n"
        "   TRES=cpu=8,mem=1G,node=2,gres/gpu=4\n   Socks/Node=* NtasksPerN:B:S:C=0:0:*:1\n"
    )
    assert (answer["hosts"], answer["world_size"], answer["slots"]) == (["n1", "n2"], 6, None)
    assert "4 GPUs" in answer["rule"]


def test_pending_job_has_no_hosts() -> None:
    answer = hosts.parse("JobId=7 JobName=x\n   JobState=PENDING\n   NodeList=(null)\n   NumTasks=6\n")
    assert answer["hosts"] == []
    assert any("PENDING" in warning for warning in answer["warnings"])


@given(st.lists(st.integers(0, 999), min_size=1, max_size=20, unique=True), st.integers(1, 5))
def test_expanding_undoes_writing_in_brackets(numbers: list[int], width: int) -> None:
    names = [f"n{number:0{width}d}" for number in sorted(numbers)]
    expression = "n[" + ",".join(name[1:] for name in names) + "]"
    assert expand(expression) == names


@given(st.lists(st.tuples(st.integers(0, 64), st.integers(1, 9)), min_size=1, max_size=9))
def test_counts_are_written_out(runs: list[tuple[int, int]]) -> None:
    text = ",".join(f"{count}(x{times})" if times > 1 else str(count) for count, times in runs)
    assert expand_counts(text) == [count for count, times in runs for _ in range(times)]


@pytest.mark.parametrize(
    "text",
    [
        "n[1-99999999]\n",
        "a[1-9999]b[1-9999]\n",
        "a[1]" * 3000 + "\n",
        "n[1-\n",
        "SLURM_JOB_NODELIST=n[1-3\n",
        "SLURM_JOB_NODELIST=n[1-2]\nSLURM_TASKS_PER_NODE=2(x99999999)\n",
        "SLURM_JOB_ID=1\nSLURM_NTASKS=4\n",
        "n1 slots=many\n",
        "n1 slots=99999999\n",
        "a 2 b\n",
        "# nothing\n",
        "This is a sentence, not a list.\n",
        "These are words\n",
    ],
)
def test_bombs_cuts_and_prose_are_refused(text: str) -> None:
    with pytest.raises(Unreadable):
        hosts.parse(text)


@pytest.mark.skipif(not SHARED.is_dir(), reason="the shared cases do not lie beside this checkout")
def test_shared_cases_have_their_right_answers() -> None:
    talapas = hosts.parse((SHARED / "cl_01_slurm_env_talapas.txt").read_text())
    assert (talapas["hosts"], talapas["slots"], talapas["world_size"]) == (["n177", "n180"], {"n177": 2, "n180": 2}, 4)
    mixed = hosts.parse((SHARED / "cl_06_openmpi_hostfile_missing_slots.txt").read_text())
    assert mixed["hosts"] == ["node0", "node1", "node2", "node3"]
    assert mixed["slots"] == {"node0": None, "node1": 2, "node2": 2, "node3": 4}
    assert "cores" in mixed["rule"]
    job = hosts.parse((SHARED / "cl_12_scontrol_job_2nodes_256tasks.txt").read_text())
    assert (job["hosts"], job["world_size"]) == (["inti6015", "inti6019"], 256)
    assert "1 CPU each, no GPUs" in job["rule"]
