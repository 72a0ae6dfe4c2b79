"""The plausible mistakes of lab 8, question by question: each must lose its own question and no other."""

from accelerando.submission import WrongAnswer

CORES = (
    WrongAnswer(
        "the nodes are forgotten: all ids in a row are cut into parts",
        """
def cores_of_rank(rank, world_size, nodes):
    cpus = sorted(cpu for node in nodes for cpu in node)
    return cpus[rank * len(cpus) // world_size : (rank + 1) * len(cpus) // world_size]
""",
    ),
    WrongAnswer(
        "cores are counted from 0, whatever their ids are",
        """
def cores_of_rank(rank, world_size, nodes):
    share = sum(len(node) for node in nodes) // world_size
    return list(range(rank * share, (rank + 1) * share))
""",
    ),
    WrongAnswer(
        "every rank of a node gets all of the node",
        """
def cores_of_rank(rank, world_size, nodes):
    return nodes[rank * len(nodes) // world_size]
""",
    ),
    WrongAnswer(
        "what does not divide belongs to nobody",
        """
def cores_of_rank(rank, world_size, nodes):
    if world_size < len(nodes):
        each = len(nodes) // world_size
        return [cpu for node in nodes[rank * each : (rank + 1) * each] for cpu in node]
    of_node = -(-world_size // len(nodes))
    node, place = divmod(rank, of_node)
    share = len(nodes[node]) // of_node
    return nodes[node][place * share : (place + 1) * share]
""",
    ),
)

PLACES = (
    WrongAnswer(
        "the function as it was found",
        """
def place_rank(environ, cpus):
    rank = int(environ.get("LOCAL_RANK", 0))
    ranks = int(environ.get("WORLD_SIZE", 1))
    share = len(cpus) // ranks
    return {"cpus": cpus[rank * share : (rank + 1) * share], "threads": int(environ.get("OMP_NUM_THREADS", share))}
""",
    ),
    WrongAnswer(
        "both launchers are known, and the number of threads is still the launcher's",
        """
def place_rank(environ, cpus):
    rank, ranks = 0, 1
    for own, size in (
        ("LOCAL_RANK", "LOCAL_WORLD_SIZE"),
        ("OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ):
        if own in environ:
            rank, ranks = int(environ[own]), int(environ[size])
    share = len(cpus) // ranks
    return {"cpus": cpus[rank * share : (rank + 1) * share], "threads": int(environ.get("OMP_NUM_THREADS", share))}
""",
    ),
    WrongAnswer(
        "threads and sizes are right, and mpirun is not known: all its ranks are number 0",
        """
def place_rank(environ, cpus):
    rank = int(environ.get("LOCAL_RANK", 0))
    ranks = int(environ.get("LOCAL_WORLD_SIZE", environ.get("OMPI_COMM_WORLD_LOCAL_SIZE", 1)))
    share = len(cpus) // ranks
    return {"cpus": cpus[rank * share : (rank + 1) * share], "threads": share}
""",
    ),
    WrongAnswer(
        "the number among all ranks is taken, which is too large on the second host",
        """
def place_rank(environ, cpus):
    rank = int(environ.get("RANK", environ.get("OMPI_COMM_WORLD_RANK", 0)))
    ranks = int(environ.get("LOCAL_WORLD_SIZE", environ.get("OMPI_COMM_WORLD_LOCAL_SIZE", 1)))
    share = len(cpus) // ranks
    return {"cpus": cpus[rank * share : (rank + 1) * share], "threads": share}
""",
    ),
)

LAYOUTS = (
    WrongAnswer(
        "the shortest step wins, however few images it trains",
        """
def choose_layout(measured, most_images):
    allowed = [row for row in measured if row["processes"] * row["batch"] <= most_images]
    best = min(allowed, key=lambda row: sorted(row["seconds"])[len(row["seconds"]) // 2])
    return [best["processes"], best["threads"]]
""",
    ),
    WrongAnswer(
        "the mean, into which every disturbed round goes",
        """
def choose_layout(measured, most_images):
    def rate(row):
        return row["processes"] * row["batch"] * len(row["seconds"]) / sum(row["seconds"])

    allowed = [row for row in measured if row["processes"] * row["batch"] <= most_images]
    best = max(map(rate, allowed))
    chosen = min((row for row in allowed if rate(row) >= 0.95 * best), key=lambda row: row["processes"])
    return [chosen["processes"], chosen["threads"]]
""",
    ),
    WrongAnswer(
        "the limit is held against the batch of one rank",
        """
def choose_layout(measured, most_images):
    def rate(row):
        return row["processes"] * row["batch"] / sorted(row["seconds"])[len(row["seconds"]) // 2]

    allowed = [row for row in measured if row["batch"] <= most_images]
    best = max(map(rate, allowed))
    chosen = min((row for row in allowed if rate(row) >= 0.95 * best), key=lambda row: row["processes"])
    return [chosen["processes"], chosen["threads"]]
""",
    ),
    WrongAnswer(
        "the fastest wins by a hair, whatever its processes cost",
        """
def choose_layout(measured, most_images):
    def rate(row):
        return row["processes"] * row["batch"] / sorted(row["seconds"])[len(row["seconds"]) // 2]

    allowed = [row for row in measured if row["processes"] * row["batch"] <= most_images]
    best = max(allowed, key=rate)
    return [best["processes"], best["threads"]]
""",
    ),
)

FASTER = (
    WrongAnswer(
        "off the one core, and many more threads than cores",
        """
def faster_layout(start):
    return {**start, "processes": 8, "threads": 4, "pinning": "none", "batch": 2}
""",
    ),
    WrongAnswer(
        "a large global batch with the old learning rate",
        """
def faster_layout(start):
    return {**start, "processes": 2, "threads": 1, "pinning": "own cores", "batch": 64}
""",
    ),
    WrongAnswer(
        "batch and rate are good, and the ranks still sit on one core",
        """
def faster_layout(start):
    return {**start, "batch": 16, "learning_rate": 0.06}
""",
    ),
)

QUIZ = (
    WrongAnswer(
        "the same letter everywhere",
        """
quiz = dict.fromkeys(["race", "same", "silent", "numa", "backend", "over", "global", "copies"], "a")
""",
    ),
    WrongAnswer(
        "one question answered, seven left out",
        """
quiz = {"race": "a"}
""",
    ),
)
