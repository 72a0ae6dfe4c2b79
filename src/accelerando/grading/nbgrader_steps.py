"""Steps that this course adds to nbgrader's own autograding; named in ``nbgrader_config.py``."""

from typing import Any

from nbgrader.preprocessors.base import NbGraderPreprocessor


class MoveWarnings(NbGraderPreprocessor):
    """Shows what went to stderr as ordinary output: nbgrader takes every word on stderr for a failed test."""

    def preprocess_cell(self, cell: Any, resources: dict[str, Any], cell_index: int) -> tuple[Any, dict[str, Any]]:
        """Rename the stream; errors have an output type of their own and stay what they are."""
        for output in cell.get("outputs", ()):
            if output.output_type == "stream" and output.name == "stderr":
                output.name = "stdout"
        return cell, resources
