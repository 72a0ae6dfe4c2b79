"""The project's own tests, as ``./course test`` runs them: style, types, then pytest."""

import subprocess
import sys
from collections.abc import Sequence

from .work import checkout

QUICK_PATHS = ("tests/test_architecture.py", "tests/unit")


def test_command(quick: bool, arguments: Sequence[str]) -> int:
    """Run everything, or with ``quick`` the unit tests only; further arguments go to pytest.

    Returns:
        0 when all passed, else the exit code of the first step that failed.
    """
    python = [sys.executable, "-m"]
    steps = [
        ("style", [*python, "ruff", "check", "."]),
        ("format", [*python, "ruff", "format", "--check", "."]),
        ("types", [*python, "mypy"]),
        ("tests", [*python, "pytest", *(QUICK_PATHS if quick and not arguments else ()), *arguments]),
    ]
    for name, command in steps[3:] if arguments else steps:
        print(f"== {name}", flush=True)  # noqa: T201
        code = subprocess.run(command, cwd=checkout()).returncode
        if code:
            print(f"course: {name} failed", file=sys.stderr)  # noqa: T201
            return code
    return 0
