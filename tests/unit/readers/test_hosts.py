"""The reader of host lists."""

import contextlib
import time

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


@pytest.mark.parametrize(
    ("text", "slots", "world_size"),
    [
        ("rank 0=n1 slot=0:0-2\nrank 1=n2 slot=1\nrank 2=n1 slot=3\n", {"n1": 2, "n2": 1}, 3),
        ("n1:2,n2:3\n", {"n1": 2, "n2": 3}, 5),
        ("mpirun -np 4 -H n1:3,n2:3 ./a.out\n", {"n1": 3, "n2": 3}, 4),
        (
            "    n1: flags=0x11 slots=3 max_slots=0 state=UP\n    n2: flags=0x10 slots=1 max_slots=0 state=UP\n",
            {"n1": 3, "n2": 1},
            4,
        ),
        ("[fe80::a]:2\n[fe80::b]:1\n", {"fe80::a": 2, "fe80::b": 1}, 3),
        ("fd00::a slots=2\nfd00::b slots=1\n", {"fd00::a": 2, "fd00::b": 1}, 3),
        ("exec_host = n1/0+n1/1+n2/0-2\n", {"n1": 2, "n2": 3}, 5),
        (
            "exec_host = n1/0*8+n2/0*8\nexec_vnode = (n1:ncpus=8:mpiprocs=3)+(n2:ncpus=8:mpiprocs=1)\n",
            {"n1": 3, "n2": 1},
            4,
        ),
        ("exec_host = n1/0*8+n2/0*8\n", None, None),
        ("LSB_JOBID=3\nLSB_HOSTS=n1 n1 n1\nn2 n2\nLSB_DJOB_NUMPROC=5\n", {"n1": 3, "n2": 2}, 5),
        ("$ echo $SLURM_JOB_NODELIST\nn[1-2]\n$ echo ${SLURM_TASKS_PER_NODE}\n3,1\n", {"n1": 3, "n2": 1}, 4),
        ("SLURM_JOB_NODELIST: n[1-2]\nSLURM_TASKS_PER_NODE: 3,1\n", {"n1": 3, "n2": 1}, 4),
        ("PARTITION AVAIL NODES STATE NODELIST\nfast* up 1 idle n1\nslow up 1 alloc n2\n", None, None),
        (
            "JOBID PARTITION ST NODES NODELIST(REASON)\n7 fast PD 9 (Priority)\n8 fast R 2 n[1-2]\n9 fast R 1 n9\n",
            None,
            None,
        ),
    ],
)
def test_launchers_and_schedulers_each_have_their_own_way(
    text: str, slots: dict[str, int] | None, world_size: int | None
) -> None:
    answer = hosts.parse(text)
    assert (answer["slots"], answer["world_size"]) == (slots, world_size)
    assert answer["hosts"] == (list(slots) if slots else ["n1", "n2"])


HET = """SLURM_HET_SIZE=2
SLURM_JOB_NODELIST=m1
SLURM_NTASKS=1
SLURM_JOB_NODELIST_HET_GROUP_0=m1
SLURM_TASKS_PER_NODE_HET_GROUP_0=1
SLURM_JOB_NODELIST_HET_GROUP_1=n[1-2]
SLURM_TASKS_PER_NODE_HET_GROUP_1=4,2
"""


def test_components_of_a_heterogeneous_job_are_put_together() -> None:
    answer = hosts.parse(HET)
    assert (answer["slots"], answer["world_size"]) == ({"m1": 1, "n1": 4, "n2": 2}, 7)
    assert any("3 components" in warning for warning in hosts.parse(HET.replace("SIZE=2", "SIZE=3"))["warnings"])


BJOBS = """JOBID  USER  STAT  QUEUE   FROM_HOST  EXEC_HOST  JOB_NAME
77     me    RUN   normal  login1     2*n1       train
                                      3*n2
78     me    RUN   normal  login1     1*n9       other
"""
LONG = """Job <77>, Job Name <train>, User <me>, Status <RUN>
Mon May  4 10:00:00: Started 5 Task(s) on Host(s) <2*n1> <3*n2>, Allocated 5 Slot(s)
                     on Host(s) <2*n1> <3*n2>;
"""
MAP = " Data for node: n1\tNum slots: 4\tMax slots: 0\tNum procs: 2\n Data for node: n2\tNum slots: 4\tNum procs: 3\n"


