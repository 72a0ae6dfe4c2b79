"""The parts of a training step, and a timer for them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

Clock = Callable[[], float]
Phases = Callable[[str], AbstractContextManager[None]]
PHASES = ("data", "zero_grad", "forward", "loss", "backward", "optimizer")
NOT_TIMED = nullcontext()


class PhaseTimer:
    """Adds up the seconds spent in each part of a training step; give its ``phase`` to ``fit`` as ``phases``.

    Args:
        clock: Seconds; a fake one in tests.
    """

    def __init__(self, clock: Clock = time.perf_counter) -> None:
        self.seconds: dict[str, float] = dict.fromkeys(PHASES, 0.0)
        self.calls: dict[str, int] = dict.fromkeys(PHASES, 0)
        self._clock = clock

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time one part."""
        started_s = self._clock()
        try:
            yield
        finally:
            self.seconds[name] += self._clock() - started_s
            self.calls[name] += 1


def no_phases(name: str) -> AbstractContextManager[None]:
    """Time nothing."""
    return NOT_TIMED
