"""The files of Fashion-MNIST: finding, checking, fetching and unpacking them.

Nothing is believed by its name. The four files are known by the SHA-256 of their unpacked bytes, so a damaged,
shortened or swapped file is refused with its name and the cure, whoever packed it.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import time
import urllib.error
import urllib.request
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from accelerando import progress

DEBIAN_FOLDER = Path("/usr/share/datasets/fashion-mnist")
ENVIRONMENT_VARIABLE = "ACCELERANDO_DATA"
HEADER_BYTES = {"images": 16, "labels": 8}


@dataclass(frozen=True)
class KnownFile:
    """One of the four files: its name, how many items it holds, and the SHA-256 of its unpacked bytes."""

    name: str
    content: str
    kind: str
    items: int
    sha256: str

    @property
    def unpacked_bytes(self) -> int:
        """Length of the unpacked file."""
        return HEADER_BYTES[self.kind] + self.items * (784 if self.kind == "images" else 1)


KNOWN = (
    KnownFile(
        "train-images-idx3-ubyte",
        "training images",
        "images",
        60_000,
        "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
    ),
    KnownFile(
        "train-labels-idx1-ubyte",
        "training labels",
        "labels",
        60_000,
        "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
    ),
    KnownFile(
        "t10k-images-idx3-ubyte",
        "test images",
        "images",
        10_000,
        "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
    ),
    KnownFile(
        "t10k-labels-idx1-ubyte",
        "test labels",
        "labels",
        10_000,
        "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
    ),
)


@dataclass(frozen=True)
class FashionArrays:
    """What was read: images uint8 (N, 28, 28), labels int64 (N,), and the place in words."""

    train_images: npt.NDArray[np.uint8]
    train_labels: npt.NDArray[np.int64]
    test_images: npt.NDArray[np.uint8]
    test_labels: npt.NDArray[np.int64]
    place: str


def cache_folder() -> Path:
    """Where a download is kept: the platform's cache, or what XDG_CACHE_HOME says."""
    import platformdirs

    base = os.environ.get("XDG_CACHE_HOME")
    root = Path(base) / "accelerando" if base else Path(platformdirs.user_cache_dir("accelerando"))
    return root / "fashion-mnist"


def find(folder: str | Path | None, download: bool, time_limit_s: float) -> FashionArrays:
    """Read from the first place that has the set: named folder, Debian's, cache, download, embedded.

    A folder that somebody named must have the set: falling back in silence would train on other images than asked.

    Raises:
        ValueError: If a named folder lacks a file, any file found is not what it should be, or a download failed.
    """
    if folder is not None:
        return read_folder(Path(folder).expanduser(), "the folder you named")
    named = os.environ.get(ENVIRONMENT_VARIABLE)
    if named:
        return read_folder(Path(named).expanduser(), f"the folder in {ENVIRONMENT_VARIABLE}")
    if has_set(DEBIAN_FOLDER):
        return read_folder(DEBIAN_FOLDER, "the Debian package")
    if not has_set(cache_folder()) and not download:
        return embedded()
    if not has_set(cache_folder()):
        fetch(cache_folder(), time_limit_s)
    return read_folder(cache_folder(), "the cache")


def has_set(folder: Path) -> bool:
    """Whether the folder has all four files, packed or not, right or wrong."""
    return all(_path_of(folder, known) is not None for known in KNOWN)


def _path_of(folder: Path, known: KnownFile) -> Path | None:
    for place in (folder, folder / "FashionMNIST" / "raw", folder / "raw"):
        for path in (place / known.name, place / f"{known.name}.gz"):
            if os.path.isfile(path):  # False, not an error, where the folder may not be entered
                return path
    return None


def read_folder(folder: Path, described: str) -> FashionArrays:
    """Read and check the four files in ``folder`` (or its FashionMNIST/raw), unpacked or .gz.

    Raises:
        ValueError: If the folder or a file is missing, or a file is damaged or not what its name says.
    """
    if not folder.is_dir():
        raise ValueError(f"{folder} ({described}) is not a folder: name the one with {KNOWN[0].name}.gz and the others")
    contents = {}
    for known in KNOWN:
        path = _path_of(folder, known)
        if path is None:
            raise ValueError(
                f"{folder} ({described}) has no {known.name} or {known.name}.gz: "
                "the four Fashion-MNIST files must be there, or in FashionMNIST/raw under it"
            )
        contents[known.content] = _items(_checked(_unpacked(path, known), path, known), known)
    return FashionArrays(
        contents["training images"],
        contents["training labels"].astype(np.int64),
        contents["test images"],
        contents["test labels"].astype(np.int64),
        f"{described} ({folder})",
    )


