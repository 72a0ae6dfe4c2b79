"""What all tests share: asking which processes a test has left behind."""

import os
import signal
from collections.abc import Callable

import psutil
import pytest


def pytest_configure() -> None:
    """Let Ctrl-C be heard by what the tests start, also where a shell runs them in the background and ignores it.

    Where two tests run at a time, threads that wait for a core sleep, so that they do not keep the other test from it.
    """
    if "PYTEST_XDIST_WORKER" in os.environ:
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def new_children() -> Callable[[], list[psutil.Process]]:
    """The living processes below this one that were not there when the test began."""
    before = {child.pid for child in psutil.Process().children(recursive=True)}

    def ask() -> list[psutil.Process]:
        found = psutil.Process().children(recursive=True)
        return [child for child in found if child.pid not in before and child.status() != psutil.STATUS_ZOMBIE]

    return ask
