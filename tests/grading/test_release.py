"""``./course build``: what nbgrader makes of a source, what is refused, and that nothing lands anywhere else."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tiny_course import ANSWERS, Course, Learner, solution, source_notebook
from tiny_lab import TINY

from accelerando import catalog
from accelerando.grading.cells import Notebook, new_cell, source_hash
from accelerando.grading.notebooks import read_notebook
from accelerando.grading.release import NotReleasable, _differences
from accelerando.grading.sources import find_leaks, find_problems

cell_of, place_of = Learner.cell, Learner.place


@pytest.fixture(autouse=True)
def _catalog(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalog, "lessons", lambda: (TINY,))


def test_the_lab_shows_stubs_where_solutions_were(built: Course) -> None:
    notebook, warnings = read_notebook(built.lab)
    assert warnings == ()
    assert len(notebook["cells"]) == len(source_notebook()["cells"])
    for question in ANSWERS:
        text = cell_of(notebook, question.replace(".", "-"))["source"]
        assert text.endswith("    # YOUR CODE HERE\n    raise NotImplementedError()")
        assert '"""What to do."""' in text
    assert "the very answer" not in built.lab.read_text()


def test_given_cells_cannot_be_edited_and_answers_not_deleted(built: Course) -> None:
    notebook, _ = read_notebook(built.lab)
    for grade_id in ("setup", "test-tiny-double"):
        assert cell_of(notebook, grade_id)["metadata"]["editable"] is False
    assert cell_of(notebook, "tiny-double")["metadata"]["deletable"] is False


def test_points_come_from_the_catalog(built: Course) -> None:
    notebook, _ = read_notebook(built.lab)
    for question in TINY.questions:
        test = cell_of(notebook, "test-" + question.id.replace(".", "-"))
        assert test["metadata"]["nbgrader"]["points"] == question.points
        assert test["source"] == f'check("{question.id}")  # {question.points} points'


def test_the_manifest_says_what_was_released(built: Course) -> None:
    manifest, notebook = built.manifest, read_notebook(built.lab)[0]
    assert (manifest.lab, manifest.lab_version, manifest.points) == ("99_tiny", 1, 9)
    assert [(question.id, question.points) for question in manifest.questions] == [
        ("tiny.double", 2),
        ("tiny.total", 3),
        ("tiny.quick", 4),
    ]
    assert [cell.kind for cell in manifest.locked] == ["setup", "test", "test", "test"]
    for question in manifest.questions:
        assert question.blank_sha256 == source_hash(cell_of(notebook, question.solution)["source"])


def test_only_the_lab_and_its_manifest_appear(built: Course) -> None:
    made = {str(path.relative_to(built.root)) for path in built.root.rglob("*") if path.is_file()}
    lab = f"labs/{TINY.folder}"
    assert made - {f"solutions/{TINY.folder}/{TINY.folder}.ipynb"} == {
        "nbgrader_config.py",
        f"{lab}/{TINY.folder}.ipynb",
        f"{lab}/manifest.json",
    }


def test_building_again_changes_no_byte_and_no_date(built: Course) -> None:
    before = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in built.lab.parent.iterdir()}
    assert built.build() == []
    assert built.build(check=True) == []
    assert before == {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in built.lab.parent.iterdir()}


def test_stale_points_in_the_source_make_no_difference(built: Course, tmp_path: Path) -> None:
    source = source_notebook()
    cell_of(source, "test-tiny-double")["metadata"]["nbgrader"]["points"] = 77
    cell_of(source, "test-tiny-double")["source"] = 'check("tiny.double")  # 77 points'
    del cell_of(source, "test-tiny-total")["metadata"]["nbgrader"]["points"]
    source["metadata"]["kernelspec"]["display_name"] = "the author's own"
    course = _copy(built, tmp_path, source)
    course.build()
    assert course.lab.read_bytes() == built.lab.read_bytes()


def test_an_edited_lab_is_found_with_its_cell_and_made_anew(built: Course, tmp_path: Path) -> None:
    course = _copy(built, tmp_path, source_notebook())
    course.build()
    notebook = json.loads(course.lab.read_text())
    notebook["cells"][3]["source"] = ["edited"]
    course.lab.write_text(json.dumps(notebook))
    (course.lab.parent / "stray.py").write_text("")
    expected = ["labs/99_tiny/99_tiny.ipynb: cell 4 differs (source)", "labs/99_tiny/stray.py: left over"]
    for found, start in zip(course.build(check=True), expected, strict=True):
        assert found.startswith(start)
    course.build()
    assert course.lab.read_bytes() == built.lab.read_bytes()
    assert not (course.lab.parent / "stray.py").exists()


def test_support_files_are_copied(built: Course, tmp_path: Path) -> None:
    course = _copy(built, tmp_path, source_notebook())
    (course.source.parent / "data").mkdir()
    (course.source.parent / "data" / "table.csv").write_text("a,b\n1,2\n")
    (course.source.parent / ".ipynb_checkpoints").mkdir()
    (course.source.parent / ".ipynb_checkpoints" / "99_tiny-checkpoint.ipynb").write_text("{}")
    course.build()
    assert (course.lab.parent / "data" / "table.csv").read_text() == "a,b\n1,2\n"
    assert not (course.lab.parent / ".ipynb_checkpoints").exists()


def test_a_leak_in_a_support_file_stops_the_release(built: Course, tmp_path: Path) -> None:
    course = _copy(built, tmp_path, source_notebook())
    (course.source.parent / "helper.py").write_text("def f(values):\n        return sum(values) # the very answer\n")
    with pytest.raises(NotReleasable, match=r"labs/99_tiny/helper\.py: shows a line of the solution in cell 7"):
        course.build()
    assert not course.lab.exists()


def test_a_line_that_the_source_shows_anyway_is_no_leak() -> None:
    source = source_notebook()
    shown = [cell["source"] for cell in source["cells"] if "SOLUTION" not in cell["source"]]
    assert find_leaks(source, {"lab": "\n".join(shown)}) == []
    assert find_leaks(source, {"lab": "x\n   return  sum( values )  # the very answer"}) != []
    source["cells"].append(new_cell("text", source=f"As we know: {ANSWERS['tiny.total']}"))
    assert find_leaks(source, {"lab": ANSWERS["tiny.total"]}) == []


def edit(grade_id: str, **changes: Any) -> Callable[[Notebook], None]:
    return lambda notebook: cell_of(notebook, grade_id).update(changes)


def drop(grade_id: str) -> Callable[[Notebook], None]:
    def remove(notebook: Notebook) -> None:
        del notebook["cells"][place_of(notebook, grade_id)]

    return remove


def rename(old: str, new: str) -> Callable[[Notebook], None]:
    return lambda notebook: cell_of(notebook, old)["metadata"]["nbgrader"].update(grade_id=new)


def swap(notebook: Notebook) -> None:
    a, b = place_of(notebook, "tiny-double"), place_of(notebook, "test-tiny-double")
    notebook["cells"][a], notebook["cells"][b] = notebook["cells"][b], notebook["cells"][a]


OUTPUT = {"output_type": "stream", "name": "stdout", "text": "42"}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (rename("tiny-total", "tiny-double"), "the grade id 'tiny-double' stands in cells 4 and 7"),
        (rename("tiny-total", "tiny-totall"), "no question for the solution 'tiny-totall'"),
        (rename("test-tiny-total", "test-total"), "no question for the test 'test-total'"),
        (drop("tiny-total"), "the question tiny.total of the catalog has no cell 'tiny-total'"),
        (drop("test-tiny-total"), "no cell 'test-tiny-total'"),
        (drop("setup"), "no set-up cell"),
        (swap, "the test of tiny.double stands above its solution"),
        (edit("test-tiny-double", source='check("tiny.total")'), 'must be exactly check("tiny.double")'),
        (edit("test-tiny-double", source='x = 1\ncheck("tiny.double")'), 'must be exactly check("tiny.double")'),
        (edit("tiny-double", source="def double(x):\n    return 2 * x"), "has no ### BEGIN SOLUTION"),
        (edit("tiny-double", outputs=[OUTPUT]), "cell 4: outputs were left in"),
        (edit("tiny-double", source=solution("tiny.double")[:-20]), "without END SOLUTION"),
        (lambda nb: nb["metadata"].update(kernelspec={"name": "ir", "language": "R"}), "speaks r, not Python"),
        (
            lambda nb: cell_of(nb, "tiny-double")["metadata"]["nbgrader"].update(grade=True, points=1),
            "graded by a person",
        ),
    ],
)
def test_a_source_that_is_not_in_order_is_refused(change: Callable[[Notebook], None], words: str) -> None:
    source = source_notebook()
    assert find_problems(source, TINY) == []
    change(source)
    problems = find_problems(source, TINY)
    assert any(words in problem for problem in problems), problems


def test_a_refused_source_is_named_and_leaves_the_labs_alone(built: Course, tmp_path: Path) -> None:
    course = _copy(built, tmp_path, source_notebook())
    course.build()
    before = course.lab.read_bytes()
    broken = source_notebook()
    drop("tiny-total")(broken)
    course.write_source(broken)
    with pytest.raises(NotReleasable, match=r"solutions/99_tiny/99_tiny\.ipynb, the question tiny\.total"):
        course.build()
    assert course.lab.read_bytes() == before


def test_a_built_lesson_without_a_source_is_named(built: Course, tmp_path: Path) -> None:
    course = _copy(built, tmp_path, source_notebook())
    course.source.unlink()
    with pytest.raises(NotReleasable, match="no such file"):
        course.build()


def test_differences_name_missing_and_superfluous_cells(tmp_path: Path) -> None:
    for folder, count in (("made", 2), ("labs", 3)):
        (tmp_path / folder).mkdir()
        cells = [{"cell_type": "raw", "source": []}] * count
        (tmp_path / folder / "a.ipynb").write_text(json.dumps({"cells": cells}))
    assert _differences(tmp_path / "made", tmp_path / "labs") == {"a.ipynb": "has 3 cells instead of 2"}


def _copy(built: Course, root: Path, source: Notebook) -> Course:
    course = Course(root)
    (root / "nbgrader_config.py").write_bytes((built.root / "nbgrader_config.py").read_bytes())
    course.write_source(source)
    return course