def _items(content: bytes, known: KnownFile) -> npt.NDArray[np.uint8]:
    flat = np.frombuffer(content, np.uint8, offset=HEADER_BYTES[known.kind]).copy()  # torch warns of read-only arrays
    return flat.reshape(known.items, 28, 28) if known.kind == "images" else flat


CURE = "Delete it and get the file again, or leave the folder out to use the images that ship with the course."


def _unpacked(path: Path, known: KnownFile) -> bytes:
    """Read a file, unpacking .gz, but never more than a little above the size it should have."""
    most = max(entry.unpacked_bytes for entry in KNOWN) + 1  # enough to recognise a swapped file
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as stream:
            return stream.read(most)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(f"{path} cannot be unpacked: it is damaged or cut short ({error}). {CURE}") from error
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror or error}") from error


def _checked(content: bytes, path: Path, known: KnownFile) -> bytes:
    """Return the content when it is the right file, else say what it is instead."""
    digest = hashlib.sha256(content).hexdigest()
    if digest == known.sha256:
        return content
    for other in KNOWN:
        if digest == other.sha256:
            raise ValueError(
                f"{path} holds the {other.content}, not the {known.content}: two files were swapped. "
                f"Rename it to {other.name}, or get the files again."
            )
    if len(content) != known.unpacked_bytes:
        is_short = len(content) < known.unpacked_bytes
        raise ValueError(
            f"{path} is {'cut short' if is_short else 'too long'}: {'' if is_short else 'at least '}"
            f"{len(content):,} bytes unpacked, the {known.content} are {known.unpacked_bytes:,}. {CURE}"
        )
    raise ValueError(f"{path} is damaged: right size, but its SHA-256 is not that of the {known.content}. {CURE}")


def fetch(folder: Path, time_limit_s: float) -> None:
    """Download the four files into ``folder`` from where torchvision gets them; all or nothing.

    Raises:
        ValueError: If there is no network, the limit passed, or what came is not the set.
    """
    from torchvision.datasets import FashionMNIST

    deadline_s = time.monotonic() + time_limit_s
    for known in KNOWN:
        if _path_of(folder, known) is None:
            content = _downloaded(f"{FashionMNIST.mirrors[0]}{known.name}.gz", known, deadline_s, time_limit_s)
            _keep(content, folder / f"{known.name}.gz", known)


def _downloaded(address: str, known: KnownFile, deadline_s: float, time_limit_s: float) -> bytes:
    late = ValueError(f"the download of the {known.content} took over {time_limit_s:g} s and was stopped. {OFFLINE}")
    pieces: list[bytes] = []
    received = 0
    try:
        with urllib.request.urlopen(address, timeout=max(0.1, min(10.0, deadline_s - time.monotonic()))) as reply:
            length = int(reply.headers.get("Content-Length") or 0)
            with progress.bar(length or known.unpacked_bytes, known.content, unit="bytes") as advance:
                while piece := reply.read1(65_536):  # read would wait for all of it, past the deadline
                    pieces.append(piece)
                    received += len(piece)
                    advance(len(piece))
                    if time.monotonic() > deadline_s:
                        raise late
                    if received > 2 * known.unpacked_bytes + 65_536:
                        raise ValueError(f"what came for the {known.content} is far too long. {OFFLINE}")
    except TimeoutError as error:
        raise late from error
    except (urllib.error.URLError, OSError) as error:
        reason = getattr(error, "reason", error)
        raise ValueError(f"the {known.content} could not be downloaded ({reason}). {OFFLINE}") from error
    return b"".join(pieces)


OFFLINE = (
    "Without a network, leave out download=True: the images that ship with the course are used. "
    f"Or put the four files in a folder and name it in {ENVIRONMENT_VARIABLE}."
)


def _keep(content: bytes, path: Path, known: KnownFile) -> None:
    """Check a download, then put it in place in one step, so that an interrupted one leaves nothing half."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}.part.gz")
    try:
        part.write_bytes(content)
        _checked(_unpacked(part, known), part, known)
        part.replace(path)
    except OSError as error:
        raise ValueError(f"{path.parent} cannot be written: {error.strerror or error}") from error
    finally:
        part.unlink(missing_ok=True)


def embedded() -> FashionArrays:
    """Read the subset that ships with the package: 12,000 training images, all 10,000 test images."""
    from accelerando.data import pack

    train_images, train_labels, test_images, test_labels = pack.unpack()
    return FashionArrays(train_images, train_labels, test_images, test_labels, "the subset that ships with the course")
