"""Lesson 4's experiments run, its datasets give the same tensors, and the sentences follow the numbers."""

import contextlib
import io
import math
from dataclasses import replace

import ipywidgets as ipw
import numpy as np
import pytest
import torch
from PIL import Image

from accelerando import machine, measure
from accelerando.checks import pipelines as checks
from accelerando.figures import pipelines as pictures
from accelerando.lessons import BUDGETS, pipelines
from accelerando.lessons.pipelines import (
    decoding,
    lab,
    memory,
    samples,
    seeding,
    shared_memory,
    sharing,
    stalls,
    transfer,
    waiting,
    whole_batches,
)
from accelerando.noise import UNKNOWN_STATE
from accelerando.rounds import RoundPoint
from accelerando.timelines import Plan, simulate
from accelerando.widgets.pipelines import COPIES, timeline_explorer, timeline_words

SMOKE = BUDGETS["smoke"]


pytestmark = pytest.mark.usefixtures("one_thread")


def noise_images(count: int) -> samples.ImageSet:
    draw = np.random.default_rng(0)
    images = draw.integers(0, 256, size=(count, 28, 28), dtype=np.uint8)
    return samples.ImageSet(images, np.arange(count, dtype=np.int64))


@pytest.mark.parametrize("way", samples.WAYS)
def test_each_way_gives_crops_of_the_right_image_all_equally_likely(way: samples.Way) -> None:
    images = noise_images(600)
    batches = list(samples.make_loader(way, images, 64))
    epoch = tuple(torch.cat([pair[side] for pair in batches]).numpy() for side in (0, 1))
    assert epoch[0].dtype == np.float32
    places = checks._draws(epoch, images.images, images.labels)  # raises where an image is none of its 50 crops
    checks._judge_draws(places, epoch[1], 64)
    assert sorted(epoch[1].tolist()) == list(range(600))


def test_the_slow_epoch_of_the_lab_gives_what_the_check_asks_for() -> None:
    images = noise_images(600)
    found = lab.slow_epoch(images.images, images.labels, 64, seed=3)
    epoch = checks._read([list(pair) for pair in found], images.labels, 64)
    checks._judge_draws(checks._draws(epoch, images.images, images.labels), epoch[1], 64)
    again = lab.slow_epoch(images.images, images.labels, 64, seed=3)
    assert all(torch.equal(one[0], other[0]) for one, other in zip(found, again, strict=True))


@pytest.mark.parametrize(("name", "form", "pixels", "draft"), decoding.FORMS)
def test_what_was_encoded_is_decoded(name: str, form: samples.Format, pixels: int, draft: int) -> None:
    images = samples.fashion(20).images[:4]
    files = samples.encode(images, form, pixels)
    found = [samples.decode(file, form, pixels, draft=draft) for file in files]
    wanted = images
    if pixels != 28 and not draft:
        wanted = [np.asarray(Image.fromarray(one).resize((pixels, pixels), Image.Resampling.BICUBIC)) for one in images]
    for one, other in zip(found, wanted, strict=True):
        assert one.shape == other.shape
        apart = np.abs(one.astype(int) - other.astype(int)).mean()
        assert apart == 0 if form != "JPEG" else apart < 8


def test_both_kinds_of_memory_hold_the_same_names() -> None:
    kept = [samples.Names(holding, 1000) for holding in ("list", "array")]
    assert [kept[0][i] for i in range(1000)] == [kept[1][i] for i in range(1000)]
    assert kept[0].names[7].encode() == kept[1].names[7]


def test_own_generators_repeat_and_reseeded_ones_do_not() -> None:
    rows = {row.source: row for row in pipelines.measure_seeding(BUDGETS["quick"]).rows}
    own = rows["numpy, its own"]
    assert (own.are_workers_alike, own.are_epochs_alike) == (True, True)
    for source in ("torch, global", "numpy, global", "python, global", "numpy, its own, reseeded"):
        assert not rows[source].are_workers_alike, source
        assert not rows[source].are_epochs_alike, source
        assert rows[source].is_repeatable, source
    assert "numpy, its own*" in seeding.Seeding(tuple(rows.values())).sentence()


