"""Shows a report to a person: one line per question with the sentence that helps, then the sum."""

from typing import TYPE_CHECKING

from .. import catalog
from ..cards import SIGNS

if TYPE_CHECKING:
    from rich.console import Console

    from .score import Report

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
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(max_width=34)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(ratio=1)
    for result in report.results:
        style = _STYLES[result.status]
        message = result.message if result.status in ("passed", "failed") else f"{result.status}: {result.message}"
        title = catalog.question(result.question).title
        table.add_row(
            Text(SIGNS[result.status][0], style), Text(title), f"{result.points}/{result.maximum}", Text(message)
        )
    console.print(table)
    for warning in report.warnings:
        console.print(Text(f"note: {warning}", "yellow"), soft_wrap=True)
    console.print(
        Text.assemble(
            (f"{report.points} of {report.maximum} points", "bold"),
            f"  ·  {report.isolation}  ·  {report.seconds:.0f} s",
        )
    )
