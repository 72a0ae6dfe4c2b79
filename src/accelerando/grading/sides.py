"""What each side of the final runs: its set-up and answer cells, and nothing else of a notebook."""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from .. import catalog, work
from ..catalog import Lesson
from . import starters
from .cells import marks_of, solution_grade_id
from .labs import LabCell, LabNotebook, read_lab
from .manifest import Manifest, load_manifest
from .notebooks import Unreadable, read_notebook

SIZE_CAP_BYTES = 12_000
TRAINING = "final.train"


@dataclass(frozen=True)
class FinalSubmission:
    """A learner's final as it is graded.

    Attributes:
        lab: The notebook with its set-up and answer cells only.
        training: Of these, what a timed run needs: the set-up and the answer to part a.
        compressed_bytes: Size of all answer cells together, compressed.
    """

    lab: LabNotebook
    training: tuple[LabCell, ...]
    compressed_bytes: int

    @property
    def is_too_large(self) -> bool:
        """Whether it could carry more than code."""
        return self.compressed_bytes > SIZE_CAP_BYTES


def read_final(path: Path, lesson: Lesson | None = None, manifest: Manifest | None = None) -> FinalSubmission:
    """Read a submission; cells of the learner's own are left out.

    Raises:
        ValueError: If it is no notebook of the final, or the final was never generated.
    """
    lesson = lesson or catalog.final()
    lab = read_lab(path, lesson, manifest or load_manifest(lesson, work.checkout() / "assessment"))
    lab = replace(lab, cells=tuple(cell for cell in lab.cells if cell.kind in ("setup", "solution")))
    return FinalSubmission(lab, training_cells(lab.cells), compressed_bytes(lab.cells))


def training_cells(cells: Sequence[LabCell]) -> tuple[LabCell, ...]:
    """The set-up and the answer to part a."""
    return tuple(
        cell
        for cell in cells
        if cell.kind == "setup" or (cell.question is not None and catalog.answered_in(cell.question) == TRAINING)
    )


def compressed_bytes(cells: Sequence[LabCell]) -> int:
    """Size of the answers, compressed together."""
    text = "\n".join(cell.source for cell in cells if cell.kind == "solution")
    return len(zlib.compress(text.encode("utf-8", "surrogatepass"), 9))


def course_sides(root: Path | None = None) -> dict[str, tuple[LabCell, ...]]:
    """The starter and the reference, from the hand-written source.

    Raises:
        ValueError: If the source is not there or not in order.
    """
    path = (root or work.checkout()) / "solutions" / "final" / "final.ipynb"
    notebook, _ = read_notebook(path)
    cells = {str(marks_of(cell).get("grade_id")): cell["source"] for cell in notebook["cells"] if marks_of(cell)}
    source = cells.get(solution_grade_id(TRAINING))
    if source is None or "setup" not in cells:
        raise Unreadable(f"{path}: has no set-up cell, or no answer to {TRAINING}")
    setup = LabCell("setup", None, "setup", cells["setup"], -1)
    texts = {"starter": starters.starter_of(source), "reference": starters.solution_of(source)}
    return {side: (setup, LabCell("solution", TRAINING, side, text, -1)) for side, text in texts.items()}
