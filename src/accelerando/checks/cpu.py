"""The checks of lab 3. Each one starts from the mistakes that people make."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from accelerando import machine
from accelerando.checks import cpu_mistakes as mistakes
from accelerando.checks.quiz import judge_quiz
from accelerando.submission import NotMeasurableHere, SpeedTask, Submission, Wrong, grades

Kernel = Mapping[str, float]
Machine = Mapping[str, float]
Row = dict[str, int]


# -- 1 the roofline ---------------------------------------------------------------------------------------------------


@grades("cpu.predict_gain", wrong=mistakes.GAINS)
def predict_gain(sub: Submission, rng: np.random.Generator) -> None:
    """Steps are drawn until every tempting shortcut gives something else than the roofline."""
    kernels = [{"flops": 2e9, "moved_bytes": 12e6}, {"flops": 1e8, "moved_bytes": 1.2e9}]
    old = {"flops_per_s": 100e9, "bytes_per_s": 20e9}
    examples = (
        ({"flops_per_s": 200e9, "bytes_per_s": 20e9}, 8 / 7),
        ({"flops_per_s": 100e9, "bytes_per_s": 40e9}, 1.6),
    )
    for new, expected in examples:
        _judge_gain(sub, kernels, old, new, expected, "the example")
    for _ in range(12):
        kernels, old, new = _draw_step(rng)
        _judge_gain(sub, kernels, old, new, _step_s(kernels, old) / _step_s(kernels, new), "another step")
    slower = {name: value / 2 for name, value in old.items()}
    _judge_gain(sub, kernels, old, slower, 0.5, "a machine that is half as fast in everything")


def _judge_gain(
    sub: Submission, kernels: Sequence[Kernel], old: Machine, new: Machine, expected: float, kind: str
) -> None:
    found = sub.predict_gain(kernels, old, new)
    if isinstance(found, bool) or not isinstance(found, int | float):
        raise Wrong(f"`predict_gain` returned {type(found).__name__}. It should return a number: times as fast.")
    if not abs(found) < 1e100:
        raise Wrong(f"`predict_gain` returned {str(found)[:20]}. Can a machine be that much faster?")
    if math.isclose(found, expected, rel_tol=1e-6):
        return
    taken = [
        question
        for shortcut, question in _QUESTIONS.items()
        if math.isclose(found, _SHORTCUTS[shortcut](kernels, old, new), rel_tol=1e-6)
    ]
    direction = "more" if found > expected else "less"
    question = taken[0] if taken else "For each kernel: which of its two times decides?"
    raise Wrong(
        f"For {kind} your gain is {abs(found / expected - 1):.0%} {direction} than the roofline's. {question} "
        "See *The roofline* in the lesson."
    )


def _step_s(kernels: Sequence[Kernel], on: Machine) -> float:
    return sum(max(k["flops"] / on["flops_per_s"], k["moved_bytes"] / on["bytes_per_s"]) for k in kernels)


def _added_s(kernels: Sequence[Kernel], on: Machine) -> float:
    return sum(k["flops"] / on["flops_per_s"] + k["moved_bytes"] / on["bytes_per_s"] for k in kernels)


def _whole_s(kernels: Sequence[Kernel], on: Machine) -> float:
    whole = {name: sum(kernel[name] for kernel in kernels) for name in ("flops", "moved_bytes")}
    return _step_s([whole], on)


_SHORTCUTS = {
    "arithmetic only": lambda kernels, old, new: new["flops_per_s"] / old["flops_per_s"],
    "one kernel": lambda kernels, old, new: _whole_s(kernels, old) / _whole_s(kernels, new),
    "added": lambda kernels, old, new: _added_s(kernels, old) / _added_s(kernels, new),
    "mean of gains": lambda kernels, old, new: float(
        np.mean([_step_s([kernel], old) / _step_s([kernel], new) for kernel in kernels])
    ),
    "upside down": lambda kernels, old, new: _step_s(kernels, new) / _step_s(kernels, old),
}
_QUESTIONS = {
    "arithmetic only": "Does every kernel wait for arithmetic?",
    "one kernel": "Do the bytes of one kernel move while another one computes, or does one follow the other?",
    "added": "Does a kernel first move its bytes and then compute, or does the slower of the two decide?",
    "mean of gains": "Do all kernels take the same share of the step?",
    "upside down": "Which of the two times belongs above the line, if a faster machine gives more than 1?",
}


def _draw_step(rng: np.random.Generator) -> tuple[list[dict[str, float]], dict[str, float], dict[str, float]]:
    for _ in range(10_000):
        kernels = [
            {"flops": 10 ** float(rng.uniform(7, 11)), "moved_bytes": 10 ** float(rng.uniform(6, 9.5))}
            for _ in range(int(rng.integers(3, 9)))
        ]
        old, new = (
            {"flops_per_s": float(rng.uniform(40e9, 2000e9)), "bytes_per_s": float(rng.uniform(8e9, 300e9))}
            for _ in range(2)
        )
        right = _step_s(kernels, old) / _step_s(kernels, new)
        if all(abs(shortcut(kernels, old, new) / right - 1) > 0.03 for shortcut in _SHORTCUTS.values()):
            return kernels, old, new
    raise AssertionError("no step was found that tells the shortcuts from the roofline")


# -- 2 blocking -------------------------------------------------------------------------------------------------------


@grades("cpu.in_blocks", wrong=mistakes.BLOCKS)
def in_blocks(sub: Submission, rng: np.random.Generator) -> None:
    """The values must be right, no operator may get more than a block, and a block goes all the way first."""
    import torch

    from accelerando.probes import cpu as probes

    names = list(probes.OPERATIONS)
    shapes = ((1000,), (37, 29), (5, 7, 11), (64,), (1,))
    cases = []
    for shape in shapes:
        values = torch.from_numpy(rng.standard_normal(shape).astype(np.float32))
        chosen = [names[place] for place in rng.integers(len(names), size=int(rng.integers(2, 6)))]
        block = int(rng.integers(7, 60)) if values.numel() > 64 else 64
        if values.numel() > 64 and values.numel() % block == 0:
            block += 1  # so that the last block is a smaller one
        cases.append({"values": values, "operations": chosen, "block": block})
    found = sub.probe("cpu.in_blocks", cases=cases)
    if not isinstance(found, list) or len(found) != len(cases):
        raise Wrong("`in_blocks` did not give back every array it was asked for.")
    for case, report in zip(cases, found, strict=True):
        if not isinstance(report, dict) or not isinstance(report.get("calls"), list):
            raise Wrong("What came back from `in_blocks` could not be read.")
        _judge_blocks(case, report)


def _judge_blocks(case: Mapping[str, Any], report: Mapping[str, Any]) -> None:
    from accelerando.probes import cpu as probes

    where = "See *In blocks* in the lesson."
    values, block, count = case["values"], case["block"], len(case["operations"])
    kind = f"With an array of {values.dim()} dimension(s), {values.numel()} numbers and blocks of {block}"
    expected = values
    for name in case["operations"]:
        expected = probes.OPERATIONS[name](expected)
    result = report.get("result")
    if getattr(result, "shape", None) != expected.shape:
        shape = tuple(getattr(result, "shape", ()))
        is_flat = getattr(result, "numel", lambda: -1)() == expected.numel()
        question = "What shape were the numbers given in?" if is_flat else "What became of the last block?"
        raise Wrong(f"{kind}, the result has shape {shape}, not {tuple(values.shape)}. {question}")
    if getattr(result, "dtype", None) != expected.dtype or not expected.allclose(result, rtol=1e-4, atol=1e-5):
        raise Wrong(
            f"{kind}, the values are not those of the whole array at once. Does every number meet every operation?"
        )
    if report.get("kept") is not True:
        raise Wrong(f"{kind}, the values that were given are no longer the same. Where do the results go?")
    calls = report["calls"]
    if not calls or not all(isinstance(call, list) and len(call) == 2 for call in calls):
        raise Wrong(f"{kind}, none of the operations was called. They are given as functions.")
    largest = max(numbers for _, numbers in calls)
    if largest > block:
        raise Wrong(f"{kind}, an operation got {largest} numbers at once. Along what are the blocks counted? {where}")
    if [place for place, _ in calls] != list(range(count)) * (len(calls) // count) or len(calls) % count:
        raise Wrong(
            f"{kind}, one operation goes over block after block before the next operation begins. Is the first block "
            f"still in the cache when it is needed again? {where}"
        )
    fewest = -(-values.numel() // block)
    if len(calls) > count * fewest:
        raise Wrong(f"{kind}, there are {len(calls) // count} blocks; {fewest} would do. What does a smaller one cost?")


# -- 3 which cores ----------------------------------------------------------------------------------------------------


@grades("cpu.choose_cpus", wrong=mistakes.CPUS)
def choose_cpus(sub: Submission, rng: np.random.Generator) -> None:
    """Cores before hyper-threads, few nodes before many, in the ids that were given."""
    example = [{"cpu": cpu, "core": cpu % 4, "node": (cpu % 4) // 2} for cpu in range(8)]
    for threads in (2, 4, 6):
        _judge_cpus(sub, example, threads, "the example")
    for kind in ("neighbours share a core", "the second half shares cores with the first", "ids in no order"):
        topology = _draw_topology(rng, kind)
        cores = len({row["core"] for row in topology})
        largest = max(_cores_by_node(topology).values())
        for threads in sorted({1, largest, min(largest + 1, cores), cores, cores + 1, len(topology) + 3}):
            _judge_cpus(
                sub, topology, threads, f"a machine where {kind}" if "ids" not in kind else "a machine with odd ids"
            )


def _cores_by_node(topology: Sequence[Row]) -> dict[int, int]:
    nodes: dict[int, set[int]] = {}
    for row in topology:
        nodes.setdefault(row["node"], set()).add(row["core"])
    return {node: len(cores) for node, cores in nodes.items()}


def _fewest_nodes(topology: Sequence[Row], cores: int) -> int:
    total = 0
    for count, size in enumerate(sorted(_cores_by_node(topology).values(), reverse=True), 1):
        total += size
        if total >= cores:
            return count
    return len(_cores_by_node(topology))


def _draw_topology(rng: np.random.Generator, kind: str) -> list[Row]:
    sizes = [int(size) for size in rng.permutation([2, 3, 5, 6])[: int(rng.integers(2, 5))]]
    places = [
        (core, node) for node, size in enumerate(sizes) for core in range(sum(sizes[:node]), sum(sizes[: node + 1]))
    ]
    first = int(rng.integers(0, 3)) * 64
    slots = [*places, *places]
    if kind == "neighbours share a core":
        slots = [place for place in places for _ in range(2)]
    ids = [first + number for number in range(len(slots))]
    if kind == "ids in no order":
        slots = [*places, *places[: len(places) // 2]]  # some cores have one thread only
        ids = [int(cpu) for cpu in rng.choice(512, size=len(slots), replace=False)]
    return [{"cpu": cpu, "core": core, "node": node} for cpu, (core, node) in zip(ids, slots, strict=True)]


def _judge_cpus(sub: Submission, topology: list[Row], threads: int, kind: str) -> None:
    where = "See *Which cores* in the lesson."
    found = sub.choose_cpus(topology, threads)
    if not isinstance(found, list) or not all(isinstance(cpu, int) and not isinstance(cpu, bool) for cpu in found):
        raise Wrong("`choose_cpus` should return a list of whole numbers: ids of CPUs.")
    rows = {row["cpu"]: row for row in topology}
    if not set(found) <= set(rows):
        raise Wrong(f"On {kind}, a CPU was chosen that is not in the table. Where do the ids come from?")
    if len(set(found)) < len(found):
        raise Wrong(f"On {kind}, a CPU was chosen twice. What do two threads on one CPU do? {where}")
    wanted = min(threads, len(rows))
    if len(found) != wanted:
        raise Wrong(
            f"On {kind}, {threads} threads were asked for on {len(rows)} CPUs, and {len(found)} CPUs were chosen."
        )
    cores = len({row["core"] for row in topology})
    used = len({rows[cpu]["core"] for cpu in found})
    if used < min(wanted, cores):
        raise Wrong(
            f"On {kind}, {wanted} threads sit on {used} of {cores} cores: some share one while others are idle. Which "
            f"CPUs belong to one core? {where}"
        )
    nodes, fewest = len({rows[cpu]["node"] for cpu in found}), _fewest_nodes(topology, min(wanted, cores))
    if nodes > fewest:
        raise Wrong(
            f"On {kind}, {wanted} threads are spread over {nodes} nodes where {fewest} would do. Whose memory do they "
            f"read? {where}"
        )


# -- 4 the bug hunt ---------------------------------------------------------------------------------------------------


@grades("cpu.begin_worker", wrong=mistakes.WORKERS)
def begin_worker(sub: Submission, rng: np.random.Generator) -> None:
    """Variables before loading, a share of the cores, inter-op threads before the first work; and no work left out."""
    cases: list[dict[str, Any]] = [{"processes": 2, "cores": 8, "inherited": {"HOME": "/home/somebody"}}]
    for _ in range(4):
        processes, share = int(rng.integers(2, 9)), int(rng.integers(2, 12))
        inherited = {"OMP_NUM_THREADS": str(int(rng.integers(40, 99))), "OMP_PROC_BIND": "false"}
        cases.append({"processes": processes, "cores": processes * share + processes - 1, "inherited": inherited})
    cases.append({"processes": int(rng.integers(9, 20)), "cores": int(rng.integers(2, 8)), "inherited": {}})
    found = sub.probe("cpu.begin_worker", cases=cases)
    if not isinstance(found, list) or len(found) != len(cases):
        raise Wrong("`begin_worker` did not come back from every case.")
    for case, report in zip(cases, found, strict=True):
        if not isinstance(report, dict):
            raise Wrong("What came back from `begin_worker` could not be read.")
        _judge_worker(case, report)


def _judge_worker(case: Mapping[str, Any], report: Mapping[str, Any]) -> None:
    late, many = "See *Set too late* in the lesson.", "See *How many threads* in the lesson."
    processes, cores = case["processes"], case["cores"]
    kind = f"With {processes} processes on {cores} cores"
    if report.get("loads") != 1:
        raise Wrong(f"{kind}, the library was loaded {report.get('loads')} times. Once is how Python imports a module.")
    if report.get("bind") != "close":
        raise Wrong(f"{kind}, the library does not know that OMP_PROC_BIND is close. When does it look? {late}")
    threads, expected = report.get("threads"), max(1, cores // processes)
    if threads != expected:
        together = processes * threads if isinstance(threads, int) else threads
        symptom = f"{kind}, each process computes with {threads} threads, {together} together."
        if isinstance(threads, int) and threads > expected:
            raise Wrong(f"{symptom} How many can run at once, and was the number heard at all? {many}")
        raise Wrong(f"{symptom} Who uses the cores that are left over? {many}")
    if report.get("interop") != 1:
        raise Wrong(f"{kind}, the library runs {report.get('interop')} operators side by side; 1 was wanted. {late}")
    if not report.get("products"):
        raise Wrong(f"{kind}, the first product was never made. The worker should still be warmed up.")
    if report.get("is_returned") is not True:
        raise Wrong("`begin_worker` should return the library that it loaded.")


# -- 5 the timed question ---------------------------------------------------------------------------------------------


@grades("cpu.faster_setup", wrong=mistakes.SETUPS)
def faster_setup(sub: Submission, rng: np.random.Generator) -> SpeedTask:
    """Equal images and equal cores, only the listed settings; speed and accuracy are measured from outside."""
    from accelerando.lessons.cpu import setups

    answer = sub.faster_setup({**setups.SLOW_SETUP, "environment": dict(setups.SLOW_SETUP["environment"])})
    try:
        setup = setups.check_setup(answer)
    except ValueError as error:
        raise Wrong(f"No such setup: {error}.") from None
    if setup == setups.SLOW_SETUP:
        raise Wrong("That is `start` itself, unchanged. Which of its settings did the lesson find to be slow here?")
    if reason := setups.why_not_here(setup):
        raise Wrong(f"This setup cannot be run on this machine: {reason}.")
    if machine.usable_cores() < 2:
        raise NotMeasurableHere("one usable core: more threads cannot gain anything here; your setup is a valid one")
    changed = {key: value for key, value in setup.items() if value != setups.SLOW_SETUP[key]}
    return SpeedTask(
        baseline=setups.experiment(setups.check_setup({})),
        candidate=setups.experiment(setup),
        labels=setups.task_data().test.labels,
        summary=", ".join(f"{key} {value}" for key, value in changed.items()),
    )


@grades("cpu.quiz", wrong=mistakes.QUIZ)
def quiz(sub: Submission, rng: np.random.Generator) -> None:
    """Every answer right."""
    judge_quiz(sub, "cpu")
