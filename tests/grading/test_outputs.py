"""Stored outputs: the same on every machine and day, small, and worth seeing without a live kernel."""

from typing import Any

import pytest

from accelerando.grading.cells import new_cell, new_notebook
from accelerando.grading.outputs import LARGEST_OUTPUT_BYTES, LIVE_NOTE, WIDGET, normalise

FOLDERS = {"/home/ada/course": ".", "/home/ada": "~"}


def stored(*outputs: dict[str, Any], widgets: Any = None) -> list[dict[str, Any]]:
    cell = new_cell("plain", source="x") | {"outputs": list(outputs), "execution_count": 17}
    notebook = new_notebook([cell])
    normalise(notebook, FOLDERS, widgets)
    return notebook["cells"][0]["outputs"]


def stream(text: str, name: str = "stdout") -> dict[str, Any]:
    return {"output_type": "stream", "name": name, "text": text}


def shown(**data: Any) -> dict[str, Any]:
    return {"output_type": "display_data", "metadata": {}, "data": data}


def test_pieces_of_a_stream_are_merged() -> None:
    assert stored(stream("a"), stream("b\n"), stream("c")) == [stream("ab\nc")]


def test_streams_on_both_sides_of_a_figure_stay_apart() -> None:
    figure = shown(**{"text/plain": "f"})
    assert stored(stream("a"), figure, stream("b")) == [stream("a"), figure, stream("b")]


def test_a_progress_bar_leaves_its_last_state() -> None:
    assert stored(stream("10 %\r50 %\r"), stream("100 %\ndone")) == [stream("100 %\ndone")]


def test_colours_of_the_terminal_are_left_out() -> None:
    assert stored(stream("\x1b[31mred\x1b[0m")) == [stream("red")]


def test_stderr_is_reported_and_not_stored() -> None:
    cell = new_cell("plain", source="x") | {"outputs": [stream("deprecated\n", "stderr")]}
    notebook = new_notebook([cell])
    assert normalise(notebook, {}) == ["cell 1 wrote to stderr (not stored): deprecated"]
    assert notebook["cells"][0]["outputs"] == []


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("/home/ada/course/work/x.py", "./work/x.py"),
        ("in /home/ada/course/work.", "in ./work."),
        ("in /home/ada.", "in ~."),
        ("'/home/ada/course'", "'.'"),
        ("/home/ada/other", "~/other"),
        ("/home/adam/other", "/home/adam/other"),
        ("<Thing at 0x7f12ab34cd56>", "<Thing at 0x0>"),
        ("0xff", "0xff"),
    ],
)
def test_folders_and_addresses_of_this_machine_are_left_out(text: str, kept: str) -> None:
    assert stored(shown(**{"text/plain": text}))[0]["data"] == {"text/plain": kept}


def test_pictures_are_not_searched_for_paths() -> None:
    data = {"image/png": "AAAA/home/ada/BBBB"}
    assert stored(shown(**data))[0]["data"] == data


def test_counts_start_at_one_whatever_ran_before() -> None:
    result = {"output_type": "execute_result", "metadata": {}, "data": {"text/plain": "1"}, "execution_count": 17}
    assert stored(result)[0]["execution_count"] == 1


def widget(**more: Any) -> dict[str, Any]:
    return shown(
        **{WIDGET: {"model_id": "box", "version_major": 2, "version_minor": 0}, "text/plain": "VBox()"}, **more
    )


def test_a_live_widget_is_replaced_by_the_figure_in_it() -> None:
    widgets = {
        "box": {"_model_name": "VBoxModel", "children": ["IPY_MODEL_slider", "IPY_MODEL_out"]},
        "slider": {"_model_name": "IntSliderModel", "value": 3},
        "out": {"_model_name": "OutputModel", "outputs": [shown(**{"image/png": "AAAA", "text/plain": "f"})]},
    }
    assert stored(widget(), widgets=widgets)[0]["data"] == {
        "image/png": "AAAA",
        "text/plain": "a widget: run this cell",
    }


def test_without_a_figure_its_html_is_kept_in_order() -> None:
    widgets = {
        "box": {"children": ["IPY_MODEL_a", "IPY_MODEL_b", "IPY_MODEL_box"]},
        "a": {"_model_name": "HTMLModel", "value": "<b>1</b>"},
        "b": {"_model_name": "HTMLModel", "value": "<b>2</b>"},
    }
    assert stored(widget(), widgets=widgets)[0]["data"]["text/html"] == "<b>1</b>\n<b>2</b>"


def test_a_widget_with_nothing_to_see_says_how_to_see_it() -> None:
    assert stored(widget())[0]["data"]["text/html"] == LIVE_NOTE


def test_a_widget_that_brings_its_own_picture_keeps_it() -> None:
    data = stored(widget(**{"image/svg+xml": "<svg/>"}))[0]["data"]
    assert data == {"image/svg+xml": "<svg/>", "text/plain": "VBox()"}


def test_no_widget_state_is_stored() -> None:
    notebook = new_notebook([])
    notebook["metadata"]["widgets"] = {"state": {}}
    normalise(notebook, {})
    assert "widgets" not in notebook["metadata"]


def test_a_large_output_is_reported() -> None:
    cell = new_cell("plain", source="x") | {"outputs": [shown(**{"image/png": "A" * LARGEST_OUTPUT_BYTES})]}
    (remark,) = normalise(new_notebook([cell]), {})
    assert "a smaller figure" in remark
