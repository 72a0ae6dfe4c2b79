"""Data sets: the embedded images are real and balanced, made-up ones can be learnt, batches look as they promise."""

import numpy as np
import pytest
import torch

from accelerando import datasets, seeds, texts


@pytest.fixture(scope="module")
def embedded():
    return datasets.fashion_mnist(embedded_only=True)


def test_embedded_set_has_1200_training_images_of_each_class_and_all_test_images(embedded):
    assert np.bincount(embedded.train.labels).tolist() == [1200] * 10
    assert np.bincount(embedded.test.labels).tolist() == [1000] * 10
    assert embedded.train.images.shape == (12_000, 28, 28)
    assert "12,000 training and 10,000 test images" in embedded.source
    assert len(embedded.classes) == 10


def test_embedded_images_are_pictures_not_noise(embedded):
    images = embedded.train.images.astype(float)
    neighbours = np.corrcoef(images[:, :, :-1].ravel(), images[:, :, 1:].ravel())[0, 1]
    assert neighbours > 0.8
    assert len(np.unique(images.reshape(len(images), -1), axis=0)) > 11_900
    nearest = ((embedded.test.images[:200, None] / 255.0 - class_means(embedded)[None]) ** 2).sum((2, 3)).argmin(1)
    assert (nearest == embedded.test.labels[:200]).mean() > 0.5  # labels belong to their images


def class_means(data):
    return np.stack([data.train.images[data.train.labels == label].mean(0) / 255.0 for label in range(10)])


def test_fewer_images_are_balanced_the_same_each_time_and_said_in_the_source(embedded):
    few = embedded.limited(train_images=25, test_images=500)
    assert sorted(np.bincount(few.train.labels).tolist()) == [2] * 5 + [3] * 5
    assert few.source.endswith("used here: 25 training and 500 test images")
    again = embedded.limited(train_images=25, test_images=500)
    np.testing.assert_array_equal(few.train.images, again.train.images)
    assert embedded.limited() is embedded


@pytest.mark.parametrize("count", [0, -1, 12_001, 2.5, True])
def test_impossible_number_of_images_is_refused(embedded, count):
    with pytest.raises(ValueError, match="there are 12,000"):
        embedded.limited(train_images=count)


def test_class_with_too_few_images_is_named():
    images = datasets.ImageSet(np.zeros((11, 28, 28), np.uint8), np.array([0] * 10 + [1]))
    with pytest.raises(ValueError, match="class 1 has 1 images"):
        images.first_of_each_class(10)


def test_images_and_labels_of_wrong_type_or_number_are_refused():
    with pytest.raises(ValueError, match="must be uint8"):
        datasets.ImageSet(np.zeros((2, 28, 28), np.float32), np.zeros(2, np.int64))
    with pytest.raises(ValueError, match="one for each of the 2 images"):
        datasets.ImageSet(np.zeros((2, 28, 28), np.uint8), np.zeros(3, np.int64))


def test_a_set_shows_itself_in_one_line(embedded):
    assert repr(embedded.train) == "<12,000 images of 10 classes>"
    assert len(repr(embedded)) < 500


def test_embedded_only_does_not_mix_with_other_places():
    with pytest.raises(ValueError, match="leave out folder"):
        datasets.fashion_mnist("somewhere", embedded_only=True)


def test_batch_is_normalised_to_mean_0_and_deviation_1(embedded):
    batch = datasets.as_batch(embedded.train.images)
    assert batch.shape == (12_000, 1, 28, 28)
    assert batch.dtype == torch.float32
    assert abs(float(batch.mean())) < 0.02
    assert abs(float(batch.std()) - 1) < 0.02


def test_slow_way_and_fast_way_give_the_same_numbers(embedded):
    slow = datasets.PerSample(embedded.test.subset(range(20)))
    images = torch.stack([slow[index][0] for index in range(20)])
    torch.testing.assert_close(images, datasets.as_batch(embedded.test.images[:20]))
    assert [slow[index][1] for index in range(20)] == embedded.test.labels[:20].tolist()


def test_crop_flip_moves_pixels_by_at_most_two_and_mirrors_half():
    images = np.zeros((400, 28, 28), np.uint8)
    images[:, 14, 5] = 255
    out = datasets.augment(datasets.as_batch(images), "crop_flip", seeds.generator(0)).squeeze(1)
    spot = out.flatten(1).argmax(1)
    rows, columns = spot // 28, spot % 28
    assert set((rows - 14).tolist()) == {-2, -1, 0, 1, 2}
    assert set(columns.tolist()) == set(range(3, 8)) | set(range(20, 25))
    assert 140 < int((columns > 14).sum()) < 260


def test_flip_mirrors_whole_images_and_none_changes_nothing():
    batch = datasets.as_batch(datasets.synthetic(50, 10).train.images)
    flipped = datasets.augment(batch, "flip", seeds.generator(0))
    is_same = (flipped == batch).flatten(1).all(1)
    is_mirrored = (flipped == batch.flip(3)).flatten(1).all(1)
    assert bool((is_same ^ is_mirrored).all())
    assert 10 < int(is_same.sum()) < 40
    assert datasets.augment(batch, "none", seeds.generator(0)) is batch


def test_made_up_images_repeat_with_their_seed_and_can_be_learnt():
    first, again, other = datasets.synthetic(seed=1), datasets.synthetic(seed=1), datasets.synthetic(seed=2)
    np.testing.assert_array_equal(first.train.images, again.train.images)
    assert not np.array_equal(first.train.images, other.train.images)
    means = np.stack([first.train.images[first.train.labels == label].mean(0) for label in range(10)])
    nearest = ((first.test.images[:, None] - means[None]) ** 2).sum((2, 3)).argmin(1)
    assert (nearest == first.test.labels).mean() > 0.8
    with pytest.raises(ValueError, match="at least one of each class"):
        datasets.synthetic(5)


def test_text_is_python_source_and_targets_are_the_next_characters():
    text = texts.source_text(20_000)
    assert len(text.train) + len(text.test) == 20_000
    assert "def " in text.decode(text.train)
    inputs, targets = text.batch(4, 30, seeds.generator(0))
    torch.testing.assert_close(inputs[:, 1:], targets[:, :-1])
    assert int(inputs.max()) < len(text.vocabulary)
    assert "20,000 characters" in text.source


def test_text_draws_training_batches_from_the_training_part_only():
    text = texts.source_text(2000, test_fraction=0.5)
    marked = texts.TextSet(torch.zeros(100, dtype=torch.int64), torch.ones(100, dtype=torch.int64), "ab", "")
    assert int(marked.batch(50, 60, seeds.generator(0))[0].max()) == 0
    assert int(marked.batch(50, 60, seeds.generator(0), is_test=True)[0].min()) == 1
    with pytest.raises(ValueError, match="must be longer"):
        text.batch(1, 1000, seeds.generator(0))
