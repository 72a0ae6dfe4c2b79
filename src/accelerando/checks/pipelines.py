"""The checks of lab 4. Each one starts from the mistakes that people make."""

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from accelerando.checks import pipelines_mistakes as mistakes
from accelerando.checks.quiz import judge_quiz
from accelerando.submission import LearnerCall, SpeedTask, Submission, Wrong, grades

if TYPE_CHECKING:
    pass

PIXELS, PADDING = 28, 2
POSITIONS = 2 * PADDING + 1


@grades("pipelines.predict_images_per_s", wrong=mistakes.SPEEDS)
def predict_images_per_s(sub: Submission, rng: np.random.Generator) -> None:
    """Three bounds and the largest of them; each is the binding one in some of the cases."""
    where = "See *A pipeline on paper* in the lesson."

    def ask(*plan: Any) -> float:
        found = sub.predict_images_per_s(*plan)
        if isinstance(found, bool) or not isinstance(found, int | float) or not abs(found) < 1e100:
            raise Wrong(
                f"`predict_images_per_s` returned {str(found)[:20]}. It should return a number of images per second."
            )
        return float(found)

    example = ask(64, 0.020, 0.010, 1, 4, 2)
    if not math.isclose(example, 64 / 0.015, rel_tol=1e-6):
        raise Wrong(
            f"Expected 4,267 images/s for the example (load 20 ms, step 10 ms on 1 core, 4 workers, 2 cores), found "
            f"{example:,.0f}. How many core-seconds does a batch need in all, and how many are there? {where}"
        )
    for kind in ("alone", "model", "workers", "cores", "gpu") * 4:
        plan, expected = _draw_plan(rng, kind)
        found = ask(*plan)
        if not math.isclose(found, expected, rel_tol=1e-6):
            raise Wrong(
                f"The example is right, but {_KINDS[kind]} your prediction is {abs(found / expected - 1):.0%} "
                f"{'more' if found > expected else 'less'} than it should be. {_QUESTIONS[kind]} {where}"
            )


_KINDS = {
    "alone": "without workers",
    "model": "where the model is the slowest part",
    "workers": "where the workers are the slowest part",
    "cores": "where the cores are the slowest part",
    "gpu": "where the step runs on a GPU (0 cores)",
}
_QUESTIONS = {
    "alone": "What does one process do while it trains?",
    "model": "Can anything be faster than the model alone?",
    "workers": "How often does one worker deliver, and how often do all of them?",
    "cores": "Who else wants a core while the workers load?",
    "gpu": "Which of the three bounds does a GPU change?",
}


def _draw_plan(rng: np.random.Generator, kind: str) -> tuple[tuple[Any, ...], float]:
    """A pipeline in which this bound is clearly the binding one."""
    for _ in range(100_000):
        batch_size = int(rng.integers(8, 513))
        load_s, step_s = (float(seconds) for seconds in np.exp(rng.uniform(math.log(0.002), math.log(0.2), 2)))
        step_cores, workers, cores = (int(rng.integers(0, 9)) for _ in range(3))
        if kind == "alone":
            plan = (batch_size, load_s, step_s, step_cores, 0, max(1, cores))
            return plan, batch_size / (load_s + step_s)
        step_cores = 0 if kind == "gpu" else max(1, step_cores)
        if not workers or not cores or step_cores > cores:
            continue
        bounds = {"model": step_s, "workers": load_s / workers, "cores": (load_s + step_s * step_cores) / cores}
        order = sorted(bounds.values())
        binding = max(bounds, key=lambda name: bounds[name])
        if order[-1] > 1.1 * order[-2] and binding == ("cores" if kind == "gpu" else kind):
            return (batch_size, load_s, step_s, step_cores, workers, cores), batch_size / order[-1]
    raise AssertionError(f"no pipeline found in which {kind!r} binds")


