"""Lab 2's checks over many seeds: other right answers pass, mistakes never slip through, odd values end in words."""

import json

import numpy as np
import pytest
import torch
from torch import nn

from accelerando import machine, quizzes, work
from accelerando.checks import compilation as checks
from accelerando.checks import compilation_mistakes as mistakes
from accelerando.grading import speed
from accelerando.probes import compilation as probes
from accelerando.submission import LocalSubmission, SpeedTask, Wrong, find_check, judge

ALTERNATIVES = {
    "compilation.break_even_step": """
def break_even_step(compile_s, eager_step_s, compiled_step_s, compiles_at, steps):
    ahead = [
        compile_s * len([at for at in compiles_at if at <= step]) + step * compiled_step_s <= step * eager_step_s
        for step in range(1, steps + 1)
    ]
    if not ahead[-1]:
        return None
    last_behind = max((number for number, is_ahead in enumerate(ahead, 1) if not is_ahead), default=0)
    return last_behind + 1
""",
    "compilation.mended_update": """
def mended_update(hidden, update):
    update = update / update.norm(dim=1).max().clamp(min=1)
    weight = torch.where(hidden > 0, 1.0, 0.0)
    count = weight.sum()
    level = torch.relu(hidden).sum() / torch.where(count > 0, count, 1.0)
    with torch.no_grad():
        seen = level.clone()
    return hidden + update * level, seen
""",
    "compilation.steady_batches": """
def steady_batches(inputs, labels, batch_size):
    def batches():
        for start in range(0, len(labels), batch_size):
            place = torch.arange(start, start + batch_size)
            weights = (place < len(labels)).float()
            place = place.clamp(max=len(labels) - 1)
            yield inputs[place], labels[place], weights
    return batches()
""",
    "compilation.make_step": """
def make_step(model, optimizer):
    model.compile(dynamic=True)

    def step(inputs, labels):
        optimizer.zero_grad(set_to_none=False)
        loss = nn.functional.cross_entropy(model(inputs), labels)
        loss.backward()
        optimizer.step()
        return loss

    return step
""",
}
SEEDS = {"compilation.break_even_step": range(25)}


def submission(code: str) -> LocalSubmission:
    import math

    namespace: dict[str, object] = {"math": math, "torch": torch, "nn": nn, "log": []}
    exec(compile(code, "<answer>", "exec"), namespace)
    return LocalSubmission(namespace)


@pytest.mark.parametrize("question", ALTERNATIVES)
def test_another_right_answer_passes_for_every_seed(question: str) -> None:
    for seed in SEEDS.get(question, range(3)):
        outcome = judge(question, submission(ALTERNATIVES[question]), seed)
        if question.endswith("make_step"):
            assert isinstance(outcome, SpeedTask), outcome
        else:
            assert outcome.status == "passed", (seed, outcome.message)


@pytest.mark.parametrize("question", ["compilation.break_even_step", "compilation.steady_batches"])
def test_no_mistake_slips_through_for_any_seed(question: str) -> None:
    for wrong in find_check(question).wrong:
        for seed in SEEDS.get(question, range(3)):
            outcome = judge(question, submission(wrong.code), seed)
            assert outcome.status == "failed", (wrong.mistake, seed)


def test_runs_of_every_kind_are_drawn() -> None:
    drawn = checks._draw_runs(np.random.default_rng(5))
    assert {kind for kind, _ in drawn} == set(checks._KINDS)
    answers = {kind: checks._first_ahead(*given) for kind, given in drawn}
    assert answers["a run that never pays"] is None
    assert answers["a run that ends too early"] is None
    assert answers["compiling that costs nothing"] == 1


