"""Lab 9's checks over many seeds: other right answers pass, mistakes do not, and garbage gets a sentence."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from accelerando import quizzes
from accelerando.checks import multi_gpu as checks
from accelerando.lessons.multi_gpu import lab
from accelerando.probes import multi_gpu as probes
from accelerando.submission import LocalSubmission, Result, SpeedTask, find_check, judge

PURE = ("multi_gpu.best_ring", "multi_gpu.suspects", "multi_gpu.synced_statistics", "multi_gpu.train_step")
RECIPE = "multi_gpu.large_batch_recipe"
ALTERNATIVES = {
    "multi_gpu.best_ring": """
def best_ring(bandwidth):  # grows lines over links that are fast enough, and lowers the bar until one closes
    n = len(bandwidth)
    def grow(line, bar):
        if len(line) == n:
            return line if n == 1 or bandwidth[line[-1]][line[0]] >= bar else None
        for gpu in range(n):
            if gpu not in line and bandwidth[line[-1]][gpu] >= bar:
                found = grow([*line, gpu], bar)
                if found:
                    return found
    for bar in sorted({bandwidth[a][b] for a in range(n) for b in range(n) if a != b}, reverse=True):
        found = grow([n - 1], bar)
        if found:
            return found
""",
    "multi_gpu.suspects": """
def suspects(connections):
    table = {(True, "P2P"): None, (True, "SHM"): "NCCL_P2P_DISABLE", (True, "NET"): "NCCL_P2P_DISABLE"}
    found = []
    for one in connections:
        same, via = one["from_host"] == one["to_host"], one["via"]
        if same:
            found.append(table[True, via[:3]])
        elif "Socket" in via:
            found.append("NCCL_IB_DISABLE")
        else:
            found.append(None if "GDRDMA" in via else "NCCL_NET_GDR_LEVEL")
    return found
""",
    "multi_gpu.synced_statistics": """
def synced_statistics(counts, means, variances):  # one rank after the other
    n, mean, squares = 0, 0.0, 0.0
    for count, own, variance in zip(counts, means, variances):
        if count:
            total = n + count
            squares += count * variance + (own - mean) ** 2 * n * count / total
            mean += (own - mean) * count / total
            n = total
    return [mean, squares / n]
""",
    "multi_gpu.train_step": """
def train_step(model, batches, all_reduce, world_size, max_norm):
    model.zero_grad()
    images = torch.cat([images for images, _ in batches])
    labels = torch.cat([labels for _, labels in batches])
    nn.functional.cross_entropy(model(images), labels).backward()
    flat = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
    all_reduce(flat)
    flat /= world_size
    flat *= min(1.0, max_norm / (float(flat.norm()) + 1e-6))
    place = 0
    for parameter in model.parameters():
        parameter.grad = flat[place : place + parameter.numel()].view_as(parameter).clone()
        place += parameter.numel()
