"""Whatever happened to a learner's notebook: the right cell is graded, given cells are the released ones."""

import pytest
from tiny_course import ANSWERS, SETUP, Learner, answer, copied, sketch
from tiny_lab import TINY

from accelerando import catalog
from accelerando.grading.cells import new_cell
from accelerando.grading.labs import read_lab
from accelerando.grading.manifest import NoManifest, load_manifest
from accelerando.grading.notebooks import Unreadable

SOLUTIONS = [("solution", question) for question in ANSWERS]
TESTS = [("test", question) for question in ANSWERS]
SOUND = [("setup", None), *SOLUTIONS, *TESTS]
DOUBLE, TOTAL = "tiny-double", "tiny-total"


def test_an_answered_lab_gives_setup_solutions_and_tests_without_a_word(learner: Learner) -> None:
    lab = learner.read(learner.answered())
    assert sketch(lab) == SOUND
    assert [lab.solution(question).source for question in ANSWERS] == [answer(question) for question in ANSWERS]
    assert lab.cells[0].source == SETUP
    assert (lab.missing, lab.warnings) == ((), ())


def test_a_blank_lab_gives_the_same_cells(learner: Learner) -> None:
    lab = learner.read(learner.blank())
    assert sketch(lab) == SOUND
    assert (lab.missing, lab.warnings) == ((), ())
    assert "raise NotImplementedError()" in lab.solution("tiny.double").source


def test_the_solution_notebook_itself_is_read_without_a_word(learner: Learner) -> None:
    lab = read_lab(learner.course.source, TINY, learner.course.manifest)
    assert sketch(lab) == SOUND
    assert lab.warnings == ()


def test_the_learners_own_cells_run_in_their_place(learner: Learner) -> None:
    notebook = learner.answered()
    notebook["cells"].insert(learner.place(notebook, TOTAL), new_cell("plain", source="helper = 1"))
    notebook["cells"].append(new_cell("plain", source="   "))
    lab = learner.read(notebook)
    assert sketch(lab) == [*SOUND[:2], ("plain", None), *SOUND[2:]]
    assert lab.cells[2].source == "helper = 1"
    assert lab.cells[2].name == str(lab.cells[2].index + 1)


def test_a_deleted_solution_cell_is_missing(learner: Learner) -> None:
    notebook = learner.answered()
    del notebook["cells"][learner.place(notebook, DOUBLE)]
    lab = learner.read(notebook)
    assert lab.missing == ("tiny.double",)
    assert lab.solution("tiny.double") is None
    assert sketch(lab) == [cell for cell in SOUND if cell != ("solution", "tiny.double")]
    assert any("cell missing: tiny.double" in warning for warning in lab.warnings)


@pytest.mark.parametrize("grade_id", ["setup", "test-tiny-double"])
def test_a_deleted_given_cell_is_put_back(learner: Learner, grade_id: str) -> None:
    notebook = learner.answered()
    del notebook["cells"][learner.place(notebook, grade_id)]
    lab = learner.read(notebook)
    assert sketch(lab) == SOUND
    assert lab.cells[0].source == SETUP
    assert len(lab.warnings) == 1
    assert f"{grade_id} was deleted: it was put back" in lab.warnings[0]


@pytest.mark.parametrize("grade_id", ["setup", "test-tiny-double"])
def test_an_edited_given_cell_is_replaced_by_the_released_one(learner: Learner, grade_id: str) -> None:
    notebook = learner.answered()
    learner.cell(notebook, grade_id)["source"] = "pass  # check('tiny.double')"
    lab = learner.read(notebook)
    assert sketch(lab) == SOUND
    assert lab.cells[0].source == SETUP
    assert not any("pass" in cell.source for cell in lab.cells)
    assert f"{grade_id} was changed: the original was used" in lab.warnings[0]


def test_blanks_at_line_ends_and_a_comment_after_a_check_are_no_edit(learner: Learner) -> None:
    notebook = learner.answered()
    learner.cell(notebook, "setup")["source"] = SETUP.replace("\n", "  \n") + "\n\n"
    learner.cell(notebook, "test-tiny-double")["source"] = 'check("tiny.double")'
    assert learner.read(notebook).warnings == ()


def test_a_setup_cell_moved_to_the_end_still_runs_first(learner: Learner) -> None:
    notebook = learner.answered()
    notebook["cells"].append(notebook["cells"].pop(learner.place(notebook, "setup")))
    assert sketch(learner.read(notebook)) == SOUND


def test_changed_points_in_the_metadata_change_nothing(learner: Learner) -> None:
    notebook = learner.answered()
    learner.cell(notebook, "test-tiny-double")["metadata"]["nbgrader"]["points"] = 100
    assert learner.read(notebook).warnings == ()
    assert [question.points for question in learner.course.manifest.questions] == [2, 3, 4]


def test_a_pasted_blank_copy_does_not_undo_the_answer(learner: Learner) -> None:
    notebook = learner.answered()
    place = learner.place(notebook, DOUBLE)
    notebook["cells"].insert(place + 2, copied(learner.cell(learner.blank(), DOUBLE)))
    lab = learner.read(notebook)
    assert sketch(lab) == SOUND
    assert lab.solution("tiny.double").source == answer("tiny.double")
    assert f"cell {place + 1} counts" in lab.warnings[0]


def test_the_last_answer_above_the_test_counts_and_others_run_before_it(learner: Learner) -> None:
    notebook = learner.answered()
    place = learner.place(notebook, DOUBLE)
    first, last = "def double(x):\n    return 0", "def double(x):\n    return -1"
    notebook["cells"].insert(place, copied(notebook["cells"][place], source=first))
    notebook["cells"].append(copied(notebook["cells"][place], source=last))
    lab = learner.read(notebook)
    assert sketch(lab) == [SOUND[0], ("plain", None), ("plain", None), *SOUND[1:]]
    assert [cell.source for cell in lab.cells[1:4]] == [first, last, answer("tiny.double")]
    assert "is there 3 times" in lab.warnings[0]


