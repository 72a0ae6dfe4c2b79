"""Reading and writing notebooks."""

import json
from pathlib import Path
from typing import Any


def write_notebook(path: Path, notebook: dict[str, Any]) -> None:
    """Write a notebook the way Jupyter does: one space of indentation, sources as lists of lines."""
    import nbformat

    node = nbformat.from_dict(json.loads(json.dumps(notebook)))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(nbformat.writes(node) + "\n", encoding="utf-8")
