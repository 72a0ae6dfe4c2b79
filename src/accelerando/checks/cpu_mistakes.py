"""The plausible mistakes of lab 3, question by question: each must lose its own question and no other."""

from accelerando.submission import WrongAnswer

GAINS = (
    WrongAnswer(
        "twice the arithmetic is taken for twice the speed",
        """
def predict_gain(kernels, old, new):
    return new["flops_per_s"] / old["flops_per_s"]
""",
    ),
    WrongAnswer(
        "the kernels are added up before the roofline is asked",
        """
def predict_gain(kernels, old, new):
    flops = sum(kernel["flops"] for kernel in kernels)
    moved = sum(kernel["moved_bytes"] for kernel in kernels)

    def seconds(on):
        return max(flops / on["flops_per_s"], moved / on["bytes_per_s"])

    return seconds(old) / seconds(new)
""",
    ),
    WrongAnswer(
        "moving and computing are taken to follow each other",
        """
def predict_gain(kernels, old, new):
    def seconds(on):
        return sum(k["flops"] / on["flops_per_s"] + k["moved_bytes"] / on["bytes_per_s"] for k in kernels)

    return seconds(old) / seconds(new)
""",
    ),
    WrongAnswer(
        "the gains of the kernels are averaged, as if each took the same time",
        """
def predict_gain(kernels, old, new):
    def seconds(kernel, on):
        return max(kernel["flops"] / on["flops_per_s"], kernel["moved_bytes"] / on["bytes_per_s"])

    return sum(seconds(kernel, old) / seconds(kernel, new) for kernel in kernels) / len(kernels)
""",
    ),
)

BLOCKS = (
    WrongAnswer(
        "every operation goes over all blocks before the next one begins",
        """
def in_blocks(values, operations, block):
    result = values.flatten().clone()
    for operation in operations:
        for start in range(0, result.numel(), block):
            result[start : start + block] = operation(result[start : start + block])
    return result.view(values.shape)
""",
    ),
    WrongAnswer(
        "the last block, which is smaller, is forgotten",
        """
def in_blocks(values, operations, block):
    flat = values.flatten()
    parts = []
    for number in range(flat.numel() // block):
        part = flat[number * block : (number + 1) * block]
        for operation in operations:
            part = operation(part)
        parts.append(part)
    return torch.cat(parts) if parts else flat
""",
    ),
    WrongAnswer(
        "blocks are counted in rows and not in numbers",
        """
def in_blocks(values, operations, block):
    parts = []
    for part in values.split(block):
        for operation in operations:
            part = operation(part)
        parts.append(part)
    return torch.cat(parts)
""",
    ),
    WrongAnswer(
        "the results are written over the values that were given",
        """
def in_blocks(values, operations, block):
    flat = values.view(-1)
    for start in range(0, flat.numel(), block):
        part = flat[start : start + block]
        for operation in operations:
            part = operation(part)
        flat[start : start + block] = part
    return values
""",
    ),
)

CPUS = (
    WrongAnswer(
        "the first ids are taken, whatever they are",
        """
def choose_cpus(topology, threads):
    return [row["cpu"] for row in topology][:threads]
""",
    ),
    WrongAnswer(
        "every second id is taken for a core of its own",
        """
def choose_cpus(topology, threads):
    cpus = sorted(row["cpu"] for row in topology)
    return (cpus[::2] + cpus[1::2])[:threads]
""",
    ),
    WrongAnswer(
        "one thread per core, but the nodes are dealt out in turn",
        """
def choose_cpus(topology, threads):
    seen, first, rest = set(), [], []
    for row in sorted(topology, key=lambda row: (row["core"] * 7919) % 101):
        (rest if row["core"] in seen else first).append(row)
        seen.add(row["core"])
    by_node = {}
    for row in first:
        by_node.setdefault(row["node"], []).append(row)
    dealt = []
    while any(by_node.values()):
        for rows in by_node.values():
            if rows:
                dealt.append(rows.pop(0))
    return [row["cpu"] for row in dealt + rest][:threads]
""",
    ),
    WrongAnswer(
        "more threads than CPUs: the ids start again from the beginning",
        """
def choose_cpus(topology, threads):
    nodes = {}
    for row in topology:
        nodes.setdefault(row["node"], {}).setdefault(row["core"], []).append(row["cpu"])
    cores = [cpus for node in sorted(nodes.values(), key=len, reverse=True) for cpus in node.values()]
    order = [cpus[0] for cpus in cores] + [cpu for cpus in cores for cpu in cpus[1:]]
    return [order[number % len(order)] for number in range(threads)]
""",
    ),
)

WORKERS = (
    WrongAnswer(
        "the function as it was found",
        """
def begin_worker(processes, cores, environ, load):
    library = load()
    environ["OMP_NUM_THREADS"] = str(cores)
    environ["OMP_PROC_BIND"] = "close"
    library.multiply()
    library.set_num_interop_threads(1)
    return library
""",
    ),
    WrongAnswer(
        "set in time, but every process still takes all the cores",
        """
def begin_worker(processes, cores, environ, load):
    environ["OMP_NUM_THREADS"] = str(cores)
    environ["OMP_PROC_BIND"] = "close"
    library = load()
    library.set_num_interop_threads(1)
    library.multiply()
    return library
""",
    ),
    WrongAnswer(
        "the number of threads is mended by a call, and the other variable is still too late",
        """
def begin_worker(processes, cores, environ, load):
    library = load()
    library.set_num_threads(max(1, cores // processes))
    environ["OMP_PROC_BIND"] = "close"
    library.set_num_interop_threads(1)
    library.multiply()
    return library
""",
    ),
    WrongAnswer(
        "the first product still comes before the inter-op threads",
        """
def begin_worker(processes, cores, environ, load):
    environ["OMP_NUM_THREADS"] = str(max(1, cores // processes))
    environ["OMP_PROC_BIND"] = "close"
    library = load()
    library.multiply()
    library.set_num_interop_threads(1)
    return library
""",
    ),
    WrongAnswer(
        "a number where a variable wants text",
        """
def begin_worker(processes, cores, environ, load):
    environ["OMP_NUM_THREADS"] = max(1, cores // processes)
    environ["OMP_PROC_BIND"] = "close"
    library = load()
    library.set_num_interop_threads(1)
    library.multiply()
    return library
""",
    ),
)

SETUPS = (
    WrongAnswer(
        "as many threads as one dares, on the same cores",
        """
def faster_setup(start):
    return {**start, "environment": {"OMP_NUM_THREADS": "64"}}
""",
    ),
    WrongAnswer(
        "only the optimizer, which has a small slice of the step",
        """
def faster_setup(start):
    return {**start, "optimizer_kind": "fused"}
""",
    ),
    WrongAnswer(
        "a variable of Intel's runtime, which libgomp does not know, and still one thread",
        """
def faster_setup(start):
    return {**start, "environment": {"OMP_NUM_THREADS": "1", "KMP_AFFINITY": "granularity=fine,compact,1,0"}}
""",
    ),
)

QUIZ = (
    WrongAnswer(
        "the same letter everywhere",
        """
quiz = dict.fromkeys(["simd", "switch", "blocks", "roof", "threads", "late", "half", "ipex"], "a")
""",
    ),
    WrongAnswer(
        "one question answered, seven left out",
        """
quiz = {"simd": "b"}
""",
    ),
)