@grades("pipelines.fresh_noise", wrong=mistakes.NOISE)
def fresh_noise(sub: Submission, rng: np.random.Generator) -> None:
    """New for every image, every worker, every epoch; the same again when the run is repeated."""
    where = "See *Random numbers in workers* in the lesson."
    found = _tensors(sub.probe("pipelines.fresh_noise", seed=int(rng.integers(2**31))))
    _refuse_repeats(
        _has_twins(found["first"]),
        _has_twins(found["alone"]),
        "two images of the same epoch got exactly the same noise",
        "Whose copy of the generator draws it?",
    )
    _refuse_repeats(
        _is_repeated(found["first"], found["second"]),
        _is_repeated(found["alone"], found["alone_second"]),
        "an image got in the second epoch exactly the noise that it had in the first",
        "What does a worker of the second epoch start from?",
    )
    if (found["first"] != found["again"]).any():
        raise Wrong(
            "Two runs with the same seeds gave different noise, so no run can be repeated. Which of the seeds that are "
            f"there in a worker comes from the run's own? {where}"
        )
    values = found["first"].ravel()
    if not (abs(values.mean()) < 0.2 and 0.75 < values.std() < 1.25):
        raise Wrong(
            f"The noise has mean {values.mean():.2f} and deviation {values.std():.2f}: it should be normal, with 0 "
            "and 1. "
            "Was something else changed than where the numbers come from?"
        )


def _has_twins(noise: npt.NDArray[np.float64]) -> bool:
    """Two images of an epoch have the same noise."""
    rows = noise.reshape(len(noise), -1)
    return len(np.unique(rows, axis=0)) < len(rows)


def _is_repeated(noise: npt.NDArray[np.float64], later: npt.NDArray[np.float64]) -> bool:
    """An image has the same noise in two epochs."""
    return bool((noise == later).all(axis=(1, 2)).any())


def _refuse_repeats(with_workers: bool, alone: bool, what: str, question: str) -> None:
    """Say what repeats and where. Without workers nothing is copied: then it is the seed that is to be asked after."""
    where = "See *Random numbers in workers* in the lesson."
    if alone:
        places = "With workers and without" if with_workers else "Without workers"
        raise Wrong(
            f"{places}, {what}. If each call makes a generator of its own: what in its seed changes from call to call, "
            f"and from epoch to epoch? {where}"
        )
    if with_workers:
        raise Wrong(f"With two workers, {what}. {question} {where}")


_DRAWS = ("first", "second", "again", "alone", "alone_second")


def _tensors(found: Any) -> dict[str, npt.NDArray[np.float64]]:
    """What a probe reports, as arrays."""
    try:
        return {name: found[name].numpy().astype(np.float64) for name in _DRAWS}
    except (AttributeError, KeyError, TypeError, ValueError):
        raise Wrong("what `fresh_noise` did could not be read.") from None


@grades("pipelines.cached_image", wrong=mistakes.CACHES)
def cached_image(sub: Submission, rng: np.random.Generator) -> None:
    """Counts of decoding, values of every answer, size of the cache."""
    where = "See *Decode once, augment always* in the lesson."
    reports = sub.probe("pipelines.cached_image", seed=int(rng.integers(2**31)))
    try:
        _judge_cache(reports, where)
    except (AttributeError, KeyError, TypeError, ValueError):
        raise Wrong("what `cached_image` did could not be read.") from None


def _judge_cache(reports: dict[str, dict[str, Any]], where: str) -> None:
    for kind in ("roomy", "tight", "in place"):
        report = reports[kind]
        requests = len(report["asked"])
        if report["augmented"] < requests:
            raise Wrong(
                f"{requests} images were asked for and `augment` was called {report['augmented']} times. What does "
                "the model see in "
                f"the second epoch? {where}"
            )
        if report["augmented"] > requests:
            raise Wrong(f"`augment` was called more often than images were asked for. Once for each is enough. {where}")
        _judge_values(kind, report, where)
        _judge_counts(kind, report, where)


def _judge_values(kind: str, report: dict[str, Any], where: str) -> None:
    returned, wanted = (np.asarray(report[name], np.float64) for name in ("returned", "wanted"))
    if np.allclose(returned, wanted, atol=1e-4):
        return
    if kind == "in place":
        raise Wrong(
            "With an `augment` that writes into the tensor it is given, images are augmented more than once. Whose "
            "tensor is "
            f"it that it writes into? {where}"
        )
    raise Wrong(f"An image came back that is not the decoded one, augmented. Which index was it kept under? {where}")


