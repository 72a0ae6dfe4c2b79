"""Progress bars: shown where somebody watches, silent elsewhere."""

import io

import pytest
import rich.console

from accelerando import progress


@pytest.fixture
def terminal(monkeypatch):
    """Make rich believe in a terminal, and return what was written to it."""
    screen = io.StringIO()
    real = rich.console.Console
    monkeypatch.setattr(rich.console, "Console", lambda: real(file=screen, force_terminal=True, width=100))
    return screen


def test_bar_shows_count_speed_and_note_in_a_terminal(terminal):
    with progress.bar(200, "training") as advance:
        advance(150)
        advance(50, "loss 0.31")
    shown = terminal.getvalue()
    assert "training" in shown
    assert "200/200" in shown
    assert "images/s" in shown
    assert "loss 0.31" in shown


def test_downloads_are_counted_in_bytes(terminal):
    with progress.bar(2_000_000, "images", unit="bytes") as advance:
        advance(2_000_000)
    assert "2.0/2.0 MB" in terminal.getvalue()


def test_hidden_bar_writes_nothing_even_in_a_terminal(terminal):
    with progress.bar(10, "training", is_shown=False) as advance:
        advance(10, "note")
    assert terminal.getvalue() == ""


def test_bar_is_silent_in_a_pipe(capsys):
    with progress.bar(10, "training") as advance:
        advance(10)
    assert capsys.readouterr() == ("", "")


def test_bar_is_taken_down_when_the_block_fails(terminal):
    def interrupted():
        with progress.bar(10, "training") as advance:
            advance(3)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert terminal.getvalue().endswith("\x1b[?25h")  # the cursor is back
