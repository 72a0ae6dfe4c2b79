"""Files that are handed out: copied without outputs, known again by what a person wrote, replaced in one step."""

import hashlib
import json
import os
import shutil
from pathlib import Path
from tempfile import NamedTemporaryFile

RECEIPT = ".copied.json"  # which version each of the learner's files was copied from
_SCHEMA = 1


def is_untouched(own: Path, given: str | None) -> bool:
    """Whether a copy says what was handed out, and holds no outputs of the learner's runs."""
    if given is None or fingerprint(own) != given:
        return False
    content = own.read_bytes()
    return own.suffix != ".ipynb" or _without_outputs(content) == content


def free_name(path: Path) -> Path:
    """``path``, or with a number behind it when two fall into one second."""
    number, free = 1, path
    while free.exists():
        number += 1
        free = path.with_name(f"{path.name}-{number}")
    return free


def hand_out(source: Path, target: Path) -> None:
    """Copy one file so that it is there wholly or not at all, and may be written by its new owner.

    A notebook comes without its outputs: a learner guesses first, and the stored figures would tell.
    """
    content = source.read_bytes()
    replace_with_bytes(target, _without_outputs(content) if source.suffix == ".ipynb" else content)


def _without_outputs(content: bytes) -> bytes:
    try:
        notebook = json.loads(content)
        shown = [cell for cell in notebook["cells"] if cell.get("outputs")]
        for cell in shown:
            cell["outputs"], cell["execution_count"] = [], None
    except (ValueError, KeyError, TypeError):
        return content  # a damaged notebook goes as it is; opening it says what is wrong
    return (json.dumps(notebook, ensure_ascii=False, indent=1) + "\n").encode() if shown else content


def replace_with_bytes(target: Path, content: bytes) -> None:
    """Write a file in one step: a reader, or a crash, sees the old content or the new one.

    Raises:
        OSError: If the folder cannot be made or written; nothing is left behind.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    with NamedTemporaryFile(dir=target.parent, prefix=f".{target.name}.", delete=False) as partial:
        try:
            partial.write(content)
            partial.close()
            shutil.copymode(target, partial.name) if target.exists() else Path(partial.name).chmod(0o644)
            os.replace(partial.name, target)
        except BaseException:  # Ctrl-C too leaves no half-written file
            Path(partial.name).unlink(missing_ok=True)
            raise


def fingerprint(path: Path) -> str:
    """A hash of what a person wrote: a notebook's cells without outputs and counters, another file's bytes."""
    content = path.read_bytes()
    if path.suffix == ".ipynb":
        try:
            cells = [[cell["cell_type"], "".join(cell["source"])] for cell in json.loads(content)["cells"]]
            content = json.dumps(cells).encode()
        except (ValueError, KeyError, TypeError):
            pass  # a damaged notebook is compared byte by byte
    return hashlib.sha256(content).hexdigest()


def read_receipt(folder: Path) -> dict[str, str]:
    """What was copied from which version; empty when there is no readable receipt, which loses only the notice."""
    try:
        receipt = json.loads((folder / RECEIPT).read_bytes())
        return dict(receipt["files"]) if receipt["schema"] == _SCHEMA else {}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def write_receipt(folder: Path, files: dict[str, str]) -> None:
    text = json.dumps({"schema": _SCHEMA, "files": dict(sorted(files.items()))}, indent=1)
    replace_with_bytes(folder / RECEIPT, text.encode())
