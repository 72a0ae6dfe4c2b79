"""The speed lane: many may check at once, one may time, a crash frees it, and nothing stays behind."""

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from accelerando.grading.lane import Mode, default_folder, lane
from accelerando.submission import Ungradable

HOLD = """
import subprocess, sys, time
from pathlib import Path
from accelerando.grading.lane import lane
with lane(sys.argv[1], folder=Path(sys.argv[2])):
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], close_fds=False)
    print(child.pid, flush=True)
    time.sleep(60)
"""


def end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    assert process.stdout is not None
    process.stdout.close()


def test_checks_share_the_lane_and_leave_no_file(tmp_path: Path) -> None:
    with lane("shared", folder=tmp_path), lane("shared", folder=tmp_path):
        assert list(tmp_path.iterdir()) == []
    assert list(tmp_path.iterdir()) == []


def test_timing_waits_for_every_check(tmp_path: Path) -> None:
    with lane("shared", folder=tmp_path):
        with lane("shared", folder=tmp_path):
            pass
        with pytest.raises(Ungradable), lane("exclusive", folder=tmp_path, patience_s=0):
            pass
    with lane("exclusive", folder=tmp_path, patience_s=0):
        pass


@pytest.mark.parametrize(
    ("held", "wanted"), [("exclusive", "shared"), ("exclusive", "exclusive"), ("shared", "exclusive")]
)
def test_who_waits_is_told_for_whom_and_a_killed_holder_frees_the_lane(
    tmp_path: Path, held: Mode, wanted: Mode
) -> None:
    holder = subprocess.Popen([sys.executable, "-c", HOLD, held, str(tmp_path)], stdout=subprocess.PIPE)
    assert holder.stdout is not None
    grandchild = int(holder.stdout.readline())
    said: list[str] = []

    def kill_then_wait(seconds: float) -> None:
        if holder.poll() is None:
            end(holder)  # its own child lives on, and must not hold the lane for it

    try:
        with lane(wanted, on_wait=said.append, folder=tmp_path, sleep=kill_then_wait):
            os.kill(grandchild, 0)
        assert len(said) == 1
        if sys.platform == "linux":
            assert f"process {holder.pid} ({sys.executable}" in said[0]
    finally:
        os.kill(grandchild, 9)
        end(holder)


def test_nobody_new_begins_to_check_while_a_timed_run_waits(tmp_path: Path) -> None:
    """Checks that overlap for ever would else keep a timed run out for ever."""
    entered: list[str] = []

    def another_check(seconds: float) -> None:
        with (
            pytest.raises(Ungradable, match="was not free"),
            lane("shared", folder=tmp_path, patience_s=0),
        ):
            entered.append("check")
        os.close(first)

    first = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(first, fcntl.LOCK_SH)
    with lane("exclusive", folder=tmp_path, sleep=another_check):
        entered.append("timed")
    assert entered == ["timed"]
    with lane("shared", folder=tmp_path, patience_s=0):
        entered.append("check")
    assert entered == ["timed", "check"]


def test_patience_ends_with_a_sentence(tmp_path: Path) -> None:
    now = iter(range(100))
    with (
        lane("exclusive", folder=tmp_path),
        pytest.raises(Ungradable, match="was not free for 5 s"),
        lane("shared", folder=tmp_path, patience_s=5, clock=lambda: next(now), sleep=lambda s: None),
    ):
        pass


def test_a_folder_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    with pytest.raises(Ungradable, match="nowhere cannot be opened"), lane("shared", folder=tmp_path / "nowhere"):
        pass


def test_all_users_of_the_machine_meet_at_one_place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    assert default_folder() == Path("/tmp")
