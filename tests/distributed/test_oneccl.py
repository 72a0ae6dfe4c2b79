"""The ccl backend gives what gloo gives, says what it cannot, outlives other ranks, and is built once, whole or not."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from accelerando import ranks
from accelerando.backends import oneccl
from accelerando.backends.oneccl import build
from accelerando.programs import find_open_mpi

HERE = Path(__file__).parent
EXAMPLES = 40
LIMIT_S = 240.0


@pytest.fixture(scope="module")
def extension() -> Path:
    """The real extension, built if this machine can."""
    reason = oneccl.why_not()
    if reason:
        pytest.skip(reason)
    return build.build()


@pytest.fixture(scope="module", params=[1, 2, 3, 4], ids="{}_ranks".format)
def findings(request: pytest.FixtureRequest, extension: Path) -> list[dict[str, Any]]:
    """What each rank found; one launch for all claims about a world size."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(HERE))
        result = ranks.run(
            "oneccl_programs:everything",
            request.param,
            launcher="mpirun" if find_open_mpi() else "torchrun",  # which imports torch once more
            time_limit_s=LIMIT_S,
            payload={"examples": EXAMPLES},
        )
    return list(result.values)


@pytest.mark.parametrize("claim", ["same_as_gloo", "ddp", "order", "future", "groups"])
def test_what_holds_for_gloo_holds_for_ccl(findings: list[dict[str, Any]], claim: str) -> None:
    assert [found[claim] for found in findings] == [None] * len(findings)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        ("bitwise", "SUM, AVG, MIN, MAX and PRODUCT"),
        ("average of truth", "convert them to numbers"),
        ("sparse", "to_dense"),
        ("type", "convert to float32"),
        ("sizes", "world size times"),
        ("splits", "add up to"),
        ("any source", "give recv() its src"),
    ],
)
def test_what_ccl_cannot_do_is_a_value_error_that_says_what_to_do(
    findings: list[dict[str, Any]], call: str, words: str
) -> None:
    for found in findings:
        assert found["errors"][call].startswith("ValueError")
        assert words in found["errors"][call]


