"""`./course cluster` on real namespaces, as root and as an ordinary user: it works, and nothing is ever left."""

import contextlib
import json
import os
import re
import secrets
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from accelerando import cluster, ranks
from accelerando.cluster import network, places, slurm
from accelerando.programs import find_open_mpi

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
MARK = "MARK_OF_A_CLUSTER_TEST"  # variables of the course itself do not reach programs
TRAINING, PROGRAM = str(HERE / "two_node_training.py"), str(HERE / "node_program.py")
ORDINARY = 54321  # a user that nobody is
LIMIT_S = 120.0  # of a machine that has much else to do

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has network namespaces")


def out_of_reach(path: Path) -> Path | None:
    """The first folder on the way to ``path`` that only its owner may enter."""
    return next((folder for folder in reversed(path.parents) if not folder.stat().st_mode & 0o001), None)


def as_ordinary_user() -> list[str]:
    """The words that run a command as an ordinary user, who also sees Python if it lies in root's home."""
    lines = ["set -e"]
    kept = [Path(sys.base_prefix).resolve(), ROOT]
    for folder in {found for path in kept if (found := out_of_reach(path))}:
        inside = [path for path in kept if folder in path.parents]
        for number, path in enumerate(inside):
            lines += [f'd{number}=$(mktemp -d); mount --bind {shlex.quote(str(path))} "$d{number}"']
        lines.append(f"mount -t tmpfs -o mode=755 tmpfs {shlex.quote(str(folder))}")
        for number, path in enumerate(inside):
            place = shlex.quote(str(path))
            lines.append(
                f'mkdir -p {place}; mount --bind "$d{number}" {place}; umount "$d{number}"; rmdir "$d{number}"'
            )
    lines.append(f'exec setpriv --reuid {ORDINARY} --regid {ORDINARY} --clear-groups -- "$@"')
    return ["unshare", "--mount", "sh", "-c", "\n".join(lines), "sh"]


class Course:
    """Runs ``./course cluster …`` as somebody, in a runtime folder of its own, with a mark on all its processes."""

    def __init__(self, prefix: list[str], folder: Path) -> None:
        self.prefix, self.folder, self.mark = prefix, folder, secrets.token_hex(8)
        self.variables = {name: text for name, text in os.environ.items() if name != "XDG_RUNTIME_DIR"}
        self.variables |= {"TMPDIR": str(folder), "HOME": str(folder), MARK: self.mark, "PYTHONDONTWRITEBYTECODE": "1"}

    def start(self, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*self.prefix, sys.executable, "-m", "accelerando", "cluster", *words],
            env=self.variables, cwd="/", stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def __call__(self, *words: str) -> tuple[int, str, str]:
        process = self.start(*words)
        said, complained = process.communicate(timeout=LIMIT_S)
        return process.returncode, said, complained

    def good(self, *words: str) -> str:
        code, said, complained = self(*words)
        assert code == 0, f"{words}: {said}{complained}"
        return said

    def status(self, *words: str) -> dict:
        return json.loads(self.good("status", "--json", *words))

    def processes(self) -> list[int]:
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get(MARK) == self.mark:
                    found.append(process.pid)
            except psutil.Error:
                continue
        return found

    def programs(self, words: str) -> list[int]:
        """The ranks that run a program, by rank; or the launcher's process."""
        found = {}
        for pid in self.processes():
            process = psutil.Process(pid)
            with contextlib.suppress(psutil.Error):
                line, rank = process.cmdline(), process.environ().get("OMPI_COMM_WORLD_RANK")
                if words == "mpirun" and "--host" in line and process.name() != "env":
                    found[0] = pid
                elif words in line and rank is not None:
                    found[int(rank)] = pid
        return [found[rank] for rank in sorted(found)]

    def leftovers(self) -> list[str]:
        folders = [str(path) for path in self.folder.glob("accelerando-*/*") if path.name != "lock"]
        return folders + [f"process {pid}" for pid in self.processes()]


def becomes(is_so: Callable[[], object], limit_s: float = 30.0) -> bool:
    deadline_s = time.monotonic() + limit_s
    while not is_so():
        if time.monotonic() > deadline_s:
            return False
        time.sleep(0.05)
    return True


def visible_network() -> tuple[list[str], str]:
    named = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=False).stdout
    return sorted(os.listdir("/sys/class/net")), named


