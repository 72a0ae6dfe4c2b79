"""Where the output goes must not decide whether a command ends well."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

PRINTS = "from accelerando import cli; cli.app = lambda **_: print({text}, flush={flush}); cli.main()"


def run(text: str, flush: bool = True, **more: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", PRINTS.format(text=text, flush=flush)]
    return subprocess.run(command, stderr=subprocess.PIPE, text=True, timeout=60, check=False, **more)  # type: ignore[call-overload]


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_signs_that_the_terminal_lacks_are_spelled_out(encoding: str) -> None:
    done = run(r"'\u2717 caf\udce9'", stdout=subprocess.PIPE, env={**os.environ, "PYTHONIOENCODING": encoding})
    assert (done.returncode, done.stderr) == (0, "")
    assert r"caf\udce9" in done.stdout


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no full device")
@pytest.mark.parametrize("flush", [True, False])
def test_a_full_disk_is_one_sentence(flush: bool) -> None:
    with open("/dev/full", "w") as full:
        done = run("'report'", flush, stdout=full)
    assert done.returncode == 74
    assert done.stderr == "course: the output cannot be written: No space left on device\n"


def test_a_reader_that_has_gone_is_no_traceback() -> None:
    incoming, outgoing = os.pipe()
    os.close(incoming)
    try:
        done = run("'report' * 10**6", stdout=outgoing)
    finally:
        os.close(outgoing)
    assert "Traceback" not in done.stderr
    assert done.returncode != 0
