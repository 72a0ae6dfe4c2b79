"""The plausible mistakes of lab 1, question by question: each must lose its own question and no other."""

from accelerando.submission import WrongAnswer

TIMES = (
    WrongAnswer(
        "everything divides by the number of cores",
        """
def predict_time(t1_s, tn_s, n, m):
    return t1_s / m
""",
    ),
    WrongAnswer(
        "the second measurement's share of the first is taken for the serial share",
        """
def predict_time(t1_s, tn_s, n, m):
    serial = tn_s / t1_s
    return t1_s * (serial + (1 - serial) / m)
""",
    ),
    WrongAnswer(
        "noise is let through: a negative serial part, or one longer than the whole run",
        """
def predict_time(t1_s, tn_s, n, m):
    serial_s = (n * tn_s - t1_s) / (n - 1)
    return serial_s + (t1_s - serial_s) / m
""",
    ),
    WrongAnswer(
        "the speed-up is taken to grow in a straight line",
        """
def predict_time(t1_s, tn_s, n, m):
    return t1_s / (1 + (t1_s / tn_s - 1) * (m - 1) / (n - 1))
""",
    ),
)

SHARES = (
    WrongAnswer(
        "core ids are taken to be 0, 1, 2, …",
        """
def share_cores(rank, processes, cpus):
    each = len(cpus) // processes
    own = list(range(rank * each, (rank + 1) * each))
    return {"cpus": own, "OMP_NUM_THREADS": str(len(own))}
""",
    ),
    WrongAnswer(
        "what is left over when the cores do not divide is forgotten",
        """
def share_cores(rank, processes, cpus):
    if processes > len(cpus):
        return {"cpus": [cpus[rank % len(cpus)]], "OMP_NUM_THREADS": "1"}
    each = len(cpus) // processes
    return {"cpus": cpus[rank * each : (rank + 1) * each], "OMP_NUM_THREADS": str(each)}
""",
    ),
    WrongAnswer(
        "every process starts as many threads as the machine has cores",
        """
def share_cores(rank, processes, cpus):
    own = cpus[rank::processes] or [cpus[rank % len(cpus)]]
    return {"cpus": own, "OMP_NUM_THREADS": str(len(cpus))}
""",
    ),
    WrongAnswer(
        "with more processes than cores some get nothing, and 0 threads",
        """
def share_cores(rank, processes, cpus):
    own = cpus[rank::processes]
    return {"cpus": own, "OMP_NUM_THREADS": str(len(own))}
""",
    ),
)

OFFERS = (
    WrongAnswer(
        "the lowest price per hour is taken for the lowest bill",
        """
def cheapest_offer(offers, steps, deadline_s):
    def seconds(offer):
        return offer["startup_s"] + steps * (offer["serial_s"] + offer["parallel_s"] / offer["cores"])

    in_time = [offer for offer in offers if seconds(offer) <= deadline_s]
    return min(in_time, key=lambda offer: offer["price_per_hour"])["name"] if in_time else None
""",
    ),
    WrongAnswer(
        "the whole step is divided by the cores",
        """
def cheapest_offer(offers, steps, deadline_s):
    def seconds(offer):
        return offer["startup_s"] + steps * (offer["serial_s"] + offer["parallel_s"]) / offer["cores"]

    in_time = [offer for offer in offers if seconds(offer) <= deadline_s]
    return min(in_time, key=lambda offer: offer["price_per_hour"] * seconds(offer))["name"] if in_time else None
""",
    ),
    WrongAnswer(
        "the deadline is not looked at",
        """
def cheapest_offer(offers, steps, deadline_s):
    def seconds(offer):
        return offer["startup_s"] + steps * (offer["serial_s"] + offer["parallel_s"] / offer["cores"])

    return min(offers, key=lambda offer: offer["price_per_hour"] * seconds(offer))["name"] if offers else None
""",
    ),
    WrongAnswer(
        "the fastest offer is taken for the cheapest",
        """
def cheapest_offer(offers, steps, deadline_s):
    def seconds(offer):
        return offer["startup_s"] + steps * (offer["serial_s"] + offer["parallel_s"] / offer["cores"])

    in_time = [offer for offer in offers if seconds(offer) <= deadline_s]
    return min(in_time, key=seconds)["name"] if in_time else None
""",
    ),
)

BIASES = (
    WrongAnswer(
        "the bias goes, the running mean that counted on it stays",
        """
def drop_idle_biases(model):
    def chain(block):
        for child in block:
            yield from chain(child) if isinstance(child, nn.Sequential) else [child]

    layers = list(chain(model))
    for layer, follower in zip(layers, layers[1:]):
        if isinstance(follower, (nn.BatchNorm1d, nn.BatchNorm2d)) and hasattr(layer, "bias"):
            layer.bias = None
    return model
""",
    ),
    WrongAnswer(
        "every bias goes",
        """
def drop_idle_biases(model):
    for layer in model.modules():
        if isinstance(layer, (nn.Conv1d, nn.Conv2d, nn.Linear)):
            layer.bias = None
    return model
""",
    ),
    WrongAnswer(
        "only the outermost nn.Sequential is looked at",
        """
def drop_idle_biases(model):
    layers = list(model)
    for layer, follower in zip(layers, layers[1:]):
        if isinstance(follower, (nn.BatchNorm1d, nn.BatchNorm2d)):
            if getattr(layer, "bias", None) is not None:
                follower.running_mean -= layer.bias.detach()
                layer.bias = None
    return model
""",
    ),
    WrongAnswer(
        "the running mean moves the wrong way",
        """
def drop_idle_biases(model):
    def chain(block):
        for child in block:
            yield from chain(child) if isinstance(child, nn.Sequential) else [child]

    layers = list(chain(model))
    for layer, follower in zip(layers, layers[1:]):
        if isinstance(follower, (nn.BatchNorm1d, nn.BatchNorm2d)):
            if getattr(layer, "bias", None) is not None:
                follower.running_mean += layer.bias.detach()
                layer.bias = None
    return model
""",
    ),
    WrongAnswer(
        "`modules()` names a repeated layer once, so the order is not the order of running",
        """
def drop_idle_biases(model):
    layers = [layer for layer in model.modules() if not isinstance(layer, nn.Sequential)]
    for layer, follower in zip(layers, layers[1:]):
        if isinstance(follower, (nn.BatchNorm1d, nn.BatchNorm2d)):
            if getattr(layer, "bias", None) is not None:
                follower.running_mean -= layer.bias.detach()
                layer.bias = None
    return model
""",
    ),
)

RECIPES = (
    WrongAnswer(
        "fewer epochs: faster because less was done",
        """
def faster_recipe(start):
    return {**start, "batch_size": 64, "threads": 2, "epochs": 1}
""",
    ),
    WrongAnswer(
        "a huge batch with the small batch's learning rate: fast, and it has hardly learned",
        """
def faster_recipe(start):
    return {**start, "batch_size": 1024, "optimizer_kind": "fused", "layout": "channels_last", "threads": 2}
""",
    ),
    WrongAnswer(
        "the one switch that everybody names, and no measurement",
        """
def faster_recipe(start):
    return {**start, "zero_grad_set_to_none": True}
""",
    ),
)

QUIZ = (
    WrongAnswer(
        "the same letter everywhere",
        """
quiz = dict.fromkeys(["cores", "serial", "bandwidth", "batch", "bias", "threads", "price", "switch"], "a")
""",
    ),
    WrongAnswer(
        "one question left out",
        """
quiz = {"cores": "b"}
""",
    ),
)