def _judge_counts(kind: str, report: dict[str, Any], where: str) -> None:
    images, limit = len(report["decoded"]), 4 if kind == "tight" else 12
    most = max(report["decoded"])
    epochs = len(report["asked"]) // images
    if kind != "tight" and most > 1:
        raise Wrong(f"There was room for every image, and one was decoded {most} times. What was kept? {where}")
    if report["kept"] > limit:
        raise Wrong(
            f"The cache held {report['kept']} images, and {limit} were allowed. What happens to the machine when "
            "there are "
            "millions?"
        )
    if kind == "tight" and sum(count < epochs for count in report["decoded"]) < limit:
        raise Wrong(
            f"With room for {limit} images, fewer than {limit} were ever found in the cache. What keeps them out?"
        )


@grades("pipelines.pack_names", wrong=mistakes.NAMES)
def pack_names(sub: Submission, rng: np.random.Generator) -> None:
    """Every name comes back from two arrays, and they are no larger than the bytes."""
    where = "See *What a worker costs in memory* in the lesson."
    words = ["train/", "images/", "größe", "naïve", "写真", "каталог", "a", "", "00017", ".png", " ", "🙂"]
    drawn = ["".join(rng.choice(words, size=int(rng.integers(0, 7)))) for _ in range(60)]
    cases = {
        "the example": ["cat.png", "", "größe.png"],
        "plain names": [f"train/{int(number):08d}.png" for number in rng.integers(10**8, size=200)],
        "names of different lengths": ["x" * int(size) for size in rng.integers(1, 90, size=50)],
        "names with letters outside ASCII": drawn,
        "no name at all": [],
    }
    for kind, names in cases.items():
        _judge_packed(kind, sub.pack_names(names), names, where)


def _judge_packed(kind: str, packed: Any, names: list[str], where: str) -> None:
    if not isinstance(packed, dict) or set(packed) != {"data", "ends"}:
        found = "a dictionary with other keys than those" if isinstance(packed, dict) else type(packed).__name__
        raise Wrong(f'`pack_names` should return {{"data": …, "ends": …}}: found {found}. {where}')
    for key, dtype in (("data", np.uint8), ("ends", np.int64)):
        value = packed[key]
        if not isinstance(value, np.ndarray) or value.dtype != dtype or value.ndim != 1:
            found = f"{value.dtype} {value.shape}" if isinstance(value, np.ndarray) else type(value).__name__
            raise Wrong(
                f'For {kind}, "{key}" is {found[:40]}: it should be a numpy array of {np.dtype(dtype)} in one row.'
            )
    data, ends = packed["data"], packed["ends"]
    if len(ends) != len(names):
        raise Wrong(f'For {kind}, "ends" has {len(ends)} entries and there are {len(names)} names. One for each?')
    size = sum(len(name.encode()) for name in names)
    if len(data) != size:
        raise Wrong(
            f'For {kind}, "data" has {len(data)} bytes and the names have {size}. What stands between two names, or is '
            f"missing? {where}"
        )
    starts = [0, *ends[:-1].tolist()] if len(ends) else []
    for name, start, end in zip(names, starts, ends.tolist(), strict=True):
        if data[start:end].tobytes() != name.encode():
            raise Wrong(
                f'For {kind}, a name read back from "data" between two neighbouring "ends" is another one. Do "ends" '
                f'count what "data" is made of, and to which side of a name do they point? {where}'
            )


# -- the timed question -----------------------------------------------------------------------------------------------


@grades("pipelines.fast_epoch", wrong=mistakes.EPOCHS)
def fast_epoch(sub: Submission, rng: np.random.Generator) -> SpeedTask:
    """Each image is compared with every augmentation that there is: so which one was drawn is known, and how evenly."""
    from accelerando.lessons.pipelines import lab

    count, batch_size = 600, 64
    images = rng.integers(0, 256, size=(count, PIXELS, PIXELS), dtype=np.uint8)
    labels = rng.permutation(count).astype(np.int64)  # a label names its image
    seeds = [int(seed) for seed in rng.integers(2**31, size=2)]
    epochs = [_read(sub.fast_epoch(images, labels, batch_size, seed), labels, batch_size) for seed in seeds]
    drawn = [_draws(epoch, images, labels) for epoch in epochs]
    _judge_draws(drawn[0], epochs[0][1], batch_size)
    _judge_freshness(epochs, drawn, labels)
    again = _read(sub.fast_epoch(images, labels, batch_size, seeds[0]), labels, batch_size)
    if any(not np.array_equal(np.asarray(one), np.asarray(other)) for one, other in zip(epochs[0], again, strict=True)):
        raise Wrong("Two calls with the same `seed` gave different tensors. Does every draw follow from it?")
    images, labels = lab.task_images()
    return SpeedTask(
        baseline=lab.slow_experiment(),
        candidate=LearnerCall(
            "fast_epoch", {"images": images, "labels": labels, "batch_size": lab.TASK_BATCH}, takes_seed=True
        ),
        summary="same tensors, transformed by the batch",
        examine=_Examiner(images, labels, lab.TASK_BATCH).examine,
    )


