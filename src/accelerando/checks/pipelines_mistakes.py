"""The plausible mistakes of lab 4, question by question: each must lose its own question and no other."""

from accelerando.submission import WrongAnswer

SPEEDS = (
    WrongAnswer(
        "more workers are always faster: the cores are forgotten",
        """
def predict_images_per_s(batch_size, load_s, step_s, step_cores, workers, cores):
    if workers == 0:
        return batch_size / (load_s + step_s)
    return batch_size / max(step_s, load_s / workers)
""",
    ),
    WrongAnswer(
        "workers are taken to add their time to the step's",
        """
def predict_images_per_s(batch_size, load_s, step_s, step_cores, workers, cores):
    load = load_s / min(max(workers, 1), cores)
    return batch_size / (load + step_s)
""",
    ),
    WrongAnswer(
        "the step is forgotten when the cores are counted",
        """
def predict_images_per_s(batch_size, load_s, step_s, step_cores, workers, cores):
    if workers == 0:
        return batch_size / (load_s + step_s)
    return batch_size / max(step_s, load_s / min(workers, cores))
""",
    ),
    WrongAnswer(
        "batches are returned where images were asked for",
        """
def predict_images_per_s(batch_size, load_s, step_s, step_cores, workers, cores):
    if workers == 0:
        return 1 / (load_s + step_s)
    return 1 / max(step_s, load_s / workers, (load_s + step_s * step_cores) / cores)
""",
    ),
)

NOISE = (
    WrongAnswer(
        "as it was found: one generator, copied into every worker",
        """
def fresh_noise(dataset, index):
    return torch.from_numpy(dataset.rng.normal(size=dataset.images[index].shape)).float()
""",
    ),
    WrongAnswer(
        "seeded by the worker's number: different workers, but every epoch the same",
        """
def fresh_noise(dataset, index):
    info = torch.utils.data.get_worker_info()
    if not hasattr(dataset, "mine"):
        dataset.mine = np.random.default_rng([dataset.seed, info.id if info else 0])
    return torch.from_numpy(dataset.mine.normal(size=dataset.images[index].shape)).float()
""",
    ),
    WrongAnswer(
        "seeded by the image's number: the noise of an image is frozen",
        """
def fresh_noise(dataset, index):
    rng = np.random.default_rng([dataset.seed, index])
    return torch.from_numpy(rng.normal(size=dataset.images[index].shape)).float()
""",
    ),
    WrongAnswer(
        "seeded by the system: no run can be repeated",
        """
def fresh_noise(dataset, index):
    return torch.from_numpy(np.random.default_rng().normal(size=dataset.images[index].shape)).float()
""",
    ),
    WrongAnswer(
        "the same seed at every call",
        """
def fresh_noise(dataset, index):
    rng = np.random.default_rng(torch.initial_seed())
    return torch.from_numpy(rng.normal(size=dataset.images[index].shape)).float()
""",
    ),
)

CACHES = (
    WrongAnswer(
        "as it was found: what is cached has been augmented",
        """
def cached_image(index, cache, decode, augment, limit):
    if index not in cache:
        cache[index] = augment(decode(index))
    return cache[index]
""",
    ),
    WrongAnswer(
        "nothing is cached",
        """
def cached_image(index, cache, decode, augment, limit):
    return augment(decode(index))
""",
    ),
    WrongAnswer(
        "the augmentation writes into the cache",
        """
def cached_image(index, cache, decode, augment, limit):
    if index in cache:
        return augment(cache[index])
    image = decode(index)
    if len(cache) < limit:
        cache[index] = image
    return augment(image)
""",
    ),
    WrongAnswer(
        "the limit is not kept",
        """
def cached_image(index, cache, decode, augment, limit):
    if index not in cache:
        cache[index] = decode(index)
    return augment(cache[index].clone())
""",
    ),
)