def test_a_loader_takes_of_shared_memory_what_was_predicted_and_says_when_there_is_less() -> None:
    found = pipelines.measure_shm(BUDGETS["quick"], machine.probe())
    if found.reason:  # no user namespaces here: the sentence says so
        assert found.reason in found.sentence()
        return
    assert found.used_bytes == pytest.approx(found.predicted_bytes, rel=0.02)
    assert "shared memory" in found.error
    assert found.error in found.sentence()


def test_without_workers_no_shared_memory_is_needed() -> None:
    assert pipelines.predict_shm_bytes(10**6, 0) == 0
    assert pipelines.predict_shm_bytes(10**6, 4, prefetch=3) == 13 * 10**6


def test_reading_objects_copies_them_into_a_worker_and_reading_an_array_does_not() -> None:
    found = {holding: memory.grow(holding, 400_000, 1) for holding in ("list", "array")}
    grown = {name: one["last_uss_bytes"] - one["first_uss_bytes"] for name, one in found.items()}
    assert found["list"]["workers"] == 1
    assert grown["list"] > 2 * 2**20
    assert grown["array"] < grown["list"] / 3


class Orders:
    """Stands in for torch.cuda: it notes which order is given in which queue."""

    def __init__(self) -> None:
        self.given: list[str] = []

    def Stream(self, device: object) -> str:
        return "copies"

    def current_stream(self, device: object) -> "Orders":
        return self

    def wait_stream(self, stream: str) -> None:
        self.given.append("wait")

    def stream(self, stream: str) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()


class Sent:
    """A batch that notes when it is copied."""

    def __init__(self, number: int, orders: Orders) -> None:
        self.number, self.orders = number, orders

    def to(self, device: object, non_blocking: bool) -> "Sent":
        assert non_blocking
        self.orders.given.append(f"copy {self.number}")
        return self

    def record_stream(self, stream: Orders) -> None:
        self.orders.given.append(f"keep {self.number}")


def test_the_next_batch_is_copied_before_this_one_is_computed_with_and_each_is_waited_for(monkeypatch) -> None:
    orders = Orders()
    monkeypatch.setattr(transfer.torch, "cuda", orders)
    for batch in transfer.copy_ahead([Sent(number, orders) for number in range(3)], torch.device("cuda")):
        orders.given.append(f"compute {batch.number}")
    assert orders.given == [
        "wait", "copy 0",
        "wait", "copy 1", "keep 0", "compute 0",
        "wait", "copy 2", "keep 1", "compute 1",
        "wait", "keep 2", "compute 2",
    ]  # fmt: skip


def test_an_epoch_is_a_new_order_that_can_be_repeated() -> None:
    assert sorted(samples.shuffled(50, 0)) == list(range(50))
    assert (samples.shuffled(50, 0) == samples.shuffled(50, 0)).all()
    assert (samples.shuffled(50, 0) != samples.shuffled(50, 1)).any()


def point(key: int, ratio: float, spread: float = 0.05) -> RoundPoint:
    samples_s = tuple(0.02 / ratio * (1 + 0.01 * turn) for turn in range(-3, 4))
    return RoundPoint(key, 0.02 / ratio, ratio, (ratio * (1 - spread), ratio * (1 + spread)), samples_s)


def sweep(*ratios: float) -> stalls.WorkerSweep:
    points = tuple(point(key, ratio) for key, ratio in zip((0, 1, 2, 4), ratios, strict=False))
    return stalls.WorkerSweep(points, {0: 0.5, 1: 0.1, 2: 0.0, 4: 0.0}, Plan(0.01, 0.01, cores=2, step_threads=2), 64)


