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


if __name__ == "__main__":
    main()