NAMES = (
    WrongAnswer(
        "characters are counted where bytes are meant",
        """
def pack_names(names):
    data = np.frombuffer("".join(names).encode(), np.uint8).copy()
    return {"data": data, "ends": np.cumsum([len(name) for name in names], dtype=np.int64)}
""",
    ),
    WrongAnswer(
        "an array of objects: the names are still one object each",
        """
def pack_names(names):
    return np.array(names, dtype=object)
""",
    ),
    WrongAnswer(
        "where names begin instead of where they end",
        """
def pack_names(names):
    encoded = [name.encode() for name in names]
    sizes = [len(one) for one in encoded]
    data = np.frombuffer(b"".join(encoded), np.uint8).copy()
    return {"data": data, "ends": np.cumsum([0, *sizes[:-1]], dtype=np.int64)[: len(names)]}
""",
    ),
    WrongAnswer(
        "every name takes as much as the longest",
        """
def pack_names(names):
    encoded = [name.encode() for name in names]
    width = max((len(one) for one in encoded), default=0)
    data = np.frombuffer(b"".join(one.ljust(width, b" ") for one in encoded), np.uint8).copy()
    return {"data": data, "ends": np.arange(1, len(names) + 1, dtype=np.int64) * width}
""",
    ),
)

_START = """
def fast_epoch(images, labels, batch_size, seed):
    rng = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(labels), generator=rng)
    pixels = torch.nn.functional.pad(torch.as_tensor(images), (PADDING,) * 4)
    labels = torch.as_tensor(labels)
    batches = []
    for chosen in order.split(batch_size):
        count = len(chosen)
"""
_END = """
        rows, columns = top.view(-1, 1) + torch.arange(28), left.view(-1, 1) + torch.arange(28)
        batch = pixels[chosen.view(-1, 1, 1), rows.unsqueeze(2), columns.unsqueeze(1)]
        batch = torch.where(flip.view(-1, 1, 1), batch.flip(2), batch)
        batches.append((((batch.unsqueeze(1).float() / 255) - MEAN) / DEVIATION, labels[chosen]))
    return batches
"""

EPOCHS = (
    WrongAnswer(
        "one coin for the whole batch",
        f"""{_START}
        flip = torch.rand(1, generator=rng) < 0.5
        top, left = torch.randint(5, (2, count), generator=rng)
{_END}""",
    ),
    WrongAnswer(
        "one crop for the whole batch",
        f"""{_START}
        flip = torch.rand(count, generator=rng) < 0.5
        top, left = torch.randint(5, (2, 1), generator=rng).expand(2, count)
{_END}""",
    ),
    WrongAnswer(
        "the last position of a crop is never drawn",
        f"""{_START}
        flip = torch.rand(count, generator=rng) < 0.5
        top, left = torch.randint(4, (2, count), generator=rng)
{_END}""",
    ),
    WrongAnswer(
        "the seed is not used: every epoch is the same",
        f"""{_START.replace("manual_seed(seed)", "manual_seed(0)")}
        flip = torch.rand(count, generator=rng) < 0.5
        top, left = torch.randint(5, (2, count), generator=rng)
{_END}""",
    ),
    WrongAnswer(
        "the labels stay in their stored order",
        f"""{_START}
        flip = torch.rand(count, generator=rng) < 0.5
        top, left = torch.randint(5, (2, count), generator=rng)
{_END.replace("labels[chosen]", "labels[len(batches) * batch_size :][:count]")}""",
    ),
    WrongAnswer(
        "the border is filled after scaling, with a zero that is no longer black",
        f"""{_START.replace("torch.as_tensor(images), (", "(torch.as_tensor(images) / 255 - MEAN) / DEVIATION, (")}
        flip = torch.rand(count, generator=rng) < 0.5
        top, left = torch.randint(5, (2, count), generator=rng)
{_END.replace("((batch.unsqueeze(1).float() / 255) - MEAN) / DEVIATION", "batch.unsqueeze(1)")}""",
    ),
)

QUIZ = (
    WrongAnswer(
        "the same letter everywhere",
        """
quiz = dict.fromkeys(["stall", "workers", "waiting", "batch", "prefetch", "memory", "seeds", "shm"], "a")
""",
    ),
    WrongAnswer(
        "one question left out",
        """
quiz = {"stall": "b"}
""",
    ),
)
