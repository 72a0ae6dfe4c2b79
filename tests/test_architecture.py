"""The rules of the design: imports point down, one door per outside thing, importing does nothing."""

import ast
import os
import pkgutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import accelerando

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "accelerando"

# Who may import what. A door is a module or a folder of the package.
DOORS = {
    "matplotlib": {"figures/"},
    "ipywidgets": {"widgets/"},
    "psutil": {"machine.py", "workers.py", "ranks/", "grading/"},
    "subprocess": {
        "backends/oneccl/",
        "cluster/",
        "machine.py",
        "programs.py",
        "workers.py",
        "ranks/",
        "grading/",
        "ledger.py",
        "room/",
        "testing.py",
    },
    "nbformat": {"grading/"},
    "nbclient": {"grading/"},
    "nbgrader": {"grading/"},
    "nni": {"lessons/pruning"},
    "intel_extension_for_pytorch": {"lessons/cpu"},
    "pickle": set(),
}
# Modules that a quick command imports: they must not bring torch with them.
LIGHT = (
    "cli",
    "catalog",
    "cards",
    "machine",
    "submission",
    "wire",
    "work",
    "logbook",
    "readers",
    "doctor",
    "room",
    "testing",
)


def sources() -> Iterator[Path]:
    return PACKAGE.rglob("*.py")


def modules() -> list[str]:
    return sorted(
        info.name
        for info in pkgutil.walk_packages([str(PACKAGE)], "accelerando.")
        if not info.name.endswith("__main__")
    )


def imported(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            found.add(node.module.partition(".")[0])
    return found


def test_imports_point_down() -> None:
    run = subprocess.run(
        [sys.executable, "-c", "from importlinter.cli import lint_imports_command as go; go()", "--no-cache"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stdout + run.stderr


@pytest.mark.parametrize("library", DOORS)
def test_an_outside_thing_has_one_door(library: str) -> None:
    for path in sources():
        place = path.relative_to(PACKAGE).as_posix()
        if library in imported(path):
            assert any(place.startswith(door) for door in DOORS[library]), f"{place} imports {library}"


def test_importing_a_module_does_nothing() -> None:
    program = """
import importlib, os, random, sys, threading
before = dict(os.environ), random.getstate(), os.getcwd()
for name in sys.argv[1:]:
    importlib.import_module(name)
    after = dict(os.environ), random.getstate(), os.getcwd()
    assert after == before, f"importing {name} changed the environment, the seed or the folder"
    children = open(f"/proc/self/task/{os.getpid()}/children").read() if os.path.exists("/proc/self/task") else ""
    assert not children.split(), f"importing {name} started a process"
    assert threading.active_count() == 1, f"importing {name} started a thread"
"""
    environment = os.environ | {"PYTHONDONTWRITEBYTECODE": "1"}
    run = subprocess.run([sys.executable, "-c", program, *modules()], capture_output=True, text=True, env=environment)
    assert run.returncode == 0, run.stderr
    assert run.stdout == ""
    assert run.stderr == ""


def test_quick_commands_do_not_import_torch() -> None:
    names = [f"accelerando.{name}" for name in LIGHT]
    program = (
        "import importlib, sys\nfor name in sys.argv[1:]:\n    importlib.import_module(name)\n"
        "    assert 'torch' not in sys.modules, name"
    )
    run = subprocess.run([sys.executable, "-c", program, *names], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr


def test_every_module_says_what_it_is_for() -> None:
    silent = [p.relative_to(PACKAGE).as_posix() for p in sources() if not ast.get_docstring(ast.parse(p.read_text()))]
    assert silent == []


def test_notebooks_define_nothing_and_download_nothing() -> None:
    import json

    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
        assert len(cells) <= 40, f"{path.name} has {len(cells)} cells"
        for source in code:
            assert source.count("\n") < 15, f"{path.name}: a cell of {source.count(chr(10)) + 1} lines:\n{source}"
            for word in ("%pip", "!pip", "sys.path", "import *", "wget", "curl", "\nclass "):
                assert word not in source, f"{path.name}: {word} in\n{source}"


def test_no_file_names_a_registry_or_a_path_of_this_machine() -> None:
    files = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    # Written in pieces, so that this file does not find itself.
    forbidden = ["/work" + "/main", "/root" + "/", "index" + "-url", "pypi" + ".org/simple", "files.python" + "hosted"]
    for name in filter(None, files.split("\0")):
        path = ROOT / name
        if not path.is_file() or path.suffix in (".npz", ".webp", ".png", ".bin", ".xz", ".gz"):
            continue
        text = path.read_text(encoding="utf-8", errors="replace")
        for words in forbidden:
            assert words not in text, f"{name} holds {words!r}"


def test_version_stands_once() -> None:
    import tomllib

    assert tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"] == accelerando.__version__