def test_a_rank_that_dies_or_is_late_is_an_error_and_nothing_is_left(extension: Path, tmp_path: Path) -> None:
    program = [sys.executable, str(HERE / "oneccl_programs.py"), str(tmp_path / "store")]
    started = [
        subprocess.Popen([*program, str(rank)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for rank in range(3)
    ]
    try:
        out, err = started[0].communicate(timeout=LIMIT_S)
    finally:
        for process in started:
            process.kill()
            process.communicate()
    assert started[0].returncode == 0, err
    (late, late_s), (again, _), (dead, dead_s), (after, _) = json.loads(out.splitlines()[-1])
    assert late.startswith("DistBackendError: oneCCL: ALLREDUCE was not finished after 2 s")
    assert "can no longer be used" in again
    assert f"rank 1 (process {started[1].pid}) has ended" in dead
    assert "has ended" in after
    assert late_s < 60
    assert dead_s < 60
    left = [name for name in os.listdir("/dev/shm") if name.split(":")[0] in {str(started[0].pid), str(started[1].pid)}]
    assert left == []


def test_sweep_removes_what_the_dead_left_and_nothing_else(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(oneccl, "SHARED_MEMORY", tmp_path)
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    for name in (f"{dead.pid}:0:0", f"{os.getpid()}:0:0", "other"):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (0, 0))
    (tmp_path / f"{dead.pid}:1:0").touch()  # too young to be sure
    assert oneccl.sweep() == 1
    assert {path.name for path in tmp_path.iterdir()} == {f"{dead.pid}:1:0", f"{os.getpid()}:0:0", "other"}
    mark = f"__KMP_REGISTERED_LIB_{{}}_{os.getuid()}"
    for pid in (dead.pid, os.getpid()):
        (tmp_path / mark.format(pid)).touch()
    assert oneccl.sweep(of=[dead.pid, os.getpid()]) == 2
    assert {path.name for path in tmp_path.iterdir()} == {f"{os.getpid()}:0:0", mark.format(os.getpid()), "other"}


def test_where_there_is_only_the_loopback_the_ranks_meet_there(
    extension: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(oneccl.socket, "if_nameindex", lambda: [(1, "lo")])
    assert oneccl.environment()["CCL_KVS_IFACE"] == "lo"


def test_little_shared_memory_is_not_used(extension: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(oneccl, "SHARED_MEMORY", Path("/proc"))  # has no room at all
    assert oneccl.environment()["CCL_ATL_SHM"] == "0"


# ---- building: a false compiler that takes its time, counts, and copies the real extension


@pytest.fixture
def workshop(extension: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of its own and a compiler that does what the file "mood" says."""
    compiler = tmp_path / "bin" / "c++"
    compiler.parent.mkdir()
    compiler.write_text(
        f"""#!/bin/sh
[ "$1" = --version ] && {{ echo "c++ 99.1 Free Software"; exit 0; }}
echo begun >> {tmp_path}/begun
while [ "$1" != -o ]; do shift; done
head -c 1000 {extension} > "$2"
case "$(cat {tmp_path}/mood)" in
    hangs) exec sleep 30;;
    fails) echo "backend.cpp:1: error: no such thing" >&2; exit 1;;
    *) sleep 1; cp {extension} "$2";;
esac
"""
    )
    compiler.chmod(0o755)
    (tmp_path / "mood").write_text("works")
    monkeypatch.setenv("PATH", f"{compiler.parent}{os.pathsep}/usr/bin{os.pathsep}/bin")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


BUILD = "from accelerando.backends.oneccl import build; print(build.build())"


def begun(workshop: Path) -> int:
    path = workshop / "begun"
    return len(path.read_text().splitlines()) if path.exists() else 0


def built(workshop: Path) -> list[str]:
    return sorted(path.suffix or path.name for path in (workshop / "cache" / "accelerando").glob("*/*"))


def test_two_first_builds_at_once_compile_once(workshop: Path) -> None:
    both = [subprocess.Popen([sys.executable, "-c", BUILD], stdout=subprocess.PIPE, text=True) for _ in range(2)]
    said = [process.communicate(timeout=LIMIT_S)[0] for process in both]
    assert said[0] == said[1] != ""
    assert begun(workshop) == 1
    assert built(workshop) == [".so", "lock"]


def test_a_killed_build_is_begun_again_and_leaves_no_half(workshop: Path) -> None:
    (workshop / "mood").write_text("hangs")
    builder = subprocess.Popen([sys.executable, "-c", BUILD], start_new_session=True)
    deadline_s = time.monotonic() + LIMIT_S
    while begun(workshop) == 0 and time.monotonic() < deadline_s:
        time.sleep(0.05)
    builder.send_signal(signal.SIGKILL)
    builder.wait()
    assert ".so" not in built(workshop)
    (workshop / "mood").write_text("works")
    assert build.build().stat().st_size > 1000
    assert begun(workshop) == 2
    assert built(workshop) == [".so", "lock"]


def test_a_damaged_extension_is_built_again(workshop: Path) -> None:
    path = build.build()
    path.write_bytes(b"half of it")
    program = "from accelerando.backends import oneccl; oneccl.register(); print(oneccl.version())"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 0, done.stderr
    assert "2021.15" in done.stdout
    assert begun(workshop) == 2


def test_a_compiler_that_fails_is_quoted(workshop: Path) -> None:
    (workshop / "mood").write_text("fails")
    with pytest.raises(oneccl.OneCCLMissing, match=r"could not build the backend: .*error: no such thing"):
        build.build()
    assert ".so" not in built(workshop)


def test_a_build_that_takes_too_long_is_ended(workshop: Path) -> None:
    (workshop / "mood").write_text("hangs")
    with pytest.raises(oneccl.OneCCLMissing, match="was not done after"):
        build.build(time_limit_s=0.5)
    assert built(workshop) == ["lock"]


def test_without_a_compiler_it_is_gloo_and_the_reason(extension: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert "no C++ compiler" in (oneccl.why_not() or "")
    assert oneccl.choose() == oneccl.Choice("gloo", oneccl.why_not())


def test_without_the_library_it_is_gloo_and_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_files(package: str) -> None:
        raise build.importlib.metadata.PackageNotFoundError(package)

    monkeypatch.setattr(build.importlib.metadata, "files", no_files)
    monkeypatch.setattr(build.sys, "platform", "linux")
    monkeypatch.setattr(build.platform, "machine", lambda: "x86_64")
    assert "pip install oneccl-cpu" in (oneccl.why_not() or "")
    assert oneccl.choose().backend == "gloo"
    assert oneccl.environment() == {}


@pytest.mark.parametrize(("system", "machine"), [("darwin", "arm64"), ("linux", "aarch64"), ("win32", "AMD64")])
def test_other_machines_are_told_so(monkeypatch: pytest.MonkeyPatch, system: str, machine: str) -> None:
    monkeypatch.setattr(build.sys, "platform", system)
    monkeypatch.setattr(build.platform, "machine", lambda: machine)
    assert "made for Linux on x86-64" in (oneccl.why_not() or "")


def test_a_cache_that_cannot_be_made_is_named(extension: Path, tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert "set XDG_CACHE_HOME" in (oneccl.why_not() or "")
