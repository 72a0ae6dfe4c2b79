"""What the course sees of a machine, on made-up machines and on this one."""

import contextlib
import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accelerando import machine, noise, programs
from accelerando.readers import linux, macos


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def two_sockets(root: Path) -> Path:
    """Two sockets of two cores with two threads: CPUs 0-3 are first threads, 4-7 their siblings."""
    files = {}
    for cpu in range(8):
        core, folder = cpu % 4, f"sys/devices/system/cpu/cpu{cpu}"
        files[f"{folder}/topology/physical_package_id"] = f"{core // 2}\n"
        files[f"{folder}/topology/thread_siblings_list"] = f"{core},{core + 4}\n"
        for index, (level, kind, size, shared) in enumerate(
            [(1, "Data", "48K", f"{core},{core + 4}"), (3, "Unified", "30M", "0-1,4-5" if core < 2 else "2-3,6-7")]
        ):
            cache = f"{folder}/cache/index{index}"
            files |= {f"{cache}/level": str(level), f"{cache}/type": kind, f"{cache}/size": size}
            files[f"{cache}/shared_cpu_list"] = shared
    files["sys/devices/system/node/node0/cpulist"] = "0-1,4-5\n"
    files["sys/devices/system/node/node1/cpulist"] = "2-3,6-7\n"
    files["sys/devices/system/node/node2/cpulist"] = "\n"
    return write(root, files)


def test_cores_caches_and_nodes_are_counted_once(tmp_path: Path) -> None:
    root = two_sockets(tmp_path)
    assert linux.topology(root) == linux.Topology(sockets=2, physical_cores=4, threads_per_core=2)
    assert linux.caches(root) == {"L1d": (48 * 2**10, 4), "L3": (30 * 2**20, 2)}
    assert linux.numa_nodes(root) == {0: (0, 1, 4, 5), 1: (2, 3, 6, 7), 2: ()}
    assert machine.core_siblings(root) == {cpu: (cpu % 4, cpu % 4 + 4) for cpu in range(8)}


def test_machine_without_proc_and_sys_is_unknown_not_zero(tmp_path: Path) -> None:
    assert linux.topology(tmp_path) == linux.Topology(None, None, None)
    assert machine.core_siblings(tmp_path) == {}
    assert linux.caches(tmp_path) == {}
    assert linux.cpu_quota(tmp_path) is None
    assert linux.memory_limit(tmp_path) is None
    assert linux.cpu_times(tmp_path) is None
    assert linux.throttle_events(tmp_path) is None
    seen = machine.probe(tmp_path)
    assert seen.usable_cores >= 1
    assert seen.simd is None or sys.platform == "darwin"
    assert seen.shm_bytes is None