def needs_namespaces(prefix: list[str], as_user: tuple[str, ...]) -> None:
    if reason := network.why_not(as_user):
        pytest.skip(reason)
    if prefix and subprocess.run([*prefix, *network.UNSHARE, "--user", "--map-root-user", "true"]).returncode:
        pytest.skip("ordinary users may not make namespaces here")


@pytest.fixture(params=["root", "ordinary user"])
def course(request: pytest.FixtureRequest) -> Iterator[Course]:
    is_root = os.geteuid() == 0
    if request.param == "root" and not is_root:
        pytest.skip("these tests do not run as root")
    prefix = as_ordinary_user() if is_root and request.param != "root" else []
    needs_namespaces(prefix, () if request.param == "root" else ("--user", "--map-root-user"))
    folder = Path(tempfile.mkdtemp(prefix="acc-", dir="/tmp"))
    if prefix:
        os.chown(folder, ORDINARY, ORDINARY)
    before = visible_network()
    made = Course(prefix, folder)
    try:
        yield made
        assert becomes(lambda: not made.leftovers()), made.leftovers()
        assert visible_network() == before
    finally:
        for pid in made.processes():
            os.kill(pid, signal.SIGKILL)
        shutil.rmtree(folder, ignore_errors=True)


def test_one_training_gives_one_loss_by_torchrun_mpirun_srun_and_sbatch(course: Course) -> None:
    launchers = ["torchrun"]
    missing = []
    if find_open_mpi():
        launchers.append("mpirun")
    else:
        missing.append("Open MPI")
    has_slurm = not slurm.missing()
    launchers += ["srun"] if has_slurm else []
    missing += [] if has_slurm else ["Slurm"]
    course.good("up", "--bandwidth", "1gbit", *(["--slurm"] if has_slurm else []))
    course.good("up", "--name", "second", "--nodes", "3")  # the same addresses, at the same time
    assert [node["state"] for node in course.status()["nodes"]] == ["up"] * 2
    if has_slurm:
        assert course.status()["slurm"] == {"node1": "idle", "node2": "idle"}
    losses = {}
    for launcher in launchers:
        said = course.good("run", "--launcher", launcher, TRAINING)
        rows = re.findall(r"(node\d) rank (\d) of 2: final loss ([\d.]+)", said)
        assert sorted(row[:2] for row in rows) == [("node1", "0"), ("node2", "1")], said
        losses |= {(launcher, row[1]): float(row[2]) for row in rows}
        assert re.search(rf"(login|node1)\$ .*{launcher} ", said.splitlines()[0])
    assert max(losses.values()) - min(losses.values()) < 1e-6, losses
    if has_slurm:
        said = course.good("run", "--launcher", "sbatch", PROGRAM)
        assert "#SBATCH --nodes=2\n" in said
        assert {"[rank 0] node1 rank 0", "[rank 1] node2 rank 1"} <= set(said.splitlines())
    course.good("down")
    assert course.status("--name", "second")["nodes"][2]["name"] == "node3"
    course.good("down", "--name", "second")
    if missing:
        pytest.skip(f"without {' and '.join(missing)}, which is not installed")


def test_whatever_is_killed_the_rest_ends_with_a_sentence(course: Course) -> None:
    if find_open_mpi() is None:
        pytest.skip("Open MPI is not installed")
    run = ("run", "--launcher", "mpirun", PROGRAM, "sleep")
    course.good("up")
    alone = len(course.processes())

    caller = course.start(*run)
    assert caller.stdout is not None
    assert any(" rank " in line for line in caller.stdout)
    for process in psutil.Process(caller.pid).children(recursive=True):
        process.kill()
    caller.kill()
    caller.communicate()
    assert becomes(lambda: len(course.processes()) == alone), "a program outlived its caller"

    for words, reason in (
        (PROGRAM, "rank 1 was ended by SIGKILL"),
        ("mpirun", "the launcher on login was ended by SIGKILL before the ranks came to their end"),
    ):
        caller = course.start(*run)
        assert caller.stdout is not None
        assert any(" rank " in line for line in caller.stdout)
        assert becomes(lambda: len(course.programs(PROGRAM)) == 2)
        os.kill(course.programs(words)[-1], signal.SIGKILL)
        _, complained = caller.communicate(timeout=LIMIT_S)
        assert (caller.returncode, reason in complained) == (1, True), complained
        assert becomes(lambda: len(course.processes()) == alone), "something outlived its run"

    caller = course.start(*run)
    assert caller.stdout is not None
    assert any(" rank " in line for line in caller.stdout)
    os.kill(course.status()["nodes"][1]["process"], signal.SIGKILL)
    _, complained = caller.communicate(timeout=LIMIT_S)
    assert caller.returncode == 1
    assert "node2 was lost" in complained
    assert [node["state"] for node in course.status()["nodes"]] == ["up", "lost"]

    code, _, complained = course("run", "--launcher", "mpirun", PROGRAM)
    assert (code, "node2 was lost" in complained) == (1, True)

    os.kill(course.status()["keeper"], signal.SIGKILL)
    assert becomes(lambda: not course.processes()), "something outlived the cluster's maker"
    code, _, complained = course("run", PROGRAM)
    assert code == 1
    assert "no cluster named 'default' is up" in complained

    maker = course.start("up")
    time.sleep(0.6)
    maker.kill()
    maker.communicate()
    course("down")  # it may just have been made


