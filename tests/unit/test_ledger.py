"""The ledger: what goes in comes out, and anything else is refused in one sentence."""

import json
import os
import re
import subprocess
from dataclasses import dataclass

import numpy as np
import pytest

from accelerando import ledger
from accelerando.training import FitResult

MACHINE = {"model": "test", "physical_cores": 2, "numa_nodes": {"0": [0, 1]}}


@dataclass(frozen=True)
class Part:
    cores: tuple[int, ...]
    nodes: dict[int, tuple[int, ...]]
    limit_s: float | None = None


@dataclass(frozen=True)
class Whole:
    part: Part
    parts: tuple[Part, ...]
    times_s: np.ndarray
    pair: tuple[str, float]


@pytest.fixture
def nested(monkeypatch):
    monkeypatch.setitem(ledger.KINDS, "Whole", __name__)
    part = Part((0, 1), {0: (0, 1), 1: ()}, float("inf"))
    return Whole(part, (part, Part((), {})), np.arange(3.0), ("a", 1.5))


@pytest.fixture
def fit_result():
    return FitResult(
        recipe={"batch_size": 4}, model={"kind": "mlp"}, data_source="made up", seconds=2.5, images_per_s=40.0,
        images=100, steps=3, epoch_seconds=(1.0, 1.5), losses=np.array([1.0, np.nan, np.inf], np.float32),
        diverged_at_step=2, accuracy=0.5, predictions=np.array([1, 2**40]), is_correct=np.array([True, False]),
        prepare_s=0.1, warmup_s=0.2, evaluate_s=0.3, threads=2, parameters=7,
    )  # fmt: skip


def assert_same(found, given):
    assert type(found) is type(given)
    for name, value in vars(given).items():
        other = getattr(found, name)
        assert type(other) is type(value), name
        if isinstance(value, np.ndarray):
            assert other.dtype == value.dtype
            np.testing.assert_array_equal(other, value)
        else:
            assert other == value, name


def test_a_fit_result_comes_back_with_its_arrays_bit_for_bit(tmp_path, fit_result):
    path = tmp_path / "deep" / "ledger.json"
    written = ledger.record({"first": fit_result}, MACHINE)
    ledger.save(written, path)
    read = ledger.load(path)
    assert_same(read.results["first"], fit_result)
    assert (read.machine, read.versions, read.commit, read.date) == (
        MACHINE, written.versions, written.commit, written.date,
    )  # fmt: skip
    assert read.versions["torch"]


def test_nested_dataclasses_tuples_and_infinities_come_back(tmp_path, nested):
    ledger.save(ledger.record({"x": nested}, MACHINE), tmp_path / "l.json")
    assert_same(ledger.load(tmp_path / "l.json").results["x"], nested)


def test_the_file_is_json_that_any_reader_takes(tmp_path, nested):
    ledger.save(ledger.record({"x": nested}, MACHINE), tmp_path / "l.json")

    def refuse(name):
        raise AssertionError(f"{name} is not JSON")

    json.loads((tmp_path / "l.json").read_text(), parse_constant=refuse)


def test_machine_may_be_a_dataclass(nested):
    assert ledger.record({}, nested.part).machine["nodes"] == {"0": [0, 1], "1": []}


def test_what_the_ledger_does_not_know_is_refused():
    with pytest.raises(ValueError, match="'x' is a dict: a ledger keeps Measurement, Comparison, FitResult"):
        ledger.record({"x": {}}, MACHINE)


@pytest.fixture
def path(tmp_path, fit_result):
    path = tmp_path / "ledger.json"
    ledger.save(ledger.record({"first": fit_result}, MACHINE), path)
    return path


def changed(path, change):
    values = json.loads(path.read_text())
    change(values)
    path.write_text(json.dumps(values))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda path: path.write_bytes(path.read_bytes()[:-40]), "it is not JSON"),
        (lambda path: path.write_bytes(b""), "it is not JSON"),
        (lambda path: path.write_bytes("{}".encode("utf-16")), "it is not JSON"),
        (lambda path: path.write_text("[" * 100_000), "it is not JSON"),
        (lambda path: path.write_text("[]"), "no schema number"),
        (lambda path: path.unlink(), "cannot be read"),
        (lambda path: changed(path, lambda v: v.update(schema=2)), "has schema 2: this version reads schema 1"),
        (lambda path: changed(path, lambda v: v.update(schema="1")), "has schema '1'"),
        (lambda path: changed(path, lambda v: v.update(schema=True)), "has schema True"),
        (lambda path: changed(path, lambda v: v.pop("machine")), "Ledger lacks machine"),
        (lambda path: changed(path, lambda v: v.update(extra=1)), "Ledger has no extra"),
        (lambda path: changed(path, lambda v: v["results"]["first"].pop("steps")), "FitResult lacks steps"),
        (
            lambda path: changed(path, lambda v: v["results"]["first"].update(steps="3")),
            "FitResult.steps should be int",
        ),
        (lambda path: changed(path, lambda v: v["results"]["first"].update(losses=[1.0])), "losses should be ndarray"),
        (lambda path: changed(path, lambda v: v.update(results=None)), "Ledger.results should be dict, not NoneType"),
        (lambda path: changed(path, lambda v: v["results"]["first"]["losses"].update(shape=[9])), "damaged"),
        (lambda path: changed(path, lambda v: v["results"]["first"]["losses"].update(base64="%%")), "damaged"),
        (lambda path: changed(path, lambda v: v["results"]["first"]["losses"].update(__array__="object")), "damaged"),
        (lambda path: changed(path, lambda v: v["results"]["first"]["losses"].pop("shape")), "damaged"),
    ],
)
def test_damaged_or_foreign_file_is_refused_by_name_in_one_sentence(path, damage, message):
    damage(path)
    with pytest.raises(ValueError, match=message) as caught:
        ledger.load(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_failed_write_leaves_the_old_file_and_nothing_else(path, fit_result, monkeypatch):
    before = path.read_bytes()

    def full_disk(descriptor):
        raise OSError("no space left on device")

    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(OSError, match="no space"):
        ledger.save(ledger.record({"other": fit_result}, MACHINE), path)
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


def test_commit_is_named_in_our_checkout_and_not_in_somebody_elses(tmp_path, monkeypatch):
    here = ledger.commit()
    assert here is None or len(here.removesuffix("+changes")) == 40
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    (tmp_path / "ledger.py").write_text("")
    monkeypatch.setattr(ledger, "__file__", str(tmp_path / "ledger.py"))
    assert ledger.commit() is None


def test_where_figures_come_from_names_no_folder() -> None:
    told = json.dumps(ledger.origin())
    assert ledger.origin()["versions"]["torch"] in told
    assert not re.search(r'"(/|[A-Z]:\\\\)', told)
