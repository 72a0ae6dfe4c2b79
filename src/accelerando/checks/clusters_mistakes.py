"""The plausible mistakes of lab 10, question by question: each must lose its own question and no other."""

from accelerando.submission import WrongAnswer

_HOSTS = """
def hosts_of(host_file):
    slots = {}
    for line in host_file.splitlines():
        words = line.partition("#")[0].split()
        if words:
            slots[words[0]] = next(word.partition("=")[2] for word in words if word.startswith("slots="))
    return slots
"""

TORCHRUN_WORDS = (
    WrongAnswer(
        "as it was handed over: every host believes that it is the only one",
        """
def torchrun_words(host_file, host, port):
    NNODES = "1"
    NODE_RANK = "0"
    GPUS = str(len(host_file.splitlines()))
    words = f"torchrun --nnodes={NNODES} --node-rank={NODE_RANK} --nproc-per-node={GPUS}"
    return f"{words} --master-addr=localhost --master-port={port} train.py".split()
""",
    ),
    WrongAnswer(
        "comments are counted as hosts",
        """
def torchrun_words(host_file, host, port):
    lines = host_file.splitlines()
    hosts = [line.split()[0] for line in lines if line.strip()]
    slots = next(line for line in lines if line.strip().startswith(host)).partition("slots=")[2].split()[0]
    return ["torchrun", f"--nnodes={len(hosts)}", f"--node-rank={hosts.index(host)}", f"--nproc-per-node={slots}",
            f"--master-addr={hosts[0]}", f"--master-port={port}", "train.py"]
""",
    ),
    WrongAnswer(
        "every host is the first node",
        _HOSTS
        + """
def torchrun_words(host_file, host, port):
    slots = hosts_of(host_file)
    return ["torchrun", f"--nnodes={len(slots)}", "--node-rank=0", f"--nproc-per-node={slots[host]}",
            f"--master-addr={next(iter(slots))}", f"--master-port={port}", "train.py"]
""",
    ),
    WrongAnswer(
        "every host meets itself",
        _HOSTS
        + """
def torchrun_words(host_file, host, port):
    slots = hosts_of(host_file)
    return ["torchrun", f"--nnodes={len(slots)}", f"--node-rank={list(slots).index(host)}",
            f"--nproc-per-node={slots[host]}", f"--master-addr={host}", f"--master-port={port}", "train.py"]
""",
    ),
    WrongAnswer(
        "all hosts start as many ranks as the first",
        _HOSTS
        + """
def torchrun_words(host_file, host, port):
    slots = hosts_of(host_file)
    first = next(iter(slots))
    return ["torchrun", f"--nnodes={len(slots)}", f"--node-rank={list(slots).index(host)}",
            f"--nproc-per-node={slots[first]}", f"--master-addr={first}", f"--master-port={port}", "train.py"]
""",
    ),
)

EFFICIENCIES = (
    WrongAnswer(
        "megabits are taken for megabytes",
        """
def efficiency(forward_s, backward_s, parameters, nodes, mbit_per_s, batches):
    message_s = 2 * (nodes - 1) / nodes * 4 * parameters / (mbit_per_s * 1e6)
    computing_s = batches * (forward_s + backward_s)
    return computing_s / (computing_s + max(0.0, message_s - backward_s))
""",
    ),
    WrongAnswer(
        "the gradients are sent once and not summed around the ring",
        """
def efficiency(forward_s, backward_s, parameters, nodes, mbit_per_s, batches):
    message_s = 4 * parameters / (mbit_per_s * 1e6 / 8)
    computing_s = batches * (forward_s + backward_s)
    return computing_s / (computing_s + max(0.0, message_s - backward_s))
""",
    ),
    WrongAnswer(
        "nothing hides the message",
        """
def efficiency(forward_s, backward_s, parameters, nodes, mbit_per_s, batches):
    message_s = 2 * (nodes - 1) / nodes * 4 * parameters / (mbit_per_s * 1e6 / 8)
    computing_s = batches * (forward_s + backward_s)
    return computing_s / (computing_s + message_s)
""",
    ),
    WrongAnswer(
        "the backward of every batch hides the message",
        """
def efficiency(forward_s, backward_s, parameters, nodes, mbit_per_s, batches):
    message_s = 2 * (nodes - 1) / nodes * 4 * parameters / (mbit_per_s * 1e6 / 8)
    computing_s = batches * (forward_s + backward_s)
    return computing_s / (computing_s + max(0.0, message_s - batches * backward_s))
""",
    ),
    WrongAnswer(
        "a message after every batch",
        """
def efficiency(forward_s, backward_s, parameters, nodes, mbit_per_s, batches):
    message_s = 2 * (nodes - 1) / nodes * 4 * parameters / (mbit_per_s * 1e6 / 8)
    return (forward_s + backward_s) / (forward_s + backward_s + max(0.0, message_s - backward_s))
""",
    ),
)

