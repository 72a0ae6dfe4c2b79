"""Mistakes that people make in the final; each must lose its question and no other."""

from accelerando.submission import WrongAnswer


def _function(head: str, *lines: str) -> str:
    return "\n    ".join([f"def {head}:", *lines])


def _training(predict: str) -> str:
    others = ("def prepare(shape, classes): pass", "def train(images, labels, budget_s): pass")
    return "\n".join(["import numpy as np", *others, f"def predict(images): {predict}"])


WRONG_TRAININGS = (
    WrongAnswer("classes instead of scores", _training("return np.zeros(len(images), np.int64)")),
    WrongAnswer("one score too few", _training("return np.zeros((len(images), 9), np.float32)")),
    WrongAnswer("training diverged", _training("return np.full((len(images), 10), np.nan, np.float32)")),
    WrongAnswer("predict only prints", _training("print('done')")),
)


def _shard(*lines: str) -> str:
    return _function("shard(n, rank, world_size, epoch)", *lines)


_SHUFFLED = "order = np.random.default_rng(epoch).permutation(n)"
WRONG_SHARDS = (
    WrongAnswer(
        "the rest is dropped",
        _shard(_SHUFFLED, "size = n // world_size", "return order[rank * size : (rank + 1) * size]"),
    ),
    WrongAnswer(
        "filled up with repeated images",
        _shard(_SHUFFLED, "size = -(-n // world_size)", "return np.resize(order, size * world_size)[rank::world_size]"),
    ),
    WrongAnswer(
        "each rank shuffles by itself",
        _shard("return np.random.default_rng((epoch, rank)).permutation(n)[rank::world_size]"),
    ),
    WrongAnswer("never shuffled", _shard("return np.arange(rank, n, world_size)")),
    WrongAnswer(
        "shuffled inside fixed shares",
        _shard("return np.random.default_rng(epoch).permutation(np.arange(rank, n, world_size))"),
    ),
    WrongAnswer("shuffled without a seed", _shard("return np.random.permutation(n)[rank::world_size]")),
    WrongAnswer(
        "the last rank takes the rest",
        _shard(
            _SHUFFLED,
            "size = n // world_size",
            "return order[rank * size : (rank + 1) * size if rank < world_size - 1 else n]",
        ),
    ),
)


def _average(*lines: str) -> str:
    return _function("average_gradients(model, images)", *lines)


_EACH = ("for p in model.parameters():", "    if p.requires_grad:")
_FILLED = "        p.grad = torch.zeros_like(p) if p.grad is None else p.grad"
WRONG_AVERAGES = (
    WrongAnswer("nothing is exchanged", _average("pass")),
    WrongAnswer("summed, not averaged", _average(*_EACH, _FILLED, "        dist.all_reduce(p.grad)")),
    WrongAnswer(
        "shares count alike",
        _average(*_EACH, _FILLED, "        dist.all_reduce(p.grad)", "        p.grad /= dist.get_world_size()"),
    ),
    WrongAnswer(
        "a rank without an image does not take part",
        _average(
            "total = torch.tensor(float(images))",
            "dist.all_reduce(total)",
            "for p in model.parameters():",
            "    if p.grad is not None:",
            "        p.grad *= images",
            "        dist.all_reduce(p.grad)",
            "        p.grad /= total",
        ),
    ),
)


def _recipe(rate: str, warmup: str = "0") -> str:
    answer = f'return {{"learning_rate": {rate}, "warmup_steps": {warmup}}}'
    return _function("global_recipe(base, world_size)", answer)


WRONG_RECIPES = (
    WrongAnswer("the rate stays", _recipe('base["learning_rate"]')),
    WrongAnswer("the rate is divided", _recipe('base["learning_rate"] / world_size')),
    WrongAnswer("far too much", _recipe('base["learning_rate"] * world_size**4')),
    WrongAnswer("warm-up for the whole run", _recipe('base["learning_rate"] * world_size', 'base["steps"]')),
)


def _resume(*lines: str, together: str = 'run["batch_size"] * run["ranks"]', steps: str = "-(-n // together)") -> str:
    given = ('n, seed, epoch = run["images"], run["seed"], run["epoch"]', f"together = {together}", f"steps = {steps}")
    return _function("resume(run, rank, world_size, ahead)", *given, *lines)


_PLACE = 'epochs, step = divmod(run["step"] + ahead, steps)'
_WHOLE = "whole = image_order(n, seed, epoch + epochs)[step * together : (step + 1) * together]"
_DEALT = "return whole[rank::world_size]"
WRONG_RESUMES = (
    WrongAnswer("the epoch begins again", _resume("epochs, step = divmod(ahead, steps)", _WHOLE, _DEALT)),
    WrongAnswer(
        "each rank keeps its batch, so that the global one changes",
        _resume(_PLACE, _WHOLE, _DEALT, together='run["batch_size"] * world_size'),
    ),
    WrongAnswer(
        "passes over what was seen, and then each rank keeps its batch",
        _resume(
            "rest = image_order(n, seed, epoch)[run['step'] * together :]",
            'each = run["batch_size"] * world_size',
            "return rest[ahead * each : (ahead + 1) * each][rank::world_size]",
        ),
    ),
    WrongAnswer("the same order in each epoch", _resume(_PLACE, _WHOLE.replace("epoch + epochs", "epoch"), _DEALT)),
    WrongAnswer(
        "each rank has a block of the order to itself, another one for another number of ranks",
        _resume(
            _PLACE,
            "own = np.array_split(image_order(n, seed, epoch + epochs), world_size)[rank]",
            "each = -(-together // world_size)",
            "return own[step * each : (step + 1) * each]",
        ),
    ),
    WrongAnswer(
        "what does not divide by the ranks is dropped",
        _resume(_PLACE, _WHOLE, "return whole[rank::world_size][: len(whole) // world_size]"),
    ),
    WrongAnswer(
        "the last rank takes what does not divide",
        _resume(
            _PLACE,
            _WHOLE,
            "each = len(whole) // world_size",
            "return whole[rank * each : (rank + 1) * each if rank < world_size - 1 else None]",
        ),
    ),
    WrongAnswer("an epoch's last step is dropped", _resume(_PLACE, _WHOLE, _DEALT, steps="n // together")),
    WrongAnswer(
        "the last step is filled up from the next epoch",
        _resume(
            _PLACE,
            _WHOLE,
            "following = image_order(n, seed, epoch + epochs + 1)",
            "whole = np.concatenate([whole, following])[:together]",
            _DEALT,
        ),
    ),
)

WRONG_CLAIMS = (
    WrongAnswer("one row", 'claims = [{"technique": "all together", "predicted": 4.0, "measured": 5.0}]'),
    WrongAnswer("text for numbers", 'claims = [{"technique": "threads", "predicted": "twice", "measured": "twice"}]'),
    WrongAnswer("seconds, not a table", "claims = 12.5"),
)

WRONG_QUIZ = (
    WrongAnswer(
        "the same letter everywhere",
        'from accelerando.quizzes import final\nquiz = {question.id: "a" for question in final.draw()}',
    ),
    WrongAnswer("not a dictionary", 'quiz = ["a", "b"]'),
)
