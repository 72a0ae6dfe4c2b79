"""``./course lab`` and ``./course reset``: the learner's copies, then JupyterLab in this very process.

JupyterLab runs here and not in a child, so that Ctrl-C, a closed terminal and a kill all end one process; it then ends
its kernels, and a kernel whose server died ends itself.
"""

import os
import secrets
import shlex
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import catalog, copies, work
from .quiet import errors_to, last_line

if TYPE_CHECKING:
    from jupyter_server.serverapp import ServerApp

HOST_VARIABLE = "ACCELERANDO_HOST"  # 0.0.0.0 in a container whose port is published
_FIRST_PORT = 8888
_PORTS_TRIED = 100
_SHORTCUT_MARK = "# Written by `course lab`: leads to the course's own launcher."
_EXTENSION = "accelerando.room.extension"
# nbgrader's own server parts are for instructors: formgrader, course lists, assignment lists.
_NOT_FOR_LEARNERS = ("formgrader", "validate_assignment", "assignment_list", "course_list")


def lab_command(browser: bool, port: int | None) -> int:
    """Copy what is new into the learner's folder, then run JupyterLab until Ctrl-C.

    Args:
        browser: Whether to open the learner's browser on the landing page.
        port: Where to listen; None takes a free one from 8888 upwards.

    Returns:
        0 after a regular end, 1 when the room could not be opened (a sentence said why), 130 when Ctrl-C came first.
    """
    try:
        return _open(browser, port)
    except work.WorkError as error:
        return _fail(str(error))
    except KeyboardInterrupt:  # before the server could hear it
        _say("\nClosed before it was open.")
        return 130


def reset_command(lab: str, only: Collection[str] = ()) -> int:
    """Give the learner fresh copies of a lesson's notebook and lab, keeping dated ones of theirs.

    Args:
        lab: As `catalog.find` takes it.
        only: "lesson" for the notebook alone, "lab" for the lab alone; both when left out.

    Returns:
        0, or 1 when there is nothing to copy or no such lab, 2 when the lab's name is unknown.
    """
    parts = tuple(part for part in work.PARTS if part in only) or work.PARTS
    try:
        lesson = catalog.find(lab)
    except catalog.UnknownLab as error:
        return _fail(str(error), code=2)
    try:
        kept = work.reset(lesson, parts)
    except work.WorkError as error:
        return _fail(str(error))
    where = f"; yours is kept in {_short(kept)}" if kept else ""
    what = _named(lesson, parts)
    is_both = bool(lesson.number) and len(parts) > 1
    _say(f"{what} {'are' if is_both else 'is'} fresh again in {_short(work.work_folder())}{where}.")
    return 0


def _named(lesson: catalog.Lesson, parts: tuple[work.Part, ...]) -> str:
    return f"{' and '.join(parts).capitalize()} {lesson.number} ({lesson.slug})" if lesson.number else "The final"


