"""Running a lesson: outputs are stored with what made them, a failing one changes nothing, no kernel stays."""

import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from tiny_lab import TINY

from accelerando import machine
from accelerando.grading import authoring, lesson_run
from accelerando.grading.cells import new_cell, new_notebook
from accelerando.grading.lesson_run import LessonFailed, check_lesson, notebook_path, run_lesson
from accelerando.grading.notebooks import Unreadable, read_notebook, write_notebook

CELLS = [
    "import os, sys\nprint(os.environ['ACCELERANDO_BUDGET'], sys.executable)\nhere = os.getcwd()",
    "open('left', 'w').close()\nos.path.exists(os.path.join(here, 'left'))",
]
FAILING = "def divide(n):\n    return 1 / n\n\n\ndivide(0)"


@pytest.fixture(autouse=True)
def _machine(monkeypatch: pytest.MonkeyPatch) -> None:
    found = SimpleNamespace(
        model="A CPU", architecture="x86_64", usable_cores=2, simd="AVX2", memory_bytes=2**34, gpus=()
    )
    monkeypatch.setattr(machine, "probe", lambda: found)


def lesson_in(root: Path, *sources: str) -> Path:
    cells = [new_cell("text", source="# A tiny lesson"), *(new_cell("plain", source=source) for source in sources)]
    path = notebook_path(TINY, root)
    write_notebook(path, new_notebook(cells))
    module = root / "src" / "accelerando" / "lessons" / "tiny.py"
    module.parent.mkdir(parents=True)
    module.write_text("x = 1\n")
    return path


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkout whose lesson has just run."""
    root = tmp_path_factory.mktemp("checkout")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lesson_run, "_machine", lambda: {"model": "A CPU"})
        lesson_in(root, *CELLS)
        told: list[tuple[int, int, str]] = []
        run = run_lesson(TINY, root=root, progress=lambda *step: told.append(step))
    assert (run.cells, run.is_stored, run.remarks) == (2, True, ())
    assert [step[:2] for step in told] == [(0, 2), (1, 2), (2, 2)]
    assert told[0][2] == "import os, sys"
    return root


def test_outputs_come_from_this_python_in_a_folder_of_their_own(stored: Path) -> None:
    notebook, _ = read_notebook(notebook_path(TINY, stored))
    first, second = notebook["cells"][1:]
    assert first["outputs"][0]["text"][0].startswith("quick <environment>/bin/")
    assert second["outputs"][0]["data"]["text/plain"] == ["True"]
    assert (first["execution_count"], second["execution_count"]) == (1, 2)
    assert not list(stored.rglob("left"))


def test_the_notebook_says_by_what_its_outputs_were_made(stored: Path) -> None:
    stamp = read_notebook(notebook_path(TINY, stored))[0]["metadata"]["accelerando"]
    assert stamp["machine"] == {"model": "A CPU"}
    assert stamp["budget"] == "quick"
    assert stamp["versions"]["python"] == sys.version.split()[0]
    assert check_lesson(TINY, stored) == []


def test_no_path_of_this_machine_is_stored(stored: Path) -> None:
    text = notebook_path(TINY, stored).read_text()
    assert str(stored) not in text
    assert sys.prefix not in text
    assert str(Path.home()) not in text


def test_changed_code_is_found(stored: Path, tmp_path: Path) -> None:
    notebook, _ = read_notebook(notebook_path(TINY, stored))
    lesson_in(tmp_path)
    (tmp_path / "src" / "accelerando" / "lessons" / "tiny.py").write_text("x = 1\n")

    def problems() -> list[str]:
        write_notebook(notebook_path(TINY, tmp_path), notebook)
        return check_lesson(TINY, tmp_path)

    assert problems() == []
    notebook["cells"][0]["source"] = "# Better words"
    assert problems() == [], "prose may change freely"
    notebook["cells"][1]["source"] += "\nprint(1)"
    assert "its code was changed" in problems()[0]
    (tmp_path / "src" / "accelerando" / "lessons" / "tiny.py").write_text("x = 2\n")
    assert "lessons/tiny or its quiz was changed" in problems()[1]
    notebook["metadata"]["accelerando"]["budget"] = "smoke"
    assert "of a smoke run" in problems()[2]
    del notebook["metadata"]["accelerando"]
    assert "has no stored run" in problems()[0]


def test_a_failing_cell_is_shown_and_the_file_stays(
    tmp_path: Path, new_children: Callable[[], list[psutil.Process]]
) -> None:
    path = lesson_in(tmp_path, "x = 1", FAILING)
    before = path.read_bytes()
    with pytest.raises(LessonFailed) as failure:
        run_lesson(TINY, root=tmp_path)
    assert str(failure.value).startswith("cell 3 failed: ZeroDivisionError: division by zero")
    assert "return 1 / n" in str(failure.value)
    assert path.read_bytes() == before
    assert new_children() == []


def test_a_kernel_that_dies_is_named(tmp_path: Path) -> None:
    lesson_in(tmp_path, "x = 1", "import os\nos._exit(3)")
    with pytest.raises(LessonFailed, match="cell 3 failed: the kernel died"):
        run_lesson(TINY, root=tmp_path)


def test_an_unknown_budget_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="smoke, quick, full"):
        run_lesson(TINY, "fast", root=tmp_path)  # type: ignore[arg-type]


def test_a_missing_notebook_is_named(tmp_path: Path) -> None:
    with pytest.raises(Unreadable, match=r"99_tiny\.ipynb: there is no such file"):
        check_lesson(TINY, tmp_path)


def test_the_command_tells_an_unknown_lab_from_a_failing_cell(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert authoring.lesson_command("nonsense", "quick", False) == 2
    assert "there is no lab 'nonsense'" in capsys.readouterr().err

    def fail(*arguments: object, **named: object) -> None:
        raise LessonFailed("cell 3 failed: ValueError")

    monkeypatch.setattr(authoring, "run_lesson", fail)
    monkeypatch.setattr(authoring, "notebook_path", lambda lesson: Path(__file__))
    assert authoring.lesson_command("1", "quick", False) == 1
    assert "cell 3 failed: ValueError" in capsys.readouterr().err