@given(st.integers(1, 512), st.one_of(st.none(), st.floats(0.01, 1000)))
def test_usable_cores_are_whole_at_least_one_and_never_more_than_allowed(affinity: int, quota: float | None) -> None:
    cores = machine.count_usable_cores(affinity, quota)
    assert 1 <= cores <= affinity
    assert cores == (affinity if quota is None else max(1, min(affinity, int(quota // 1))))


@pytest.mark.parametrize(
    ("files", "quota"),
    [
        ({"proc/self/cgroup": "0::/job\n", "sys/fs/cgroup/job/cpu.max": "250000 100000\n"}, 2.5),
        ({"proc/self/cgroup": "0::/job\n", "sys/fs/cgroup/job/cpu.max": "max 100000\n"}, None),
        (  # a limit above counts too, and the lowest wins
            {
                "proc/self/cgroup": "0::/a/b\n",
                "sys/fs/cgroup/a/cpu.max": "100000 100000\n",
                "sys/fs/cgroup/a/b/cpu.max": "400000 100000\n",
            },
            1.0,
        ),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "50000 100000\n"}, 0.5),
        (
            {
                "proc/self/cgroup": "4:cpu,cpuacct:/docker/x\n1:name=systemd:/\n",
                "sys/fs/cgroup/cpu,cpuacct/docker/x/cpu.cfs_quota_us": "150000\n",
                "sys/fs/cgroup/cpu,cpuacct/docker/x/cpu.cfs_period_us": "100000\n",
            },
            1.5,
        ),
        (  # in a container the group's name is that of the host, and its files are at the mount's root
            {
                "proc/self/cgroup": "4:cpu:/docker/x\n",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "200000\n",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            },
            2.0,
        ),
        ({"proc/self/cgroup": "4:cpu:/\n", "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n"}, None),
        ({"proc/self/cgroup": "nonsense\n"}, None),
    ],
)
def test_cpu_quota_is_read_from_both_versions_of_control_groups(
    files: dict[str, str], quota: float | None, tmp_path: Path
) -> None:
    assert linux.cpu_quota(write(tmp_path, files)) == quota


def test_memory_limit_is_read_and_no_limit_is_none(tmp_path: Path) -> None:
    second = write(tmp_path / "2", {"proc/self/cgroup": "0::/j\n", "sys/fs/cgroup/j/memory.max": "1073741824\n"})
    assert linux.memory_limit(second) == 2**30
    none = {"proc/self/cgroup": "4:memory:/\n", "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{2**63 - 4096}\n"}
    assert linux.memory_limit(write(tmp_path / "1", none)) is None


def test_integrated_gpu_is_known_by_its_place_on_the_bus(tmp_path: Path) -> None:
    files = {
        "sys/class/drm/card0/device/vendor": "0x8086\n",
        "sys/class/drm/card0/device/uevent": "DRIVER=i915\nPCI_SLOT_NAME=0000:00:02.0\n",
        "sys/class/drm/card1/device/vendor": "0x8086\n",
        "sys/class/drm/card1/device/uevent": "DRIVER=i915\nPCI_SLOT_NAME=0000:03:00.0\n",
        "sys/class/drm/card0-HDMI-A-1/status": "connected\n",
    }
    cards = linux.graphics_cards(write(tmp_path, files))
    assert [card.is_integrated for card in cards] == [True, False]


def test_nvidia_smi_answer_is_read_and_its_complaints_are_not() -> None:
    gpus = programs.read_nvidia_query(
        "NVIDIA A100-SXM4-80GB, 81920, 535.104.05, 8.0\nTesla K80, 11441, 470.57, [N/A]\n"
    )
    assert [(gpu.memory_bytes, gpu.compute_capability) for gpu in gpus] == [(80 * 2**30, "8.0"), (11441 * 2**20, None)]
    assert programs.read_nvidia_query("NVIDIA-SMI has failed because it couldn't communicate with the driver.\n") == ()


def test_rocm_smi_answer_is_read_whatever_its_columns() -> None:
    answer = "device,Card series,Card model,VRAM Total Memory (B)\ncard0,Instinct MI250X,0x740c,68702699520\n"
    (gpu,) = programs.read_rocm_query(answer)
    assert (gpu.vendor, gpu.name, gpu.memory_bytes) == ("AMD", "Instinct MI250X", 68702699520)
    assert programs.read_rocm_query("ERROR: no GPUs\n") == ()


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        ("mpirun (Open MPI) 5.0.8\n", "Open MPI"),
        ("mpiexec (OpenRTE) 4.1.4\n", "Open MPI"),
        ("Intel(R) MPI Library for Linux* OS, Version 2021.15 Build 20250213\n", "Intel MPI"),
        ("HYDRA build details:\n    Version:  4.1\n", "MPICH"),
        ("something else 1.0\n", "unknown"),
    ],
)
def test_mpi_is_known_by_what_it_says(answer: str, kind: str) -> None:
    assert programs.mpi_kind(answer) == kind


def test_mpi_launchers_on_path_are_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "mpirun"
    script.write_text("#!/bin/sh\necho 'mpirun (Open MPI) 5.0.8'\n")
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    found = [program for program in programs.find_mpi() if program.path == str(script)]
    assert [(program.kind, program.version) for program in found] == [("Open MPI", "5.0.8")]


def test_program_that_hangs_fails_or_is_missing_is_not_there(tmp_path: Path) -> None:
    assert programs.ask(sys.executable, "-c", "import time; time.sleep(60)", limit_s=0.2) is None
    assert programs.ask(sys.executable, "-c", "raise SystemExit(3)") is None
    assert programs.ask(str(tmp_path / "none")) is None


def test_probe_of_this_machine_agrees_with_the_system() -> None:
    here = machine.probe()
    assert here.cpus == machine.allowed_cpus()
    assert 1 <= here.usable_cores <= len(here.cpus)
    assert machine.usable_cores() == here.usable_cores
    assert here.versions["torch"] is not None
    assert here.schema == machine.SCHEMA
    if sys.platform == "linux":
        assert here.memory_bytes is not None
        assert here.memory_bytes <= os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") * 1.2
    with pytest.raises(dataclasses.FrozenInstanceError):
        here.usable_cores = 99  # type: ignore[misc]


