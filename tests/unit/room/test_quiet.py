"""Where Jupyter's chatter goes."""

import os
import subprocess
import sys
from pathlib import Path

from accelerando.room.quiet import last_line

PROGRAM = """
import subprocess, sys
from pathlib import Path
from accelerando.room.quiet import errors_to
with errors_to(Path(sys.argv[1])):
    print("own", file=sys.stderr)
    subprocess.run([sys.executable, "-c", "import sys; print('child', file=sys.stderr)"])
print("after", file=sys.stderr)
"""


def test_own_and_childrens_errors_go_to_the_log_and_come_back_to_the_terminal_afterwards(tmp_path: Path) -> None:
    log = tmp_path / "deep" / "server.log"
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(log)], capture_output=True, text=True, env=dict(os.environ)
    )
    assert log.read_text().split() == ["own", "child"]
    assert run.stderr.split() == ["after"]


def test_the_last_line_is_the_last_that_says_something(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_bytes(b"\xff\nfirst\n  [C] no port is free\n\n")
    assert last_line(log) == "[C] no port is free"
    assert last_line(tmp_path / "none") == ""
