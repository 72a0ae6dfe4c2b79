"""Pack Fashion-MNIST into the package, and unpack it: `python -m accelerando.data.pack FOLDER`.

Nobody but us has to pack; everybody unpacks. Images are sorted by class, so that the compressor finds likeness
beside likeness, and written column by column: clothes are more alike from top to bottom than from left to right,
which alone saves a tenth. The labels, stored in their own order, say where each image belongs.
"""

from __future__ import annotations

import hashlib
import json
import lzma
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

FOLDER = Path(__file__).parent / "fashion_mnist"
INDEX = "index.json"
TRAIN_IMAGES_PER_CLASS = 1200
IMAGES_PER_FILE = 2500  # below 1 MB each; the files are unpacked side by side
FILTERS = [{"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "lc": 4, "lp": 0, "pb": 0, "nice_len": 273}]
SCHEMA = 1

Images = npt.NDArray[np.uint8]
Labels = npt.NDArray[np.int64]


def pack(images: dict[str, Images], labels: dict[str, Labels], folder: Path = FOLDER) -> int:
    """Write the packed files of "train" and "test", and the index with their checksums.

    Args:
        images: uint8 (N, 28, 28) under "train" and "test".
        labels: int64 (N,) under the same names.
        folder: Where to write.

    Returns:
        Bytes written, the index not counted.
    """
    folder.mkdir(parents=True, exist_ok=True)
    index: dict[str, object] = {"schema": SCHEMA, "images": "uint8, 28 x 28, column by column, sorted by class"}
    total = 0
    for part in ("train", "test"):
        order = np.argsort(labels[part], kind="stable")
        files = []
        for start in range(0, len(order), IMAGES_PER_FILE):
            chosen = images[part][order[start : start + IMAGES_PER_FILE]]
            content = _compressed(chosen)
            name = f"{part}-images-{start // IMAGES_PER_FILE}.xz"
            files.append({"file": name, "images": len(chosen), "sha256": _written(folder / name, content)})
            total += len(content)
        packed = lzma.compress(labels[part].astype(np.uint8).tobytes(), preset=9)
        name = f"{part}-labels.xz"
        index[part] = {
            "files": files,
            "labels": {"file": name, "items": len(order), "sha256": _written(folder / name, packed)},
            "pixels_sha256": hashlib.sha256(images[part].tobytes()).hexdigest(),
        }
        total += len(packed)
    (folder / INDEX).write_text(json.dumps(index, indent=1) + "\n", encoding="utf-8")
    return total


def _written(path: Path, content: bytes) -> str:
    path.write_bytes(content)
    return hashlib.sha256(content).hexdigest()


def _compressed(images: Images) -> bytes:
    columns = np.ascontiguousarray(images.transpose(0, 2, 1)).tobytes()
    return lzma.compress(columns, format=lzma.FORMAT_XZ, check=lzma.CHECK_CRC32, filters=FILTERS)


def _expanded(content: bytes, count: int) -> Images:
    columns = np.frombuffer(lzma.decompress(content), np.uint8)
    return columns.reshape(count, 28, 28).transpose(0, 2, 1)


def unpack(folder: Path = FOLDER) -> tuple[Images, Labels, Images, Labels]:
    """Read what ``pack`` wrote: training images and labels, test images and labels, in their first order.

    Raises:
        ValueError: If a file is missing or damaged.
    """
    try:
        index = json.loads((folder / INDEX).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"{folder / INDEX} cannot be read: reinstall the course ({error})") from error
    try:
        train_images, train_labels = _part(index["train"], folder)
        test_images, test_labels = _part(index["test"], folder)
    except (KeyError, TypeError) as error:
        raise ValueError(f"{folder / INDEX} is damaged: reinstall the course ({error!r})") from error
    return train_images, train_labels, test_images, test_labels


def _part(entry: dict[str, Any], folder: Path) -> tuple[Images, Labels]:
    packed = _read(folder / entry["labels"]["file"], entry["labels"]["sha256"])
    labels = np.frombuffer(lzma.decompress(packed), np.uint8).astype(np.int64)
    order = np.argsort(labels, kind="stable")
    images = np.empty((len(labels), 28, 28), np.uint8)

    def place(start: int, file: dict[str, Any]) -> None:
        found = _expanded(_read(folder / file["file"], file["sha256"]), file["images"])
        images[order[start : start + len(found)]] = found

    starts = np.cumsum([0] + [file["images"] for file in entry["files"]])[:-1]
    with ThreadPoolExecutor(max_workers=2) as pool:  # xz lets go of the interpreter while it unpacks
        list(pool.map(place, starts.tolist(), entry["files"]))
    return images, labels


def _read(path: Path, sha256: str) -> bytes:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ValueError(f"{path} cannot be read: reinstall the course ({error.strerror})") from error
    if hashlib.sha256(content).hexdigest() != sha256:
        raise ValueError(f"{path} is damaged (its SHA-256 differs from the index): reinstall the course")
    return content


def choose(labels: Labels, per_class: int = TRAIN_IMAGES_PER_CLASS) -> npt.NDArray[np.intp]:
    """Pick the first ``per_class`` images of each class, in their first order: a choice anybody can repeat."""
    kept = [np.flatnonzero(labels == label)[:per_class] for label in np.unique(labels)]
    return np.sort(np.concatenate(kept))


def main(source: Path) -> None:
    """Pack the subset from the full set in ``source``."""
    from accelerando import fashion_files

    full = fashion_files.read_folder(source, "the folder you named")
    chosen = choose(full.train_labels)
    images = {"train": full.train_images[chosen], "test": full.test_images}
    labels = {"train": full.train_labels[chosen], "test": full.test_labels}
    size = pack(images, labels)
    found = unpack()
    for part, (kept_images, kept_labels) in {"train": found[:2], "test": found[2:]}.items():
        assert np.array_equal(kept_images, images[part]), part
        assert np.array_equal(kept_labels, labels[part]), part
    sys.stdout.write(f"{len(chosen):,} training and {len(full.test_labels):,} test images in {size:,} bytes\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
