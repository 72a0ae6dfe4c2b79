"""The project's own tests, as ``./course test`` runs them: style, types, then pytest."""

import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

from .work import checkout

QUICK_PATHS = ("tests/test_architecture.py", "tests/unit")
PAIRED_PATHS = ("tests/unit", "tests/labs", "tests/lessons")  # two at a time: none of them needs the machine for itself
NEWEST_PATHS = ("tests/lessons", "tests/labs")
_FREED = {"torch", "torchvision"}
_ENDED = {"intel-extension-for-pytorch"}  # its last release, 2.8, refuses every other torch


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
        *([("tests", [*python, "pytest", *QUICK_PATHS])] if quick else _all_tests(python)),
    ]
    for name, command in [("tests", [*python, "pytest", *arguments])] if arguments else steps:
        print(f"== {name}", flush=True)  # noqa: T201
        code = subprocess.run(command, cwd=checkout()).returncode
        if code:
            print(f"course: {name} failed", file=sys.stderr)  # noqa: T201
            return code
    return 0


def _all_tests(python: Sequence[str]) -> list[tuple[str, list[str]]]:
    others = [f"--ignore={path}" for path in PAIRED_PATHS]
    pytest = [*python, "pytest", "--durations=20"]
    return [
        ("tests of parts, lessons and labs, two at a time", [*pytest, "-n", "2", *PAIRED_PATHS]),
        ("tests of engines, grading and pages", [*pytest, *others]),
    ]


def newest_command(arguments: Sequence[str]) -> int:
    """Run the lessons and labs with the newest torch, without IPEX, in an environment of its own (``.venv-newest``).

    Args:
        arguments: For pytest, in place of the tests of lessons and labs.

    Returns:
        The exit code of the installer if that failed, else pytest's.
    """
    root = checkout()
    environment = root / ".venv-newest"
    python = environment / ("Scripts" if os.name == "nt" else "bin") / "python"
    wanted = newest_requirements(root / "pyproject.toml")
    if uv := shutil.which("uv"):
        make = [uv, "venv", "--no-project", "--quiet", "--python", sys.executable, str(environment)]
        install = [uv, "pip", "install", "--quiet", "--upgrade", "--compile-bytecode", "--python", str(python)]
    else:
        make = [sys.executable, "-m", "venv", str(environment)]
        install = [str(python), "-m", "pip", "install", "--quiet", "--upgrade", "--disable-pip-version-check"]
    steps = [
        *([] if python.exists() else [("environment (about 8 GB)", make)]),
        ("newest packages", [*install, *wanted]),
        ("course", [*install, "--no-deps", "--no-build-isolation", "--editable", str(root)]),
        ("versions", [str(python), "-c", "import torch; print('torch', torch.__version__)"]),
        ("tests", [str(python), "-m", "pytest", *(arguments or NEWEST_PATHS)]),
    ]
    # Programs of this environment (nbgrader, mpirun) must not be found before the newest one's.
    found = os.pathsep.join([str(python.parent), os.environ.get("PATH", "")])
    for name, command in steps:
        print(f"== {name}", flush=True)  # noqa: T201
        code = subprocess.run(
            command, cwd=root, env=os.environ | {"VIRTUAL_ENV": str(environment), "PATH": found}
        ).returncode
        if code:
            print(f"course: {name} failed", file=sys.stderr)  # noqa: T201
            return code
    return 0


def newest_requirements(pyproject: Path) -> list[str]:
    """List the course's dependencies with torch set free and without what has ended with torch 2.8."""
    from packaging.requirements import Requirement
    from packaging.specifiers import SpecifierSet

    found = []
    for line in tomllib.loads(pyproject.read_text(encoding="utf-8"))["project"]["dependencies"]:
        requirement = Requirement(line)
        if requirement.name in _FREED:
            requirement.specifier = SpecifierSet()
        if requirement.name not in _ENDED:
            found.append(str(requirement))
    return found
