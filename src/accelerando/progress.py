"""Progress bars: how far, how fast, how long still. The only door to rich's live display.

A bar shows in a terminal and in JupyterLab, and stays away when nobody is watching (a pipe, a log file, a test).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

Advance = Callable[..., None]
"""Called as ``advance(amount)`` or ``advance(amount, "a few words")``."""


@contextmanager
def bar(total: float, label: str, *, unit: str = "images", is_shown: bool = True) -> Iterator[Advance]:
    """Show a progress bar with speed and time left while the block runs.

    Args:
        total: How much there is to do, in ``unit``.
        label: What is being done, a word or two.
        unit: What is counted; the speed is shown as ``unit`` per second. "bytes" are shown as MB.
        is_shown: False gives an ``advance`` that does nothing.

    Yields:
        ``advance(amount, note="")``: tell that ``amount`` more is done, with a few words to show behind it.
    """
    from rich.console import Console

    console = Console()
    if not is_shown or not (console.is_terminal or console.is_jupyter):
        yield lambda amount, note="": None
        return
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        Progress,
        ProgressColumn,
        Task,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )
    from rich.text import Text

    class Speed(ProgressColumn):
        """Units per second over the last seconds."""

        def render(self, task: Task) -> Text:
            speed = task.finished_speed or task.speed
            return Text("" if speed is None else f"{speed:,.0f} {unit}/s")

    counting = (DownloadColumn(), TransferSpeedColumn()) if unit == "bytes" else (MofNCompleteColumn(), Speed())
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        *counting,
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    )
    with Progress(*columns, console=console) as progress:
        task = progress.add_task(label, total=total, note="")

        def advance(amount: float, note: str = "") -> None:
            progress.advance(task, amount)
            if note:
                progress.update(task, note=note)

        yield advance
