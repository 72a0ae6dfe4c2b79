"""Where clusters are while they are up: one folder each, in a folder that only their user can enter."""

import contextlib
import fcntl
import os
import re
import shutil
import socket
import stat
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from accelerando.plain_errors import PlainError

LIMIT_S = 20.0
NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,15}")
KEPT: list[subprocess.Popen[bytes]] = []
"""Keepers that this process started: their input stays open, and they are buried when they end."""

_TOOLS = "/usr/local/sbin:/usr/sbin:/sbin"  # not on the PATH of ordinary users


class ClusterError(PlainError):
    """The cluster cannot do that; one sentence says why."""


def root() -> Path:
    """Return this user's folder for clusters; nobody else can enter it.

    Raises:
        ClusterError: If it belongs to somebody else.
    """
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    base = Path(runtime) if runtime and os.access(runtime, os.W_OK) else Path(tempfile.gettempdir())
    folder = base / f"accelerando-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise ClusterError(f"{folder} is not a folder that only you can enter: remove it")
    return folder


@contextlib.contextmanager
def locked() -> Iterator[Path]:
    """Let one process at a time make a cluster."""
    folder = root()
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield folder


def is_gone(folder: Path, limit_s: float = 0.0, *, has_lock: bool = False) -> bool:
    """Whether a cluster has ended; removes the folder of one whose keeper was killed.

    Args:
        folder: Of the cluster.
        limit_s: How long to wait for its end.
        has_lock: The caller is inside `locked`. If not, a folder that somebody is just filling is left alone.
    """
    deadline_s = time.monotonic() + limit_s
    while folder.exists():
        for keeper in KEPT:
            keeper.poll()
        try:
            connected(folder).close()
        except ClusterError:
            if not _is_alive(folder) and (has_lock or _remove_unless_locked(folder)):
                shutil.rmtree(folder, ignore_errors=True)
                return not folder.exists()
        if time.monotonic() >= deadline_s:
            return False
        time.sleep(0.05)
    return True


def _remove_unless_locked(folder: Path) -> bool:
    with (folder.parent / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        if not _is_alive(folder):
            shutil.rmtree(folder, ignore_errors=True)
        return not folder.exists()


def _is_alive(folder: Path) -> bool:
    try:
        pid = int((folder / "keeper.pid").read_text(encoding="ascii"))
        return str(folder).encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
    except (OSError, ValueError):
        return False


def address(folder: Path) -> str:
    """Return where the holder listens."""
    path = str(folder / "socket")
    if len(path.encode()) > 107:
        raise ClusterError(f"{folder} is too long a path for a socket: set TMPDIR to a shorter one")
    return path


def connected(folder: Path) -> socket.socket:
    """Connect to the holder.

    Raises:
        ClusterError: If it is not there.
    """
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        connection.settimeout(LIMIT_S)
        connection.connect(address(folder))
    except OSError as error:
        connection.close()
        raise ClusterError("the cluster is no longer up") from error
    return connection


def path() -> str:
    """Return the PATH with the folders of system programs."""
    return f"{os.environ.get('PATH', os.defpath)}:{_TOOLS}"


@contextlib.contextmanager
def tools_on_path() -> Iterator[None]:
    """Let programs of the system be found within a block."""
    before = os.environ.get("PATH")
    os.environ["PATH"] = path()
    try:
        yield
    finally:
        if before is None:
            del os.environ["PATH"]
        else:
            os.environ["PATH"] = before


def first_processes(keeper: int) -> dict[str, int]:
    """Find each node's first process among the keeper's descendants, as this process numbers them."""
    found: dict[str, int] = {}
    waiting = [keeper]
    while waiting:
        pid = waiting.pop()
        with contextlib.suppress(OSError):
            words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
            if "accelerando.cluster.node" in words and "unshare" not in words[0]:
                found[words[words.index("accelerando.cluster.node") + 1]] = pid
            children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii")
            waiting += map(int, children.split())
    return found
