"""What a learner's worker can see: the command lines for bubblewrap, and for a plain child where there is none."""

import glob
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

Choice = Literal["auto", "plain"]
PACKAGE = Path(__file__).resolve().parents[1]
HIDDEN = ("checks", "grading", "quizzes", "data")  # parts of the package that no worker sees
SEEN_ETC = ("ld.so.cache", "ld.so.conf", "ld.so.conf.d", "alternatives", "localtime", "nsswitch.conf", "hosts")
_COURSE = "/course"  # where the package stands inside the sandbox
_SCRATCH = "/scratch"
_USER_ID = "1000"


@dataclass(frozen=True)
class Start:
    """How to start a worker."""

    command: tuple[str, ...]
    environment: dict[str, str]
    scratch: Path | None  # a folder on disk that must be gone afterwards; None when it lives in memory


def describe(choice: Choice = "auto") -> str:
    """``isolated by bubblewrap``, or ``not isolated: …`` with the reason."""
    reason = _why_no_bubblewrap() if choice == "auto" else "a plain process was asked for"
    return f"not isolated: {reason}" if reason else "isolated by bubblewrap"


def start(
    choice: Choice,
    *,
    masked: Sequence[str],
    pipes: tuple[int, int],
    lifeline: int,
    scratch: Path,
    file_bytes: int,
    processes: int,
    environment: dict[str, str],
) -> Start:
    """Say how to start a worker.

    Args:
        choice: ``auto`` takes bubblewrap where it works.
        masked: Modules of the package that the learner's code must not reach.
        pipes: Descriptors that the worker reads requests from and writes replies to.
        lifeline: Descriptor whose end tells the warden of a plain worker that the grader is gone.
        scratch: Folder for a plain worker; the warden makes and removes it.
        file_bytes: Largest file, and size of the scratch inside bubblewrap.
        processes: Most processes and threads.
        environment: Further variables.
    """
    is_jailed = choice == "auto" and not _why_no_bubblewrap()
    hidden = (*(f"{PACKAGE.name}.{part}" for part in HIDDEN[:3]), *masked)
    options = {
        "pipes": pipes,
        "masked": hidden,
        "file_bytes": file_bytes,
        "processes": processes + _tasks_of_this_user(),
        "package_parent": _COURSE if is_jailed else str(PACKAGE.parent),
    }
    home = _SCRATCH if is_jailed else str(scratch)
    variables = {
        "PATH": f"{sys.prefix}/bin:/usr/local/bin:/usr/bin:/bin",
        "HOME": home,
        "TMPDIR": home,
        "USER": "learner",
        "LOGNAME": "learner",
        "LANG": "C.UTF-8",
        "MPLBACKEND": "Agg",
        "PYTHONDONTWRITEBYTECODE": "1",
        **environment,
    }
    python = (sys.executable, "-P", "-s")
    here = Path(__file__).parent
    worker = ((f"{_COURSE}/worker.py" if is_jailed else str(here / "worker.py")), json.dumps(options))
    if is_jailed:
        cage = _bubblewrap(masked, file_bytes)
        return Start((*cage, "--", *python, *worker), variables, None)
    numbers = ",".join(map(str, pipes))
    warden = (*python, str(here / "warden.py"), str(lifeline), str(scratch), numbers)
    return Start((*warden, *python, *worker), variables, scratch)


def visible(folder: Path, hidden: Sequence[str], module: str = PACKAGE.name) -> Iterator[Path]:
    """The files and folders of the package that together are all of it except the ``hidden`` modules."""
    for entry in sorted(folder.iterdir()):
        name = f"{module}.{entry.stem if entry.is_file() else entry.name}"
        if entry.name == "__pycache__" or name in hidden:
            continue
        if entry.is_dir() and any(other.startswith(f"{name}.") for other in hidden):
            yield from visible(entry, hidden, name)
        else:
            yield entry


