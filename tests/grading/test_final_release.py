"""The learner's notebook of the final, generated from its source: a starter that runs, and no line of the reference."""

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from accelerando import catalog
from accelerando.grading import release, starters
from accelerando.grading.cells import marks_of
from accelerando.grading.manifest import load_manifest
from accelerando.grading.notebooks import read_notebook, write_notebook
from accelerando.grading.quiz_answers import with_right_answers

ROOT = Path(__file__).parents[2]
SIZE_CAP_BYTES = 12_000


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("assessment")
    release.generate([catalog.final()], ROOT, folder)
    return folder


def answers(path: Path) -> dict[str, str]:
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return {marks_of(cell)["grade_id"]: "".join(cell["source"]) for cell in cells if marks_of(cell)}


def test_learner_gets_the_starter_and_blanks_for_the_rest(released: Path) -> None:
    source, blank = (answers(place) for place in (ROOT / "solutions/final/final.ipynb", released / "final/final.ipynb"))
    assert blank["final-train"] == starters.starter_of(source["final-train"])
    for question in catalog.final().questions:
        if not question.is_timed:
            assert "raise NotImplementedError()" in blank[question.id.replace(".", "-")]
    assert "SOLUTION" not in json.dumps(blank)
    assert "STARTER" not in json.dumps(blank)


def test_manifest_holds_all_points_and_one_answer_for_three_tiers(released: Path) -> None:
    manifest = load_manifest(catalog.final(), released)
    assert manifest.points == catalog.final().points == sum(question.points for question in manifest.questions)
    assert [q.id for q in manifest.questions if q.solution == "final-train"] == [
        "final.train", "final.train_further", "final.train_furthest",
    ]  # fmt: skip


@pytest.mark.parametrize("version", [starters.starter_of, starters.solution_of], ids=["starter", "reference"])
def test_version_fits_under_the_size_cap_and_learns(version) -> None:
    source = answers(ROOT / "solutions/final/final.ipynb")
    text = version(source["final-train"])
    assert len(gzip.compress(text.encode())) < SIZE_CAP_BYTES / 3
    names: dict = {}
    exec(source["setup"] + "\n" + text, names)
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, 600)
    images = (rng.random((600, 28, 28)) * 120).astype(np.uint8)
    images[labels == 1, :, 8:20] += 100
    images[labels == 2, 8:20] += 100
    names["prepare"]([512, 28, 28], 3)
    names["train"](images[:512], labels[:512], 60.0)
    scores = names["predict"](images[512:])
    assert (scores.shape, scores.dtype) == ((88, 3), np.float32)
    assert (scores.argmax(1) == labels[512:]).mean() > 0.8


def test_quiz_answers_of_the_reference_follow_the_lessons_that_are_built() -> None:
    source, _ = read_notebook(ROOT / "solutions/final/final.ipynb")
    assert with_right_answers(source) == source, "run ./course build"
    stale = json.loads(json.dumps(source).replace('\\"scaling.price\\": \\"a\\"', '\\"gone.question\\": \\"d\\"'))
    assert stale != source
    assert with_right_answers(stale) == source


def test_rewriting_the_source_changes_nothing_but_the_answers(tmp_path: Path) -> None:
    """Otherwise `build` would show a whole notebook as changed."""
    source, _ = read_notebook(ROOT / "solutions/final/final.ipynb")
    write_notebook(tmp_path / "final.ipynb", source)
    assert (tmp_path / "final.ipynb").read_bytes() == (ROOT / "solutions/final/final.ipynb").read_bytes()


def test_published_final_is_what_the_source_makes(released: Path) -> None:
    for name in ("final.ipynb", "manifest.json"):
        assert (ROOT / "assessment/final" / name).read_bytes() == (released / "final" / name).read_bytes(), name