@pytest.mark.parametrize(
    ("ratios", "words"),
    [
        ((1.0, 1.0, 1.01, 0.9), "clearly faster than none"),
        ((1.0, 1.2, 1.3, 1.1), "only takes turns"),
        ((1.0, 1.2, 1.9, 3.8), "belief survives up to 4"),
        ((1.0,), "with no worker only"),
        ((1.0, 0.9, 0.8, 0.85), "even slower"),
        ((1.0, 0.9, 0.8, 0.85), "leaves 25% of the core time idle"),
        ((1.0, 0.9, 0.8, 0.85), "up to 1.33 times"),
    ],
)
def test_the_sentence_about_workers_is_prepared_for_every_machine(ratios: tuple[float, ...], words: str) -> None:
    assert words in sweep(*ratios).sentence()


def test_workers_that_could_not_help_on_paper_are_told_so() -> None:
    found = replace(sweep(1.0, 0.9), plan=Plan(0.0001, 0.01, cores=2, step_threads=2))
    assert "1.00 times as fast at most" in found.sentence()


@pytest.mark.parametrize(
    ("ratios", "words", "not_said"),
    [
        ((1.0, 1.33), "within a tenth", "direction"),  # none: 20 ms a batch, as on paper; with workers 15 ms on paper
        ((1.0, 1.6), "20% faster", "direction"),
        ((1.0, 1.0), "with 1 worker: 75%", "direction"),
        ((1.0, 0.9, 0.8), "up to 1.33 times as fast, and in truth it gets slower (0.90 times at best)", "within"),
    ],
)
def test_what_is_possible_on_paper_is_set_beside_what_was_reached(
    ratios: tuple[float, ...], words: str, not_said: str
) -> None:
    found = sweep(*ratios)
    assert words in found.reading()
    assert not_said not in found.reading()
    assert found.comparison().count("\n") == 1 + len(ratios)


@pytest.mark.parametrize(("wait_s", "words"), [(0.03, "larger part: start there"), (0.0001, "hardly matters")])
def test_the_stall_fraction_names_who_is_to_blame(wait_s: float, words: str) -> None:
    found = stalls.Stall(wait_s, (wait_s, wait_s), 0.01, 64, 70)
    assert words in found.sentence()
    assert found.ceiling == pytest.approx((wait_s + 0.01) / 0.01)


def comparison(ratio: float, verdict: str, pairs: int = 8) -> measure.Comparison:
    one = measure.Measurement("a", 0.2, (0.1, 0.3), 0.95, (0.2,), 1, 0.2, 0.0, 0.0, 1.0, UNKNOWN_STATE)
    other = measure.Measurement("b", 0.2 / ratio, (0.1, 0.3), 0.95, (0.2,), 1, 0.2, 0.0, 0.0, 1.0, UNKNOWN_STATE)
    return measure.Comparison(
        verdict, ratio, (ratio * 0.9, math.inf), 0.99, 1.0, pairs, 9, one, other, 1.0, 1.0, "too few", (), UNKNOWN_STATE
    )  # type: ignore[arg-type]


