"""Rooms for the tests: opened on demand, none left behind."""

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from rooms import Room, open_room


@pytest.fixture(scope="module")
def opening() -> Iterator[Callable[..., Room]]:
    """Open rooms; whatever happens, none is left behind."""
    rooms: list[Room] = []

    def start(folder: Path, *options: str) -> Room:
        rooms.append(open_room(folder, *options))
        return rooms[-1]

    yield start
    for room in rooms:
        if room.process.poll() is None:
            left = room.descendants()
            try:
                room.close()
            except subprocess.TimeoutExpired:
                room.process.kill()
            for process in left:
                if process.is_running():
                    process.kill()


@pytest.fixture(scope="module")
def room(opening: Callable[..., Room], tmp_path_factory: pytest.TempPathFactory) -> Room:
    """A room that is open, for all tests that do not close it."""
    opened = opening(tmp_path_factory.mktemp("work"))
    assert opened.address
    return opened
