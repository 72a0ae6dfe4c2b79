"""Notebooks as people have them: repaired with a word, or refused with file, place and cure."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from accelerando.grading import notebooks
from accelerando.grading.cells import new_cell, new_notebook
from accelerando.grading.notebooks import Unreadable, language, read_notebook, write_notebook

SOURCES = ["# Title", "x = 1\ny = 2", "print(x)"]


@pytest.fixture
def plain() -> dict[str, Any]:
    """A healthy notebook of one text cell and two code cells, as JSON data."""
    made = new_notebook([new_cell("text", source=SOURCES[0]), *(new_cell("plain", source=s) for s in SOURCES[1:])])
    return json.loads(json.dumps(made))


@pytest.fixture
def saved(tmp_path: Path, plain: dict[str, Any]) -> Callable[..., Path]:
    """Saves a notebook, after an edit, and gives its path."""

    def save(edit: Callable[[dict[str, Any]], object] = lambda nb: None, text: bytes | None = None) -> Path:
        edit(plain)
        path = tmp_path / "mine.ipynb"
        path.write_bytes(json.dumps(plain, indent=1).encode() if text is None else text)
        return path

    return save


def sources(path: Path) -> list[str]:
    return [cell["source"] for cell in read_notebook(path)[0]["cells"]]


def refused(path: Path) -> str:
    with pytest.raises(Unreadable) as error:
        read_notebook(path)
    message = str(error.value)
    assert message.startswith(str(path)), "the message names the file first"
    return message


def test_a_healthy_notebook_is_read_without_a_word(saved: Callable[..., Path]) -> None:
    path = saved()
    before = path.read_bytes()
    notebook, warnings = read_notebook(path)
    assert [cell["source"] for cell in notebook["cells"]] == SOURCES
    assert warnings == ()
    assert path.read_bytes() == before


def test_what_is_written_is_read_again_unchanged(tmp_path: Path, plain: dict[str, Any]) -> None:
    write_notebook(tmp_path / "a" / "b.ipynb", plain)
    notebook, warnings = read_notebook(tmp_path / "a" / "b.ipynb")
    assert (notebook, warnings) == (plain, ())
    assert [file.name for file in (tmp_path / "a").iterdir()] == ["b.ipynb"]


def test_a_missing_file_is_named_with_its_neighbours(saved: Callable[..., Path]) -> None:
    path = saved()
    assert "no such file" in refused(path.with_name("other.ipynb"))
    assert "mine.ipynb" in refused(path.with_name("other.ipynb"))


def test_a_folder_is_named_with_the_notebooks_in_it(saved: Callable[..., Path]) -> None:
    message = refused(saved().parent)
    assert "is a folder" in message
    assert "mine.ipynb" in message


def test_a_pipe_is_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.ipynb")
    assert "not an ordinary file" in refused(tmp_path / "pipe.ipynb")


@pytest.mark.parametrize("text", [b"", b"\n \n"])
def test_an_empty_file_is_called_empty(saved: Callable[..., Path], text: bytes) -> None:
    assert "is empty" in refused(saved(text=text))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"import torch\nprint(1)\n", "not a notebook"),
        (b"<!DOCTYPE html><html></html>", "web page"),
        (b"PK\x03\x04rest", "zip archive"),
        (b"[1, 2]", "not a notebook"),
        (b'{"a": 1}', "no cells"),
        (b'{"cells": 7, "nbformat": 4, "nbformat_minor": 5, "metadata": {}}', "cells are not a list"),
    ],
)
def test_what_is_no_notebook_is_told_apart(saved: Callable[..., Path], text: bytes, words: str) -> None:
    assert words in refused(saved(text=text))


def test_a_truncated_notebook_names_the_line_where_it_ends(saved: Callable[..., Path]) -> None:
    whole = saved().read_text().splitlines()
    for count in (5, len(whole) // 2, len(whole) - 1):
        message = refused(saved(text="\n".join(whole[:count]).encode()))
        assert f"line {count}" in message
        assert "ends in the middle" in message


def test_a_typing_error_in_the_json_names_line_and_column(saved: Callable[..., Path]) -> None:
    text = saved().read_text().replace('"cell_type": "code",', '"cell_type": "code"', 1)
    line = text[: text.index('"cell_type": "code"')].count("\n") + 2
    assert f"line {line}, column" in refused(saved(text=text.encode()))


def test_merge_conflict_markers_are_named_with_their_lines(saved: Callable[..., Path]) -> None:
    lines = saved().read_text().splitlines()
    lines[4:4] = ["<<<<<<< HEAD", lines[4], "=======", lines[4], ">>>>>>> other"]
    message = refused(saved(text="\n".join(lines).encode()))
    assert "line 5:" in message
    assert "lines 5, 7, 9" in message
    assert "git checkout --ours" in message


def test_merge_conflict_markers_inside_a_cell_are_a_warning(saved: Callable[..., Path]) -> None:
    path = saved(lambda nb: nb["cells"][1].update(source="<<<<<<< HEAD\nx = 1\n=======\nx = 2\n>>>>>>> other"))
    assert "cell 2 holds git merge conflict markers" in read_notebook(path)[1][0]


@pytest.mark.parametrize(
    ("encoding", "words"),
    [
        ("utf-8-sig", "byte order mark"),
        ("utf-16", "UTF-16"),
        ("utf-16-le", "UTF-16"),
        ("utf-16-be", "UTF-16"),
        ("utf-32", "UTF-32"),
    ],
)
def test_other_encodings_are_read_with_a_warning(saved: Callable[..., Path], encoding: str, words: str) -> None:
    text = saved().read_text().replace("print(x)", "print('Grüße')")
    path = saved(text=text.encode(encoding))
    notebook, warnings = read_notebook(path)
    assert notebook["cells"][2]["source"] == "print('Grüße')"
    assert len(warnings) == 1
    assert words in warnings[0]


def test_bytes_of_no_encoding_are_named_with_their_line(saved: Callable[..., Path]) -> None:
    text = saved().read_bytes().replace(b"print(x)", b"print('Gr\xfc\xdfe')")
    line = text[: text.index(b"\xfc")].count(b"\n") + 1
    message = refused(saved(text=text))
    assert f"line {line}: byte 0xfc is not UTF-8" in message


def test_a_huge_file_says_how_to_clear_outputs(saved: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notebooks, "MAX_NOTEBOOK_BYTES", 100)
    assert "--clear-output" in refused(saved())


def test_a_format_from_the_future_is_refused(saved: Callable[..., Path]) -> None:
    assert "nbformat 5" in refused(saved(lambda nb: nb.update(nbformat=5)))


def test_a_newer_minor_format_is_read_with_a_warning(saved: Callable[..., Path]) -> None:
    path = saved(lambda nb: (nb.update(nbformat_minor=9), nb["cells"][0].update(new_thing=1)))
    notebook, warnings = read_notebook(path)
    assert len(notebook["cells"]) == 3
    assert "4.9" in warnings[0]


@pytest.mark.parametrize("stated", [4, "4", None])
def test_a_strangely_stated_format_is_understood(saved: Callable[..., Path], stated: object) -> None:
    assert sources(saved(lambda nb: nb.update(nbformat=stated))) == SOURCES


def old_notebook(version: int) -> dict[str, Any]:
    cells = [
        {"cell_type": "heading", "level": 2, "source": ["Title"]},
        {
            "cell_type": "code",
            "input": ["x = 1\n", "print(x)"],
            "language": "python",
            "collapsed": False,
            "prompt_number": 3,
            "outputs": [{"output_type": "stream", "stream": "stdout", "text": ["1\n"]}],
        },
        {"cell_type": "code", "input": "y = 2", "language": "python"},
    ]
    return {"nbformat": version, "nbformat_minor": 0, "worksheets": [{"cells": cells}]}


@pytest.mark.parametrize("version", [2, 3])
def test_formats_2_and_3_are_converted_and_missing_metadata_repaired(saved: Callable[..., Path], version: int) -> None:
    path = saved(text=json.dumps(old_notebook(version)).encode())
    notebook, warnings = read_notebook(path)
    assert [cell["source"] for cell in notebook["cells"]] == ["## Title", "x = 1\nprint(x)", "y = 2"]
    assert notebook["cells"][1]["outputs"][0]["output_type"] == "stream"
    assert any("metadata is missing" in warning for warning in warnings)
    assert any(f"nbformat {version}" in warning for warning in warnings)
    assert read_notebook(path)[0] == notebook, "no random ids: reading twice gives the same"


def test_an_old_notebook_that_says_4_is_recognised(saved: Callable[..., Path]) -> None:
    assert len(sources(saved(text=json.dumps(old_notebook(4)).encode()))) == 3


@pytest.mark.parametrize("key", ["metadata", "outputs", "execution_count", "id", "source"])
def test_a_cell_without_a_required_key_is_repaired(saved: Callable[..., Path], key: str) -> None:
    notebook, warnings = read_notebook(saved(lambda nb: nb["cells"][1].pop(key)))
    assert len(notebook["cells"]) == 3
    assert notebook["cells"][1]["source"] == ("" if key == "source" else SOURCES[1])
    assert key == "execution_count" or "cell 2" in warnings[0]


def test_ids_are_not_expected_of_formats_that_have_none(saved: Callable[..., Path]) -> None:
    def edit(nb: dict[str, Any]) -> None:
        nb["nbformat_minor"] = 2
        for cell in nb["cells"]:
            del cell["id"]

    notebook, warnings = read_notebook(saved(edit))
    assert warnings == ()
    assert len({cell["id"] for cell in notebook["cells"]}) == 3


def test_repeated_cell_ids_are_a_warning_and_all_cells_stay(saved: Callable[..., Path]) -> None:
    def edit(nb: dict[str, Any]) -> None:
        for cell in nb["cells"]:
            cell["id"] = "dup"

    notebook, warnings = read_notebook(saved(edit))
    assert [cell["source"] for cell in notebook["cells"]] == SOURCES
    assert len({cell["id"] for cell in notebook["cells"]}) == 3
    assert warnings == ("cells 2, 3: repeats the id of an earlier cell, which harms nothing here",)


@pytest.mark.parametrize(
    ("source", "read"),
    [
        ("a = 1\nb = 2", "a = 1\nb = 2"),
        (["a = 1\n", "b = 2"], "a = 1\nb = 2"),
        (["a = 1", "b = 2"], "a = 1\nb = 2"),
        ("a = 1\r\nb = 2\r\n", "a = 1\nb = 2\n"),
        (["a = 1"], "a = 1"),
        ([], ""),
        (None, ""),
        ("s = '\ud800'", "s = '?'"),
    ],
)
def test_a_source_is_text_however_it_was_stored(saved: Callable[..., Path], source: object, read: str) -> None:
    assert sources(saved(lambda nb: nb["cells"][1].update(source=source)))[1] == read


def test_what_is_not_a_cell_is_left_out_and_named(saved: Callable[..., Path]) -> None:
    notebook, warnings = read_notebook(saved(lambda nb: nb["cells"].insert(1, "oops")))
    assert len(notebook["cells"]) == 3
    assert warnings == ("cell 2 is not a cell and was left out",)


def test_an_unknown_cell_type_is_guessed_aloud(saved: Callable[..., Path]) -> None:
    notebook, warnings = read_notebook(saved(lambda nb: nb["cells"][1].update(cell_type="python")))
    assert notebook["cells"][1]["cell_type"] == "code"
    assert "cell 2 is of the unknown type 'python'" in warnings[0]


def test_damaged_outputs_cost_the_outputs_only(saved: Callable[..., Path]) -> None:
    notebook, warnings = read_notebook(saved(lambda nb: nb["cells"][1].update(outputs=[{"output_type": "what"}])))
    assert notebook["cells"][1]["outputs"] == []
    assert notebook["cells"][1]["source"] == SOURCES[1]
    assert "cell 2: its outputs are damaged" in warnings[0]


@pytest.mark.parametrize(
    "metadata",
    [None, [], {"kernelspec": 3}, {"kernelspec": {}}, {"kernelspec": {"name": "x"}}, {"language_info": {}, "title": 5}],
)
def test_odd_notebook_metadata_do_not_matter(saved: Callable[..., Path], metadata: object) -> None:
    assert sources(saved(lambda nb: nb.update(metadata=metadata))) == SOURCES


@pytest.mark.parametrize("value", [None, True, -1, 10**30, "\ud800", [], [1], [[]], {}, {"a": 1}, [None, "a"]])
@pytest.mark.parametrize(
    "key", ["id", "metadata", "outputs", "execution_count", "attachments", "tags", "kernelspec", "nbformat_minor"]
)
def test_whatever_stands_around_a_source_costs_no_source(saved: Callable[..., Path], key: str, value: object) -> None:
    def damage(notebook: dict[str, Any]) -> None:
        for cell in notebook["cells"]:
            (cell["metadata"] if key == "tags" else cell)[key] = value
        notebook["metadata"][key] = value
        if key == "nbformat_minor":
            notebook[key] = value

    assert sources(saved(damage)) == SOURCES


def test_a_copy_of_jupyters_own_is_read_and_called_so(saved: Callable[..., Path], tmp_path: Path) -> None:
    folder = tmp_path / ".ipynb_checkpoints"
    folder.mkdir()
    copy = saved().rename(folder / "mine-checkpoint.ipynb")
    notebook, warnings = read_notebook(copy)
    assert len(notebook["cells"]) == 3
    assert str(tmp_path / "mine.ipynb") in warnings[0]


@pytest.mark.parametrize("stated", [0, -1])
def test_a_format_that_never_was_is_guessed(saved: Callable[..., Path], stated: int) -> None:
    assert sources(saved(lambda nb: nb.update(nbformat=stated))) == SOURCES


def test_deep_nesting_is_refused(saved: Callable[..., Path]) -> None:
    assert "JSON" in refused(saved(text=b'{"cells": ' + b"[" * 100_000))


@pytest.mark.parametrize(
    ("metadata", "spoken"),
    [
        ({}, "python"),
        ({"kernelspec": {"name": "python3", "language": "python"}}, "python"),
        ({"kernelspec": {"name": "ir", "language": "R"}}, "r"),
        ({"kernelspec": {"name": "ir"}}, "r"),
        ({"kernelspec": {"name": "julia-1.10"}}, "julia"),
        ({"language_info": {"name": "julia"}}, "julia"),
        ({"kernelspec": {"name": "my-venv"}}, "python"),
    ],
)
def test_the_kernels_language_is_found(metadata: dict[str, Any], spoken: str) -> None:
    assert language({"metadata": metadata}) == spoken