def bare_machine(**changes: object) -> machine.Machine:
    nothing = machine.Machine(
        vendor=None,
        model=None,
        architecture="x86_64",
        system="Linux 6.1",
        sockets=1,
        physical_cores=1,
        logical_cores=1,
        usable_cores=1,
        cpus=(0,),
        threads_per_core=1,
        numa_nodes={0: (0,)},
        caches={},
        simd="AVX2",
        has_bf16=False,
        has_fp16=False,
        memory_bytes=2**30,
        shm_bytes=64 * 2**20,
        gpus=(),
        compilers=(),
        mpi=(),
        sandbox=machine.Sandbox(None, False, "bubblewrap (bwrap) is not installed"),
        versions={},
    )
    return dataclasses.replace(nothing, **changes)  # type: ignore[arg-type]


def test_bare_machine_misses_everything_and_every_line_says_why_and_how(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("accelerando.cluster.slurm.missing", lambda: ["munged"])
    gaps = machine.missing(bare_machine(), machine.NEEDS)
    assert [gap.need for gap in gaps] == list(machine.NEEDS)
    assert all(len(gap.why) > 10 and len(gap.how) > 10 and gap.why in str(gap) for gap in gaps)


@pytest.mark.parametrize(
    ("need", "changes"),
    [
        ("compiler", {"compilers": (programs.Program("g++", "GCC", "12.2", "/usr/bin/g++"),)}),
        ("gpu", {"gpus": (programs.Gpu("NVIDIA", "T4", 2**34, "535", False),)}),
        ("gpus", {"gpus": (programs.Gpu("NVIDIA", "T4", 2**34, "535", False),) * 2}),
        ("mpi", {"mpi": (programs.Program("mpirun", "Open MPI", "5.0", "/bin/mpirun"),)}),
        ("sandbox", {"sandbox": programs.Sandbox("bubblewrap", True, "")}),
        ("ipex", {"versions": {"ipex": "2.8.0"}}),
        ("oneccl", {"versions": {"oneccl": "2021.15.2"}}),
        ("nni", {"versions": {"nni": "3.0"}}),
        ("bf16", {"has_bf16": True}),
        ("fp16", {"has_fp16": True}),
        ("shm", {"shm_bytes": 2**30}),
        ("cores", {"usable_cores": 2}),
        ("numa", {"numa_nodes": {0: (0,), 1: (1,)}}),
        ("memory", {"memory_bytes": 2**33}),
    ],
)
def test_a_need_is_met_by_the_thing_it_names(
    need: str, changes: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("accelerando.backends.oneccl.why_not", lambda: None)
    assert machine.missing(bare_machine(), [need]) != ()
    assert machine.missing(bare_machine(**changes), [need]) == ()


def test_intel_mpi_does_not_pass_for_open_mpi() -> None:
    intel = bare_machine(mpi=(programs.Program("mpirun", "Intel MPI", "2021.15", "/bin/mpirun"),))
    (gap,) = machine.missing(intel, ["mpi"])
    assert "Intel MPI" in gap.why


def test_an_integrated_gpu_does_not_pass_for_a_discrete_one() -> None:
    here = bare_machine(gpus=(programs.Gpu("Intel", None, None, "i915", True),))
    (gap,) = machine.missing(here, ["gpu"])
    assert "integrated" in gap.why


def test_linux_only_libraries_say_so_elsewhere() -> None:
    (gap,) = machine.missing(bare_machine(system="Darwin 24", architecture="arm64"), ["ipex"])
    assert "Linux on x86-64 only" in gap.why


def test_unknown_need_is_refused() -> None:
    with pytest.raises(ValueError, match="choose from compiler"):
        machine.missing(bare_machine(), ["quantum"])


def test_slurm_is_named_by_the_programs_that_are_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("accelerando.cluster.slurm.missing", lambda: ["munged", "slurmd"])
    (gap,) = machine.missing(bare_machine(), ["slurm"])
    assert gap.why == "no Slurm: munged, slurmd not found"
    assert "apt install slurm-wlm munge" in gap.how
    monkeypatch.setattr("accelerando.cluster.slurm.missing", list)
    assert machine.missing(bare_machine(), ["slurm"]) == ()


def test_every_need_of_the_catalog_is_known() -> None:
    from accelerando import catalog

    for lesson in catalog.lessons():
        assert set(lesson.needs) <= set(machine.NEEDS)


def stat_line(busy: int, idle: int, steal: int) -> str:
    return f"cpu  {busy} 0 0 {idle} 0 0 0 {steal} 0 0\ncpu0 0 0 0 0 0 0 0 0 0 0\n"


def test_watch_measures_the_interval_and_not_the_time_since_boot(tmp_path: Path) -> None:
    root = write(tmp_path, {"proc/stat": stat_line(busy=5_000, idle=1_000, steal=900)})
    with machine.watch(root) as watched:
        assert watched.state == machine.UNKNOWN_STATE
        (root / "proc/stat").write_text(stat_line(busy=5_050, idle=1_040, steal=910))
    assert watched.state.steal_fraction == pytest.approx(0.1)
    assert watched.state.throttled is None
    assert any("hypervisor took 10%" in words for words in watched.state.disturbances)


def test_work_of_a_child_that_still_runs_is_not_blamed_on_others(tmp_path: Path) -> None:
    files = {
        "proc/self/task/5/children": "7 8 ",
        "proc/7/task/7/children": "9",
        "proc/7/stat": "7 (a name) with ) signs) R 1 7 7 0 -1 0 0 0 0 0 100 20 30 4 20 0 1",
        "proc/9/stat": "9 (b) S 7 7 7 0 -1 0 0 0 0 0 1 2 0 0 20 0 1",
    }
    assert linux.descendants_ticks(write(tmp_path, files)) == 100 + 20 + 30 + 4 + 3  # 8 has just ended
    assert linux.descendants_ticks(tmp_path / "nothing") == 0
    burn = "import time\nwhile time.process_time() < 0.3: pass\nprint(flush=True)\ninput()"
    with subprocess.Popen([sys.executable, "-c", burn], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        seen = linux.descendants_ticks(Path("/"))
        child.communicate(b"\n")
    assert seen >= 0.25 * os.sysconf("SC_CLK_TCK")


def test_own_work_is_not_blamed_on_others() -> None:
    ticks = os.sysconf("SC_CLK_TCK")
    before = noise._Reading(linux.CpuTimes(total=0, busy=0, steal=0), 0.0, 0)
    busy = linux.CpuTimes(total=10 * ticks, busy=5 * ticks, steal=0)
    assert noise.compare_readings(before, noise._Reading(busy, 5.0, 0)).others_fraction == pytest.approx(0.0)
    assert noise.compare_readings(before, noise._Reading(busy, 1.0, 0)).others_fraction == pytest.approx(0.4)
    assert noise.compare_readings(before, noise._Reading(busy, 5.0, 3)).throttled is True


def test_state_is_known_after_an_exception_too() -> None:
    with contextlib.suppress(RuntimeError), machine.watch() as watched:
        raise RuntimeError
    assert watched.state.load_1min is not None


def test_macos_says_what_its_sysctl_says() -> None:
    arm = {
        "hw.optional.arm64": "1",
        "machdep.cpu.brand_string": "Apple M2",
        "hw.physicalcpu": "8",
        "hw.logicalcpu": "8",
    }
    arm["hw.optional.arm.FEAT_BF16"] = "1"
    seen = macos.read_cpu(arm.get)
    assert (seen["vendor"], seen["simd"], seen["bf16"], seen["fp16"], seen["threads_per_core"]) == (
        "Apple",
        "NEON",
        True,
        None,
        1,
    )
    intel = {"machdep.cpu.vendor": "GenuineIntel", "machdep.cpu.features": "FPU SSE SSE2 SSE4.1 SSE4.2 AVX1.0"}
    intel["machdep.cpu.leaf7_features"] = "AVX2 BMI1"
    assert macos.read_cpu(intel.get)["simd"] == "AVX2"
    assert macos.read_cpu(lambda key: None)["simd"] is None


def test_oneccl_counts_as_missing_with_the_reason_that_the_backend_itself_gives(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reason = "there is no C++ compiler to build the backend with"
    monkeypatch.setattr("accelerando.backends.oneccl.why_not", lambda: f"{reason}: install g++")
    (gap,) = machine.missing(bare_machine(versions={"oneccl": "2021.15.2"}), ["oneccl"])
    assert gap.why == reason
    assert "gloo takes its place" in gap.how
