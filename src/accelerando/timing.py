"""One subject being timed: warm-up, repeats until the clock can be trusted, garbage, GPUs and idle threads.

`measure` decides what to do with the samples; here they are taken.
"""

import contextlib
import gc
import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence

from accelerando.workers import Experiment, Worker

Clock = Callable[[], float]
_MAX_REPEATS = 10**7
# After a parallel region the threads of OpenMP spin for about 9 ms before they sleep (seen with torch 2.8 on two
# cores). A worker must have come to rest before the other one is timed; to set OMP_WAIT_POLICY=passive instead
# would change the very thing that is measured.
_REST_S = 0.015


class Side:
    """One subject being timed: in this process or, as an experiment, in its worker; see `open_side`."""

    def __init__(self, label: str, clock: Clock, call: Callable[[int], float], worker: Worker | None) -> None:
        self.label, self.repeats, self.worker = label, 1, worker
        self._clock, self._call = clock, call
        self._rest_s = _REST_S if worker else 0.0
        self.first_call_s = self.warmup_s = self._per_call_s = 0.0

    @property
    def start_s(self) -> float:
        """Seconds it took to start its process; 0.0 in this one."""
        return self.worker.start_s if self.worker else 0.0

    @property
    def expected_s(self) -> float:
        """How long the next sample will take, rest included."""
        return self._per_call_s * self.repeats + self._rest_s

    def warm_up(self, calls: int, min_sample_s: float) -> None:
        """Call first once, then ``calls`` times, then until the number of repeats for a sample is known."""
        begun = self._clock()
        took = self.first_call_s = self._call(1)
        for _ in range(calls):
            took = self._call(1)
        while took < min_sample_s:
            if self.repeats >= _MAX_REPEATS:
                raise ValueError(
                    f"{self.label or 'the function'}: {self.repeats} calls took {took:g} s, too short to be timed:"
                    " let one call do more work"
                )
            growth = 1.2 * min_sample_s / took if took > 0 else 10.0
            self.repeats = min(_MAX_REPEATS, math.ceil(self.repeats * min(10.0, max(1.5, growth))))
            took = self._call(self.repeats)
        if took < 10 * min_sample_s:  # a single short one may have met a burst, and repeats would be too few
            took = min(took, self._call(self.repeats))
        self._per_call_s = took / self.repeats
        self.repeats = max(1, math.ceil(min_sample_s / self._per_call_s))
        self.warmup_s = self._clock() - begun - self.first_call_s

    def sample(self) -> float:
        """Seconds per call of one sample; the side is at rest afterwards."""
        took = self._call(self.repeats)
        if not (math.isfinite(took) and took > 0):
            raise ValueError(f"{self.label or 'the function'}: a sample took {took} s by this clock: use another clock")
        if self._rest_s:
            time.sleep(self._rest_s)
        self._per_call_s = 0.8 * self._per_call_s + 0.2 * took / self.repeats
        return took / self.repeats


def open_side(
    subject: Callable[[], object] | Experiment,
    label: str,
    clock: Clock,
    time_limit_s: float,
    stack: contextlib.ExitStack,
) -> Side:
    """Make a side of a function or an experiment; the experiment's worker ends with ``stack``."""
    if isinstance(subject, Experiment):
        worker = stack.enter_context(Worker(subject, clock=clock))

        def ask(repeats: int) -> float:
            worker.call(repeats, with_value=False, time_limit_s=time_limit_s)
            return worker.elapsed_s

        return Side(label, clock, ask, worker)
    if not callable(subject):
        raise ValueError(f"got a {type(subject).__name__} to time: give a function without arguments or an Experiment")

    def call(repeats: int) -> float:
        wait_for_gpu()
        begun = clock()
        for _ in range(repeats):
            subject()
        wait_for_gpu()
        return clock() - begun

    return Side(label, clock, call, None)


@contextlib.contextmanager
def calm(sides: Sequence[Side]) -> Iterator[None]:
    """Collect garbage once on all sides, and keep it from being collected by itself while sampling."""
    was_enabled = gc.isenabled()
    collect_garbage(sides)
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def collect_garbage(sides: Sequence[Side]) -> None:
    """Collect garbage now, where the subjects run; in this process once for all."""
    for side in sides:
        if side.worker:
            side.worker.settle(sampling=True)
    if not all(side.worker for side in sides):
        gc.collect()


def wait_for_gpu() -> None:
    """Wait until a GPU has done what it was given: it works behind our back, and a call ends only when it has."""
    torch = sys.modules.get("torch")  # whoever has not imported torch has given a GPU nothing to do
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.synchronize()
