"""The learner's files: copied once, never overwritten, kept when reset."""

import json
import os
from pathlib import Path

import pytest

from accelerando import catalog, copies, work

LESSON = catalog.find("scaling")
NOTEBOOK = f"notebooks/{LESSON.folder}.ipynb"
DATA = f"labs/{LESSON.folder}/data.csv"
LAB = f"labs/{LESSON.folder}/{LESSON.folder}.ipynb"


def notebook(*sources: str, output: str | None = None) -> str:
    outputs = [{"output_type": "stream", "name": "stdout", "text": output}] if output else []
    cells = [
        {"cell_type": "code", "source": s, "outputs": outputs, "metadata": {}, "execution_count": None} for s in sources
    ]
    return json.dumps({"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5})


@pytest.fixture
def course(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A course with lesson 1 and its lab; the learner's folder is its work/."""
    root = tmp_path / "course"
    for name, text in {
        NOTEBOOK: notebook("1 + 1"),
        LAB: notebook("raise NotImplementedError"),
        f"labs/{LESSON.folder}/manifest.json": "{}",
        DATA: "a,b",
        f"labs/{LESSON.folder}/.ipynb_checkpoints/old.ipynb": "old",
    }.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    monkeypatch.setattr(work, "checkout", lambda: root)
    monkeypatch.delenv(work.ENVIRONMENT_NAME, raising=False)
    return root


def test_the_variable_moves_the_learners_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(work.ENVIRONMENT_NAME, str(tmp_path / "elsewhere"))
    assert work.work_folder() == tmp_path / "elsewhere"
    monkeypatch.setenv(work.ENVIRONMENT_NAME, " ")
    assert work.work_folder() == work.checkout() / "work"


def test_prepare_copies_notebooks_and_labs_but_no_manifest_and_no_checkpoints(course: Path) -> None:
    prepared = work.prepare()
    assert set(prepared.copied) == {NOTEBOOK, LAB, DATA}
    assert prepared.newer == ()
    for name in prepared.copied:
        assert (course / "work" / name).read_bytes() == (course / name).read_bytes()


def test_stored_outputs_do_not_tell_a_learner_before_they_have_guessed(course: Path) -> None:
    (course / NOTEBOOK).write_text(notebook("x = 1", output="Measured: 40 %"))
    work.prepare()
    own = json.loads((course / "work" / NOTEBOOK).read_text())
    assert [cell["outputs"] for cell in own["cells"]] == [[]]
    assert [cell["source"] for cell in own["cells"]] == ["x = 1"]


def test_a_second_prepare_touches_nothing(course: Path) -> None:
    work.prepare()
    mine = course / "work" / LAB
    mine.write_text(notebook("my answer"))
    before = {p: (p.read_bytes(), p.stat().st_mtime_ns) for p in (course / "work").rglob("*.ipynb")}
    assert work.prepare().copied == ()
    assert {p: (p.read_bytes(), p.stat().st_mtime_ns) for p in (course / "work").rglob("*.ipynb")} == before


def test_a_copy_may_be_written_even_if_the_course_may_not(course: Path) -> None:
    (course / LAB).chmod(0o444)
    work.prepare()
    assert (course / "work" / LAB).stat().st_mode & 0o200


def test_a_deleted_copy_comes_back(course: Path) -> None:
    work.prepare()
    (course / "work" / LAB).unlink()
    assert work.prepare().copied == (LAB,)


def test_a_newer_course_version_is_told_and_not_copied(course: Path) -> None:
    work.prepare()
    (course / "work" / LAB).write_text(notebook("my answer"))
    (course / LAB).write_text(notebook("raise NotImplementedError  # a better question"))
    prepared = work.prepare()
    assert prepared.newer == (work.Newer(LESSON, ("lab",)),)
    assert prepared.renewed == ()
    assert "my answer" in (course / "work" / LAB).read_text()


def test_a_newer_lesson_alone_is_told_and_its_reset_leaves_the_lab(course: Path) -> None:
    work.prepare()
    for name in (NOTEBOOK, LAB):
        (course / "work" / name).write_text(notebook("mine"))
    (course / NOTEBOOK).write_text(notebook("2 + 2"))
    (newer,) = work.prepare().newer
    assert newer.parts == ("lesson",)
    assert "`course reset 1 --lesson` brings it" in newer.sentence()
    kept = work.reset(LESSON, newer.parts)
    assert kept is not None
    assert [p.name for p in kept.rglob("*") if p.is_file()] == [f"{LESSON.folder}.ipynb"]
    assert "2 + 2" in (course / "work" / NOTEBOOK).read_text()
    assert "mine" in (course / "work" / LAB).read_text()


def test_an_untouched_copy_is_renewed_when_the_course_moves_on(course: Path) -> None:
    work.prepare()
    (course / NOTEBOOK).write_text(notebook("2 + 2", output="4"))
    (course / DATA).write_text("a,b,c")
    prepared = work.prepare()
    assert set(prepared.renewed) == {NOTEBOOK, DATA}
    assert prepared.newer == prepared.copied == ()
    assert json.loads((course / "work" / NOTEBOOK).read_text())["cells"][0]["outputs"] == []
    assert (course / "work" / DATA).read_text() == "a,b,c"
    assert work.prepare().renewed == ()
    (course / NOTEBOOK).write_text(notebook("3 + 3"))
    assert work.prepare().renewed == (NOTEBOOK,)


def test_outputs_of_the_learners_own_run_are_not_renewed_away(course: Path) -> None:
    work.prepare()
    (course / "work" / NOTEBOOK).write_text(notebook("1 + 1", output="my measurement"))
    (course / NOTEBOOK).write_text(notebook("2 + 2"))
    prepared = work.prepare()
    assert prepared.renewed == ()
    assert prepared.newer == (work.Newer(LESSON, ("lesson",)),)
    assert "my measurement" in (course / "work" / NOTEBOOK).read_text()


def test_a_copy_that_came_to_say_what_the_course_says_is_untouched_from_then_on(course: Path) -> None:
    work.prepare()
    for place in (course / "work" / LAB, course / LAB):
        place.write_text(notebook("what both say"))
    assert work.prepare().newer == ()
    (course / LAB).write_text(notebook("a better question"))
    assert work.prepare().renewed == (LAB,)


def test_running_a_notebook_does_not_make_it_an_older_version(course: Path) -> None:
    work.prepare()
    (course / "work" / NOTEBOOK).write_text(notebook("1 + 1", output="2"))
    (course / NOTEBOOK).write_text(notebook("1 + 1", output="two"))
    assert work.find_newer(LESSON) is None


def test_an_edited_copy_of_the_current_version_is_not_called_old(course: Path) -> None:
    work.prepare()
    (course / "work" / LAB).write_text(notebook("my answer"))
    assert work.find_newer(LESSON) is None


def test_a_damaged_receipt_costs_only_the_notice(course: Path) -> None:
    work.prepare()
    (course / "work" / copies.RECEIPT).write_text("{]")
    (course / "work" / LAB).write_text(notebook("my answer"))
    (course / LAB).write_text(notebook("another"))
    assert work.prepare().newer == ()
    assert "my answer" in (course / "work" / LAB).read_text()


def test_reset_keeps_what_the_learner_wrote_and_added(course: Path) -> None:
    work.prepare()
    (course / "work" / LAB).write_text(notebook("my answer"))
    extra = course / "work" / "labs" / LESSON.folder / "helper.py"
    extra.write_text("x = 1")
    kept = work.reset(LESSON)
    assert kept is not None
    assert kept.is_relative_to(course / "work" / "kept")
    assert "my answer" in (kept / LAB).read_text()
    assert (kept / "labs" / LESSON.folder / "helper.py").read_text() == "x = 1"
    assert (course / "work" / LAB).read_bytes() == (course / LAB).read_bytes()
    assert not extra.exists()


def test_two_resets_in_one_second_keep_both(course: Path) -> None:
    work.prepare()
    kept = []
    for answer in ("first", "second"):
        (course / "work" / LAB).write_text(notebook(answer))
        kept.append(work.reset(LESSON))
    assert ["first" in (k / LAB).read_text() for k in kept if k] == [True, False]


def test_reset_of_untouched_copies_keeps_nothing(course: Path) -> None:
    work.prepare()
    assert work.reset(LESSON) is None
    assert not (course / "work" / "kept").exists()


def test_reset_brings_the_newer_version_and_ends_the_notice(course: Path) -> None:
    work.prepare()
    (course / LAB).write_text(notebook("a better question"))
    assert work.find_newer(LESSON) == work.Newer(LESSON, ("lab",))
    assert work.reset(LESSON) is None  # an older version that nobody touched is not worth keeping
    assert work.find_newer(LESSON) is None
    assert "better" in (course / "work" / LAB).read_text()


def test_reset_of_a_lesson_not_built_says_so(course: Path) -> None:
    with pytest.raises(work.WorkError, match=r"lesson 2 \(compilation\) has no notebook"):
        work.reset(catalog.find("2"))


def test_the_learners_lab_comes_before_the_untouched_one_and_a_given_file_before_both(course: Path) -> None:
    assert work.find_notebook(LESSON) == course / LAB
    work.prepare()
    assert work.find_notebook(LESSON) == course / "work" / LAB
    other = course / "other.ipynb"
    other.write_text("{}")
    assert work.find_notebook(LESSON, other) == other


def test_a_given_folder_means_the_notebook_in_it(course: Path) -> None:
    assert work.find_notebook(LESSON, course / "labs" / LESSON.folder) == course / LAB
    empty = course / "empty"
    empty.mkdir()
    with pytest.raises(work.WorkError, match="holds no notebook"):
        work.find_notebook(LESSON, empty)


def test_a_renamed_notebook_is_found_when_it_is_the_only_one(course: Path) -> None:
    work.prepare()
    renamed = (course / "work" / LAB).with_name("mine.ipynb")
    (course / "work" / LAB).rename(renamed)
    assert work.find_notebook(LESSON) == renamed


def test_a_lab_that_is_nowhere_names_the_places(course: Path) -> None:
    with pytest.raises(work.WorkError, match="02_compilation"):
        work.find_notebook(catalog.find("2"))
    with pytest.raises(work.WorkError, match="there is no file"):
        work.find_notebook(LESSON, course / "no.ipynb")


def test_a_file_in_the_way_of_a_folder_is_explained(course: Path) -> None:
    (course / "work").write_text("not a folder")
    with pytest.raises(work.WorkError, match=work.ENVIRONMENT_NAME):
        work.prepare()


@pytest.mark.parametrize("interrupted_at", [1, 2, 3])
def test_an_interrupted_prepare_leaves_no_half_file_and_is_completed_later(
    course: Path, monkeypatch: pytest.MonkeyPatch, interrupted_at: int
) -> None:
    replace, calls = os.replace, 0

    def interrupted(source: str, target: Path) -> None:
        nonlocal calls
        calls += 1
        if calls == interrupted_at:
            raise KeyboardInterrupt
        replace(source, target)

    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        work.prepare()
    files = [p for p in (course / "work").rglob("*") if p.is_file()]
    assert [p for p in files if p.name.startswith(".")] == []
    monkeypatch.setattr(os, "replace", replace)
    assert len(work.prepare().copied) == 3 - len(files)
    (course / LAB).write_text(notebook("a better question"))
    assert work.prepare().renewed == (LAB,)


def test_paths_in_the_learners_folder_are_the_learners(course: Path) -> None:
    assert work.is_learners(course / "work" / LAB)
    assert not work.is_learners(course / LAB)
    assert not work.is_learners(course / "work" / ".." / LAB)