def is_free(port: int) -> bool:
    """Whether a server could listen on this port."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((_host(), port))
        except OSError:
            return False
    return True


def _open(browser: bool, port: int | None) -> int:
    prepared = work.prepare()
    if port is not None and not is_free(port):
        raise work.WorkError(f"port {port} is taken; leave --port away and the course finds a free one")
    _tell_prepared(prepared)
    write_shortcut(prepared.folder)
    return _serve(prepared.folder, browser, port)


def _serve(folder: Path, browser: bool, port: int | None) -> int:
    _set_environment(folder)
    options = _options(folder, browser, port)
    log = folder / ".room" / "server.log"
    with errors_to(log):
        failure = _run_server(options, log)
    return 0 if failure is None else _fail(f"{failure}; more in {log}")


def _run_server(options: list[str], log: Path) -> str | None:
    """Run JupyterLab until it is stopped; returns what went wrong, if something did."""
    from jupyterlab.labapp import LabApp

    application: Any = LabApp
    try:
        server: ServerApp = application.initialize_server(argv=options)
    except SystemExit:  # it logged why
        return f"JupyterLab did not start: {last_line(log)}"
    except Exception as error:
        traceback.print_exc()  # into the log
        return f"JupyterLab did not start: {error}"
    with _stops_on_signals(lambda: server.stop(from_signal=True)):
        server.start()
    failure: str | None = server.web_app.settings.get("accelerando_failure")
    return failure


def _host() -> str:
    return os.environ.get(HOST_VARIABLE, "").strip() or "127.0.0.1"


def write_shortcut(folder: Path) -> None:
    """Make ``./course check 1`` work in JupyterLab's terminals, which start in the learner's folder.

    A file of that name that is not ours, or a folder that cannot be written, is left alone.
    """
    shortcut = folder / "course"
    text = f'#!/bin/sh\n{_SHORTCUT_MARK}\nexec {shlex.quote(str(work.checkout() / "course"))} "$@"\n'
    try:
        if shortcut.exists() and _SHORTCUT_MARK not in shortcut.read_text(encoding="utf-8", errors="replace"):
            return
        copies.replace_with_bytes(shortcut, text.encode())
        shortcut.chmod(0o755)
    except OSError:
        return


def _set_environment(folder: Path) -> None:
    """What kernels and terminals inherit: the environment's programs, ``course`` itself, the learner's folder."""
    places = [str(Path(sys.executable).parent), str(work.checkout()), os.environ.get("PATH", os.defpath)]
    os.environ["PATH"] = os.pathsep.join(places)
    os.environ[work.ENVIRONMENT_NAME] = str(folder)
    os.environ["JUPYTER_PREFER_ENV_PATH"] = "1"  # else a kernel in the user's home could take the name python3


def _options(folder: Path, browser: bool, port: int | None) -> list[str]:
    """JupyterLab's options; given here they win over the learner's own configuration files."""
    is_root = hasattr(os, "geteuid") and os.geteuid() == 0
    if is_root:
        _say("You are root: fine in a container; elsewhere, better use an account of your own.")
    extensions = {_EXTENSION: True} | {f"nbgrader.server_extensions.{name}": False for name in _NOT_FOR_LEARNERS}
    return [
        f"--ServerApp.root_dir={folder}",
        f"--ServerApp.ip={_host()}",
        f"--ServerApp.port={port or _FIRST_PORT}",
        f"--ServerApp.port_retries={0 if port else _PORTS_TRIED}",
        f"--ServerApp.open_browser={browser}",
        f"--ServerApp.allow_root={is_root}",
        f"--ServerApp.jpserver_extensions={extensions}",
        "--Application.log_level=ERROR",
        "--ServerApp.answer_yes=True",  # Ctrl-C means it, also in the second before our own handler stands
        f"--IdentityProvider.token={secrets.token_hex(16)}",
        "--KernelSpecManager.allowed_kernelspecs=python3",
        "--LabApp.default_url=/accelerando",
        "--LabApp.extension_manager=readonly",  # offers no packages, so asks no network
        "--LabApp.news_url=None",
        "--LabApp.check_for_updates_class=jupyterlab.handlers.announcements.NeverCheckForUpdate",
        f"--LabApp.workspaces_dir={folder / '.room' / 'workspaces'}",
        f"--LabApp.extra_labextensions_path={Path(__file__).with_name('labextensions')}",
    ]


class _stops_on_signals:  # noqa: N801 - reads as a statement
    """While the block runs, Ctrl-C and the polite signals stop the server at once; a second Ctrl-C ends the process."""

    def __init__(self, stop: Callable[[], None]) -> None:
        self._stop = stop
        self._before: dict[int, Any] = {}

    def __enter__(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            self._before[number] = signal.signal(number, self._on_signal)

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _on_signal(self, number: int, _frame: object) -> None:
        signal.signal(number, signal.SIG_DFL)
        if number != signal.SIGHUP:  # after a hang-up there is nobody to tell
            _say("\nClosing the room: kernels and terminals end; your files are saved as you left them.")
        self._stop()


def _tell_prepared(prepared: work.Prepared) -> None:
    if prepared.copied:
        count = len(prepared.copied)
        _say(f"Copied {count} file{'s'[: count > 1]} into {_short(prepared.folder)}; from now on they are yours.")
    if prepared.renewed:
        count = len(prepared.renewed)
        _say(f"Renewed {count} file{'s'[: count > 1]} that you had not touched: the course has a newer version.")
    for found in prepared.newer:
        _say(f"{_named(found.lesson, found.parts)}: {found.sentence('./course')}")


def _short(path: Path) -> str:
    """The path as seen from the checkout, where it is inside."""
    return f"{path.relative_to(work.checkout())}/" if path.is_relative_to(work.checkout()) else f"{path}/"


def _say(text: str) -> None:
    print(text, flush=True)  # noqa: T201


def _fail(message: str, code: int = 1) -> int:
    print(f"course: {message}", file=sys.stderr)  # noqa: T201
    return code