Epoch = tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]


def _read(found: Any, labels: npt.NDArray[np.int64], batch_size: int) -> Epoch:
    """The images and labels of an epoch in the order in which they came, once their form is right."""
    sizes = [batch_size] * (len(labels) // batch_size) + [len(labels) % batch_size] * bool(len(labels) % batch_size)
    if not isinstance(found, list) or not all(isinstance(pair, list) and len(pair) == 2 for pair in found):
        raise Wrong(
            "`fast_epoch` should return a list of pairs (images, labels), one for each batch: found something else."
        )
    for number, pair in enumerate(found):
        for value, dtype, name in zip(pair, ("float32", "int64"), ("images", "labels"), strict=True):
            kind = str(getattr(value, "dtype", type(value).__name__)).removeprefix("torch.")
            if kind != dtype:
                raise Wrong(f"The {name} of batch {number} are {kind}: they should be a tensor of {dtype}.")
    shapes = [(tuple(pair[0].shape), tuple(pair[1].shape)) for pair in found]
    if shapes != [((size, 1, PIXELS, PIXELS), (size,)) for size in sizes]:
        told = f"{len(found)} batches" + (f", the last of {shapes[-1][0]}" if shapes else "")
        raise Wrong(
            f"Found {told}; expected {len(sizes)}, all of ({batch_size}, 1, 28, 28) but the last, which is smaller. "
            "Is the last batch kept, and has an image its channel?"
        )
    epoch = (
        np.concatenate([np.asarray(pair[0]) for pair in found]),
        np.concatenate([np.asarray(pair[1]) for pair in found]),
    )
    if sorted(epoch[1].tolist()) != sorted(labels.tolist()):
        raise Wrong("In one epoch each image should come exactly once. Are some drawn twice, or left out?")
    return epoch


def _scaled(images: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
    from accelerando.datasets import DEVIATION, MEAN

    return ((images.astype(np.float32) / 255 - MEAN) / DEVIATION).astype(np.float32)


def _augmented(images: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
    """Everything that crop and mirror can make of images: float32 (N, 50, 28, 28), mirrored ones last."""
    padded = _scaled(np.pad(images, ((0, 0), (PADDING, PADDING), (PADDING, PADDING))))
    crops = [
        padded[:, top : top + PIXELS, left : left + PIXELS] for top in range(POSITIONS) for left in range(POSITIONS)
    ]
    return np.stack([*crops, *(crop[:, :, ::-1] for crop in crops)], axis=1)


def _match(found: npt.NDArray[np.float32], images: npt.NDArray[np.uint8]) -> npt.NDArray[np.int64]:
    """Which of the 50 augmentations each found image is of its original; -1: none."""
    places = []
    for start in range(0, len(images), 100):
        choices = _augmented(images[start : start + 100])
        apart = np.abs(choices - found[start : start + 100, None]).max(axis=(2, 3))
        apart[~np.isfinite(apart)] = np.inf
        places.append(np.where(apart.min(axis=1) < 1e-3, apart.argmin(axis=1), -1))
    return np.concatenate(places)


def _draws(epoch: Epoch, images: npt.NDArray[np.uint8], labels: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The augmentation of each image, in the order of the epoch."""
    where = "See *The whole batch in one go* in the lesson."
    found, told = epoch
    originals = images[np.argsort(labels)]  # by label
    places = _match(found[:, 0], originals[told])
    lost = int((places < 0).sum())
    if not lost:
        return places
    inner = found[:, 0, PADDING:-PADDING, PADDING:-PADDING]
    centres = _augmented(originals[told])[:, :, PADDING:-PADDING, PADDING:-PADDING]
    is_inside = (np.abs(centres - inner[:, None]).max(axis=(2, 3)) < 1e-3).any(axis=1)
    if is_inside[places < 0].mean() > 0.9:
        raise Wrong(
            f"{lost} of {len(places)} images are right inside and wrong at their border. Which colour fills it, and "
            "is it "
            f"filled before scaling or after? {where}"
        )
    raise Wrong(
        f"{lost} of {len(places)} images are no crop of the image that their label belongs to, mirrored or not. Do "
        "images and "
        f"labels get the same order, and are scale and size as before? {where}"
    )


def _judge_draws(places: npt.NDArray[np.int64], told: npt.NDArray[np.int64], batch_size: int) -> None:
    """Independent and even; the bounds let a right answer through except once in some billion times."""
    where = "See *The whole batch in one go* in the lesson."
    is_flipped, crops = places >= POSITIONS**2, places % POSITIONS**2
    whole = len(places) // batch_size * batch_size
    flips = is_flipped[:whole].reshape(-1, batch_size).mean(axis=1)
    if ((flips == 0) | (flips == 1)).all():
        raise Wrong(f"In a batch, all images are mirrored or none is. For how many images is the coin thrown? {where}")
    if min(len(np.unique(batch)) for batch in crops[:whole].reshape(-1, batch_size)) < 8:
        raise Wrong(f"In a batch, nearly all images are cropped at the same place. How many places are drawn? {where}")
    tops, lefts = crops // POSITIONS, crops % POSITIONS
    missing = POSITIONS - min(len(np.unique(tops)), len(np.unique(lefts)))
    if missing:
        raise Wrong(
            f"Of the {POSITIONS} positions that a crop can have in each direction, {missing} never occurred in "
            f"{len(places)} images. "
            f"Where does the range of the draw end? {where}"
        )
    share = float(is_flipped.mean())
    uneven = max(abs(np.bincount(one, minlength=POSITIONS) / len(one) - 1 / POSITIONS).max() for one in (tops, lefts))
    if abs(share - 0.5) > 0.14 or uneven > 0.11:
        raise Wrong(
            f"{share:.0%} of the images are mirrored, and a position of the crop is drawn too often or too rarely by "
            f"{uneven:.0%}. Should not all be equally likely? {where}"
        )


def _judge_freshness(epochs: list[Epoch], drawn: list[npt.NDArray[np.int64]], labels: npt.NDArray[np.int64]) -> None:
    where = "See *Random numbers in workers* in the lesson."
    if np.array_equal(epochs[0][1], labels):
        raise Wrong("The images come in the order in which they are stored. An epoch should be shuffled.")
    if np.array_equal(epochs[0][1], epochs[1][1]):
        raise Wrong(f"Two different seeds gave the same order. What does `seed` reach? {where}")
    by_label = [places[np.argsort(epoch[1])] for places, epoch in zip(drawn, epochs, strict=True)]
    if (by_label[0] == by_label[1]).mean() > 0.2:
        raise Wrong(f"Two different seeds cropped and mirrored the images alike. What does `seed` reach? {where}")


class _Examiner:
    """Looks at what timed runs return: the whole epoch's form, and a sample of its images."""

    def __init__(self, images: npt.NDArray[np.uint8], labels: npt.NDArray[np.int64], batch_size: int) -> None:
        self.images, self.labels, self.batch_size = images, labels, batch_size
        self.orders: set[bytes] = set()

    def examine(self, found: Any, seed: int) -> None:
        """Refuse what is not an epoch, or is one that was returned before."""
        images, told = _read(found, self.labels, self.batch_size)
        order = told.tobytes()
        if order in self.orders:
            raise Wrong("A timed run returned the epoch of an earlier one. Each seed should give another.")
        self.orders.add(order)
        some = np.random.default_rng(seed).choice(len(told), 100, replace=False)
        originals = self.images[np.argsort(self.labels)]
        if (_match(images[some, 0], originals[told[some]]) < 0).any():
            raise Wrong("A timed run returned images that are no crops of those it was given. They were right before.")


@grades("pipelines.quiz", wrong=mistakes.QUIZ)
def quiz(sub: Submission, rng: np.random.Generator) -> None:
    """Every answer right."""
    judge_quiz(sub, "pipelines")
