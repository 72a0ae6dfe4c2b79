"""Shows a report to a person: each question with its points, below it the sentence that helps, then the sum."""

from typing import TYPE_CHECKING

from .. import catalog
from ..cards import SIGNS

if TYPE_CHECKING:
    from rich.console import Console

    from .score import Report

_WIDEST = 100  # columns: longer lines are hard to read
_SAYS_NO_MORE = "right"  # than the sign does
_OPEN = ("undecided", "not measurable here")
_STYLES = {
    "passed": "green",
    "failed": "red",
    "undecided": "yellow",
    "not measurable here": "bright_black",
    "ungradable": "magenta",
}


def print_report(report: "Report", console: "Console") -> None:
    """Print a report; text that came from the learner's code is never read as markup.

    Args:
        report: What came of a notebook.
        console: Where to; readable without colour too.
    """
    from rich.table import Table
    from rich.text import Text

    console.print(Text.assemble((report.title, "bold"), f"  ·  {report.notebook}"), soft_wrap=True)
    console.print()
    table = Table.grid(padding=(0, 1, 0, 0))
    table.width = min(console.width, _WIDEST)
    table.add_column(no_wrap=True)
    table.add_column(ratio=1)
    table.add_column(justify="right", no_wrap=True)
    for result in report.results:
        style = _STYLES[result.status]
        title = Text(catalog.question(result.question).title, "bold")
        if result.status not in ("passed", "failed"):
            title.append(f"  {result.status}", style)
        points = f"{result.maximum} open" if result.status in _OPEN else f"{result.points}/{result.maximum}"
        table.add_row(Text(SIGNS[result.status][0], style), title, points)
        if result.message != _SAYS_NO_MORE:
            table.add_row("", Text(result.message), "")
    console.print(table)
    console.print()
    for warning in report.warnings:
        console.print(Text(f"note: {warning}", "yellow"))
    console.print(
        Text.assemble(
            (f"{report.points} of {report.maximum} points{_still_open(report)}", "bold"),
            f"  ·  {report.isolation}  ·  {report.seconds:.0f} s",
        )
    )


def _still_open(report: "Report") -> str:
    """The points that were neither won nor lost, if there are any."""
    points = sum(result.maximum for result in report.results if result.status in _OPEN)
    return f", {points} still open" if points else ""
