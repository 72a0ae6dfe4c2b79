"""A cluster's caller when there is none, or it goes away or is busy in the middle of a question: one sentence."""

import contextlib
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from accelerando import cluster
from accelerando.cluster import commands, hosts, making, places, virtual

needs_linux = pytest.mark.skipif(sys.platform != "linux", reason="virtual clusters need Linux")
Holder = Callable[[socket.socket], object]


def hang_up_unread(connection: socket.socket) -> None:
    """What was sent lies unread: the caller's next word or look finds the connection reset."""
    connection.recv(1, socket.MSG_PEEK)


def never_answer(connection: socket.socket) -> None:
    connection.recv(1 << 16)
    connection.recv(1)  # until the caller gives up


@contextlib.contextmanager
def holder(behave: Holder, folder: Path) -> Iterator[cluster.Cluster]:
    """A cluster whose holder does just that with each caller."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
        server.bind(places.address(folder))
        server.listen()

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = server.accept()
                    with connection:
                        behave(connection)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield cluster.Cluster("c", hosts.make_nodes(1), hosts.Link(None, 0.0), False, None, os.getpid(), folder)
        server.shutdown(socket.SHUT_RDWR)
        thread.join(5)


@needs_linux
@pytest.mark.parametrize(
    ("behave", "sentence"),
    [
        (hang_up_unread, "no longer up"),
        (lambda connection: connection.recv(1 << 16), "it ended meanwhile"),
        (never_answer, "busy: no answer within 0.2 s"),
    ],
)
def test_a_question_that_finds_no_answer_ends_in_a_sentence(
    behave: Holder, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(places, "LIMIT_S", 0.2)
    with holder(behave, tmp_path) as made:
        with pytest.raises(cluster.ClusterError, match=sentence):
            made.ask({"op": "status"})
        monkeypatch.setattr(cluster, "connect", lambda name: made)
        assert commands.status_command("c", as_json=False) == 1
    assert sentence in capsys.readouterr().err


@needs_linux
def test_ctrl_c_while_a_cluster_is_made_leaves_no_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[subprocess.Popen[bytes]] = []

    def start(*words: Any, **options: Any) -> subprocess.Popen[bytes]:
        waits = [sys.executable, "-c", "import sys; sys.stdin.read()"]
        started.append(subprocess.Popen(waits, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
        return started[0]

    def interrupted(*words: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(making, "subprocess", SimpleNamespace(**{**vars(subprocess), "Popen": start}))
    monkeypatch.setattr(making, "select", SimpleNamespace(select=interrupted))
    with pytest.raises(KeyboardInterrupt):
        making._start(tmp_path, outlives_caller=False)
    assert started[0].poll() == 0


@needs_linux
def test_down_waits_for_the_end_also_when_its_order_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Deaf(socket.socket):
        def sendall(self, *_: object) -> None:
            raise BrokenPipeError

    with holder(lambda connection: None, tmp_path) as made:
        monkeypatch.setattr(places, "connected", lambda folder: Deaf(socket.AF_UNIX, socket.SOCK_SEQPACKET))
        waited: list[Path] = []
        monkeypatch.setattr(places, "is_gone", lambda folder, limit_s: not waited.append(folder))
        made.down()
    assert waited == [tmp_path]


def test_a_cluster_whose_folder_is_being_filled_or_emptied_is_no_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(places, "root", lambda: tmp_path)
    monkeypatch.setattr(places, "is_gone", lambda folder: False)
    (tmp_path / "c").mkdir()
    for text in (None, "", "{}"):
        if text is not None:
            (tmp_path / "c" / "cluster.json").write_text(text)
        with pytest.raises(cluster.ClusterError, match="coming up or going down"):
            virtual.connect("c")


@pytest.mark.parametrize("system", ["darwin", "win32"])
def test_without_linux_there_is_no_cluster_and_the_reason_is_said(
    system: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "platform", system)
    for as_loopback in (True, False):
        with pytest.raises(cluster.ClusterError, match="need Linux"):
            cluster.up(2, as_loopback=as_loopback)
    assert commands.up_command(2, None, None, False, "c", 1.0, False) == 1
    assert "need Linux" in capsys.readouterr().err
