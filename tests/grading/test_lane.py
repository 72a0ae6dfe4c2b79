"""The speed lane: many may check at once, one may time, a crash frees it, and nothing stays behind."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from accelerando.grading.lane import lane
from accelerando.submission import Ungradable

HOLD = """
import sys, time
from pathlib import Path
from accelerando.grading.lane import lane
with lane(sys.argv[1], "timing lab 7", path=Path(sys.argv[2])):
    child = __import__("subprocess").Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    print(child.pid, flush=True)
    time.sleep(60)
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "lane.lock"


def hold(mode: str, path: Path) -> tuple[subprocess.Popen[bytes], int]:
    process = subprocess.Popen([sys.executable, "-c", HOLD, mode, str(path)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    return process, int(process.stdout.readline())


def end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    assert process.stdout is not None
    process.stdout.close()


def test_checks_share_the_lane_and_leave_no_file(path: Path) -> None:
    with lane("shared", "one", path=path), lane("shared", "two", path=path):
        assert path.exists()
    assert not path.exists()


def test_the_first_to_leave_does_not_pull_the_lock_from_under_the_others(path: Path) -> None:
    with lane("shared", "outer", path=path):
        with lane("shared", "inner", path=path):
            pass
        with pytest.raises(Ungradable), lane("exclusive", "timing", path=path, patience_s=0):
            pass
    with lane("exclusive", "timing", path=path, patience_s=0):
        pass
    assert not path.exists()


@pytest.mark.parametrize(
    ("held", "wanted"), [("exclusive", "shared"), ("exclusive", "exclusive"), ("shared", "exclusive")]
)
def test_who_waits_is_told_for_whom_and_a_killed_holder_frees_the_lane(path: Path, held: str, wanted: str) -> None:
    holder, grandchild = hold(held, path)
    said: list[str] = []

    def kill_then_wait(seconds: float) -> None:
        if holder.poll() is None:
            end(holder)  # its own child lives on, and must not hold the lane for it

    try:
        with lane(wanted, "mine", path=path, on_wait=said.append, sleep=kill_then_wait):  # type: ignore[arg-type]
            os.kill(grandchild, 0)
        assert said == [f"waiting for the machine to be free: process {holder.pid} is timing lab 7"]
        assert not path.exists()
    finally:
        os.kill(grandchild, 9)
        end(holder)


def test_patience_ends_with_a_sentence(path: Path) -> None:
    now = iter(range(100))
    with (
        lane("exclusive", "timing lab 3", path=path),
        pytest.raises(Ungradable, match=r"was not free for 5 s: process .* is timing lab 3"),
        lane("shared", "mine", path=path, patience_s=5, clock=lambda: next(now), sleep=lambda s: None),
    ):
        pass


def test_a_link_in_the_locks_place_is_not_followed(path: Path, tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("kept")
    path.symlink_to(tmp_path / "victim")
    with pytest.raises(Ungradable, match="cannot be opened"), lane("shared", "mine", path=path):
        pass
    assert (tmp_path / "victim").read_text() == "kept"


def test_programs_started_by_a_holder_do_not_inherit_the_lock(path: Path) -> None:
    program = (
        "import os; print([os.readlink(f) for f in map('/proc/self/fd/{}'.format, range(30)) if os.path.exists(f)])"
    )
    with lane("exclusive", "mine", path=path):
        command = [sys.executable, "-c", program]
        run = subprocess.run(command, capture_output=True, text=True, close_fds=False, check=True)
    assert "pipe:" in run.stdout
    assert str(path) not in run.stdout
