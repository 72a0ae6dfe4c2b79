"""Lab 3's checks over many seeds: other right answers pass, mistakes never slip through, and no input is shown."""

import functools

import answers
import numpy as np
import pytest
import torch

from accelerando import catalog, machine, quizzes
from accelerando.checks import cpu as checks
from accelerando.lessons.cpu import setups
from accelerando.submission import LocalSubmission, SpeedTask, find_check, judge

ALTERNATIVES = {
    "cpu.predict_gain": [
        """
import torch

def predict_gain(kernels, old, new):
    flops = torch.tensor([kernel["flops"] for kernel in kernels], dtype=torch.float64)
    moved = torch.tensor([kernel["moved_bytes"] for kernel in kernels], dtype=torch.float64)
    times = [torch.maximum(flops / on["flops_per_s"], moved / on["bytes_per_s"]).sum() for on in (old, new)]
    return float(times[0] / times[1])
""",
    ],
    "cpu.in_blocks": [
        """
def in_blocks(values, operations, block):
    def whole_chain(part):
        for operation in operations:
            part = operation(part)
        return part

    return torch.cat([whole_chain(part) for part in values.reshape(-1).split(block)]).reshape(values.shape)
""",
        """
def in_blocks(values, operations, block):
    result = values.clone()
    flat = result.view(-1)
    start = 0
    while start < len(flat):
        part = flat[start : start + block]
        for operation in operations:
            part.copy_(operation(part))
        start += block
    return result
""",
    ],
    "cpu.choose_cpus": [
        """
def choose_cpus(topology, threads):
    import collections
    sizes = collections.Counter(node for core, node in {(row["core"], row["node"]) for row in topology})
    seen, order = collections.Counter(), []
    for row in topology:
        order.append((seen[row["core"]], -sizes[row["node"]], row["node"], row["core"], row["cpu"]))
        seen[row["core"]] += 1
    return [row[-1] for row in sorted(order)[:threads]]
""",
    ],
    "cpu.begin_worker": [
        """
def begin_worker(processes, cores, environ, load):
    environ.update({"OMP_PROC_BIND": "close"})
    library = load()
    library.set_num_threads(max(cores // processes, 1))
    library.set_num_interop_threads(1)
    for _ in range(2):
        library.multiply()
    return library
""",
    ],
}
UNTIMED = tuple(ALTERNATIVES)
submission = functools.partial(answers.submission, torch=torch)


@pytest.mark.parametrize("question", UNTIMED)
def test_other_right_answers_pass_for_every_seed(question: str) -> None:
    answers.assert_right(question, map(submission, ALTERNATIVES[question]), seeds=15)


@pytest.mark.parametrize("question", UNTIMED)
def test_no_mistake_slips_through_for_any_seed(question: str) -> None:
    answers.assert_no_mistake_slips_through(question, submission, seeds=15)


@pytest.mark.parametrize(
    ("question", "mistake", "words"),
    [
        ("cpu.predict_gain", "twice the arithmetic", "Does every kernel wait for arithmetic?"),
        ("cpu.predict_gain", "added up before", "does one follow the other?"),
        ("cpu.predict_gain", "follow each other", "the slower of the two decide?"),
        ("cpu.predict_gain", "averaged", "the same share of the step?"),
        ("cpu.in_blocks", "every operation goes over", "still in the cache"),
        ("cpu.in_blocks", "forgotten", "last block"),
        ("cpu.in_blocks", "in rows", "Along what"),
        ("cpu.in_blocks", "written over", "no longer the same"),
        ("cpu.choose_cpus", "first ids", "some share one while others are idle"),
        ("cpu.choose_cpus", "dealt out", "spread over"),
        ("cpu.choose_cpus", "start again", "chosen twice"),
        ("cpu.begin_worker", "as it was found", "work had started"),
        ("cpu.begin_worker", "still takes all", "16 together"),
        ("cpu.begin_worker", "mended by a call", "When does it look?"),
        ("cpu.begin_worker", "still comes before", "first work"),
        ("cpu.begin_worker", "wants text", "str expected"),
    ],
)
def test_the_message_is_about_the_mistake(question: str, mistake: str, words: str) -> None:
    wrong = next(wrong for wrong in find_check(question).wrong if mistake in wrong.mistake)
    result = judge(question, submission(wrong.code), 3)
    assert not isinstance(result, SpeedTask)
    assert words in result.message


def test_a_flat_result_is_asked_for_its_shape() -> None:
    code = ALTERNATIVES["cpu.in_blocks"][0].replace(".reshape(values.shape)", "")
    result = judge("cpu.in_blocks", submission(code), 3)
    assert not isinstance(result, SpeedTask)
    assert "What shape were the numbers given in?" in result.message


def test_the_example_of_the_roofline_is_what_the_question_says() -> None:
    kernels = [{"flops": 2e9, "moved_bytes": 12e6}, {"flops": 1e8, "moved_bytes": 1.2e9}]
    assert checks._step_s(kernels, {"flops_per_s": 100e9, "bytes_per_s": 20e9}) == pytest.approx(0.08)
    found = judge("cpu.predict_gain", submission(ALTERNATIVES["cpu.predict_gain"][0]), 1)
    assert not isinstance(found, SpeedTask)
    assert found.status == "passed"


