"""The first process of a node: everything on the node lives as long as it does.

``python -m accelerando.cluster.node NAME``, started by the holder inside fresh namespaces.
"""

import os
import signal
import socket
import subprocess
import sys


def main() -> None:
    """Take the host name, give the node its own shared memory, then only bury orphans until the holder is gone."""
    socket.sethostname(sys.argv[1])
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", "/dev/shm"], check=True)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the system buries them at once
    os.write(1, b"ready\n")
    os.close(1)
    while os.read(0, 4096):
        pass


if __name__ == "__main__":
    main()