def test_a_program_that_fails_hangs_or_floods_ends_in_time(course: Course) -> None:
    if find_open_mpi() is None:
        pytest.skip("Open MPI is not installed")
    course.good("up")
    alone = len(course.processes())
    code, said, complained = course("run", "--launcher", "mpirun", PROGRAM, "raise")
    assert code == 1
    assert "no luck on rank one" in said
    assert complained == "course cluster: rank 1 raised ValueError: no luck on rank one\n"
    began_s = time.monotonic()
    code, _, complained = course("run", "--launcher", "mpirun", "--time-limit", "2", PROGRAM, "sleep")
    assert code == 1
    assert "after 2 s" in complained
    assert time.monotonic() < began_s + 20
    said = course.good("run", "--launcher", "mpirun", PROGRAM, "flood", "100")
    assert len(said) < 10 * 2**20
    assert len(course.processes()) == alone
    code, _, complained = course("run", "--on", "node1,node7", PROGRAM)
    assert (code, "there is no node 'node7'; the cluster has node1, node2" in complained) == (2, True)
    code, _, complained = course("run", "--launcher", "srun", PROGRAM)
    assert (code, "has no Slurm" in complained) == (1, True)
    code, _, complained = course("up")
    assert (code, "already up" in complained) == (1, True)
    course.good("down")


def test_a_function_runs_on_the_nodes_and_its_values_come_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needs_namespaces([], () if os.geteuid() == 0 else ("--user", "--map-root-user"))
    monkeypatch.syspath_prepend(str(HERE))
    name = f"test-{secrets.token_hex(4)}"
    with cluster.up(2, name=name) as made:
        result = made.run("node_program:where", payload={"base": 5}, ranks_per_node=2)
        folder = made.folder
    assert [value["host"] for value in result.values] == ["node1", "node1", "node2", "node2"]
    assert [value["number"] for value in result.values] == [5, 6, 7, 8]
    assert result.reason == "all 4 ranks finished"
    assert not folder.exists()


def test_torchrun_goes_on_with_the_node_that_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needs_namespaces([], () if os.geteuid() == 0 else ("--user", "--map-root-user"))
    monkeypatch.syspath_prepend(str(HERE))
    lost, lines = tmp_path / "lost", set()
    with cluster.up(2, name=f"test-{secrets.token_hex(4)}") as made:
        second = made.status()["nodes"][1]["process"]

        def kill(rank: int, line: str) -> None:
            lines.add((rank, line))
            if not lost.exists() and {(0, "together"), (1, "together")} <= lines:
                os.kill(second, signal.SIGKILL)
                lost.touch()

        payload = {"lost": str(lost)}
        result = made.run("node_program:fails_together", payload=payload, fewest=1, on_line=kill, time_limit_s=LIMIT_S)
    assert (0, "ConnectionResetError: the other one is gone") in lines
    assert result.reason == "1 of 2 ranks finished"
    assert (result.values[0]["host"], result.values[1]) == ("node1", None)


def test_nodes_do_not_share_a_folder_for_temporary_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Open MPI's daemons name theirs by their process id, which two nodes may both have."""
    needs_namespaces([], () if os.geteuid() == 0 else ("--user", "--map-root-user"))
    if find_open_mpi() is None:
        pytest.skip("Open MPI is not installed")
    monkeypatch.syspath_prepend(str(HERE))
    with cluster.up(2, name=f"test-{secrets.token_hex(4)}") as made:
        values = made.run("node_program:where", payload={"base": 5}, launcher="mpirun").values
    assert len({value["temporary"] for value in values}) == 2