def test_the_cases_take_both_sides_of_every_decision() -> None:
    for seed in range(20):
        cases = probes.update_cases(seed)
        longest = {kind: float(update.norm(dim=1).max()) for kind, (_, update) in cases.items()}
        assert longest["long updates"] > 1 > longest["short updates"] > longest["an update of zeros"] == 0
        positive = {kind: int((hidden > 0).sum()) for kind, (hidden, _) in cases.items()}
        assert positive["no positive number"] == 0
        assert positive["a single positive number"] == 1
        assert positive["long updates"] > 1


def test_the_function_that_is_handed_out_is_the_reference_and_is_cut() -> None:
    cells = json.loads((work.checkout() / "labs/02_compilation/02_compilation.ipynb").read_text("utf-8"))["cells"]
    (given,) = [cell for cell in cells if cell["id"] == "setup-pieces"]
    names = vars(submission("".join(given["source"])))["_namespace"]
    for hidden, update in probes.update_cases(3).values():
        expected = checks._update_reference(hidden, update)
        torch.testing.assert_close(names["update_in_pieces"](hidden, update), expected["result"])
        assert names["log"][-1] == pytest.approx(float(expected["level"]))
    torch._dynamo.reset()
    with pytest.raises(Exception, match=r"graph break|Unsupported|branching"):
        torch.compile(names["update_in_pieces"], backend="eager", fullgraph=True)(hidden, update)
    torch._dynamo.reset()


@pytest.mark.parametrize(
    ("mistake", "question"),
    [
        ("the level is detached before it is used", "On which two ways does `hidden` reach the result"),
        ("the mean of nothing is not a number", "What is the mean of no numbers"),
        ("every update is divided, short ones too", "What happens to an update that is short enough?"),
        ("the branch that is not chosen divides by zero", "Both choices of a `torch.where` are computed"),
    ],
)
def test_the_question_is_about_the_mistake_that_was_made(mistake: str, question: str) -> None:
    (wrong,) = [wrong for wrong in mistakes.UPDATES if wrong.mistake == mistake]
    outcome = judge("compilation.mended_update", submission(wrong.code), 1)
    assert question in outcome.message


def test_the_task_can_be_learned_and_no_two_seeds_are_the_same_task() -> None:
    runs = {seed: np.asarray(probes.train_plainly(seed)["predictions"]) for seed in (1, 2)}
    labels = probes.held_out_labels().numpy()
    assert all((found == labels).mean() > 0.8 for found in runs.values())
    again = np.asarray(probes.train_plainly(1)["predictions"])
    assert (again == runs[1]).mean() > 0.99
    inputs = [probes.task_data(seed, 50)[0] for seed in (1, 2)]
    assert not torch.allclose(*inputs)


def test_a_timed_run_begins_anew_in_the_same_network() -> None:
    made = []

    def make_step(model, optimizer):
        made.append(model)
        return probes.make_plain_step(model, optimizer)

    names = {"make_step": make_step}
    first, second = probes.train(names, 5), probes.train(names, 5)
    assert len(made) == 1
    assert (first == second).float().mean() > 0.99


def test_the_candidate_is_timed_through_the_probe_with_the_runs_own_seed() -> None:
    task = judge("compilation.make_step", submission(ALTERNATIVES["compilation.make_step"]), 1)
    assert isinstance(task, SpeedTask)
    asked = []

    class Asked(LocalSubmission):
        def probe(self, name, **arguments):
            asked.append((name, arguments))
            return torch.zeros(3, dtype=torch.int64)

    with speed.open_side(task.candidate, [11, 12, 13], Asked({})) as side:
        found = side(5.0)
    assert asked == [("compilation.train", {"seed": 11}), ("compilation.train", {"seed": 12})]
    assert found.predictions is not None
    assert len(task.labels) == probes.TEST_ROWS