def test_of_a_split_cell_the_half_that_defines_the_function_counts(learner: Learner) -> None:
    notebook = learner.answered()
    place = learner.place(notebook, DOUBLE)
    notebook["cells"].insert(place + 1, copied(notebook["cells"][place], source="print(double(2))"))
    lab = learner.read(notebook)
    assert lab.solution("tiny.double").source == answer("tiny.double")
    assert sketch(lab) == [SOUND[0], SOUND[1], ("plain", None), *SOUND[2:]], "the other half runs after it"


def test_repeated_given_cells_are_used_once(learner: Learner) -> None:
    notebook = learner.answered()
    for grade_id in ("setup", "test-tiny-double"):
        notebook["cells"].append(copied(learner.cell(notebook, grade_id)))
    lab = learner.read(notebook)
    assert sketch(lab) == SOUND
    assert len(lab.warnings) == 2


def test_repeated_cell_ids_move_no_points(learner: Learner) -> None:
    notebook = learner.answered()
    for cell in notebook["cells"]:
        cell["id"] = "same"
    lab = learner.read(notebook)
    assert sketch(lab) == SOUND
    assert [lab.solution(question).source for question in ANSWERS] == [answer(question) for question in ANSWERS]


def test_an_answer_without_its_mark_is_recognised_by_its_name(learner: Learner) -> None:
    notebook = learner.answered()
    learner.cell(notebook, DOUBLE)["metadata"] = {}
    lab = learner.read(notebook)
    assert sketch(lab) == SOUND
    assert "lost its mark" in lab.warnings[0]


def test_a_notebook_whose_metadata_were_stripped_is_still_graded(learner: Learner) -> None:
    notebook = learner.answered()
    for cell in notebook["cells"]:
        cell["metadata"] = {}
    lab = learner.read(notebook)
    assert lab.missing == ()
    assert [lab.solution(question).source for question in ANSWERS] == [answer(question) for question in ANSWERS]


def test_two_answers_merged_into_one_cell_are_both_there(learner: Learner) -> None:
    notebook = learner.answered()
    merged = answer("tiny.double") + "\n\n" + answer("tiny.total")
    learner.cell(notebook, DOUBLE)["source"] = merged
    del notebook["cells"][learner.place(notebook, TOTAL)]
    lab = learner.read(notebook)
    assert lab.missing == ()
    assert lab.solution("tiny.double").source == merged


def test_an_answer_turned_into_text_is_read_as_code(learner: Learner) -> None:
    notebook = learner.answered()
    cell = learner.cell(notebook, DOUBLE)
    cell["cell_type"] = "markdown"
    del cell["outputs"], cell["execution_count"]
    lab = learner.read(notebook)
    assert lab.solution("tiny.double").source == answer("tiny.double")
    assert "was turned into text" in lab.warnings[0]


def test_a_lab_switched_to_another_kernel_is_graded_with_python(learner: Learner) -> None:
    notebook = learner.answered()
    notebook["metadata"]["kernelspec"] = {"name": "ir", "display_name": "R", "language": "R"}
    lab = learner.read(notebook)
    assert sketch(lab) == SOUND
    assert "r kernel" in lab.warnings[0]


def test_a_notebook_in_another_language_is_refused(learner: Learner) -> None:
    notebook = {
        "cells": [new_cell("plain", source="x <- 1")],
        "metadata": {"kernelspec": {"name": "ir", "display_name": "R", "language": "R"}},
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    with pytest.raises(Unreadable, match=r"mine\.ipynb: is a notebook in r"):
        learner.read(notebook)


def test_another_labs_notebook_is_refused_by_name(learner: Learner) -> None:
    notebook = learner.blank()
    notebook["cells"] = [new_cell("text", source="# Another lab")]
    notebook["metadata"]["accelerando"] = {"lab": "07_parallelism", "lab_version": 1}
    with pytest.raises(Unreadable, match="07_parallelism"):
        learner.read(notebook)


def test_a_foreign_notebook_has_all_answers_missing_and_says_so(learner: Learner) -> None:
    notebook = learner.blank()
    notebook["cells"] = [new_cell("plain", source="x = 1")]
    del notebook["metadata"]["accelerando"]
    lab = learner.read(notebook)
    assert lab.missing == tuple(ANSWERS)
    assert len(lab.warnings) == 1, "that all is missing is said once"
    assert "is it the right file?" in lab.warnings[0]


def test_an_older_version_of_the_lab_is_named(learner: Learner) -> None:
    notebook = learner.answered()
    notebook["metadata"]["accelerando"]["lab_version"] = 0
    assert "version 0" in learner.read(notebook).warnings[0]


def test_a_lab_that_was_never_generated_says_what_to_run(learner: Learner) -> None:
    other = catalog.Lesson(98, "other", "Other", "", 1, (), True)
    with pytest.raises(NoManifest, match="course build"):
        load_manifest(other, learner.course.root / "labs")


def test_a_damaged_manifest_says_what_to_run(learner: Learner) -> None:
    labs = learner.path.parent / "labs"
    (labs / TINY.folder).mkdir(parents=True)
    text = learner.course.manifest.as_text()
    for damaged in (text[:100], text.replace("import math", "import moth"), text.replace('"schema": 1', '"schema": 9')):
        (labs / TINY.folder / "manifest.json").write_text(damaged)
        with pytest.raises(NoManifest, match=r"damaged.*course build"):
            load_manifest(TINY, labs)
