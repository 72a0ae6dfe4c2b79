"""What runs on a node in the cluster's tests, without torch: says where it is, then does what it is told."""

import os
import socket
import sys
import time


def main() -> None:
    sys.stdout.write(f"{socket.gethostname()} rank {os.environ.get('RANK')}\n")
    sys.stdout.flush()
    match sys.argv[1:]:
        case ["sleep"]:
            time.sleep(600)
        case ["raise"] if os.environ["RANK"] == "1":
            raise ValueError("no luck on rank one")
        case ["raise"]:
            time.sleep(600)
        case ["flood", megabytes]:
            for _ in range(int(megabytes)):
                os.write(1, b"x" * 2**20)


def where(base: int) -> dict:
    number = base + int(os.environ["RANK"])
    return {"host": socket.gethostname(), "number": number, "temporary": os.environ["TMPDIR"]}


def fails_together(lost: str) -> dict:
    """Of two ranks, raise once the other one is lost (then the file is there); alone, say where."""
    if os.environ["WORLD_SIZE"] == "1":
        return where(0)
    sys.stdout.write("together\n")
    sys.stdout.flush()
    while not os.path.exists(lost):
        time.sleep(0.05)
    raise ConnectionResetError("the other one is gone")


if __name__ == "__main__":
    main()
