"""Fashion-MNIST's files: the order of places, and every way a file can be wrong."""

import gzip
import http.server
import json
import re
import shutil
import threading
import time

import numpy as np
import pytest

from accelerando import datasets, fashion_files
from accelerando.data import pack

ITEMS = {"train-images-idx3-ubyte": 40, "train-labels-idx1-ubyte": 40, "t10k-images-idx3-ubyte": 20,
         "t10k-labels-idx1-ubyte": 20}  # fmt: skip


@pytest.fixture
def files(monkeypatch):
    """Four small files in the original format, made known in place of the real ones; returns name -> content."""
    import hashlib

    draw = np.random.default_rng(0)
    contents, known = {}, []
    for entry in fashion_files.KNOWN:
        count = ITEMS[entry.name]
        is_images = entry.kind == "images"
        header = (2051 if is_images else 2049).to_bytes(4, "big") + count.to_bytes(4, "big")
        header += (28).to_bytes(4, "big") * 2 if is_images else b""
        body = draw.integers(0, 256, count * 784, np.uint8) if is_images else (np.arange(count) % 10).astype(np.uint8)
        contents[entry.name] = header + body.tobytes()
        digest = hashlib.sha256(contents[entry.name]).hexdigest()
        known.append(fashion_files.KnownFile(entry.name, entry.content, entry.kind, count, digest))
    monkeypatch.setattr(fashion_files, "KNOWN", tuple(known))
    return contents


@pytest.fixture(autouse=True)
def nothing_installed(monkeypatch, tmp_path):
    """Hide this machine's own copies, so that a test does not depend on them."""
    monkeypatch.setattr(fashion_files, "DEBIAN_FOLDER", tmp_path / "no-debian")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "no-cache"))
    monkeypatch.delenv(fashion_files.ENVIRONMENT_VARIABLE, raising=False)


def write(folder, contents, packed=True):
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        if packed:
            (folder / f"{name}.gz").write_bytes(gzip.compress(content))
        else:
            (folder / name).write_bytes(content)
    return folder


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("under", [".", "FashionMNIST/raw", "raw"])
def test_files_are_found_packed_or_not_in_the_folder_or_where_torchvision_puts_them(tmp_path, files, packed, under):
    write(tmp_path / under, files, packed)
    data = datasets.fashion_mnist(tmp_path)
    assert (len(data.train), len(data.test)) == (40, 20)
    assert data.train.images.tobytes() == files["train-images-idx3-ubyte"][16:]
    assert data.test.labels.tolist() == [*range(10), *range(10)]
    assert str(tmp_path) in data.source
    assert "40 training and 20 test images" in data.source
    assert data.train.images.flags.writeable  # torch warns on stderr of arrays that are not


def test_places_are_tried_in_order(tmp_path, files, monkeypatch):
    named, environment, debian = (write(tmp_path / name, files) for name in ("named", "environment", "debian"))
    cache = tmp_path / "cache"
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    write(fashion_files.cache_folder(), files)
    monkeypatch.setattr(fashion_files, "DEBIAN_FOLDER", debian)
    monkeypatch.setenv(fashion_files.ENVIRONMENT_VARIABLE, str(environment))
    assert str(named) in datasets.fashion_mnist(named).source
    assert str(environment) in datasets.fashion_mnist().source
    monkeypatch.delenv(fashion_files.ENVIRONMENT_VARIABLE)
    assert "Debian" in datasets.fashion_mnist().source
    shutil.rmtree(debian)
    assert str(cache) in datasets.fashion_mnist().source
    shutil.rmtree(cache)
    assert "ships with the course" in datasets.fashion_mnist().source


