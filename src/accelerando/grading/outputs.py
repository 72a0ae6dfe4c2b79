"""Makes a notebook's outputs fit to be stored: small, without a live kernel, the same text on every machine and day.

What a reader sees on a web page must not need widgets' state, and two runs must differ in their measurements only.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from .cells import Notebook

LARGEST_OUTPUT_BYTES = 300_000
WIDGET = "application/vnd.jupyter.widget-view+json"
_ANSI = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")
_ADDRESS = re.compile(r"\b0x[0-9a-f]{8,16}\b")
_STATIC = ("image/svg+xml", "image/png", "image/jpeg", "text/html", "text/markdown")
_PATH_END = r"(?=[/\s\"'`<>)\],:;]|\.(?:\s|$)|$)"
LIVE_NOTE = "<em>Something to move: run this cell.</em>"

Output = dict[str, Any]
WidgetState = Mapping[str, Mapping[str, Any]]  # model id -> its state


def normalise(notebook: Notebook, folders: Mapping[str, str], widgets: WidgetState | None = None) -> list[str]:
    """Clean all outputs of a notebook that has just run, in place.

    Args:
        notebook: With outputs.
        folders: Absolute folders and what to write in their place.
        widgets: The state of each widget model: static pictures of live ones are taken from it.

    Returns:
        What its author should look at: words on stderr, and outputs that are too large.
    """
    remarks: list[str] = []
    count = 0
    for number, cell in enumerate(notebook["cells"], 1):
        if cell["cell_type"] != "code":
            continue
        count += 1
        cell["execution_count"] = count if cell["source"].strip() else None
        cell["metadata"].pop("execution", None)
        outputs = [_without_widget(output, widgets or {}) for output in _merge_streams(cell["outputs"])]
        kept = []
        for output in outputs:
            output = _portable(output, folders)
            if output["output_type"] == "execute_result":
                output["execution_count"] = count
            if output["output_type"] == "stream" and output["name"] == "stderr":
                remarks.append(f"cell {number} wrote to stderr (not stored): {_last_line(output['text'])}")
            elif output["output_type"] != "stream" or output["text"].strip():
                kept.append(output)
        cell["outputs"] = kept
        size = sum(len(str(output)) for output in kept)
        if size > LARGEST_OUTPUT_BYTES:
            remarks.append(f"cell {number} stores {size / 1000:.0f} kB: a smaller figure would do")
    notebook["metadata"].pop("widgets", None)
    return remarks


def _merge_streams(outputs: Iterable[Output]) -> list[Output]:
    """Join what was printed in pieces, and play carriage returns as a terminal would."""
    merged: list[Output] = []
    streams: dict[str, Output] = {}
    for output in outputs:
        if output["output_type"] != "stream":
            merged.append(dict(output))
            streams = {}
        elif output["name"] in streams:
            streams[output["name"]]["text"] += output["text"]
        else:
            streams[output["name"]] = dict(output)
            merged.append(streams[output["name"]])
    for output in merged:
        if output["output_type"] == "stream":
            output["text"] = _play(output["text"])
    return merged


def plain_text(text: str) -> str:
    """The text without a terminal's colours."""
    return _ANSI.sub("", text)


def _play(text: str) -> str:
    lines = []
    for line in plain_text(text).replace("\r\n", "\n").split("\n"):
        pieces = [piece for piece in line.split("\r") if piece]
        lines.append(pieces[-1].rstrip() if pieces else "")
    return "\n".join(lines)


def _portable(value: Any, folders: Mapping[str, str]) -> Any:
    """Put names in the place of absolute folders, and one address in the place of all."""
    if isinstance(value, str):
        for folder, name in sorted(folders.items(), key=lambda item: -len(item[0])):
            if folder in value:
                value = re.sub(re.escape(folder) + _PATH_END, name.replace("\\", r"\\"), value)
        return _ADDRESS.sub("0x0", value) if "0x" in value else value
    if isinstance(value, Mapping):
        # Pictures are base64: nothing in them is a path.
        return {
            key: item if str(key).startswith("image/") and key != "image/svg+xml" else _portable(item, folders)
            for key, item in value.items()
        }
    return [_portable(item, folders) for item in value] if isinstance(value, list) else value


def _without_widget(output: Output, widgets: WidgetState) -> Output:
    """Replace a live widget by what it showed: without its state, it would be an error message on the page."""
    data = output.get("data", {})
    if WIDGET not in data:
        return output
    rest = {kind: content for kind, content in data.items() if kind != WIDGET}
    if not any(kind in rest for kind in _STATIC):
        rest = _picture(str(data[WIDGET].get("model_id", "")), widgets, set()) or {"text/html": LIVE_NOTE}
        rest["text/plain"] = "a widget: run this cell"
    return output | {"data": rest}


def _picture(model_id: str, widgets: WidgetState, seen: set[str]) -> dict[str, str]:
    """The first thing worth seeing in a widget and its children: a figure, else its HTML."""
    if model_id in seen or model_id not in widgets:
        return {}
    seen.add(model_id)
    state = widgets[model_id]
    for output in state.get("outputs") or ():
        data = output.get("data", {})
        for kind in _STATIC:
            if kind in data:
                return {kind: data[kind]}
    pieces: dict[str, str] = {}
    if state.get("_model_name") in ("HTMLModel", "HTMLMathModel") and str(state.get("value", "")).strip():
        pieces["text/html"] = str(state["value"])
    for child in _children(state):
        found = _picture(child, widgets, seen)
        if any(kind.startswith("image/") for kind in found):
            return found
        if "text/html" in found:
            pieces["text/html"] = "\n".join(filter(None, (pieces.get("text/html"), found["text/html"])))
    return pieces


def _children(state: Mapping[str, Any]) -> list[str]:
    children = state.get("children") or ()
    if not isinstance(children, Sequence) or isinstance(children, str):
        return []
    return [str(child).removeprefix("IPY_MODEL_") for child in children]


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:200] if lines else ""
