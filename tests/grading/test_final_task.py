"""The final's two tasks: secret, repeatable, learnable, balanced, and no true labels in disguise."""

import numpy as np
import pytest

from accelerando import datasets
from accelerando.grading import final_rule, final_task
from accelerando.grading.final_task import Disguise

SIZES = {"train_images": 2000, "held_out_images": 1000}
PLAIN = Disguise(is_mirrored=False, angle_degrees=0.0, gamma=1.0, darkest=0.0, brightest=255.0)


@pytest.fixture(scope="module")
def session() -> tuple[final_task.Task, final_task.Task]:
    return final_task.make_session(7, **SIZES)


@pytest.fixture(scope="module")
def garments() -> datasets.ImageSet:
    return datasets.fashion_mnist(embedded_only=True).train.first_of_each_class(3000)


def test_same_seed_gives_the_same_session_and_another_seed_another(session) -> None:
    again, other = final_task.make_session(7, **SIZES), final_task.make_session(8, **SIZES)
    for mine, same, different in zip(session, again, other, strict=True):
        for part in ("train", "held_out"):
            assert np.array_equal(getattr(mine, part).images, getattr(same, part).images)
            assert np.array_equal(getattr(mine, part).labels, getattr(same, part).labels)
            assert not np.array_equal(getattr(mine, part).images, getattr(different, part).images)


def test_tasks_have_the_announced_shape_and_do_not_share_their_images(session) -> None:
    real, rule = session
    assert [task.name for task in session] == ["real", "rule"]
    for task in session:
        assert task.shape == (2000, 28, 28)
        assert (len(task.held_out), task.classes) == (1000, 10)
        assert set(task.train.labels) == set(task.held_out.labels) == set(range(10))
    assert not np.array_equal(real.train.images, rule.train.images)


def test_split_is_disjoint_balanced_and_shuffled(garments) -> None:
    first, second = final_task.split(garments.labels, 1500, 1000, np.random.default_rng(1))
    assert not set(first) & set(second)
    assert np.bincount(garments.labels[first]).tolist() == [150] * 10
    assert np.bincount(garments.labels[second]).tolist() == [100] * 10
    assert not np.array_equal(garments.labels[first], np.sort(garments.labels[first]))


@pytest.mark.parametrize("sizes", [(1505, 1000), (0, 1000), (2500, 1000)])
def test_split_that_cannot_be_is_refused(garments, sizes: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="images"):
        final_task.split(garments.labels, *sizes, np.random.default_rng(1))


def test_real_labels_are_the_true_ones_under_other_numbers() -> None:
    known = datasets.fashion_mnist(embedded_only=True)
    labels = np.concatenate([known.train.labels, known.test.labels])
    rng = np.random.default_rng([7, 0])
    chosen, _ = final_task.split(labels, 2000, 1000, rng)
    task = final_task.make_task("real", 7, **SIZES)
    pairs = set(zip(labels[chosen].tolist(), task.train.labels.tolist(), strict=True))
    assert len(pairs) == 10
    assert {true for true, _ in pairs} == {secret for _, secret in pairs} == set(range(10))
    assert any(true != secret for true, secret in pairs)


def test_plain_disguise_changes_nothing_and_a_mirror_only_mirrors(garments) -> None:
    images = garments.images[:50]
    assert np.array_equal(PLAIN.apply(images), images)
    mirrored = Disguise(True, 0.0, 1.0, 0.0, 255.0)
    assert np.array_equal(mirrored.apply(images), images[:, :, ::-1])


@pytest.mark.parametrize(("angle", "quarters"), [(90.0, 1), (180.0, 2), (-90.0, -1)])
def test_turning_by_quarters_equals_numpy_rot90(garments, angle: float, quarters: int) -> None:
    images = garments.images[:50]
    turned = Disguise(False, angle, 1.0, 0.0, 255.0).apply(images)
    assert np.array_equal(turned, np.rot90(images, -quarters, axes=(1, 2)))


def test_shading_keeps_order_and_reaches_its_ends(garments) -> None:
    ramp = np.arange(784, dtype=np.float64).reshape(1, 28, 28) / 783 * 255
    shaded = Disguise(False, 0.0, 1.4, 20.0, 210.0).apply(ramp.astype(np.uint8))
    assert (np.diff(shaded.ravel().astype(int)) >= 0).all()
    assert (shaded.min(), shaded.max()) == (20, 210)


def labels_by_rule(garments: datasets.ImageSet, seed: int) -> np.ndarray:
    return final_rule.draw(garments.images, np.random.default_rng(seed)).label(garments.images)


def test_rule_gives_every_class_its_share(session) -> None:
    _, rule = session
    counts = np.bincount(np.concatenate([rule.train.labels, rule.held_out.labels]), minlength=10)
    assert counts.sum() == 3000
    assert np.abs(counts - 300).max() <= 15


def test_rule_is_blind_to_mirroring_and_nearly_to_a_shift(garments) -> None:
    rule = final_rule.draw(garments.images, np.random.default_rng(5))
    labels = rule.label(garments.images)
    assert np.array_equal(labels, rule.label(np.ascontiguousarray(garments.images[:, :, ::-1])))
    assert (labels == rule.label(np.roll(garments.images, (1, -1), (1, 2)))).mean() > 0.8


def test_rule_cannot_be_told_from_the_true_class(garments) -> None:
    for seed in range(3):
        labels = labels_by_rule(garments, seed)
        best_guess = sum(np.bincount(labels[garments.labels == number]).max() for number in range(10)) / len(labels)
        assert best_guess < 0.65


def test_two_rules_have_little_in_common(garments) -> None:
    one, other = (labels_by_rule(garments, seed) for seed in (1, 2))
    best_guess = sum(np.bincount(other[one == number]).max() for number in range(10)) / len(one)
    assert best_guess < 0.65


def test_rule_can_be_learned_from_pairs(session) -> None:
    _, rule = session
    pixels, unseen = (part.images.reshape(len(part), -1) / 255 for part in (rule.train, rule.held_out))
    pixels, unseen = pixels - pixels.mean(0), unseen - pixels.mean(0)
    targets = np.eye(10)[rule.train.labels]
    weights = np.linalg.solve(pixels.T @ pixels + 30 * np.eye(784), pixels.T @ targets)
    assert ((unseen @ weights).argmax(1) == rule.held_out.labels).mean() > 0.4  # guessing gets 0.1


def test_too_few_images_for_a_rule_are_refused(garments) -> None:
    with pytest.raises(ValueError, match="at least 700"):
        final_rule.draw(garments.images[:300], np.random.default_rng(0))