""",
}


def submission(code: str) -> LocalSubmission:
    import itertools

    namespace: dict[str, object] = {"__name__": "__main__", "torch": torch, "nn": nn, "math": math}
    namespace["itertools"] = itertools
    exec(compile(code, "<answer>", "exec"), namespace)
    return LocalSubmission(namespace)


def verdict(question: str, code: str, seed: int) -> Result:
    result = judge(question, submission(code), seed)
    assert not isinstance(result, SpeedTask)
    return result


@pytest.mark.parametrize("question", ALTERNATIVES)
def test_other_right_answers_pass_for_every_seed(question: str) -> None:
    for seed in range(6):
        result = verdict(question, ALTERNATIVES[question], seed)
        assert result.status == "passed", (seed, result.message)


@pytest.mark.parametrize("question", PURE)
def test_no_mistake_slips_through_for_any_seed(question: str) -> None:
    for wrong in find_check(question).wrong:
        for seed in range(4):
            result = verdict(question, wrong.code, seed)
            assert result.status == "failed", (wrong.mistake, seed)
            assert "the lesson" in result.message, (wrong.mistake, result.message)


GARBAGE = ("None", "float('nan')", "'x'", "[]", "{}", "[1.5, None]", "[float('inf')] * 2", "object()", "[10**400] * 4")


@pytest.mark.parametrize("question", [*PURE[:3], RECIPE])
@pytest.mark.parametrize("value", GARBAGE)
def test_garbage_gets_one_clear_sentence(question: str, value: str) -> None:
    name = question.partition(".")[2]
    result = verdict(question, f"def {name}(*arguments):\n    return {value}\n", 3)
    assert result.status == "failed"
    assert 20 < len(result.message) < 400
    assert "Traceback" not in result.message


@pytest.mark.parametrize("value", ["np.array([1, 2])", "torch.zeros(2)", "torch.zeros(0)", "[[]]"])
def test_an_entry_that_is_an_array_is_no_name(value: str) -> None:
    each = f"import numpy as np\ndef suspects(connections):\n    return [{value} for _ in connections]\n"
    assert "say None or one of" in verdict("multi_gpu.suspects", each, 3).message
    right = ALTERNATIVES["multi_gpu.suspects"].replace("def suspects", "def _right")
    without = f"{right}\nimport numpy as np\ndef suspects(connections):\n    return _right(connections) or {value}\n"
    assert "expected an empty list" in verdict("multi_gpu.suspects", without, 3).message


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("raise KeyError('gpu')", "KeyError"),
        ("raise SystemExit", "SystemExit"),
        ("pass", "without its gradient"),
        ("all_reduce(3)", "TypeError"),
        ("model.zero_grad()", "without its gradient"),
    ],
)
def test_a_training_step_that_does_not_work_is_told_apart(body: str, words: str) -> None:
    code = f"def train_step(model, batches, all_reduce, world_size, max_norm):\n    {body}\n"
    result = verdict("multi_gpu.train_step", code, 1)
    assert result.status == "failed"
    assert words in result.message


def test_a_gradient_that_one_rank_alone_lacks_is_missed() -> None:
    code = (
        ALTERNATIVES["multi_gpu.train_step"]
        + """
    ranks.append(1)
    if len(ranks) % 3 == 0:
        model.zero_grad()
"""
    )
    assert "without its gradient" in verdict("multi_gpu.train_step", f"ranks = []\n{code}", 1).message


@pytest.mark.parametrize("change", ["none", "one", "too many", "text", "numpy", "integers", "no list"])
def test_what_a_lying_process_gives_back_is_read_with_care(change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    changes = {
        "none": lambda right: {"gradients": [], "moved": []},
        "one": lambda right: {"gradients": right[:1], "moved": [False]},
        "too many": lambda right: {"gradients": [*right, right[0]], "moved": [False] * len(right)},
        "text": lambda right: {"gradients": ["x"] * len(right), "moved": [False] * len(right)},
        "numpy": lambda right: {"gradients": [one.numpy() for one in right], "moved": [False] * len(right)},
        "integers": lambda right: {"gradients": [one.int() for one in right], "moved": [False] * len(right)},
        "no list": lambda right: {"gradients": right, "moved": 0},
    }

    class Lying(LocalSubmission):
        def probe(self, name: str, **arguments: int) -> object:
            return [changes[change]([probes.whole(arguments["seed"], case)] * case[0]) for case in probes.CASES]

    result = judge("multi_gpu.train_step", Lying({}), 1)
    assert isinstance(result, Result)
    assert result.status == "failed"
    assert ("have moved" if change == "no list" else "from every rank") in result.message


def test_ranks_that_wait_for_each_other_are_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes, "PATIENCE_S", 0.3)
    code = """
seen = []
def train_step(model, batches, all_reduce, world_size, max_norm):
    seen.append(1)
    if len(seen) == 1:
        all_reduce(torch.zeros(2))