def test_named_folder_without_the_set_is_refused_not_replaced(tmp_path, files, monkeypatch):
    with pytest.raises(ValueError, match="is not a folder"):
        datasets.fashion_mnist(tmp_path / "typo")
    write(tmp_path / "part", files)
    (tmp_path / "part" / "t10k-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(ValueError, match="has no t10k-labels-idx1-ubyte"):
        datasets.fashion_mnist(tmp_path / "part")
    monkeypatch.setenv(fashion_files.ENVIRONMENT_VARIABLE, str(tmp_path / "typo"))
    with pytest.raises(ValueError, match="ACCELERANDO_DATA"):
        datasets.fashion_mnist()


def flipped_bit(content: bytes) -> bytes:
    changed = bytearray(content)
    changed[-100] ^= 1
    return bytes(changed)


@pytest.mark.parametrize(
    ("name", "damage", "message"),
    [
        ("train-images-idx3-ubyte", lambda raw: gzip.compress(flipped_bit(raw)), "SHA-256 is not that of the training"),
        ("train-images-idx3-ubyte", lambda raw: gzip.compress(raw)[:-300], "damaged or cut short"),
        ("train-images-idx3-ubyte", lambda raw: b"<html>404</html>", "damaged or cut short"),
        ("train-images-idx3-ubyte", lambda raw: b"", "cut short: 0 bytes"),
        ("train-labels-idx1-ubyte", lambda raw: gzip.compress(raw[:-5]), "cut short"),
        ("train-labels-idx1-ubyte", lambda raw: gzip.compress(raw + b"more"), "too long"),
    ],
    ids=["flipped bit", "truncated gz", "web page", "empty", "short", "long"],
)
def test_damaged_file_is_refused_by_name_with_the_cure(tmp_path, files, name, damage, message):
    write(tmp_path, files)
    (tmp_path / f"{name}.gz").write_bytes(damage(files[name]))
    with pytest.raises(ValueError, match=message) as caught:
        datasets.fashion_mnist(tmp_path)
    assert f"{name}.gz" in str(caught.value)
    assert "get the file again" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "other", "message"),
    [
        ("train-labels-idx1-ubyte", "train-images-idx3-ubyte", "holds the training images, not the training labels"),
        ("train-images-idx3-ubyte", "t10k-images-idx3-ubyte", "holds the test images, not the training images"),
        ("t10k-labels-idx1-ubyte", "train-labels-idx1-ubyte", "holds the training labels, not the test labels"),
    ],
)
def test_swapped_file_is_recognised(tmp_path, files, name, other, message):
    write(tmp_path, {**files, name: files[other]})
    with pytest.raises(ValueError, match=f"{message}.*Rename it to {other}"):
        datasets.fashion_mnist(tmp_path)


def test_gzip_bomb_is_not_unpacked_whole(tmp_path, files):
    write(tmp_path, files)
    (tmp_path / "train-images-idx3-ubyte.gz").write_bytes(gzip.compress(bytes(200_000_000), 1))
    with pytest.raises(ValueError, match="too long: at least 31,377 bytes"):
        datasets.fashion_mnist(tmp_path)


@pytest.fixture
def server(files):
    """Serve the four files; entries of `replies` replace one: bytes, or a number of seconds to stall."""
    replies: dict[str, bytes | float] = {f"{name}.gz": gzip.compress(content) for name, content in files.items()}

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            reply = replies[self.path.lstrip("/")]
            self.send_response(200)
            self.end_headers()
            if isinstance(reply, bytes):
                self.wfile.write(reply)
            else:
                self.wfile.flush()
                time.sleep(reply)

        def log_message(self, *words):
            pass

    service = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=service.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{service.server_port}/", replies
    service.shutdown()
    service.server_close()
    thread.join()


@pytest.fixture
def mirror(server, monkeypatch):
    from torchvision.datasets import FashionMNIST

    monkeypatch.setattr(FashionMNIST, "mirrors", [server[0]])
    return server[1]


def test_download_is_checked_kept_and_used_again(mirror, files):
    assert "the cache" in datasets.fashion_mnist(download=True).source
    mirror.clear()
    assert "the cache" in datasets.fashion_mnist(download=True).source
    kept = {path.name for path in fashion_files.cache_folder().iterdir()}
    assert kept == {f"{name}.gz" for name in ITEMS}


def test_wrong_download_is_refused_and_not_kept(mirror, files):
    mirror["t10k-images-idx3-ubyte.gz"] = gzip.compress(flipped_bit(files["t10k-images-idx3-ubyte"]))
    with pytest.raises(ValueError, match="SHA-256"):
        datasets.fashion_mnist(download=True)
    assert not list(fashion_files.cache_folder().glob("*t10k-images*"))
    assert "ships with the course" in datasets.fashion_mnist().source


