"""A data pipeline on paper: workers, prefetching, cores and a model, moved forward event by event.

Pure arithmetic, no clock. The rules are few, so that a reader can check them: batch *k* belongs to worker *k* modulo
the number of workers; a worker may be at most ``prefetch`` batches ahead of what was taken from it; the model takes
batches in order; and when more threads want to run than there are cores, all run slower alike.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Generator
from dataclasses import dataclass, replace
from typing import Literal

Copies = Literal["none", "blocking", "non_blocking", "own_stream"]
Kind = Literal["read", "load", "stall", "copy", "step"]
BATCHES, SETTLED = 60, 20  # batches that are simulated, and how many of them are not counted: the start is not typical
_AHEAD = 2  # batches that a program hands to a GPU before it waits for the oldest
_TINY_S = 1e-12


@dataclass(frozen=True)
class Plan:
    """A pipeline. All times are for one batch, measured with nothing else running.

    Args:
        load_s: Seconds in which loading keeps one core busy: decoding, transforming.
        step_s: Seconds of a training step.
        workers: Loader processes; 0: the training process loads, and only then trains.
        prefetch: Batches that each worker may have under way (``prefetch_factor``).
        cores: That there are.
        step_threads: Cores that the step keeps busy; 0: it runs on a GPU.
        read_s: Seconds in which loading waits and needs no core: a disk, a network.
        slow_every: Each so many-th batch takes ``slow_factor`` times as long to read and load; 0: all take the same.
        slow_factor: See ``slow_every``.
        copy_s: Seconds to bring a batch to the GPU.
        copies: How: "none"; "blocking" (the program waits for the copy); "non_blocking" (pinned memory: the program
            goes on, the GPU copies and computes in turn); "own_stream" (the GPU copies one batch while it computes
            another).
    """

    load_s: float
    step_s: float
    workers: int = 0
    prefetch: int = 2
    cores: int = 2
    step_threads: int = 1
    read_s: float = 0.0
    slow_every: int = 0
    slow_factor: float = 1.0
    copy_s: float = 0.0
    copies: Copies = "none"

    def __post_init__(self) -> None:
        times = (self.load_s, self.step_s, self.read_s, self.copy_s, self.slow_factor)
        if not all(0 <= value < 1e9 for value in times) or self.step_s + self.load_s + self.read_s == 0:
            raise ValueError(f"{self}: times and slow_factor must be numbers of at least 0, and not all times 0")
        if min(self.workers, self.step_threads, self.slow_every) < 0 or min(self.prefetch, self.cores) < 1:
            raise ValueError(f"{self}: prefetch and cores must be at least 1, the other counts at least 0")
        if (self.copies != "none") and self.step_threads:
            raise ValueError(f"copies is {self.copies!r} and the step runs on the CPU: set step_threads=0 for a GPU")

    def changed(self, **changes: object) -> Plan:
        """The same pipeline with some fields changed."""
        return replace(self, **changes)  # type: ignore[arg-type]

    def slowness(self, batch: int) -> float:
        """How many times the usual it takes to read and load this batch."""
        return self.slow_factor if self.slow_every and batch % self.slow_every == self.slow_every - 1 else 1.0


@dataclass(frozen=True)
class Span:
    """One piece of a timeline: who did what, for which batch, from when to when (seconds)."""

    lane: str
    kind: Kind
    batch: int
    start_s: float
    end_s: float


@dataclass(frozen=True)
class Timeline:
    """What happened in a simulated pipeline.

    Args:
        plan: Of the pipeline.
        spans: In the order in which they ended.
        step_ends_s: When each batch's step ended.
    """

    plan: Plan
    spans: tuple[Span, ...]
    step_ends_s: tuple[float, ...]

    @property
    def period_s(self) -> float:
        """Seconds from one step to the next, once it runs steadily."""
        first = SETTLED - 1
        return (self.step_ends_s[-1] - self.step_ends_s[first]) / (len(self.step_ends_s) - 1 - first)

    @property
    def stall_fraction(self) -> float:
        """Share of the time, once it runs steadily, in which no training step runs."""
        begin_s = self.step_ends_s[SETTLED - 1]
        steps = [span for span in self.spans if span.kind == "step" and span.start_s >= begin_s - _TINY_S]
        elapsed_s = self.step_ends_s[-1] - begin_s
        return max(0.0, 1 - sum(span.end_s - span.start_s for span in steps) / elapsed_s)

    def lanes(self) -> tuple[str, ...]:
        """Who took part: workers first, the training process and the GPU below."""
        order = [*(f"worker {number}" for number in range(self.plan.workers)), "process", "copy", "GPU"]
        seen = {span.lane for span in self.spans}
        return tuple(lane for lane in order if lane in seen)


def bounds_s(plan: Plan) -> dict[str, float]:
    """Seconds per batch that each resource needs at least; the largest of them is the bottleneck.

    Args:
        plan: Without workers there is one bound, the sum of everything, since nothing overlaps.
    """
    slow = 1.0 if not plan.slow_every else 1 + (plan.slow_factor - 1) / plan.slow_every
    load_s, read_s = plan.load_s * slow, plan.read_s * slow
    is_gpu = plan.step_threads == 0
    copy_s = plan.copy_s if plan.copies != "none" else 0.0
    model_s = max(plan.step_s, copy_s) if plan.copies == "own_stream" else plan.step_s + copy_s
    if not plan.workers:
        return {"model": model_s, "process": load_s + read_s + (0.0 if is_gpu else plan.step_s)}
    busy_s = load_s + plan.step_s * plan.step_threads
    return {"model": model_s, "workers": (load_s + read_s) / plan.workers, "cores": busy_s / plan.cores}


def predict_images_per_s(plan: Plan, batch_size: int) -> float:
    """Predict the speed of a pipeline that has run for a while."""
    return batch_size / simulate(plan).period_s


@dataclass(frozen=True)
class _Work:
    """Something that takes time."""

    kind: Kind
    batch: int
    seconds: float
    threads: int


@dataclass(frozen=True)
class _Until:
    """Waiting for somebody else; ``kind`` is drawn, None is not."""

    is_over: Callable[[], bool]
    batch: int
    kind: Kind | None = None


_Actor = Generator["_Work | _Until", None, None]


@dataclass
class _Board:
    """What the actors tell each other: how many batches have come how far."""

    taken: int = 0  # by the training process
    handed: int = 0  # to the GPU
    copied: int = 0
    stepped: int = 0

    def __post_init__(self) -> None:
        self.ready: set[int] = set()


def simulate(plan: Plan, batches: int = BATCHES) -> Timeline:
    """Let a pipeline run.

    Args:
        plan: Times, workers, cores.
        batches: More than the 20 that it may take to settle.
    """
    if batches <= SETTLED:
        raise ValueError(f"batches is {batches}: more than {SETTLED} are needed, the first ones are not typical")
    board = _Board()
    actors: dict[str, _Actor] = {f"worker {number}": _worker(plan, board, number) for number in range(plan.workers)}
    actors["process"] = _process(plan, board, batches)
    if plan.copies == "own_stream":
        actors["copy"] = _copier(plan, board, batches)
    if not plan.step_threads:
        actors["GPU"] = _gpu(plan, board, batches)
    spans = _Engine(plan.cores, actors).run()
    return Timeline(plan, tuple(spans), tuple(span.end_s for span in spans if span.kind == "step"))


def _worker(plan: Plan, board: _Board, number: int) -> _Actor:
    for batch in itertools.count(number, plan.workers):  # endless: a last batch would leave its cores to the others
        yield _Until(lambda batch=batch: batch < board.taken + plan.prefetch * plan.workers, batch)  # type: ignore[misc]
        yield from _load(plan, batch)
        board.ready.add(batch)


def _load(plan: Plan, batch: int) -> _Actor:
    yield _Work("read", batch, plan.read_s * plan.slowness(batch), 0)
    yield _Work("load", batch, plan.load_s * plan.slowness(batch), 1)


def _process(plan: Plan, board: _Board, batches: int) -> _Actor:
    for batch in range(batches):
        if plan.workers:
            yield _Until(lambda batch=batch: batch in board.ready, batch, "stall")  # type: ignore[misc]
        else:
            yield from _load(plan, batch)
        board.taken = batch + 1
        if plan.step_threads:
            yield _Work("step", batch, plan.step_s, plan.step_threads)
            continue
        behind = batch if plan.copies == "blocking" else batch + 1 - _AHEAD
        yield _Until(lambda behind=behind: board.stepped >= behind, batch)  # type: ignore[misc]
        if plan.copies == "blocking":
            yield _Work("copy", batch, plan.copy_s, 0)
        board.handed = batch + 1


def _copier(plan: Plan, board: _Board, batches: int) -> _Actor:
    for batch in range(batches):
        yield _Until(lambda batch=batch: board.handed > batch, batch)  # type: ignore[misc]
        yield _Work("copy", batch, plan.copy_s, 0)
        board.copied = batch + 1


def _gpu(plan: Plan, board: _Board, batches: int) -> _Actor:
    is_own = plan.copies == "own_stream"
    for batch in range(batches):
        yield _Until(lambda batch=batch: (board.copied if is_own else board.handed) > batch, batch)  # type: ignore[misc]
        if plan.copies == "non_blocking":
            yield _Work("copy", batch, plan.copy_s, 0)
        yield _Work("step", batch, plan.step_s, 0)
        board.stepped = batch + 1


class _Engine:
    """Moves time forward from one end of some work to the next."""

    def __init__(self, cores: int, actors: dict[str, _Actor]) -> None:
        self.cores, self.actors = cores, actors
        self.now_s = 0.0
        self.doing: dict[str, _Work | _Until] = {}
        self.since_s: dict[str, float] = dict.fromkeys(actors, 0.0)
        self.left_s: dict[str, float] = {}
        self.spans: list[Span] = []

    def run(self) -> list[Span]:
        for lane in self.actors:
            self._next(lane)
        while any(not lane.startswith("worker") for lane in self.doing):
            self._settle()
            self._advance()
        return self.spans

    def _settle(self) -> None:
        """Let everybody go on who waits for nothing any more, until nobody can."""
        is_moving = True
        while is_moving:
            is_moving = False
            for lane, what in list(self.doing.items()):
                is_over = what.is_over() if isinstance(what, _Until) else self.left_s[lane] <= _TINY_S
                if is_over:
                    self._finish(lane, what)
                    is_moving = True

    def _finish(self, lane: str, what: _Work | _Until) -> None:
        if what.kind is not None and self.now_s > self.since_s[lane] + _TINY_S:
            self.spans.append(Span(lane, what.kind, what.batch, self.since_s[lane], self.now_s))
        self._next(lane)

    def _next(self, lane: str) -> None:
        self.doing.pop(lane, None)
        what = next(self.actors[lane], None)
        if what is None:
            return
        self.doing[lane], self.since_s[lane] = what, self.now_s
        if isinstance(what, _Work):
            self.left_s[lane] = what.seconds

    def _advance(self) -> None:
        working = {lane: what for lane, what in self.doing.items() if isinstance(what, _Work)}
        if not working:
            assert all(lane.startswith("worker") for lane in self.doing), "somebody waits for what nobody does"
            return
        wanted = sum(what.threads for what in working.values())
        slowed = min(1.0, self.cores / wanted) if wanted else 1.0
        rates = {lane: slowed if what.threads else 1.0 for lane, what in working.items()}
        step_s = min(self.left_s[lane] / rate for lane, rate in rates.items())
        self.now_s += step_s
        for lane, rate in rates.items():
            self.left_s[lane] -= step_s * rate


def bottleneck(plan: Plan) -> str:
    """The resource that needs the most time per batch: "model", "workers", "cores" or "process"."""
    limits = bounds_s(plan)
    return max(limits, key=lambda name: limits[name])