def test_ranks_get_a_slurm_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    if absent := slurm.missing():
        pytest.skip(f"Slurm is not installed ({', '.join(absent)})")
    needs_namespaces([], () if os.geteuid() == 0 else ("--user", "--map-root-user"))
    monkeypatch.syspath_prepend(str(HERE))
    with cluster.up(1, with_slurm=True, name=f"test-{secrets.token_hex(4)}") as made:  # another Slurm is running
        later = made.slurm("sbatch", "--parsable", "--begin=now+1hour", "--output=/dev/null", "--wrap=true").strip()
        assert f"{later} PENDING (BeginTime)" in made.slurm("squeue", "--format=%i %T %R")
        for words, why in ((("squeue", "--nonsense"), "ended with status 1"), (("srun", "true"), "is one of sbatch")):
            with pytest.raises(cluster.ClusterError, match=why):
                made.slurm(*words)
        result = ranks.run("node_program:where", 2, launcher="srun", payload={"base": 1}, time_limit_s=LIMIT_S)
    assert [value["number"] for value in result.values] == [1, 2]
    assert " srun --nodes=1 " in result.command


def test_a_cluster_goes_down_when_its_time_is_over(course: Course) -> None:
    course.good("up", "--minutes", "0.02")
    assert becomes(lambda: not course.leftovers())


@pytest.mark.parametrize("words", [
    ("--bandwidth", "0mbit"), ("--bandwidth", "0"), ("--bandwidth", "fast"), ("--bandwidth", "-5mbit"),
    ("--latency", "soon"), ("--nodes", "0"), ("--nodes", "1000"), ("--name", "../etc"), ("--minutes", "0"),
])  # fmt: skip
def test_a_bad_option_of_up_is_one_sentence_and_status_2(words: tuple[str, str], tmp_path: Path) -> None:
    code, said, complained = Course([], tmp_path)("up", *words)
    assert (code, said) == (2, "")
    assert complained.startswith("course cluster: ")
    assert complained.count("\n") == 1
    assert not list(tmp_path.glob("accelerando-*/*"))


def without_namespaces() -> list[str]:
    """The words that run a command where the system refuses to make more namespaces."""
    none = "; ".join(f"echo 0 > /proc/sys/user/max_{kind}_namespaces" for kind in ("user", "net"))
    prefix = ["unshare", "--user", "--map-root-user", "sh", "-c", f'set -e; {none}; exec "$@"', "sh"]
    if subprocess.run([*prefix, "true"], capture_output=True).returncode:
        pytest.skip("no user namespace can be made here to forbid others in")
    return prefix


def test_slurm_that_is_not_installed_is_named_with_the_way_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slurm, "missing", lambda: ["slurmd"])
    needs_namespaces([], () if os.geteuid() == 0 else ("--user", "--map-root-user"))
    with pytest.raises(cluster.ClusterError, match=r"slurmd not found.*apt install slurm-wlm munge"):
        cluster.up(1, with_slurm=True)


def test_where_namespaces_are_not_allowed_nodes_are_loopback_addresses_and_the_link_is_told() -> None:
    if find_open_mpi() is None:
        pytest.skip("Open MPI is not installed")
    folder = Path(tempfile.mkdtemp(prefix="acc-", dir="/tmp"))
    course = Course(without_namespaces(), folder)
    try:
        code, _, complained = course("up", "--loopback", "--slurm")
        assert (code, "Slurm needs nodes with their own addresses" in complained) == (1, True)
        said = course.good("up", "--bandwidth", "200mbit")
        assert "node2 127.0.0.3" in said
        assert "200 Mbit/s in each direction (simulated" in said
        assert "because no namespaces may be made here (the limits in /proc/sys/user/" in said
        said = course.good("run", "--launcher", "mpirun", PROGRAM)
        assert sorted(re.findall(r"\] \S+ (rank \d)", said)) == ["rank 0", "rank 1"]
        course.good("down")
        course.good("up", "--loopback")
        os.kill(course.status()["keeper"], signal.SIGKILL)
        assert becomes(lambda: not course.processes())
        course("status")
        assert course.leftovers() == []
    finally:
        for pid in course.processes():
            os.kill(pid, signal.SIGKILL)
        shutil.rmtree(folder, ignore_errors=True)


def test_without_unshare_the_reason_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(places, "_TOOLS", str(tmp_path))
    assert "unshare and nsenter and ip and tc not found" in str(network.why_not(()))
    assert slurm.missing() == list(slurm.PROGRAMS)