"""
    assert "wait for each other for ever" in verdict("multi_gpu.train_step", code, 1).message


def test_an_unanswered_training_step_says_so() -> None:
    code = "def train_step(model, batches, all_reduce, world_size, max_norm):\n    raise NotImplementedError\n"
    assert verdict("multi_gpu.train_step", code, 1).message == "not answered yet"


def test_weights_that_move_are_noticed() -> None:
    code = ALTERNATIVES["multi_gpu.train_step"] + "        parameter.data.mul_(1.5)\n"
    assert "weights have moved" in verdict("multi_gpu.train_step", code, 1).message


def test_the_probes_reference_is_the_average_of_the_ranks_gradients() -> None:
    case = (3, 2, 1e6)
    parts = []
    for rank in range(case[0]):
        for images, labels in probes.batches_of(5, case, rank):
            model = probes.network(5)
            nn.functional.cross_entropy(model(images), labels).backward()
            parts.append(torch.cat([parameter.grad.flatten() for parameter in model.parameters()]))  # type: ignore[union-attr]
    assert torch.allclose(probes.whole(5, case), torch.stack(parts).mean(0), atol=1e-5)
    assert float(probes.whole(5, (3, 2, 0.5)).norm()) == pytest.approx(0.5, rel=1e-3)


# -- the recipe: judged here by a fake training that knows the right accuracies ----------------------------------------


def fake_accuracy(recipe: dict[str, object], seed: int) -> np.ndarray:
    """2,000 answers, of which a share that the recipe decides is right."""
    rate = float(recipe["learning_rate"]) / float(recipe["global_batch"])  # type: ignore[arg-type]
    share = 0.86 if 0.0004 < rate < 0.001 else 0.843 if rate > 0.0002 else 0.80
    return np.random.default_rng(seed).random(10_000) < share


def test_the_linear_rule_passes_and_an_unchanged_rate_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lab, "accuracy_of", fake_accuracy)
    good = 'def large_batch_recipe(start):\n    return {**start, "global_batch": 256, "learning_rate": 0.16}\n'
    assert verdict(RECIPE, good, 1).status == "passed"
    same = verdict(RECIPE, good.replace("0.16", "0.02"), 1)
    assert same.status == "failed"
    assert "8.1 times fewer" in same.message
    assert "Eight times the batch" in same.message


def test_too_small_a_batch_is_told_before_anything_is_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lab, "accuracy_of", lambda recipe, seed: pytest.fail("trained"))
    code = 'def large_batch_recipe(start):\n    return {**start, "global_batch": 224, "learning_rate": 0.14}\n'
    result = verdict(RECIPE, code, 1)
    assert "wanted 8" in result.message


def test_too_close_to_call_is_undecided_and_was_looked_at_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    trained: list[int] = []

    def close(recipe: dict[str, object], seed: int) -> np.ndarray:
        trained.append(seed)
        share = 0.86 if recipe == lab.START else 0.84
        return np.random.default_rng(seed % 1000 + (recipe != lab.START)).random(10_000) < share

    monkeypatch.setattr(lab, "accuracy_of", close)
    code = 'def large_batch_recipe(start):\n    return {**start, "global_batch": 256}\n'
    result = verdict(RECIPE, code, 1)
    assert result.status == "undecided"
    assert "too close to call" in result.message
    assert len(set(trained)) == checks.LOOKS[-1]


def test_every_section_that_a_message_or_the_quiz_names_is_in_the_lesson() -> None:
    import inspect
    import json
    import re

    from accelerando import work

    cells = json.loads((work.checkout() / "notebooks" / "09_multi_gpu.ipynb").read_text(encoding="utf-8"))["cells"]
    headings = re.findall(
        r"(?m)^## (.+)$", "\n".join("".join(c["source"]) for c in cells if c["cell_type"] == "markdown")
    )
    named = set(re.findall(r"\*([A-Z][^*\"]+?)\*", re.sub(r'"\s*f?"', "", inspect.getsource(checks))))
    sections = {question.section for question in quizzes.read("multi_gpu")}
    assert named
    assert sections | named <= set(headings)