@pytest.mark.parametrize(
    "text",
    [
        BJOBS,
        LONG,
        "EXEC_HOST: 2*n1:3*n2\n",
        MAP,
        "n1 np=2\nn2 np=3 gpus=1\n",
        "mpirun -np 5 \\\n   -H n1:2,n2:3 \\\n   python x.py\n",
        '{"SLURM_JOB_NODELIST": "n[1-2]", "SLURM_TASKS_PER_NODE": "2,3", "HOME": "/h"}\n',
    ],
)
def test_what_schedulers_and_launchers_print_of_a_job_is_read(text: str) -> None:
    answer = hosts.parse(text)
    assert (answer["slots"], answer["world_size"]) == ({"n1": 2, "n2": 3}, 5)


@pytest.mark.parametrize(
    "text",
    [
        "salloc: Granted job allocation 7\nsalloc: Nodes n[1-2] are ready for job\n",
        "JobID   State   NodeList\n------- ------- --------\n7       RUNNING   n[1-2]\n7.batch RUNNING   n1\n",
    ],
)
def test_hosts_without_tasks_are_read_too(text: str) -> None:
    answer = hosts.parse(text)
    assert (answer["hosts"], answer["slots"]) == (["n1", "n2"], None)


def test_tasks_for_each_node_that_do_not_add_up_are_not_used() -> None:
    answer = hosts.parse("JobId=7 JobName=x\n NodeList=n[1-3]\n NumNodes=3 NumTasks=10\n NtasksPerN:B:S:C=4:0:*:*\n")
    assert (answer["slots"], answer["world_size"]) == (None, 10)
    assert any("are not 10 tasks" in warning for warning in answer["warnings"])


@pytest.mark.parametrize(
    ("field", "said"),
    [
        ("TRES=cpu=4,gres/gpu:h100=6", "6 GPUs"),
        ("TresPerNode=gres/gpu:2", "2 GPUs for each node"),
        ("JOB_GRES=gpu:4", "4 GPUs"),
    ],
)
def test_gpus_of_a_job_are_counted_where_slurm_says_them(field: str, said: str) -> None:
    rule = hosts.parse(f"JobId=7 JobName=x\n NodeList=n[1-2]\n NumTasks=2\n {field}\n")["rule"]
    assert rule.endswith(said)


@pytest.mark.parametrize(
    ("text", "warning"),
    [
        ("SLURM_JOB_NODELIST=n[1-2]\nSLURM_NTASKS=2\nSLURM_JOB_NODELIST=m1\n", "different values"),
        ("LSB_DJOB_NUMPROC=8\nLSB_HOSTS=n1 n1 n1 n", "no line end"),
        ("LSB_DJOB_NUMPROC=8\nLSB_HOSTS=n1 n1 n1\n", "the job has 8"),
        ("login1\nn1\nn1\nn2\nn2\n", "launch node"),
    ],
)
def test_what_makes_a_list_doubtful_is_said(text: str, warning: str) -> None:
    assert any(warning in said for said in hosts.parse(text)["warnings"])


def test_host_without_number_beside_others_with_one_is_not_called_open_mpi() -> None:
    answer = hosts.parse("n1:2\nn2\n")
    assert answer["slots"] == {"n1": 2, "n2": None}
    assert "MPICH" in answer["rule"]
    assert "Open MPI" not in answer["rule"]


@pytest.mark.parametrize(
    "text",
    [
        "a " + "111111 " * 60 + "!",
        "LSB_HOSTS=a\n" + "b" * 200 + ": c\n",
        "x" + " " * 20_000 + "NODELIST !",
        "SLURM_JOB_NODELIST=a1\nSLURM_TASKS_PER_NODE=\u00b21\nSLURM_NTASKS=\u00b2\n",
        "".join(f"node{number} slots=8\n" for number in range(1_000_000)),
        '{"a":' * 5000,
        "Data for node: c1 " * 5000,
    ],
)
def test_odd_text_takes_no_time_and_no_traceback(text: str) -> None:
    start = time.monotonic()
    with contextlib.suppress(Unreadable):
        hosts.parse(text)
    assert time.monotonic() - start < 2


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
