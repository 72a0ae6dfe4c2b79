"""The explorer of lesson 9: pick a machine or paste a matrix, and see islands, the best ring and its slowest hop."""

from __future__ import annotations

import html
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from accelerando.figures import Picture
from accelerando.figures import multi_gpu as pictures
from accelerando.readers import Unreadable
from accelerando.widgets import Shown


class Machine(Protocol):
    """What the explorer shows of a machine: as the lesson's reader gives it."""

    gpus: Any
    links: Any
    ring: Any
    slowest: Any
    islands: Any
    warnings: Any

    def sentence(self) -> str:
        """What stands out."""


Read = Callable[[str], Machine]
"""From a pasted matrix to a machine; raises `Unreadable` in words."""


def picture(title: str, found: Machine) -> Picture:
    """Draw a machine that was read."""
    return pictures.topology(title, found.gpus, found.links, found.ring, found.slowest, found.islands or ())


def describe(text: str, read: Read) -> tuple[Machine | None, str]:
    """Read a pasted matrix: what was found, and what to say about it; None where it is another text."""
    try:
        found = read(text)
    except Unreadable as refusal:
        line = f" (line {refusal.line})" if refusal.line else ""
        return None, f"That is no matrix that can be read: {refusal}{line}."
    remarks = "".join(f" Remark: {warning}." for warning in found.warnings)
    return found, found.sentence() + remarks


def topology_explorer(machines: Mapping[str, str], read: Read) -> Shown:
    """A choice of machines over a field to paste into; the picture follows.

    Args:
        machines: Name -> matrix as ``nvidia-smi topo -m`` prints it; the first one is shown first.
        read: Makes a machine of a matrix.
    """
    import ipywidgets as ipw

    first = next(iter(machines))
    choice = ipw.Dropdown(options=list(machines), value=first, description="machine")
    field = ipw.Textarea(value=machines[first], layout=ipw.Layout(width="100%", height="11em"), continuous_update=False)
    found, words = describe(field.value, read)
    assert found is not None
    still = picture(first, found)
    shown, said = ipw.Image(value=still.png, format="png", width=814), ipw.HTML(html.escape(words))

    def pick(change: dict[str, str]) -> None:
        field.value = machines[change["new"]]

    def draw(_: object) -> None:
        now, text = describe(field.value, read)
        said.value = html.escape(text)
        if now is not None:
            is_example = field.value == machines[choice.value]
            drawn = picture(choice.value if is_example else "as pasted", now)
            shown.value, shown.alt = drawn.png, drawn.words

    choice.observe(pick, "value")
    field.observe(draw, "value")
    return Shown(ipw.VBox([choice, field, said, shown]), still, f"{first}: {words}")
