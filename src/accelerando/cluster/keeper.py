"""The process that a cluster is: it starts the holder, and removes the cluster's folder when that ends.

``python -m accelerando.cluster.keeper FOLDER SOCKET`` with the listening socket's number, started by `virtual.up`. Its
standard input tells whether to stay: while nobody has written ``keep``, its end is the cluster's end.
"""

import json
import os
import select
import shutil
import signal
import subprocess
import sys
from pathlib import Path

from accelerando.cluster import marks

_LAST_S = 10.0


def main() -> None:
    """Hold the holder: it ends with this process, and this process cleans up after it."""
    folder, server = Path(sys.argv[1]), int(sys.argv[2])
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(0))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    spec = json.loads((folder / "cluster.json").read_text(encoding="utf-8"))
    source, sink = os.pipe()
    holder = None
    try:
        with (folder / "holder.log").open("wb") as log:
            holder = subprocess.Popen(
                [*spec["unshare"], sys.executable, "-P", "-m", "accelerando.cluster.holder", str(folder), str(server)],
                stdin=source,
                stderr=log,
                pass_fds=(server,),
            )
        os.close(source)
        os.close(server)
        _wait(holder)
    finally:
        os.close(sink)  # the holder ends when it reads the end of its input
        if holder is not None:
            try:
                holder.wait(_LAST_S)
            except subprocess.TimeoutExpired:
                holder.kill()  # unshare: its namespaces' first process goes with it
                holder.wait()
        if not spec["unshare"]:
            marks.end(spec["id"])
        shutil.rmtree(folder, ignore_errors=True)


def _wait(holder: subprocess.Popen[bytes]) -> None:
    is_kept = False
    while holder.poll() is None:
        if is_kept:
            holder.wait()
        elif select.select([0], [], [], 0.1)[0]:
            if not os.read(0, 64).startswith(b"keep"):
                return
            is_kept = True
            nothing = os.open(os.devnull, os.O_RDWR)
            for descriptor in (0, 1, 2):
                os.dup2(nothing, descriptor)


if __name__ == "__main__":
    main()
