"""Opening the room, without opening it: ports, options, signals, sentences."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from accelerando import catalog, work
from accelerando.room import launch, reset_command


def test_a_port_somebody_listens_on_is_not_free() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        assert not launch.is_free(port)
    assert launch.is_free(port)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_polite_signal_stops_the_server_once_and_a_second_ends_the_process(number: int) -> None:
    stopped: list[bool] = []
    before = signal.getsignal(number)
    with launch._stops_on_signals(lambda: stopped.append(True)):
        os.kill(os.getpid(), number)
        assert stopped == [True]
        assert signal.getsignal(number) == signal.SIG_DFL
    assert signal.getsignal(number) == before


def test_a_given_port_is_that_port_and_no_other(tmp_path: Path) -> None:
    options = launch._options(tmp_path, browser=False, port=1234)
    assert "--ServerApp.port=1234" in options
    assert "--ServerApp.port_retries=0" in options
    assert "--ServerApp.port_retries=0" not in launch._options(tmp_path, browser=False, port=None)


def test_each_room_has_a_token_of_its_own(tmp_path: Path) -> None:
    tokens = {
        o for _ in range(2) for o in launch._options(tmp_path, False, None) if o.startswith("--IdentityProvider.token=")
    }
    assert len(tokens) == 2


def test_reset_of_an_unknown_lab_names_the_labs(capsys: pytest.CaptureFixture[str]) -> None:
    assert reset_command("11") == 2
    assert "1 (scaling)" in capsys.readouterr().err


def test_reset_says_where_yours_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lesson = catalog.find("1")
    lab = Path("labs") / lesson.folder / f"{lesson.folder}.ipynb"
    (tmp_path / lab).parent.mkdir(parents=True)
    (tmp_path / lab).write_text("{}")
    monkeypatch.setattr(work, "checkout", lambda: tmp_path)
    monkeypatch.delenv(work.ENVIRONMENT_NAME, raising=False)
    work.prepare()
    (tmp_path / "work" / lab).write_text("my answer")
    assert reset_command("scaling") == 0
    told = capsys.readouterr().out
    [kept] = (tmp_path / "work" / "kept").iterdir()
    assert "Lesson and lab 1 (scaling) are fresh again" in told
    assert f"work/kept/{kept.name}/" in told
    assert reset_command("2") == 1
    assert "no notebook and no lab" in capsys.readouterr().err


def test_a_newer_lesson_is_told_with_the_way_to_get_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    newer = work.Newer(catalog.find("1"), ("lesson",)), work.Newer(catalog.final(), ("lab",))
    launch._tell_prepared(work.Prepared(tmp_path, ("a", "b"), ("c",), newer))
    told = capsys.readouterr().out.splitlines()
    assert told[0].startswith("Copied 2 files")
    assert told[1].startswith("Renewed 1 file that you had not touched")
    assert told[2].startswith("Lesson 1 (scaling): The course has a newer lesson; yours was left alone.")
    assert "`./course reset 1 --lesson`" in told[2]
    assert "`./course reset final`" in told[3]


def test_the_shortcut_leads_to_the_launcher_and_keeps_a_file_of_the_learners(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    course = tmp_path / "the course"
    course.mkdir()
    (course / "course").write_text('#!/bin/sh\necho "$0" "$@"\n')
    (course / "course").chmod(0o755)
    monkeypatch.setattr(work, "checkout", lambda: course)
    launch.write_shortcut(tmp_path)
    run = subprocess.run(["./course", "check", "1 2"], cwd=tmp_path, capture_output=True, text=True)
    assert run.stdout == f"{course}/course check 1 2\n"
    (tmp_path / "course").write_text("my own notes")
    launch.write_shortcut(tmp_path)
    assert (tmp_path / "course").read_text() == "my own notes"


def test_the_host_can_be_named_for_containers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(launch.HOST_VARIABLE, raising=False)
    assert "--ServerApp.ip=127.0.0.1" in launch._options(tmp_path, False, None)
    monkeypatch.setenv(launch.HOST_VARIABLE, "0.0.0.0")
    assert "--ServerApp.ip=0.0.0.0" in launch._options(tmp_path, False, None)


@pytest.mark.parametrize(("way", "told"), [("exit", "no port is free"), ("raise", "bad configuration")])
def test_a_jupyter_that_cannot_start_says_why_and_where_more_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], way: str, told: str
) -> None:
    class Broken:
        @staticmethod
        def initialize_server(argv: list[str]) -> None:
            if way == "raise":
                raise ValueError(told)
            sys.stderr.write(f"[C] {told}\n")
            raise SystemExit(1)

    monkeypatch.setattr("jupyterlab.labapp.LabApp", Broken)
    monkeypatch.setattr(launch, "_set_environment", lambda folder: None)
    monkeypatch.setattr(sys, "stderr", os.fdopen(os.dup(2), "w"))
    assert launch._serve(tmp_path, False, None) == 1
    sys.stderr.flush()
    errors = capfd.readouterr().err
    assert "course: JupyterLab did not start: " in errors
    assert errors.rstrip().endswith("server.log")
