"""``course lab`` as a process: it answers where it says, on the right Python, and leaves nothing behind."""

import re
import signal
import socket
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from urllib.error import HTTPError

import psutil
import pytest
from jupyter_client import BlockingKernelClient
from jupyter_core.paths import jupyter_runtime_dir
from rooms import Room

from accelerando import catalog


def start_kernel(room: Room) -> BlockingKernelClient:
    """Start a kernel as the browser does, and talk to it past the browser."""
    kernel = room.ask("api/kernels", {"name": "python3"})["id"]
    connection = Path(jupyter_runtime_dir()) / f"kernel-{kernel}.json"
    for attempt in range(5):  # the file is there before the kernel listens, and a client that came too early gives up
        client = BlockingKernelClient()
        try:
            client.load_connection_file(str(connection))
            client.start_channels()
            client.wait_for_ready(timeout=60)
            return client
        except (OSError, ValueError, RuntimeError):
            client.stop_channels()
            time.sleep(1 + attempt)
    raise AssertionError("the kernel does not answer")


def run(client: BlockingKernelClient, code: str) -> str:
    printed: list[str] = []

    def hear(message: dict) -> None:
        if message["msg_type"] == "stream":
            printed.append(message["content"]["text"])

    client.execute_interactive(code, output_hook=hear, timeout=60)
    return "".join(printed)


def test_the_printed_address_answers_with_the_ten_lessons(room: Room) -> None:
    with urllib.request.urlopen(room.address, timeout=60) as answer:
        assert answer.status == 200
        page = answer.read().decode()
    for lesson in catalog.lessons():
        assert f'id="lesson-{lesson.number}"' in page
    assert sum(room.address in line for line in room.lines) == 1, "the address is printed once"


def test_nobody_enters_without_the_token(room: Room) -> None:
    with urllib.request.urlopen(room.address.partition("?")[0], timeout=60) as answer:
        assert "login" in answer.url
    with pytest.raises(HTTPError, match="403"):
        urllib.request.urlopen(f"{room.base}api/contents", timeout=60)


def test_a_learner_sees_none_of_the_teachers_tools(room: Room) -> None:
    with urllib.request.urlopen(f"{room.base}lab?token={room.token}", timeout=60) as answer:
        page = answer.read().decode()
    disabled = re.search(r'"disabledExtensions":\s*\[(.*?)\]', page, re.DOTALL)
    assert disabled is not None
    assert "@jupyter/nbgrader" in disabled[1]
    with pytest.raises(HTTPError, match="404"):
        room.ask("formgrader")


def test_a_kernel_is_this_python_and_knows_the_learners_folder_and_the_course(room: Room) -> None:
    assert list(room.ask("api/kernelspecs")["kernelspecs"]) == ["python3"]
    client = start_kernel(room)
    told = run(
        client,
        "import os, shutil, sys\nfrom accelerando import work\n"
        "print(sys.prefix, work.work_folder(), shutil.which('jupyter'), shutil.which('course'), sep='\\n')",
    ).splitlines()
    client.stop_channels()
    prefix, folder, jupyter, course = told
    assert Path(prefix) == Path(sys.prefix)
    assert Path(folder) == room.folder.resolve()
    assert Path(jupyter).parent == Path(sys.executable).parent
    assert Path(course).name == "course"


def test_ctrl_c_ends_busy_kernels_and_what_they_started(opening: Callable[..., Room], tmp_path: Path) -> None:
    room = opening(tmp_path)
    assert room.address
    client = start_kernel(room)
    client.execute("import subprocess\nsubprocess.Popen(['sleep', '600'])\nwhile True: pass")
    deadline = time.monotonic() + 30
    while not any("sleep" in p.name() for p in room.descendants()) and time.monotonic() < deadline:
        time.sleep(0.1)
    before = room.descendants()
    assert any("sleep" in process.name() for process in before)
    assert room.close() == 0
    client.stop_channels()
    _, alive = psutil.wait_procs(before, timeout=10)
    assert alive == []


def test_a_taken_port_is_refused_in_one_sentence(opening: Callable[..., Room], tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        refused = opening(tmp_path, "--port", str(port))
        assert refused.process.wait(60) == 1
    time.sleep(0.2)
    assert refused.lines == [f"course: port {port} is taken; leave --port away and the course finds a free one\n"]


def test_ctrl_c_before_the_room_is_open_ends_it_without_a_traceback(
    opening: Callable[..., Room], tmp_path: Path
) -> None:
    room = opening(tmp_path)
    deadline = time.monotonic() + 60
    while not room.lines and room.process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    # CPython ends by the signal when the interrupt came inside exec(), as in a dataclass; a shell says 130 then, too.
    assert room.close() in (0, 130, -signal.SIGINT)
    assert "Traceback" not in "".join(room.lines)