REMAINING = (
    WrongAnswer(
        "the epoch begins again",
        """
def remaining(order, seen, rank, world_size):
    return order[rank :: world_size][: len(order) // world_size]
""",
    ),
    WrongAnswer(
        "every rank passes over as many images as all had seen together",
        """
def remaining(order, seen, rank, world_size):
    return order[rank :: world_size][seen:][: (len(order) - seen) // world_size]
""",
    ),
    WrongAnswer(
        "every rank goes on in its own share, as if there had always been so many ranks",
        """
def remaining(order, seen, rank, world_size):
    return order[rank :: world_size][seen // world_size :][: (len(order) - seen) // world_size]
""",
    ),
    WrongAnswer(
        "every rank takes a block, so that the global batches are other ones",
        """
def remaining(order, seen, rank, world_size):
    each = (len(order) - seen) // world_size
    return order[seen + rank * each : seen + (rank + 1) * each]
""",
    ),
    WrongAnswer(
        "some ranks have an image more",
        """
def remaining(order, seen, rank, world_size):
    return order[seen + rank :: world_size]
""",
    ),
)

SAVES = (
    WrongAnswer(
        "as it was handed over: only the weights, under the name itself",
        """
def save(path, parts, place):
    torch.save({"parts": {"model": parts["model"].state_dict()}, "rng": torch.get_rng_state(), "place": place}, path)
""",
    ),
    WrongAnswer(
        "everything is saved, but not atomically",
        """
def save(path, parts, place):
    states = {name: part.state_dict() for name, part in parts.items()}
    torch.save({"parts": states, "rng": torch.get_rng_state(), "place": place}, path)
""",
    ),
    WrongAnswer(
        "the old file is removed first",
        """
def save(path, parts, place):
    states = {name: part.state_dict() for name, part in parts.items()}
    if os.path.exists(path):
        os.remove(path)
    torch.save({"parts": states, "rng": torch.get_rng_state(), "place": place}, f"{path}.new")
    os.replace(f"{path}.new", path)
""",
    ),
    WrongAnswer(
        "the random numbers begin anew",
        """
def save(path, parts, place):
    states = {name: part.state_dict() for name, part in parts.items()}
    rng = torch.Generator().manual_seed(place["seed"]).get_state()
    torch.save({"parts": states, "rng": rng, "place": place}, f"{path}.new")
    os.replace(f"{path}.new", path)
""",
    ),
    WrongAnswer(
        "the optimizer is saved without its memory",
        """
def save(path, parts, place):
    states = {name: part.state_dict() for name, part in parts.items()}
    states["optimizer"] = {**states["optimizer"], "state": {}}
    torch.save({"parts": states, "rng": torch.get_rng_state(), "place": place}, f"{path}.new")
    os.replace(f"{path}.new", path)
""",
    ),
)

PLANS = (
    WrongAnswer(
        "half as many bytes are not few enough",
        """
def slow_link_plan(start, link):
    return {**start, "compression": "fp16"}
""",
    ),
    WrongAnswer(
        "four times fewer steps, and the accuracy of four times fewer steps",
        """
def slow_link_plan(start, link):
    return {**start, "accumulate": 8}
""",
    ),
    WrongAnswer(
        "two trainings that hardly ever meet",
        """
def slow_link_plan(start, link):
    return {**start, "average_every": 1000}
""",
    ),
    WrongAnswer(
        "gradients are compressed that are never sent",
        """
def slow_link_plan(start, link):
    return {**start, "average_every": 8, "compression": "bf16"}
""",
    ),
    WrongAnswer(
        "the start itself",
        """
def slow_link_plan(start, link):
    return start
""",
    ),
)

QUIZ = (
    WrongAnswer(
        "the same letter everywhere",
        """
quiz = {"launcher": "a", "bits": "a", "slower": "a", "local": "a", "accumulate": "a", "checkpoint": "a",
        "elastic": "a", "hang": "a"}
""",
    ),
    WrongAnswer(
        "one question left out",
        """
quiz = {"launcher": "b"}
""",
    ),
)
