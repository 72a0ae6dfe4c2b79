"""The card that tells a learner what came of one question, in a notebook or as text."""

import html
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .submission import Result

_SECTION = re.compile(r"(?<=See |see |ion )\*([^*<>]+)\*")  # of the lesson, as messages name it
SIGNS = {
    "passed": ("✓", "#1a7f37"),
    "failed": ("✗", "#b42318"),
    "undecided": ("…", "#8a6100"),
    "not measurable here": ("–", "#57606a"),
    "ungradable": ("!", "#8250df"),
}


def as_text(result: "Result") -> str:
    """One line: sign, question, points, sentence."""
    sign, _ = SIGNS[result.status]
    return f"{sign} {result.question}  {result.points}/{result.maximum}  {result.message}"


def as_html(result: "Result") -> str:
    """The same as a card; readable on light and dark themes, and without colour."""
    sign, colour = SIGNS[result.status]
    message = html.escape(result.message)
    for tick in ("<code>", "</code>") * (message.count("`") // 2):
        message = message.replace("`", tick, 1)
    message = _SECTION.sub(r"<i>\1</i>", message)
    return (
        f'<div style="border-left:4px solid {colour};padding:.5em .9em;margin:.3em 0;line-height:1.45">'
        f'<b style="color:{colour}">{sign} {html.escape(result.status)}</b> '
        f"<code>{html.escape(result.question)}</code> · {result.points} of {result.maximum} points"
        f"<br>{message}</div>"
    )


def show(result: "Result") -> None:
    """Display the card in a notebook; print the line elsewhere."""
    from IPython.core.getipython import get_ipython
    from IPython.display import display

    if get_ipython() is None:
        print(as_text(result))  # noqa: T201
        return
    display({"text/html": as_html(result), "text/plain": as_text(result)}, raw=True)
