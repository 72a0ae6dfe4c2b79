"""The plausible mistakes of lab 9, question by question: each must lose its own question and no other."""

from accelerando.submission import WrongAnswer

RINGS = (
    WrongAnswer(
        "the order of the numbers",
        """
def best_ring(bandwidth):
    return list(range(len(bandwidth)))
""",
    ),
    WrongAnswer(
        "always on to the fastest neighbour, and home over whatever is left",
        """
def best_ring(bandwidth):
    order, left = [0], set(range(1, len(bandwidth)))
    while left:
        order.append(max(left, key=lambda gpu: bandwidth[order[-1]][gpu]))
        left.remove(order[-1])
    return order
""",
    ),
    WrongAnswer(
        "the largest sum of bandwidths, as if a fast hop made up for a slow one",
        """
def best_ring(bandwidth):
    from itertools import permutations
    n = len(bandwidth)
    rings = ([0, *rest] for rest in permutations(range(1, n)))
    return max(rings, key=lambda ring: sum(bandwidth[a][b] for a, b in zip(ring, ring[1:] + ring[:1])))
""",
    ),
    WrongAnswer(
        "the best line of GPUs: the hop home is forgotten",
        """
def best_ring(bandwidth):
    from itertools import permutations
    lines = (list(line) for line in permutations(range(len(bandwidth))))
    return max(lines, key=lambda line: min(bandwidth[a][b] for a, b in zip(line, line[1:])))
""",
    ),
)

SUSPECTS = (
    WrongAnswer(
        "only sockets are suspected",
        """
def suspects(connections):
    return ["NCCL_IB_DISABLE" if one["via"].startswith("NET/Socket") else None for one in connections]
""",
    ),
    WrongAnswer(
        "any way through InfiniBand is taken for the best one",
        """
def suspects(connections):
    found = []
    for one in connections:
        same = one["from_host"] == one["to_host"]
        if same and not one["via"].startswith("P2P"):
            found.append("NCCL_P2P_DISABLE")
        elif not same and one["via"].startswith("NET/Socket"):
            found.append("NCCL_IB_DISABLE")
        else:
            found.append(None)
    return found
""",
    ),
    WrongAnswer(
        "shared memory is taken for the best way inside a machine",
        """
def suspects(connections):
    found = []
    for one in connections:
        same = one["from_host"] == one["to_host"]
        if same:
            found.append(None if one["via"].startswith(("P2P", "SHM")) else "NCCL_P2P_DISABLE")
        elif one["via"].startswith("NET/Socket"):
            found.append("NCCL_IB_DISABLE")
        else:
            found.append(None if one["via"].endswith("GDRDMA") else "NCCL_NET_GDR_LEVEL")
    return found
""",
    ),
    WrongAnswer(
        "the network is suspected inside a machine too: hosts are not looked at",
        """
def suspects(connections):
    found = []
    for one in connections:
        via = one["via"]
        if via.startswith("SHM"):
            found.append("NCCL_P2P_DISABLE")
        elif via.startswith("NET/Socket"):
            found.append("NCCL_IB_DISABLE")
        elif via.startswith("NET/IB") and not via.endswith("GDRDMA"):
            found.append("NCCL_NET_GDR_LEVEL")
        else:
            found.append(None)
    return found
""",
    ),
)

STATISTICS = (
    WrongAnswer(
        "the variances are averaged: how far the means are apart is lost",
        """
def synced_statistics(counts, means, variances):
    n = sum(counts)
    return sum(c * m for c, m in zip(counts, means)) / n, sum(c * v for c, v in zip(counts, variances)) / n
""",
    ),
    WrongAnswer(
        "every rank counts the same, however many images it has",
        """
def synced_statistics(counts, means, variances):
    k = len(counts)
    mean = sum(means) / k
    return mean, sum(v + (m - mean) ** 2 for m, v in zip(means, variances)) / k
""",
    ),
    WrongAnswer(
        "the sum is divided by one less",
        """
def synced_statistics(counts, means, variances):
    n = sum(counts)
    mean = sum(c * m for c, m in zip(counts, means)) / n
    return mean, sum(c * (v + (m - mean) ** 2) for c, m, v in zip(counts, means, variances)) / max(1, n - 1)
""",
    ),
    WrongAnswer(
        "mean of squares minus square of the mean, which cancels where numbers are far from 0",
        """
def synced_statistics(counts, means, variances):
    n = sum(counts)
    mean = sum(c * m for c, m in zip(counts, means)) / n
    return mean, sum(c * (v + m * m) for c, m, v in zip(counts, means, variances)) / n - mean * mean
""",
    ),
)

_STEP = """
def train_step(model, batches, all_reduce, world_size, max_norm):
    model.zero_grad()
    for images, labels in batches:
        {loss}
        {inside}
    {before}
    for parameter in model.parameters():
        all_reduce(parameter.grad)
        {divide}
    {after}
"""
_CLIP, _DIVIDE = "nn.utils.clip_grad_norm_(model.parameters(), max_norm)", "parameter.grad /= world_size"
_SUM = "nn.functional.cross_entropy(model(images), labels).backward()"
_MEAN = "(nn.functional.cross_entropy(model(images), labels) / len(batches)).backward()"


def _step(loss: str = _MEAN, inside: str = "", before: str = "", divide: str = _DIVIDE, after: str = _CLIP) -> str:
    return _STEP.format(loss=loss, inside=inside, before=before, divide=divide, after=after)


_LATE = f"{_CLIP}\n    for parameter in model.parameters():\n        {_DIVIDE}"
_EACH = "for parameter in model.parameters():\n        nn.utils.clip_grad_norm_([parameter], max_norm)"

STEPS = (
    WrongAnswer(
        "as it was handed over: clipped after every batch, the batches' sum", _step(_SUM, inside=_CLIP, after="")
    ),
    WrongAnswer("each rank clips its own gradient before the all-reduce", _step(before=_CLIP, after="")),
    WrongAnswer("the gradients of the batches are added up and not averaged", _step(_SUM)),
    WrongAnswer("clipped after the all-reduce and before dividing", _step(divide="pass", after=_LATE)),
    WrongAnswer("every parameter is clipped by itself", _step(after=_EACH)),
    WrongAnswer("not clipped at all", _step(after="")),
)

RECIPES = (
    WrongAnswer(
        "a larger batch, and the learning rate as before",
        """
def large_batch_recipe(start):
    return {**start, "global_batch": 8 * start["global_batch"]}
""",
    ),
    WrongAnswer(
        "a rate that the first steps cannot bear, and no warm-up",
        """
def large_batch_recipe(start):
    return {**start, "global_batch": 8 * start["global_batch"], "learning_rate": 0.64}
""",
    ),
    WrongAnswer(
        "a batch that is twice as large: the accuracy is kept, and too many all-reduces too",
        """
def large_batch_recipe(start):
    return {**start, "global_batch": 64, "learning_rate": 0.04}
""",
    ),
    WrongAnswer(
        "the linear rule beyond what it can do",
        """
def large_batch_recipe(start):
    return {**start, "global_batch": 1024, "learning_rate": 0.64, "warmup_steps": 10}
""",
    ),
)

QUIZ = (
    WrongAnswer(
        "the beliefs that the lesson broke",
        """
quiz = {
    "hop": "a", "tree": "a", "log": "a", "device": "b", "clip": "b", "norm": "a", "rate": "a", "warmup": "a",
}
""",
    ),
    WrongAnswer("one question left out", 'quiz = {"hop": "c"}'),
    WrongAnswer("not a dictionary", 'quiz = ["c"]'),
)
