"""The checks of lab 10. Each one starts from the mistakes that people make."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from accelerando.checks import clusters_mistakes as mistakes
from accelerando.checks.quiz import judge_quiz
from accelerando.submission import SpeedTask, Submission, Wrong, grades

LAUNCH = "See *One training, three launchers* in the lesson."
KILLED = "See *A node dies* in the lesson."
LINK = "See *What a link leaves* in the lesson."
_OPTIONS = ("nnodes", "node-rank", "nproc-per-node", "master-addr", "master-port")


# -- 1 the bug hunt ---------------------------------------------------------------------------------------------------


@grades("clusters.torchrun_words", wrong=mistakes.TORCHRUN_WORDS)
def torchrun_words(sub: Submission, rng: np.random.Generator) -> None:
    """Every host of drawn files is asked for its line; all lines together must be one job."""
    example = "# our two machines\nalpha slots=4\nbeta slots=2\n"
    _judge_lines(sub, example, {"alpha": 4, "beta": 2}, 29500, "the example's file")
    for kind in ("three hosts", "comments and blank lines", "max_slots and comments behind the slots", "one host"):
        count = 1 if kind == "one host" else int(rng.integers(3, 6))
        numbers = rng.choice(np.arange(10, 99), size=count, replace=False)
        slots = {f"node{number}": int(rng.integers(1, 9)) for number in numbers}
        _judge_lines(sub, _host_file(slots, kind), slots, int(rng.integers(20_000, 30_000)), f"a file with {kind}")


def _host_file(slots: Mapping[str, int], kind: str) -> str:
    lines = [f"{host} slots={count}" for host, count in slots.items()]
    if kind.startswith("comments"):
        lines = ["# the rack on the left", "", *lines, "", "# node99 slots=8", ""]
    if kind.startswith("max_slots"):
        lines = [f"  {host}   max_slots={2 * count + 1} slots={count}  # since May" for host, count in slots.items()]
    return "\n".join(lines) + "\n"


def _judge_lines(sub: Submission, text: str, slots: Mapping[str, int], port: int, kind: str) -> None:
    told = {host: _options(sub.torchrun_words(text, host, port)) for host in slots}
    hosts, first = list(slots), next(iter(slots))
    for host, found in told.items():
        if found["nnodes"] != str(len(hosts)):
            believes = found["nnodes"].isdigit() and int(found["nnodes"]) < len(hosts)
            asked = (
                "What does a torchrun do that believes it is complete?"
                if believes
                else "Which lines of the file are hosts, and what does torchrun do until all have come?"
            )
            raise Wrong(
                f"With {kind}, torchrun on a host is told to wait for {found['nnodes'][:12]} nodes, and there are "
                f"{len(hosts)}. {asked} {LAUNCH}"
            )
        if found["nproc-per-node"] != str(slots[host]):
            raise Wrong(
                f"With {kind}, a host with {slots[host]} slots starts {found['nproc-per-node'][:12]} processes. Where "
                f"does the file say how many ranks a host takes? {LAUNCH}"
            )
        if found["master-addr"] != first:
            raise Wrong(
                f"With {kind}, not every host is told to meet at the first one. Whom does a name such as localhost "
                f"mean on the second host? {LAUNCH}"
            )
        if found["master-port"] != str(port):
            raise Wrong(f"With {kind}, a host meets at another port than the one that was given. {LAUNCH}")
    if [found["node-rank"] for found in told.values()] != [str(number) for number in range(len(hosts))]:
        raise Wrong(
            f"With {kind}, the hosts are not numbered from 0 in the file's order. What would two hosts do that "
            f"believe they are the same one? {LAUNCH}"
        )


def _options(words: Any) -> dict[str, str]:
    """The five options of a torchrun command, however they are written."""
    is_list = isinstance(words, list) and all(isinstance(word, str) for word in words)
    if not is_list or not 7 <= len(words) <= 14 or words[0] != "torchrun" or words[-1] != "train.py":
        raise Wrong('`torchrun_words` should return a list of words: "torchrun", five options, "train.py".')
    found: dict[str, str] = {}
    waiting = list(words[1:-1])
    while waiting:
        name, sign, value = waiting.pop(0).partition("=")
        name = name.lstrip("-").replace("_", "-")
        if name not in _OPTIONS:
            raise Wrong(f"There is an option {name[:24]!r}; the question asks for --{', --'.join(_OPTIONS)}.")
        if not sign:
            value = waiting.pop(0) if waiting else ""
        found[name] = value
    missing = [name for name in _OPTIONS if name not in found]
    if missing:
        raise Wrong(f"The command has no --{missing[0]}. What does torchrun take in its place? {LAUNCH}")
    return found


# -- 2 what a link leaves ---------------------------------------------------------------------------------------------

Case = tuple[float, float, int, int, float, int]


@grades("clusters.efficiency", wrong=mistakes.EFFICIENCIES)
def efficiency(sub: Submission, rng: np.random.Generator) -> None:
    """Steps are drawn until every tempting shortcut gives something else."""
    _judge_efficiency(sub, (0.1, 0.2, 25_000_000, 2, 1000.0, 1), "the example")
    _judge_efficiency(sub, (0.1, 0.2, 25_000_000, 2, 1000.0, 4), "the example with four batches")
    for _ in range(10):
        _judge_efficiency(sub, _draw(rng), "another step")
    _judge_efficiency(sub, (0.1, 0.3, 1_000_000, 8, 10_000.0, 1), "a message that is over before backward is")
    _judge_efficiency(sub, (0.2, 0.3, 5_000_000, 1, 100.0, 1), "one node alone")


def _message_s(case: Case) -> float:
    _, _, parameters, nodes, megabits_per_s, _ = case
    return 2 * (nodes - 1) / nodes * 4 * parameters / (megabits_per_s * 1e6 / 8)


def _right(case: Case) -> float:
    forward_s, backward_s, _, _, _, batches = case
    computing_s = batches * (forward_s + backward_s)
    return computing_s / (computing_s + max(0.0, _message_s(case) - backward_s))


def _with(case: Case, message_s: float, hidden_s: float, times: int = 1) -> float:
    computing_s = case[5] * (case[0] + case[1])
    return computing_s / (computing_s + times * max(0.0, message_s - hidden_s))


_SHORTCUTS: dict[str, Callable[[Case], float]] = {
    "Are megabits megabytes?": lambda case: _with(case, _message_s(case) / 8, case[1]),
    "How much does a rank send in an all-reduce, for each byte of gradients?": lambda case: _with(
        case, _message_s(case) * case[3] / max(1, 2 * (case[3] - 1)), case[1]
    ),
    "Does nothing travel while backward runs?": lambda case: _with(case, _message_s(case), 0.0),
    "Is there a gradient to send while forward runs?": lambda case: _with(case, _message_s(case), case[0] + case[1]),
    "Which backward can hide the message: that of every batch, or the last one's?": lambda case: _with(
        case, _message_s(case), case[5] * case[1]
    ),
    "How many messages are there for one optimizer step?": lambda case: _with(case, _message_s(case), case[1], case[5]),
}


def _draw(rng: np.random.Generator) -> Case:
    for _ in range(10_000):
        forward_s = float(rng.uniform(0.02, 0.3))
        case = (
            forward_s,
            forward_s * float(rng.uniform(1.2, 2.5)),
            int(rng.integers(1, 60)) * 10**6,
            int(rng.integers(3, 17)),
            float(10 ** rng.uniform(2, 4)),
            int(rng.integers(2, 9)),
        )
        if all(abs(shortcut(case) / _right(case) - 1) > 0.03 for shortcut in _SHORTCUTS.values()):
            return case
    raise AssertionError("no step was found that tells the shortcuts from the answer")


def _judge_efficiency(sub: Submission, case: Case, kind: str) -> None:
    found = sub.efficiency(*case)
    if isinstance(found, bool) or not isinstance(found, int | float) or not 0 <= found <= 1e9:
        raise Wrong(f"`efficiency` returned {str(found)[:20]}. It should be a number above 0, and at most 1.")
    expected = _right(case)
    if math.isclose(found, expected, rel_tol=1e-6):
        return
    taken = [question for question, shortcut in _SHORTCUTS.items() if math.isclose(found, shortcut(case), rel_tol=1e-6)]
    question = taken[0] if len(taken) == 1 else "How long does the message take, and how much of it is hidden?"
    direction = "more" if found > expected else "less"
    raise Wrong(f"For {kind} your efficiency is {direction} than what the link leaves. {question} {LINK}")


# -- 3 what is left of the epoch --------------------------------------------------------------------------------------


@grades("clusters.remaining", wrong=mistakes.REMAINING)
def remaining(sub: Submission, rng: np.random.Generator) -> None:
    """Nobody sees an image twice, all have equally many, and every global batch is the one it would have been."""
    cases = [(12, 5, 3, "the example")]
    for old, new in ((4, 3), (3, 2), (2, 2), (2, 5)):
        batch = int(rng.integers(3, 9))
        n = int(rng.integers(40, 80)) * old * new
        seen = old * batch * int(rng.integers(2, 5)) + (old if old % new else 0)
        cases.append((n, seen, new, f"{old} nodes before and {new} after"))
    cases += [
        (30, 0, 3, "nothing seen yet"),
        (31, 31, 2, "an epoch that is over"),
        (20, 18, 4, "fewer images than ranks"),
    ]
    for n, seen, world_size, kind in cases:
        order = [int(image) for image in rng.permutation(n)]
        shares = [_images(sub.remaining(order, seen, rank, world_size), order) for rank in range(world_size)]
        _judge_shares(shares, order, seen, kind)


def _images(value: Any, order: list[int]) -> list[int]:
    if not isinstance(value, list) or not all(isinstance(i, int) and not isinstance(i, bool) for i in value):
        raise Wrong(f"`remaining` returned {type(value).__name__}. It should be a list of whole numbers.")
    if len(value) > len(order) or not set(value) <= set(order):
        raise Wrong("`remaining` returned an image that is not in the epoch. Are they places or images?")
    return value


def _judge_shares(shares: list[list[int]], order: list[int], seen: int, kind: str) -> None:
    world_size, left = len(shares), order[seen:]
    if len({len(own) for own in shares}) > 1:
        raise Wrong(
            f"With {kind}: the ranks have {sorted({len(own) for own in shares})} images left. What does the rank with "
            "one more do in its last all-reduce? See lesson 7, *When ranks are not alike*."
        )
    dealt = [image for own in shares for image in own]
    again = set(dealt) & set(order[:seen])
    if again:
        raise Wrong(
            f"With {kind}: {len(again)} image(s) come a second time in this epoch. How far had all nodes come "
            f"together? {KILLED}"
        )
    if len(set(dealt)) < len(dealt):
        raise Wrong(f"With {kind}: two ranks get the same image. How do they agree on who takes which? {KILLED}")
    if len(dealt) < len(left) - len(left) % world_size:
        raise Wrong(
            f"With {kind}: {len(left) - len(dealt)} of {len(left)} images that nobody has seen are left out. By how "
            f"many ranks were the first ones shared, and by how many the rest? {KILLED}"
        )
    for taken in range(1, len(shares[0]) + 1):
        together = {image for own in shares for image in own[:taken]}
        if together != set(left[: taken * world_size]):
            raise Wrong(
                f"With {kind}: every image comes once, but after {taken} image(s) of each rank, all together have not "
                f"had the next {taken * world_size} of the order. Is the next global batch the one that it would have "
                f"been without the failure? {KILLED}"
            )


# -- 4 a checkpoint that survives -------------------------------------------------------------------------------------


@grades("clusters.save", wrong=mistakes.SAVES)
def save(sub: Submission, rng: np.random.Generator) -> None:
    """A run taken up again ends where one left in peace does, and a kill while saving leaves the old checkpoint."""
    seed = int(rng.integers(1, 10_000))
    told = sub.probe("clusters.save", seed=seed)
    if not isinstance(told, dict) or not isinstance(told.get("loaded"), str):
        raise Wrong("What came back from `save` could not be read.")
    if told["loaded"]:
        raise Wrong(
            f"What `save` wrote cannot be loaded: {told['loaded'][:200]}. Does it hold all that `load` asks for, under "
            f"the same names? {KILLED}"
        )
    if told.get("place") != {"step": 3, "seed": seed}:
        raise Wrong(f"The place that comes back is not the one that was saved. Where would the run go on? {KILLED}")
    expected, found = told.get("expected"), told.get("found")
    is_alike = getattr(found, "shape", None) == getattr(expected, "shape", ())
    if not is_alike or not bool((np.asarray(expected) == np.asarray(found)).all()):
        raise Wrong(
            "The run that was taken up again ends with other weights than the one that was left in peace. What beside "
            f"the weights decides about the next step, and does dropout draw the same? {KILLED}"
        )
    if told.get("killed") is not True:
        raise Wrong(
            "A process that was to be killed while it saved was not: nothing large was written. Is the checkpoint in "
            "the file, or somewhere else?"
        )
    if told.get("after_kill") != "old":
        raise Wrong(
            f"A process was killed in the middle of `save`, and the checkpoint of before is gone "
            f"({str(told.get('after_kill'))[:120]}). What lies under the name while the new one is written? {KILLED}"
        )
    if told.get("again") != "new":
        raise Wrong(
            "After a process was killed while it saved, the next `save` does not bring the new checkpoint "
            f"({str(told.get('again'))[:120]}). What did the killed one leave behind?"
        )


# -- 5 the timed question ---------------------------------------------------------------------------------------------


@grades("clusters.slow_link_plan", wrong=mistakes.PLANS)
def slow_link_plan(sub: Submission, rng: np.random.Generator) -> SpeedTask:
    """Only what a plan can say; speed and accuracy are measured from outside, on two real ranks."""
    from accelerando.lessons.clusters import plans, task

    link = {"mbit_per_s": task.MEGABITS_PER_S, "latency_s": task.LATENCY_S}
    answer = sub.slow_link_plan(dict(plans.START), link)
    try:
        plan = plans.check_plan(answer)
    except ValueError as error:
        raise Wrong(f"No such plan: {error}.") from None
    if plan == plans.Plan():
        raise Wrong("That is the start itself. What does the lesson find to send less over a slow link?")
    return SpeedTask(
        baseline=task.experiment(plans.Plan()),
        candidate=task.experiment(plan),
        labels=task.labels(),
        summary=plan.words(),
    )


@grades("clusters.quiz", wrong=mistakes.QUIZ)
def quiz(sub: Submission, rng: np.random.Generator) -> None:
    """Every answer right."""
    judge_quiz(sub, "clusters")
