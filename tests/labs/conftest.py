"""The laws hold on every machine: timed questions run by a fake clock, on a processor that lacks nothing."""

import pytest

from accelerando import machine


@pytest.fixture(autouse=True)
def nothing_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every need be met, so that a question whose hardware this machine lacks is judged too."""
    monkeypatch.setattr(machine, "missing", lambda here, needs: ())
