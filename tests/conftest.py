"""What all tests share: asking which processes a test has left behind."""

from collections.abc import Callable

import psutil
import pytest


@pytest.fixture
def new_children() -> Callable[[], list[psutil.Process]]:
    """The living processes below this one that were not there when the test began."""
    before = {child.pid for child in psutil.Process().children(recursive=True)}

    def ask() -> list[psutil.Process]:
        found = psutil.Process().children(recursive=True)
        return [child for child in found if child.pid not in before and child.status() != psutil.STATUS_ZOMBIE]

    return ask