PRETENDERS = {
    "knows the order of the held-out labels": "lambda x: nn.functional.one_hot(torch.arange(len(x)) % 10, 10).float()",
    "remembers each class's middle, and trains nothing": "lambda x: -torch.cdist(x, sums / counts.unsqueeze(1))",
}
PRETENDER = """
def make_step(model, optimizer):
    fast, sums, counts = torch.compile(model), torch.zeros(10, 32), torch.zeros(10)

    def step(inputs, labels):
        if len(labels) > 32:
            sums.index_add_(0, labels, inputs)
            counts.add_(torch.bincount(labels, minlength=10))
            model.forward = {forward}
            return torch.zeros(())
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(fast(inputs), labels)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step
"""


@pytest.mark.parametrize("pretender", PRETENDERS)
def test_a_step_that_is_honest_in_small_batches_only_is_found_out(pretender: str) -> None:
    answer = submission(PRETENDER.format(forward=PRETENDERS[pretender]))
    task = judge("compilation.make_step", answer, 1)
    assert isinstance(task, SpeedTask)
    found = answer.probe("compilation.train", seed=6)
    is_good = (np.asarray(found) == task.labels).mean() > 0.9
    assert is_good == pretender.startswith("remembers")
    with pytest.raises(Wrong, match="the large batches of the timed runs"):
        task.examine(found, 6)


def test_an_honest_run_passes_the_examination_and_another_runs_answer_does_not() -> None:
    examine = checks._Examiner(np.random.default_rng(1)).examine
    plain = torch.as_tensor(probes.train_plainly(7)["predictions"])
    examine(plain, 7)
    with pytest.raises(Wrong, match="agrees with"):
        examine(plain, 8)
    with pytest.raises(Wrong, match="could not be read"):
        checks._Examiner(np.random.default_rng(1)).examine(torch.zeros(3, dtype=torch.int64), 7)


def test_without_a_compiler_the_speed_is_not_measurable_and_the_rest_is_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    import dataclasses

    bare = dataclasses.replace(machine.probe(), compilers=())
    monkeypatch.setattr(machine, "probe", lambda: bare)
    right = judge("compilation.make_step", submission(ALTERNATIVES["compilation.make_step"]), 1)
    assert right.status == "not measurable here"
    assert "no C++ compiler" in right.message
    wrong = judge("compilation.make_step", submission(mistakes.STEPS[0].code), 1)
    assert wrong.status == "failed"


ODD_VALUES = [
    "None", "True", "10**400", "float('nan')", "'x' * 10**5", "[]", "{}", "[[1], {'a': None}]", "[(1, 2, 3)]",
    "np.array([1, 2])", "torch.zeros(2, 2)", "torch.tensor(1 + 2j)", "(i for i in range(3))", "object()",
    "(torch.zeros(2), None)", "(torch.zeros(6, 8), torch.zeros(()))", "[(torch.zeros(3),) * 3]",
    "[(torch.zeros(2, 32), torch.zeros(3, dtype=torch.int64), torch.zeros(2))]",
]  # fmt: skip


@pytest.mark.parametrize("value", ODD_VALUES)
def test_an_odd_value_is_a_wrong_answer_and_no_mistake_of_the_check(value: str) -> None:
    odd = eval(value)
    answers = {
        "break_even_step": [lambda *_: odd],
        "mended_update": [lambda *_: odd],
        "steady_batches": [lambda *_: odd],
        "make_step": [lambda *_: odd, lambda *_: lambda *_: odd],
        "quiz": [odd, {question.id: odd for question in quizzes.read("compilation")}],
    }
    for name, found in answers.items():
        for answer in found:
            result = judge(f"compilation.{name}", LocalSubmission({name: answer}), 3)
            assert getattr(result, "status", "valid") == "failed", (name, answer)
            assert len(result.message) < 500


def test_an_answer_that_leaves_is_a_wrong_one() -> None:
    def leave(*_):
        raise ValueError("no")

    for name in ("break_even_step", "mended_update", "steady_batches", "make_step"):
        result = judge(f"compilation.{name}", LocalSubmission({name: leave}), 3)
        assert result.status == "failed"
        assert "no" in result.message
