"""gloo and oneCCL: the same all-reduce through sockets and through shared memory, and what a training step notices."""

from __future__ import annotations

import contextlib
import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from accelerando import costs, measure, noise, ranks, stats, units, work
from accelerando.backends import oneccl
from accelerando.lessons import Budget
from accelerando.lessons.multi_cpu.layouts import NOT_RUN, Ratio, compare, tell_disturbances

TELL = "accelerando.lessons.multi_cpu.on_backends:tell"
RANKS = 2
SIZES_BYTES = (4 * 2**10, 64 * 2**10, 2**20, 16 * 2**20)
SHARED_BYTES = 64 * 2**20
SILENT, GLOO, CCL = "no message", "gloo", "ccl"
NAMES = {GLOO: "gloo", CCL: "oneCCL", SILENT: "no message"}
STORED = Path("benchmarks/results/oneccl_bandwidth.json")


@dataclass(frozen=True)
class Curve:
    """Times of an all-reduce over sizes, through one backend.

    Args:
        label: Which backend, and where and when it was measured if not in this run.
        sizes_bytes: Rising.
        milliseconds: Median for each size, with its interval's lower and upper end.
    """

    label: str
    sizes_bytes: tuple[int, ...]
    milliseconds: tuple[tuple[float, float, float], ...]


@dataclass(frozen=True)
class Backends:
    """gloo and oneCCL on the same ranks.

    Args:
        reason: Why there was no oneCCL; None when there was.
        version: What oneCCL calls itself.
        seconds: Bytes of a message -> backend -> seconds of each pair; empty when nothing was measured.
        sent_bytes: Backend -> what the ranks gave to sockets for one all-reduce of the largest message, on average;
            None where the system does not count.
        steps: Model -> backend, or `SILENT` -> seconds of a training step in each round.
        start_bytes: Memory of a rank's own before that: libraries, models.
        copy_bytes: What a rank's memory grew by with a copy of `SHARED_BYTES` of images.
        mapped_bytes: Likewise when all ranks mapped one file.
        disturbances: What else was known to take the cores meanwhile.
    """

    reason: str | None
    version: str | None = None
    seconds: Mapping[int, Mapping[str, Sequence[float]]] = field(default_factory=dict)
    sent_bytes: Mapping[str, float | None] = field(default_factory=dict)
    steps: Mapping[str, Mapping[str, Sequence[float]]] = field(default_factory=dict)
    start_bytes: float | None = None
    copy_bytes: float | None = None
    mapped_bytes: float | None = None
    disturbances: Sequence[str] = ()

    def curves(self) -> list[Curve]:
        """Times of this run; empty when nothing was measured."""
        found = []
        for name in (GLOO, CCL):
            rows = {size: both[name] for size, both in self.seconds.items() if name in both}
            if rows:
                times = tuple(_milliseconds(stats.median_interval(np.array(taken))) for taken in rows.values())
                found.append(Curve(f"{NAMES[name]}, this run", tuple(rows), times))
        return found

    def ratios(self) -> dict[int, Ratio]:
        """Bytes of a message -> gloo's time over oneCCL's."""
        return {size: compare(both[GLOO], both[CCL]) for size, both in self.seconds.items() if CCL in both}

    def sentence(self) -> str:
        """What this run showed about messages."""
        if not self.seconds:
            return NOT_RUN + (f" And there is no oneCCL here: {self.reason}." if self.reason else "")
        if self.reason is not None:
            return f"There is no oneCCL here ({self.reason}): gloo is alone. The pale lines are from elsewhere."
        ratios = self.ratios()
        told = [
            f"{units.binary_size(size)}: **{_times(ratio.middle)}** ({_times(ratio.low)} to {_times(ratio.high)})"
            for size, ratio in ratios.items()
        ]
        ahead = ", ".join(units.binary_size(size) for size, ratio in ratios.items() if ratio.low > 1)
        behind = ", ".join(units.binary_size(size) for size, ratio in ratios.items() if ratio.high < 1)
        verdict = f"oneCCL is ahead at {ahead}" if ahead else "oneCCL is ahead at no size"
        verdict += f", gloo at {behind}" if behind else ""
        verdict += ", and the rest is too close to call" if any(r.low <= 1 <= r.high for r in ratios.values()) else ""
        if behind:
            verdict += (
                ". While it waits oneCCL asks again and again, where gloo sleeps: on cores that others need too, that "
                "costs"
            )
        return (
            f"oneCCL ({str(self.version).split()[0]}) against gloo, times as fast, 95 % intervals: {', '.join(told)}. "
            f"On these {RANKS} ranks {verdict}. {self._sent_sentence()}"
            f"{tell_disturbances(self.disturbances)}"
        )

    def _sent_sentence(self) -> str:
        counted = {name: sent for name, sent in self.sent_bytes.items() if sent is not None}
        if len(counted) < 2:
            return "How many bytes go through sockets is not counted on this system."
        message = max(self.seconds)
        gloo, ccl = (units.binary_size(counted[name]) for name in (GLOO, CCL))
        return (
            f"For {units.binary_size(message)} the system saw a rank hand {gloo} to its sockets under gloo, and "
            f"{ccl} under oneCCL"
            + (": its ranks read each other's numbers in shared memory." if counted[CCL] < message / 10 else ".")
        )

    def step_sentence(self) -> str:
        """What a training step notices of the backend."""
        if not self.steps:
            return NOT_RUN
        told = []
        for model, ways in self.steps.items():
            silent, gloo = (float(np.median(ways[name])) for name in (SILENT, GLOO))
            line = (
                f"**{model}**: a step takes {measure.duration(silent)} without a message and {measure.duration(gloo)} "
                f"with gloo"
            )
            if CCL in ways:
                ratio = compare(ways[GLOO], ways[CCL])
                line += f"; with oneCCL it is **{ratio}**"
                line += ", too close to call" if ratio.verdict == "too close to call" else ""
            told.append(line)
        return "; ".join(told) + "."

    def step_rows(self) -> dict[str, dict[str, tuple[float, float, float]]]:
        """Model -> way -> milliseconds of a step with their interval."""
        return {
            model: {NAMES[name]: _milliseconds(stats.median_interval(np.array(taken))) for name, taken in ways.items()}
            for model, ways in self.steps.items()
        }

    def memory_sentence(self) -> str:
        """What a rank's own copy of the data costs."""
        if self.start_bytes is None or self.copy_bytes is None or self.mapped_bytes is None:
            return NOT_RUN
        read, start, copy = (units.binary_size(size) for size in (SHARED_BYTES, self.start_bytes, self.copy_bytes))
        return (
            f"{read} of images: with a copy of its own each rank grew by **{copy}**, with the same file mapped by all "
            f"of them by **{units.binary_size(max(0.0, self.mapped_bytes))}** (counted is memory that belongs to one "
            f"process alone). Before that each rank had **{start}** of its own: libraries, models, buffers, once for "
            "every process."
        )