def test_download_ends_at_its_time_limit(mirror):
    mirror["train-images-idx3-ubyte.gz"] = 5.0
    with pytest.raises(ValueError, match=r"took over 0\.2 s and was stopped\. Without a network"):
        datasets.fashion_mnist(download=True, time_limit_s=0.2)


def test_endless_download_is_cut_off(mirror):
    mirror["train-labels-idx1-ubyte.gz"] = bytes(10_000_000)
    with pytest.raises(ValueError, match="far too long"):
        datasets.fashion_mnist(download=True)


def test_no_network_is_one_sentence_with_the_way_out(monkeypatch, files):
    from torchvision.datasets import FashionMNIST

    monkeypatch.setattr(FashionMNIST, "mirrors", ["http://127.0.0.1:9/"])
    with pytest.raises(ValueError, match=r"could not be downloaded.*leave out download=True"):
        datasets.fashion_mnist(download=True)


def test_what_is_packed_comes_back_in_its_own_order(tmp_path):
    draw = np.random.default_rng(1)
    images = {part: draw.integers(0, 256, (n, 28, 28), np.uint8) for part, n in (("train", 5003), ("test", 77))}
    labels = {part: draw.integers(0, 10, len(images[part])) for part in images}
    pack.pack(images, labels, tmp_path)
    train_images, train_labels, test_images, test_labels = pack.unpack(tmp_path)
    for found, given in ((train_images, images["train"]), (test_images, images["test"])):
        np.testing.assert_array_equal(found, given)
    for found, given in ((train_labels, labels["train"]), (test_labels, labels["test"])):
        np.testing.assert_array_equal(found, given)


@pytest.mark.parametrize("name", ["train-images-1.xz", "test-labels.xz", "index.json"])
@pytest.mark.parametrize("damage", ["cut", "gone", "flipped"])
def test_damaged_embedded_file_is_refused_by_name(tmp_path, name, damage):
    copy = tmp_path / "copy"
    shutil.copytree(pack.FOLDER, copy)
    path = copy / name
    content = path.read_bytes()
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes(content[: len(content) // 2] if damage == "cut" else flipped_bit(content))
    if name == "index.json" and damage == "flipped":
        index = json.loads(content)
        index["train"]["files"][0]["sha256"] = "0" * 64
        path.write_text(json.dumps(index))
        name = "train-images-0.xz"
    with pytest.raises(ValueError, match=re.escape(name) + ".*reinstall"):
        pack.unpack(copy)


@pytest.mark.parametrize("index", ["[]", "{}", '{"train": {"labels": 3}}', "null"])
def test_index_that_makes_no_sense_is_refused(tmp_path, index):
    (tmp_path / "index.json").write_text(index)
    with pytest.raises(ValueError, match=r"index\.json is damaged: reinstall"):
        pack.unpack(tmp_path)


def test_swapped_embedded_files_are_refused(tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(pack.FOLDER, copy)
    (copy / "train-images-0.xz").replace(copy / "spare")
    (copy / "train-images-1.xz").replace(copy / "train-images-0.xz")
    (copy / "spare").replace(copy / "train-images-1.xz")
    with pytest.raises(ValueError, match=r"train-images-.\.xz is damaged"):
        pack.unpack(copy)


def test_every_embedded_file_is_below_2_mb_and_has_its_licence_beside_it():
    sizes = {path.name: path.stat().st_size for path in pack.FOLDER.iterdir()}
    assert max(sizes.values()) < 2e6
    assert sum(sizes.values()) < 8e6
    assert "MIT License" in (pack.FOLDER / "LICENSE").read_text(encoding="utf-8")


def test_embedded_test_set_is_the_original_one_byte_for_byte():
    found = fashion_files.embedded()
    header = (2051).to_bytes(4, "big") + (10_000).to_bytes(4, "big") + (28).to_bytes(4, "big") * 2
    header_labels = (2049).to_bytes(4, "big") + (10_000).to_bytes(4, "big")
    import hashlib

    images = hashlib.sha256(header + found.test_images.tobytes()).hexdigest()
    labels = hashlib.sha256(header_labels + found.test_labels.astype(np.uint8).tobytes()).hexdigest()
    known = {entry.content: entry.sha256 for entry in fashion_files.KNOWN}
    assert (images, labels) == (known["test images"], known["test labels"])