def test_drawn_machines_have_what_the_question_promises() -> None:
    rng = np.random.default_rng(0)
    for kind in ("neighbours share a core", "the second half shares cores with the first", "ids in no order"):
        for _ in range(20):
            topology = checks._draw_topology(rng, kind)
            assert len({row["cpu"] for row in topology}) == len(topology)
            by_core = {core: {row["node"] for row in topology if row["core"] == core} for core in range(99)}
            assert all(len(nodes) <= 1 for nodes in by_core.values())
            assert len({row["node"] for row in topology}) >= 2


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "`start` itself, unchanged"),
        ({"epochs": 1}, "No such setup: there is no 'epochs'"),
        ({"layout": "sideways"}, "No such setup"),
        ({"environment": {"LD_PRELOAD": "/tmp/mine.so"}}, "this task knows"),
        ({"library": "ipex"}, "must be 'default'"),
    ],
)
def test_a_setup_that_is_not_allowed_is_refused_before_it_is_timed(changes: dict, words: str) -> None:
    result = judge("cpu.faster_setup", LocalSubmission({"faster_setup": lambda start: {**start, **changes}}), 1)
    assert not isinstance(result, SpeedTask)
    assert words in result.message


def test_a_setup_for_a_library_that_is_not_here_is_told_what_to_take(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(setups.extension, "why_no_ipex", lambda: "IPEX is not installed")
    answer = {"library": "ipex", "optimizer_kind": "default"}
    result = judge("cpu.faster_setup", LocalSubmission({"faster_setup": lambda start: {**start, **answer}}), 1)
    assert not isinstance(result, SpeedTask)
    assert "use stock" in result.message


def test_both_sides_are_timed_in_the_environment_that_they_ask_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "usable_cores", lambda: 2)
    answer = {"environment": {"OMP_NUM_THREADS": "2"}, "layout": "channels_last"}
    task = judge("cpu.faster_setup", LocalSubmission({"faster_setup": lambda start: answer}), 1)
    assert isinstance(task, SpeedTask)
    assert task.baseline.environment["OMP_NUM_THREADS"] == "1"
    assert task.candidate.environment["OMP_NUM_THREADS"] == "2"
    assert task.candidate.environment["KMP_BLOCKTIME"] is None
    assert task.candidate.arguments == {"layout": "channels_last", "optimizer_kind": "for_loop", "library": "stock"}
    assert task.labels is not None
    assert len(task.labels) == 2000


def test_on_one_core_the_setup_is_judged_and_its_speed_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "usable_cores", lambda: 1)
    valid = LocalSubmission({"faster_setup": lambda start: {**start, "layout": "channels_last"}})
    result = judge("cpu.faster_setup", valid, 1)
    assert not isinstance(result, SpeedTask)
    assert result.status == "not measurable here"
    assert judge("cpu.faster_setup", LocalSubmission({"faster_setup": dict}), 1).status == "failed"


ODD_VALUES = [
    "None", "True", "10**400", "float('nan')", "'x' * 10**5", "[]", "{}", "[[1], {'a': None}]",
    "np.array([1, 2])", "np.zeros(0)", "torch.zeros(2, 2)", "torch.tensor(1 + 2j)", "(i for i in range(3))", "object()",
    "torch.eye(3).to_sparse()",
]  # fmt: skip


@pytest.mark.parametrize("value", ODD_VALUES)
def test_an_odd_value_is_a_wrong_answer_and_no_mistake_of_the_check(value: str) -> None:
    odd = eval(value)
    answers = {
        "predict_gain": [odd],
        "in_blocks": [odd],
        "choose_cpus": [odd, [odd], [0, odd]],
        "begin_worker": [odd],
        "faster_setup": [
            odd,
            *({key: odd} for key in (*setups.SLOW_SETUP, "else")),
            {"environment": {"OMP_NUM_THREADS": odd}},
        ],
        "quiz": [odd, {question.id: odd for question in quizzes.read("cpu")}],
    }
    for name, found in answers.items():
        for answer in found:
            if name == "faster_setup" and value == "{}" and "environment" in answer:
                continue  # valid: it leaves all variables to the runtime
            namespace = {name: answer if name == "quiz" else lambda *_, answer=answer: answer}
            result = judge(f"cpu.{name}", LocalSubmission(namespace), 3)
            assert getattr(result, "status", "valid") == "failed", (name, answer)


@pytest.mark.parametrize("value", ["-1", "0", "True", "2.0", "'2'", "10**400"])
def test_a_number_of_threads_that_is_none_is_refused_by_the_library(value: str) -> None:
    code = f"""
def begin_worker(processes, cores, environ, load):
    environ["OMP_PROC_BIND"] = "close"
    library = load()
    library.set_num_threads({value})
    return library
"""
    result = judge("cpu.begin_worker", submission(code), 3)
    assert not isinstance(result, SpeedTask)
    assert "positive integer" in result.message


def test_the_labs_points_are_twenty() -> None:
    assert catalog.find("cpu").points == 20