def test_every_other_sentence_is_prepared_for_both_outcomes() -> None:
    crowded = (point(0, 1.0), point(2, 0.8))
    for ratio, words in ((1.3, "better than no worker"), (1.0, "no clear gain"), (0.9, "slower than no worker")):
        assert words in sharing.Sharing((*crowded, point(1, ratio)), 2).sentence()
    assert "needs its threads" in sharing.Sharing((*crowded, point(1, 0.7)), 2).sentence()
    assert "too close to call" in sharing.Sharing((*crowded, point(1, 0.8)), 2).sentence()
    assert "no longer what training waited for" in whole_batches.Cure(comparison(0.98, "not faster"), 2).sentence(1.5)
    assert "Nothing was measured" in whole_batches.Cure(comparison(1.0, "undecided", 0), 0).sentence(1.5)
    assert "100 ms per epoch" in waiting.Start(comparison(2.0, "faster"), 2).sentence()
    assert "told from chance" in waiting.Start(comparison(1.0, "undecided"), 2).sentence()
    ways = whole_batches.Transforms((point(0, 1.0), point(1, 0.8), point(2, 30.0)), 100)
    assert "slower (0.80" in ways.sentence()
    assert "**37.5 times** as fast; both together make 30 times" in ways.sentence()
    assert all(low < ways.images_per_s()[way] < high for way, (low, high) in ways.intervals().items())
    assert "until the model no longer waits" in waiting.Waiting((point(0, 1.0), point(8, 7.5)), 0.01, 2).sentence()
    assert "less than hoped" in waiting.Waiting((point(0, 1.0), point(8, 1.1)), 0.01, 2).sentence()
    plan = Plan(0.0, 0.008, workers=1, prefetch=1, read_s=0.002, slow_every=8, slow_factor=18)
    assert "Memory is the price" in waiting.Bursts((point(1, 1.0), point(8, 1.4)), plan).sentence()
    assert "changes little" in waiting.Bursts((point(1, 1.0), point(8, 1.0)), plan).sentence()
    alike = [memory.Growth(kind, 10**8, 10**8, 10**8, None, 2) for kind in ("list", "array")]
    assert "macOS" in memory.Memory(tuple(alike), 10).sentence()
    assert "unknown" in memory.Memory(tuple(alike), 10).markdown()
    fresh = seeding.Seeding((seeding.Repeats("torch, global", False, False, True),))
    assert "something new" in fresh.sentence()
    assert "Tesla" in transfer.Copied((comparison(1.5, "faster"),), "Tesla").sentence()


@pytest.mark.parametrize(
    ("interval", "words"),
    [
        ((0.0, math.inf), "would give 1.70 times."),
        ((1.2, 1.5), "is left"),
        ((1.3, 2.0), "what the loader took is gone"),
        ((1.8, 2.2), "This is more"),
    ],
)
def test_the_cure_is_set_beside_the_ceiling(interval: tuple[float, float], words: str) -> None:
    found = replace(comparison(1.6, "faster"), interval=interval)
    said = whole_batches.Cure(found, 0).sentence(1.7)
    assert words in said
    assert "1.60 times" in said
    wide = replace(comparison(1.2, "undecided"), interval=(0.8, 1.8))
    assert "cannot be told" in whole_batches.Cure(wide, 0).sentence(1.7)


@pytest.mark.parametrize(
    ("error", "words"),
    [("killed by signal: Bus error", "can come as an exception"), ("unable to allocate", "how it looks"), ("", "got")],
)
def test_either_sign_of_little_shared_memory_is_told_of_the_other(error: str, words: str) -> None:
    found = shared_memory.SharedMemory(2**30, 2**25, 2**25, error, 2**24)
    assert words in found.sentence()


def test_a_small_image_is_mostly_opened_only_where_that_is_so() -> None:
    def said(large_s: float) -> str:
        names = ("28 px, JPEG", "224 px, JPEG", "224 px, JPEG decoded at 28")
        rows = zip(names, (1e-4, large_s, 2e-4), strict=True)
        return decoding.Decoding(tuple(decoding.Decoded(name, 700.0, seconds) for name, seconds in rows)).sentence()

    assert "opening the file" in said(3e-4)
    assert "opening the file" not in said(6e-3)


def test_the_copy_from_pinned_memory_is_the_shorter_one() -> None:
    plans = pipelines.example_plans(copy_s=0.004, pinned_copy_s=0.002)
    assert [simulate(plan).period_s for plan in plans] == pytest.approx([0.014, 0.012, 0.010])
    assert "14 ms" in pipelines.predict_copies(plans)
    assert "def copy_ahead" in pipelines.shown_code()


def test_smoke_starts_no_process_and_says_so(new_children) -> None:
    here = machine.probe()
    said = [
        pipelines.measure_waiting(SMOKE, 2).sentence(),
        pipelines.measure_bursts(SMOKE).sentence(),
        pipelines.measure_start(SMOKE).sentence(),
        pipelines.measure_sharing(SMOKE, 2).sentence(),
        pipelines.measure_memory(SMOKE).markdown(),
        pipelines.measure_seeding(SMOKE).markdown(),
        pipelines.measure_shm(SMOKE, here).sentence(),
    ]
    assert all("smoke" in sentence for sentence in said)
    assert new_children() == []