def _times(ratio: float) -> str:
    return f"{ratio:.1f}" if ratio >= 1 else f"{ratio:.2g}"


def _milliseconds(found: tuple[float, float, float]) -> tuple[float, float, float]:
    middle, low, high = (1e3 * value for value in found)
    return middle, low, high


def make_ready(budget: Budget) -> str:
    """Build the backend if that was not done before on this machine, showing how far it is, and say what came of it.

    Args:
        budget: In smoke nothing is built.
    """
    if reason := oneccl.why_not():
        return f"No oneCCL here: {reason}. What follows goes on with gloo."
    if budget.name == "smoke":
        return "oneCCL could be had here; the smoke budget does not build it."
    choice = oneccl.choose()
    if choice.reason is not None:
        return f"No oneCCL here: {choice.reason}. What follows goes on with gloo."
    return f'oneCCL {oneccl.version().split()[0]} is ready: `init_process_group("ccl")` works in this process.'


def measure_backends(budget: Budget) -> Backends:
    """Launch two ranks once and let them run everything about backends and shared memory; nothing in smoke."""
    if budget.name == "smoke":
        return Backends(oneccl.why_not())
    pairs = 2 * budget.rounds + 1
    with _shared_file() as path:
        payload = {"sizes_bytes": list(SIZES_BYTES), "pairs": pairs, "rounds": budget.rounds, "shared_file": str(path)}
        with noise.watch() as watched:
            values = ranks.run(TELL, RANKS, payload=payload, time_limit_s=240.0).values
    return read_backends(values, watched.state.disturbances)


@contextlib.contextmanager
def _shared_file() -> Iterator[Path]:
    """A file of random numbers, in shared memory where there is room, else where temporary files are."""
    place = oneccl.SHARED_MEMORY
    has_room = place.is_dir() and shutil.disk_usage(place).free > 4 * SHARED_BYTES
    with tempfile.TemporaryDirectory(prefix="accelerando-", dir=place if has_room else None) as folder:
        path = Path(folder) / "images"
        np.random.default_rng(0).random(SHARED_BYTES // 4, dtype=np.float32).tofile(path)
        yield path


def read_backends(values: Sequence[Mapping[str, Any]], disturbances: Sequence[str] = ()) -> Backends:
    """Put together what the ranks told."""
    first = values[0]
    sent: dict[str, float | None] = {}
    for name in first["sent"]:
        counted = [value["sent"][name] for value in values]
        sent[name] = None if None in counted else float(np.mean(counted))
    return Backends(
        reason=first["reason"],
        version=first["version"],
        seconds={int(size): both for size, both in first["seconds"].items()},
        sent_bytes=sent,
        steps=first["steps"],
        **{
            name: float(np.mean([value["memory"][name] for value in values]))
            for name in ("start_bytes", "copy_bytes", "mapped_bytes")
        },
        disturbances=disturbances,
    )


def stored_curves(root: Path | None = None) -> list[Curve]:
    """The longer curves that the course keeps, labelled with the machine and the day; empty where they are missing."""
    path = (root or work.checkout()) / STORED
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
        where = f"{kept['machine']['model']}, {kept['date'][:10]}"
        sizes = tuple(int(row["message_bytes"]) for row in kept["rows"])
        return [
            Curve(
                f"{NAMES[name]}, {where}",
                sizes,
                tuple((float(row[name]["ms"]), *map(float, row[name]["interval_ms"])) for row in kept["rows"]),  # type: ignore[misc]
            )
            for name in (GLOO, CCL)
        ]
    except (OSError, ValueError, KeyError):
        return []


def stored_link() -> tuple[costs.Link, str]:
    """The link between two ranks under gloo, by the kept measurement, and where that was made; free without one."""
    curves = stored_curves()
    if not curves:
        return costs.Link(0.0, 1e15), "nothing (a message is taken to be free)"
    gloo = curves[0]
    short_s, long_s = (1e-3 * row[0] for row in (gloo.milliseconds[0], gloo.milliseconds[-1]))
    return costs.Link(short_s / 2, gloo.sizes_bytes[-1] / (long_s - short_s)), gloo.label
