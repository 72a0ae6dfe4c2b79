"""Files hold images as JPEG or PNG: what it costs to decode them, and what caching saves."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from accelerando import measure, rounds
from accelerando.lessons import Budget
from accelerando.lessons.pipelines import samples
from accelerando.lessons.pipelines.samples import Format

LARGE = 224
FORMS: tuple[tuple[str, Format, int, int], ...] = (
    ("28 px, raw", "raw", 28, 0),
    ("28 px, PNG", "PNG", 28, 0),
    ("28 px, JPEG", "JPEG", 28, 0),
    ("224 px, raw", "raw", LARGE, 0),
    ("224 px, PNG", "PNG", LARGE, 0),
    ("224 px, JPEG", "JPEG", LARGE, 0),
    ("224 px, JPEG decoded at 28", "JPEG", LARGE, 28),
)


@dataclass(frozen=True)
class Decoded:
    """One kind of file.

    Args:
        name: Size and format.
        bytes_per_image: Of the file.
        seconds_per_image: To decode it, on one core.
    """

    name: str
    bytes_per_image: float
    seconds_per_image: float


@dataclass(frozen=True)
class Decoding:
    """What the formats cost."""

    rows: tuple[Decoded, ...]

    def seconds(self, name: str) -> float:
        """Seconds per image of one kind of file."""
        return next(row.seconds_per_image for row in self.rows if row.name == name)

    def markdown(self) -> str:
        """The table."""
        lines = ["| stored as | bytes per image | decoding one takes | images/s on one core |", "|---|---|---|---|"]
        for row in self.rows:
            speed = 1 / row.seconds_per_image
            taken = measure.duration(row.seconds_per_image)
            lines.append(f"| {row.name} | {row.bytes_per_image:,.0f} | {taken} | {speed:,.0f} |")
        return "\n".join(lines)

    def sentence(self) -> str:
        """What this run showed."""
        small, large = self.seconds("28 px, JPEG"), self.seconds("224 px, JPEG")
        draft = large / self.seconds("224 px, JPEG decoded at 28")
        pixels = (LARGE / 28) ** 2
        opening = 1 - (large / small - 1) / (pixels - 1)  # its share, if the rest grows with the pixels
        verdict = (
            f": most of the {measure.duration(small)} of a small image is opening the file, whatever is in it"
            if opening > 0.5
            else ""
        )
        return (
            f"As a JPEG, {pixels:.0f} times the pixels cost {large / small:.1f} times the time{verdict}. A JPEG that "
            f"is needed small can be *decoded* small (`draft`): {draft:.1f} times as fast."
        )


def measure_decoding(budget: Budget) -> Decoding:
    """Encode real images with PIL, and measure how long it takes to decode them."""
    images = samples.fashion(8 if budget.name == "smoke" else 64).images
    files = {name: samples.encode(images, form, pixels) for name, form, pixels, _ in FORMS}
    subjects = {
        key: _decode_all(files[name], form, pixels, draft) for key, (name, form, pixels, draft) in enumerate(FORMS)
    }
    sample_s = 0.05 if budget.rounds > 1 else 1e-6
    points = rounds.measure_rounds(subjects, budget.rounds, sample_s=sample_s)
    return Decoding(
        tuple(
            Decoded(name, float(np.mean([len(file) for file in files[name]])), point.median_s / len(images))
            for (name, *_), point in zip(FORMS, points, strict=True)
        )
    )


def _decode_all(files: list[bytes], form: Format, pixels: int, draft: int) -> Callable[[], None]:
    def run() -> None:
        for data in files:
            samples.decode(data, form, pixels, draft=draft)

    return run


# -- caching ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Caching:
    """One epoch of 28-pixel images in random order, from three places.

    Args:
        points: Keys 0 (PNG, decoded each time), 1 (decoded once, array in memory), 2 (decoded once, file mapped
            into memory).
        images: Per epoch.
        array_bytes: Of the decoded array.
        file_bytes: Of all PNG files.
        fill_s: Seconds that decoding everything once takes.
    """

    points: tuple[rounds.RoundPoint, ...]
    images: int
    array_bytes: int
    file_bytes: int
    fill_s: float

    def sentence(self) -> str:
        """What this run showed."""
        png, array, mapped = (self.images / point.median_s for point in self.points)
        size = self.array_bytes / self.file_bytes
        return (
            f"Decoding each time gives {png:,.0f} images/s, an array in memory {array:,.0f}, the same array as a "
            "mapped file "
            f"{mapped:,.0f}. The cache is filled in {measure.duration(self.fill_s)} and takes {size:.1f} times the "
            "bytes of the files "
            f"({self.array_bytes / 2**20:.1f} MiB here). The file had just been written, so the system still had it in "
            "memory: the first epoch from a cold disk is slower, and was not measured."
        )


def measure_caching(budget: Budget) -> Caching:
    """Read images in random order, batch by batch: decoded each time, from an array, and from a mapped file."""
    images = samples.fashion(64 if budget.name == "smoke" else 2048).images
    files = samples.encode(images, "PNG")
    with tempfile.TemporaryDirectory(prefix="accelerando-") as folder:
        path = Path(folder, "images.npy")
        np.save(path, images)
        mapped = np.load(path, mmap_mode="r")
        subjects = {0: _decoding_epoch(files), 1: _array_epoch(images), 2: _array_epoch(mapped)}
        sample_s = 0.05 if budget.rounds > 1 else 1e-6
        points = rounds.measure_rounds(subjects, min(5, budget.rounds), sample_s=sample_s)
        del subjects, mapped
    return Caching(points, len(images), images.nbytes, sum(map(len, files)), points[0].median_s)


def _decoding_epoch(files: list[bytes]) -> Callable[[], None]:
    def run() -> None:
        for chosen in _batches(len(files)):
            np.stack([samples.decode(files[index], "PNG") for index in chosen])

    return run


def _array_epoch(images: npt.NDArray[np.uint8]) -> Callable[[], None]:
    def run() -> None:
        for chosen in _batches(len(images)):
            images[chosen]

    return run


def _batches(count: int, size: int = 64) -> list[npt.NDArray[np.int64]]:
    order = samples.shuffled(count, 0)
    return [order[start : start + size] for start in range(0, count, size)]