def test_the_experiments_that_need_no_process_run_in_miniature() -> None:
    assert 0 < pipelines.measure_stall(SMOKE).fraction < 1
    found = pipelines.measure_workers(SMOKE, 2)
    assert [one.key for one in found.points] == [0]
    assert found.sentence()
    assert found.reading()
    assert len(pipelines.measure_transforms(SMOKE).images_per_s()) == 3
    assert pipelines.measure_cure(SMOKE, 0).sentence(1.5)
    assert len(pipelines.measure_decoding(SMOKE).rows) == len(decoding.FORMS)
    assert "images/s" in pipelines.measure_caching(SMOKE).sentence()
    if not torch.cuda.is_available():
        assert "Not measurable here" in pipelines.measure_copies(SMOKE).sentence()
    assert "time per batch" in pipelines.predict_copies(pipelines.example_plans())


def test_an_epoch_with_workers_leaves_none_behind(new_children) -> None:
    budget = replace(SMOKE, process_s=1.0)
    found = stalls.measure_workers(budget, 2, counts=(0, 1))
    assert [one.key for one in found.points] == [0, 1]
    assert waiting.measure_start(replace(budget, pair_s=0.3), workers=1).sentence()
    assert new_children() == []


@pytest.mark.parametrize("copies", COPIES.values())
def test_a_timeline_is_small_and_on_white(copies) -> None:
    plan = Plan(0.01, 0.01, workers=3, step_threads=1 if copies == "none" else 0, copy_s=0.004, copies=copies)
    picture = pictures.timeline(simulate(plan))
    image = Image.open(io.BytesIO(picture.png)).convert("RGB")
    assert image.getpixel((1, 1)) == (255, 255, 255)
    assert len(picture.png) < 60_000
    assert "worker 2" in picture.words


def test_the_other_pictures_say_their_numbers() -> None:
    found = pictures.speeds([point(0, 1.0), point(2, 1.5)], {0: 1.0, 2: 1.7}, "Training")
    assert "1.50 with 2" in found.words
    assert "1.70 with 2" in found.words
    ends = {"PIL": (4000.0, 6000.0), "batch": (200_000.0, 400_000.0)}
    values = {"PIL": 5000.0, "batch": 300_000.0}
    assert "PIL: 5,000" in pictures.bars(values, "Speed", "images per second", ends).words


def parts(widget: object, kind: type) -> list:
    found = [widget] if isinstance(widget, kind) else []
    for child in getattr(widget, "children", ()):
        found += parts(child, kind)
    return found


def test_every_control_of_the_explorer_redraws_the_timeline() -> None:
    shown = timeline_explorer(Plan(0.012, 0.02, workers=2, cores=2, step_threads=2), 64)
    assert shown.still is not None
    (picture,) = parts(shown.widget, ipw.Image)
    words = parts(shown.widget, ipw.HTML)[0]
    for slider in (*parts(shown.widget, ipw.IntSlider), *parts(shown.widget, ipw.FloatSlider)):
        if slider.description == "copy, ms":
            continue  # has nothing to say while the model is on the CPU
        before = picture.value, words.value
        slider.value = slider.value + (2 if isinstance(slider, ipw.IntSlider) else 5)
        assert (picture.value, words.value) != before, slider.description
    (menu,), (bursts,) = parts(shown.widget, ipw.Dropdown), parts(shown.widget, ipw.Checkbox)
    for menu.value in COPIES:
        for bursts.value in (True, False):
            assert bytes(picture.value).startswith(b"\x89PNG")
    assert "bottleneck" in words.value


def test_the_words_name_what_binds() -> None:
    assert "the cores are the bottleneck" in timeline_words(Plan(0.02, 0.01, workers=8, cores=1), 64)
    assert "the model is the bottleneck" in timeline_words(Plan(0.001, 0.05, workers=2, cores=8), 64)
