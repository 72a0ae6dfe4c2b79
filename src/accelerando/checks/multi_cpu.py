"""The checks of lab 8. Each one starts from the mistakes that people make."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from accelerando import machine
from accelerando.checks import multi_cpu_mistakes as mistakes
from accelerando.checks.quiz import judge_quiz
from accelerando.submission import NotMeasurableHere, SpeedTask, Submission, Wrong, grades

SOCKETS = "See *Sockets, and memory that is near* in the lesson."
SILENT = "See *What the launcher sets silently* in the lesson."
PINNED = "See *Pinned, well and badly* in the lesson."
MAP = "See *The whole map* in the lesson."

Row = dict[str, Any]


# -- 1 cores of a rank ------------------------------------------------------------------------------------------------


@grades("multi_cpu.cores_of_rank", wrong=mistakes.CORES)
def cores_of_rank(sub: Submission, rng: np.random.Generator) -> None:
    """Disjoint, complete, even, in a row, and never on two nodes where one would do."""
    _judge_cores(sub, [[0, 1, 2, 3], [4, 5, 6, 7]], 4, "the example")
    for dealt in ("blocks", "in turn"):
        nodes_here = int(rng.integers(2, 5))
        cores = int(rng.integers(5, 12))
        first = 32 * int(rng.integers(1, 4))
        ids = [first + number for number in range(nodes_here * cores)]
        nodes = [
            ids[n * cores : (n + 1) * cores] if dealt == "blocks" else ids[n::nodes_here] for n in range(nodes_here)
        ]
        kind = "ids that are dealt to the nodes in turn" if dealt == "in turn" else f"{nodes_here} nodes"
        for world_size in (nodes_here, 2 * nodes_here, 2 * nodes_here + 1, nodes_here * (cores // 2)):
            _judge_cores(sub, nodes, world_size, kind)
    _judge_cores(sub, [[3, 5, 8, 13, 21]], int(rng.integers(2, 5)), "one node")
    _judge_cores(sub, [[4, 5], [8, 9], [12, 13], [16, 17]], 2, "more nodes than ranks")


def _judge_cores(sub: Submission, nodes: list[list[int]], world_size: int, kind: str) -> None:
    found = [_cpus(sub.cores_of_rank(rank, world_size, [list(node) for node in nodes])) for rank in range(world_size)]
    where = f"With {world_size} ranks on {kind}"
    every = [cpu for node in nodes for cpu in node]
    given = [cpu for own in found for cpu in own]
    if not set(given) <= set(every):
        raise Wrong(f"{where}, a rank got a CPU that is on no node. Where do the ids come from?")
    if not all(found):
        raise Wrong(f"{where}, a rank got no CPU at all. Who got them?")
    if len(set(given)) < len(given):
        both = "All ranks got the same CPUs" if len({tuple(own) for own in found}) == 1 else "a CPU has two owners"
        raise Wrong(f"{where}: {both[0].lower()}{both[1:]}. What do two ranks on one core do? {PINNED}")
    on = [{number for number, node in enumerate(nodes) if set(node) & set(own)} for own in found]
    if world_size >= len(nodes) and any(len(used) > 1 for used in on):
        raise Wrong(
            f"{where}, {sum(len(used) > 1 for used in on)} of the ranks have cores on two nodes, although there are "
            f"enough ranks for every node. Whose memory do they read? {SOCKETS}"
        )
    if set(given) != set(every):
        raise Wrong(f"{where}, {len(set(every) - set(given))} CPU(s) belong to nobody. Who gets what is left over?")
    _judge_evenness(found, nodes, on, where)


def _judge_evenness(found: list[list[int]], nodes: list[list[int]], on: list[set[int]], where: str) -> None:
    counts = [sum(number in used for used in on) for number in range(len(nodes))]
    if len(found) >= len(nodes) and max(counts) - min(counts) > 1:
        raise Wrong(f"{where}, one node carries {max(counts)} ranks and another {min(counts)}. Can it be more even?")
    for number, node in enumerate(nodes):
        sizes = [len(own) for own, used in zip(found, on, strict=True) if used == {number}]
        if sizes and max(sizes) - min(sizes) > 1:
            raise Wrong(
                f"{where}, two ranks of the same node have {min(sizes)} and {max(sizes)} CPUs. Everybody waits for the "
                "slowest: can they be more even?"
            )
        place = {cpu: position for position, cpu in enumerate(node)}
        for own in found:
            places = sorted(place[cpu] for cpu in own if cpu in place)
            if places and places[-1] - places[0] != len(places) - 1:
                raise Wrong(
                    f"{where}, a rank's CPUs do not stand in a row in their node's list. Neighbours share a cache: "
                    "which should be neighbours?"
                )


def _cpus(value: Any) -> list[int]:
    if not isinstance(value, list) or not all(isinstance(cpu, int) and not isinstance(cpu, bool) for cpu in value):
        raise Wrong("`cores_of_rank` should return a list of whole numbers: ids of CPUs.")
    return value


# -- 2 the bug hunt ---------------------------------------------------------------------------------------------------

_LOCAL = {
    "torchrun": ("LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    "mpirun": ("OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
}


@grades("multi_cpu.place_rank", wrong=mistakes.PLACES)
def place_rank(sub: Submission, rng: np.random.Generator) -> None:
    """Every rank of every host, started by both launchers: its own cores, and as many threads as cores."""
    _judge_places(sub, "torchrun", 1, 2, [0, 1, 2, 3], "1", "the example")
    for launcher in _LOCAL:
        for hosts in (1, 2):
            local = int(rng.integers(2, 6))
            share = int(rng.integers(2, 7))
            first = int(rng.integers(1, 30))
            cpus = list(range(first, first + local * share))
            threads = "1" if launcher == "torchrun" else None
            kind = f"{local} ranks on each of {hosts} host(s), started by {launcher}"
            _judge_places(sub, launcher, hosts, local, cpus, threads, kind)
    local = int(rng.integers(2, 5))
    cpus = sorted(int(cpu) for cpu in rng.choice(128, size=local * int(rng.integers(2, 5)), replace=False))
    _judge_places(sub, "mpirun", 1, local, cpus, "96", "cores whose ids do not begin at 0")
    _judge_nobody(sub)


def _variables(launcher: str, host: int, hosts: int, local: int, rank: int, threads: str | None) -> dict[str, str]:
    own, size = _LOCAL[launcher]
    whole = {"torchrun": ("RANK", "WORLD_SIZE"), "mpirun": ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE")}[launcher]
    values = {own: rank, size: local, whole[0]: host * local + rank, whole[1]: hosts * local}
    found = {"HOME": "/home/somebody", **{name: str(value) for name, value in values.items()}}
    return found if threads is None else {**found, "OMP_NUM_THREADS": threads}


def _judge_places(
    sub: Submission, launcher: str, hosts: int, local: int, cpus: list[int], threads: str | None, kind: str
) -> None:
    for host in range(hosts):
        placed = [
            _place(sub.place_rank(_variables(launcher, host, hosts, local, rank, threads), list(cpus)))
            for rank in range(local)
        ]
        own = [row["cpus"] for row in placed]
        where = f"With {kind}" + (", on the second host" if host else "")
        if any(not one for one in own):
            raise Wrong(
                f"{where}, some rank got no core. Is its number counted among all ranks, or among those of "
                f"this host? {SILENT}"
            )
        if len({tuple(one) for one in own}) == 1:
            raise Wrong(
                f"{where}, every rank got the same cores, {len(own[0])} of {len(cpus)}. What does each of them take "
                f"for its own number, and who was to tell it? {PINNED}"
            )
        given = [cpu for one in own for cpu in one]
        if not set(given) <= set(cpus):
            raise Wrong(f"{where}, a rank got a core that it may not use. Where do the ids come from?")
        if len(set(given)) < len(given):
            raise Wrong(f"{where}, a core has two owners. Where does each rank's part end?")
        if set(given) != set(cpus):
            raise Wrong(f"{where}, {len(cpus) - len(set(given))} cores belong to nobody. How many ranks share them?")
        wrong = [row["threads"] for row in placed if row["threads"] != len(row["cpus"])]
        if wrong:
            raise Wrong(
                f"{where}, a rank with {len(own[0])} cores computes with {wrong[0]} thread(s). Who had set the number "
                f"before your function was called, and did they know? {SILENT}"
            )


def _place(value: Any) -> Row:
    if not isinstance(value, dict) or set(value) != {"cpus", "threads"}:
        raise Wrong('`place_rank` should return {"cpus": [...], "threads": ...}: found another thing.')
    cpus, threads = value["cpus"], value["threads"]
    if not isinstance(cpus, list) or not all(isinstance(cpu, int) and not isinstance(cpu, bool) for cpu in cpus):
        raise Wrong('"cpus" should be a list of whole numbers.')
    if isinstance(threads, bool) or not isinstance(threads, int) or not 0 < threads < 10**6:
        raise Wrong(f'"threads" is {str(threads)[:20]}. It should be a whole number of at least 1.')
    return value


def _judge_nobody(sub: Submission) -> None:
    """Without any launcher there is one process, and it has all cores."""
    row = _place(sub.place_rank({"HOME": "/home/somebody"}, [4, 5, 6, 7]))
    if row != {"cpus": [4, 5, 6, 7], "threads": 4}:
        raise Wrong(
            f"Started by no launcher, the only process there is got {len(row['cpus'])} of 4 cores and "
            f"{row['threads']} thread(s). How many share this host then?"
        )


# -- 3 a layout from a map --------------------------------------------------------------------------------------------


@grades("multi_cpu.choose_layout", wrong=mistakes.LAYOUTS)
def choose_layout(sub: Submission, rng: np.random.Generator) -> None:
    """Images per second, by the median, below the limit of the global batch, and the fewest processes among equals."""
    example: list[Row] = [
        {"processes": 1, "threads": 4, "batch": 128, "seconds": [0.050, 0.051, 0.049]},
        {"processes": 2, "threads": 2, "batch": 64, "seconds": [0.040, 0.041, 0.120]},
        {"processes": 4, "threads": 1, "batch": 32, "seconds": [0.0395, 0.040, 0.041]},
    ]
    _ask_layout(sub, example, 128, "the example")
    for kind in _DRAWN:
        for _ in range(3):
            rows, limit = _draw_rows(rng, kind)
            _ask_layout(sub, rows, limit, kind)


_DRAWN = (
    "a run in which others took the cores now and then",
    "global batches that differ",
    "a limit that the fastest layout breaks",
    "layouts that are equally fast",
)


def _draw_rows(rng: np.random.Generator, kind: str) -> tuple[list[Row], int]:
    """Draw a map in which the usual shortcuts choose another layout than the rule does."""
    for _ in range(10_000):
        rows: list[Row] = []
        for processes in rng.permutation([1, 2, 4, 8]):
            threads = int(8 // processes)
            batch = int(rng.choice([16, 32, 64] if kind != _DRAWN[0] else [128 // int(processes)]))
            rate = float(rng.uniform(2000, 4000))
            if kind == _DRAWN[3]:
                rate = 3000 * float(rng.uniform(0.975, 1.02))
            seconds = processes * batch / rate * rng.uniform(0.985, 1.015, size=7)
            if kind == _DRAWN[0]:
                slow = rng.permutation(7)[: int(rng.integers(0, 4))]
                seconds[slow] *= rng.uniform(2, 4, size=len(slow))
                if rng.integers(2):
                    seconds[int(rng.integers(7))] *= 0.6  # an incomplete sample
            row = {"processes": int(processes), "threads": threads, "batch": batch}
            rows.append({**row, "seconds": [float(value) for value in seconds]})
        together = sorted(row["processes"] * row["batch"] for row in rows)
        limit = together[-1] if kind in (_DRAWN[0], _DRAWN[3]) else int(together[2])
        if _is_telling(rows, limit, kind):
            return rows, limit
    raise AssertionError("no map was found that tells the shortcuts from the rule")


def _is_telling(rows: Sequence[Row], limit: int, kind: str) -> bool:
    rates = sorted((_rate(row) for row in rows if _together(row) <= limit), reverse=True)
    near = [rate / rates[0] for rate in rates[1:]]
    if any(0.94 < ratio < 0.965 for ratio in near):  # nobody should fail by a hair
        return False
    right = _right(rows, limit)
    allowed = [row for row in rows if _together(row) <= limit]
    means = max(allowed, key=lambda row: _together(row) / float(np.mean(row["seconds"])))
    quickest = max(allowed, key=lambda row: _together(row) / min(row["seconds"]))
    shortest = min(allowed, key=lambda row: float(np.median(row["seconds"])))
    fastest = max(rows, key=_rate)
    if kind == _DRAWN[0]:
        return means is not right and quickest is not right
    if kind == _DRAWN[1]:
        return shortest is not right
    if kind == _DRAWN[2]:
        return fastest is not right and _rate(fastest) > 1.06 * _rate(right)
    return max(allowed, key=_rate) is not right


def _together(row: Row) -> int:
    return int(row["processes"] * row["batch"])


def _rate(row: Row) -> float:
    return _together(row) / float(np.median(row["seconds"]))


def _best_rate(rows: Sequence[Row], limit: int) -> float:
    return max(_rate(row) for row in rows if _together(row) <= limit)


def _right(rows: Sequence[Row], limit: int) -> Row:
    allowed = [row for row in rows if _together(row) <= limit]
    enough = 0.95 * _best_rate(rows, limit)
    return min((row for row in allowed if _rate(row) >= enough), key=lambda row: row["processes"])


def _ask_layout(sub: Submission, rows: list[Row], limit: int, kind: str) -> None:
    found = sub.choose_layout([dict(row) for row in rows], limit)
    if (
        not isinstance(found, list)
        or len(found) != 2
        or not all(isinstance(count, int) and not isinstance(count, bool) for count in found)
    ):
        raise Wrong("`choose_layout` should return [processes, threads], two whole numbers.")
    chosen = next((row for row in rows if [row["processes"], row["threads"]] == found), None)
    if chosen is None:
        raise Wrong("`choose_layout` returned a layout that was not measured.")
    right = _right(rows, limit)
    if chosen is right:
        return
    symptom = f"With {kind}, the layout that you chose"
    if _together(chosen) > limit:
        raise Wrong(
            f"{symptom} has a global batch of {_together(chosen)}, and {limit} is the most that keeps the accuracy. "
            f"How many images are in a step, all ranks together? See *The global batch* in the lesson."
        )
    share = _rate(chosen) / _best_rate(rows, limit)
    if share < 0.95:
        raise Wrong(
            f"{symptom} trains {share:.0%} of the images per second of the best one within the limit, and only what is "
            "within 5 % of that counts as equally fast. Do all layouts train equally many images in a step, and what "
            f"does a single disturbed round do to your figure? {MAP}"
        )
    raise Wrong(
        f"{symptom} is within 5 % of the best, and so is one with fewer processes. What else does a process cost? "
        "See *What ranks share* in the lesson."
    )


# -- 4 the timed question ---------------------------------------------------------------------------------------------


@grades("multi_cpu.faster_layout", wrong=mistakes.FASTER)
def faster_layout(sub: Submission, rng: np.random.Generator) -> SpeedTask:
    """Real ranks and the course's own training, against the fastest layout that the grader finds with small batches."""
    from accelerando.lessons.multi_cpu import task

    answer = sub.faster_layout(dict(task.START))
    try:
        layout = task.check_layout(answer)
    except ValueError as error:
        raise Wrong(f"No such layout: {error}.") from None
    if layout == task.START:
        raise Wrong(f"That is the start itself. On how many cores do its ranks sit? {PINNED}")
    if reason := task.why_not_here(layout):
        raise Wrong(f"This layout cannot be run on this machine: {reason}.")
    if machine.usable_cores() < 2:
        raise NotMeasurableHere("one usable core: more ranks cannot gain anything here; your layout is a valid one")
    return SpeedTask(
        baseline=task.baseline(),
        candidate=task.candidate(layout),
        labels=task.data().test.labels,
        summary=task.describe(layout),
    )


@grades("multi_cpu.quiz", wrong=mistakes.QUIZ)
def quiz(sub: Submission, rng: np.random.Generator) -> None:
    """Every answer right."""
    judge_quiz(sub, "multi_cpu")