def _bubblewrap(masked: Sequence[str], scratch_bytes: int) -> list[str]:
    command = [*_basic_jail(), "--new-session", "--die-with-parent", "--hostname", "lab"]
    # Folders of their own, not links to the scratch: the course itself may lie below /tmp, and is bound there.
    # They live in memory that no process owns, so those that nothing needs are small.
    for folder, share in (("/dev/shm", 1), (_SCRATCH, 1), ("/tmp", 16), ("/var/tmp", 16)):
        command += ["--size", str(scratch_bytes // share), "--tmpfs", folder]
    command += ["--chdir", _SCRATCH, "--ro-bind-try", "/sys/devices/system", "/sys/devices/system"]
    for name in SEEN_ETC:
        command += ["--ro-bind-try", f"/etc/{name}", f"/etc/{name}"]
    masks = _masks("/usr")
    command += _over(masks)
    for folder in sorted(_python_folders(), key=len):  # what lies in another comes after that, and after its masks
        command += ["--ro-bind", folder, folder, *_over(_masks(folder))]
        masks += _masks(folder)
    for data in glob.glob("/usr/share/datasets"):
        command += ["--tmpfs", data, "--remount-ro", data]
    hidden = [f"{PACKAGE.name}.{part}" for part in HIDDEN] + list(masked)
    for entry in visible(PACKAGE, hidden):
        command += ["--ro-bind", str(entry), f"{_COURSE}/{PACKAGE.name}/{entry.relative_to(PACKAGE)}"]
    command += ["--ro-bind", str(PACKAGE / "grading" / "worker.py"), f"{_COURSE}/worker.py"]
    # Only the scratch can be written, and that has a size.
    return [*command, *(word for place in (*masks, "/dev", "/") for word in ("--remount-ro", place))]


def _masks(bound: str) -> list[str]:
    """What must not be seen of the course where it lies in a folder that was bound: all of it, or the package."""
    places = [PACKAGE.parents[1]] if PACKAGE.parent.name == "src" else []
    return [str(place) for place in (*places, PACKAGE) if place.is_relative_to(bound)][:1]


def _over(masks: Sequence[str]) -> list[str]:
    return [word for place in masks for word in ("--tmpfs", place)]


def _basic_jail() -> list[str]:
    command = [
        shutil.which("bwrap") or "bwrap",
        "--unshare-all",
        "--unshare-user",
        "--uid",
        _USER_ID,
        "--gid",
        _USER_ID,
    ]
    command += ["--ro-bind", "/usr", "/usr"]
    for folder in ("/bin", "/sbin", *glob.glob("/lib*")):
        if os.path.islink(folder):
            command += ["--symlink", os.readlink(folder), folder]
        elif os.path.isdir(folder):
            command += ["--ro-bind", folder, folder]
    return [*command, "--proc", "/proc", "--dev", "/dev"]


def _python_folders() -> list[str]:
    """The environment, and the interpreter that it was made from, where they are not seen with ``/usr``."""
    executable = Path(sys.executable).resolve()
    candidates = dict.fromkeys([sys.prefix, sys.base_prefix, str(executable.parents[1])])
    masked = _masks("/usr")

    def is_seen(folder: str) -> bool:
        return Path(folder).is_relative_to("/usr") and not any(Path(folder).is_relative_to(place) for place in masked)

    return [folder for folder in candidates if not is_seen(folder)]


@cache
def _why_no_bubblewrap() -> str:
    """Empty when it works here; else the reason, as a person reads it."""
    if sys.platform != "linux":
        return "bubblewrap exists on Linux only"
    if shutil.which("bwrap") is None:
        return "bubblewrap is not installed (on Debian and Ubuntu: `apt install bubblewrap`)"
    try:
        run = subprocess.run(
            [*_basic_jail(), "--size", "4096", "--tmpfs", "/scratch", "true"],
            capture_output=True,
            text=True,
            timeout=20,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"bubblewrap does not start here ({error})"
    if run.returncode:
        return f"bubblewrap does not work here ({(run.stderr.strip().splitlines() or ['no reason given'])[0]})"
    return ""


def _tasks_of_this_user() -> int:
    """Processes and threads: older kernels count all of a user's together, inside a jail too, and so must a limit."""
    import psutil

    own, total = os.getuid(), 0
    for process in psutil.process_iter(["uids", "num_threads"]):
        uids = process.info["uids"]
        if uids and uids.real == own:
            total += process.info["num_threads"] or 1
    return total
