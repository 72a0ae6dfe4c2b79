"""Lab 4's checks over many seeds: right answers pass, mistakes never slip through, garbage is told in words."""

import ast
import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from accelerando import timelines, work
from accelerando.checks import pipelines as checks
from accelerando.lessons.pipelines import lab
from accelerando.submission import LearnerCall, LocalSubmission, SpeedTask, Wrong, find_check, judge
from accelerando.workers import Experiment

QUESTIONS = (
    "predict_images_per_s", "fresh_noise", "cached_image", "pack_names", "fast_epoch",
)  # fmt: skip
ALTERNATIVES = {
    "predict_images_per_s": """
def predict_images_per_s(batch_size, load_s, step_s, step_cores, workers, cores):
    if not workers:
        return 1 / (load_s / batch_size + step_s / batch_size)
    per_s = min(1 / step_s, workers / load_s, cores / (load_s + step_cores * step_s))
    return per_s * batch_size
""",
    "fresh_noise": """
def fresh_noise(dataset, index):
    if getattr(dataset, "born", None) != torch.initial_seed():
        dataset.born = torch.initial_seed()
        dataset.rng = np.random.default_rng([dataset.seed, dataset.born])
    return torch.from_numpy(dataset.rng.standard_normal(dataset.images[index].shape, dtype=np.float32))
""",
    "cached_image": """
def cached_image(index, cache, decode, augment, limit):
    if index in cache:
        return augment(torch.tensor(cache[index]))
    image = decode(index)
    if len(cache) < limit:
        cache[index] = image.numpy().copy()
    return augment(image)
""",
    "pack_names": """
def pack_names(names):
    data, ends = bytearray(), []
    for name in names:
        data += name.encode("utf-8")
        ends.append(len(data))
    return {"ends": np.array(ends, np.int64), "data": np.array(list(data), np.uint8)}
""",
    "fast_epoch": """
def fast_epoch(images, labels, batch_size, seed):
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(labels))
    scaled = (np.pad(images, ((0, 0), (2, 2), (2, 2))).astype(np.float32) / 255 - MEAN) / DEVIATION
    windows = np.lib.stride_tricks.sliding_window_view(scaled, (28, 28), axis=(1, 2))
    top, left = rng.integers(0, 5, (2, len(order)))
    crops = windows[order, top, left]
    crops = np.where(rng.random((len(order), 1, 1)) < 0.5, crops[:, :, ::-1], crops)
    images, labels = torch.from_numpy(np.ascontiguousarray(crops)).unsqueeze(1), torch.from_numpy(labels[order])
    return [list(pair) for pair in zip(images.split(batch_size), labels.split(batch_size))]
""",
}
GIVEN = {"np": np, "torch": torch, "MEAN": 0.2860, "DEVIATION": 0.3530, "PADDING": 2}


def submission(code: str) -> LocalSubmission:
    namespace: dict[str, object] = dict(GIVEN)
    exec(code, namespace)
    return LocalSubmission(namespace)


def status(name: str, answers: LocalSubmission, seed: int) -> tuple[str, str]:
    result = judge(f"pipelines.{name}", answers, seed)
    return ("passed", "to be timed") if isinstance(result, SpeedTask) else (result.status, result.message)


def seeds_for(name: str) -> range:
    return range({"predict_images_per_s": 25, "cached_image": 25, "pack_names": 25, "fast_epoch": 3}.get(name, 2))


@pytest.mark.parametrize("name", QUESTIONS)
def test_other_right_answers_pass_for_every_seed(name: str) -> None:
    for seed in seeds_for(name):
        found, message = status(name, submission(ALTERNATIVES[name]), seed)
        assert found == "passed", (seed, message)


@pytest.mark.parametrize("name", QUESTIONS)
def test_no_mistake_slips_through_for_any_seed(name: str) -> None:
    for wrong in find_check(f"pipelines.{name}").wrong:
        for seed in seeds_for(name)[:3]:
            found, message = status(name, submission(wrong.code), seed)
            assert found == "failed", (wrong.mistake, seed)
            assert "could not be read" not in message, wrong.mistake


def test_the_bounds_of_the_question_are_those_of_the_simulator() -> None:
    right = submission(ALTERNATIVES["predict_images_per_s"])
    for workers, cores, step_cores in ((0, 2, 1), (1, 2, 1), (4, 2, 1), (8, 4, 2), (3, 2, 0)):
        found = right.predict_images_per_s(64, 0.02, 0.01, step_cores, workers, cores)
        plan = timelines.Plan(0.02, 0.01, workers=workers, cores=cores, step_threads=max(1, step_cores))
        if step_cores:
            assert found == pytest.approx(64 / max(timelines.bounds_s(plan).values()))
            assert found == pytest.approx(timelines.predict_images_per_s(plan, 64), rel=0.06)
    assert right.predict_images_per_s(64, 0.02, 0.01, 0, 3, 2) == pytest.approx(64 / 0.01)


@pytest.mark.parametrize("kind", checks._KINDS)
def test_each_bound_binds_in_some_drawn_pipeline(kind: str) -> None:
    plan, expected = checks._draw_plan(np.random.default_rng(1), kind)
    assert submission(ALTERNATIVES["predict_images_per_s"]).predict_images_per_s(*plan) == pytest.approx(expected)


def setup_cells() -> dict[str, object]:
    """The names of the lab's given cells, as its solution notebook defines them."""
    path = work.checkout() / "solutions/04_pipelines/04_pipelines.ipynb"
    namespace: dict[str, object] = {"__name__": "__main__"}
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        if cell["metadata"].get("nbgrader", {}).get("grade_id", "").startswith("setup"):
            exec("".join(cell["source"]), namespace)
    return namespace


def test_the_given_slow_epoch_is_right_and_does_the_same_as_the_trusted_one() -> None:
    namespace = setup_cells()
    namespace["fast_epoch"] = namespace["slow_epoch"]
    task = judge("pipelines.fast_epoch", LocalSubmission(namespace), 4)
    assert isinstance(task, SpeedTask), task.message
    assert isinstance(task.baseline, Experiment)
    assert isinstance(task.candidate, LearnerCall)
    assert task.candidate.takes_seed


def test_a_timed_run_is_looked_at() -> None:
    images, labels = lab.task_images()
    answers = submission(ALTERNATIVES["fast_epoch"])

    def run(seed: int) -> object:
        return answers.fast_epoch(images, labels, lab.TASK_BATCH, seed)

    examine = checks._Examiner(images, labels, lab.TASK_BATCH).examine
    examine(run(1), 1)
    examine(run(2), 2)
    with pytest.raises(Wrong, match="earlier one"):
        examine(run(1), 3)
    dimmed = [[pair[0] * 0.9, pair[1]] for pair in run(4)]  # type: ignore[attr-defined]
    with pytest.raises(Wrong, match="right before"):
        examine(dimmed, 4)
    with pytest.raises(Wrong, match="list of pairs"):
        examine(None, 5)


def test_the_slow_side_tells_its_seconds() -> None:
    assert lab.slow_epoch_seconds(seed=1)["seconds"] > 0


def test_wrong_labels_wrong_border_and_wrong_scale_get_different_sentences() -> None:
    said = {
        wrong.mistake: status("fast_epoch", submission(wrong.code), 5)[1]
        for wrong in find_check("pipelines.fast_epoch").wrong
    }
    assert len(set(said.values())) == len(said)
    assert any("border" in sentence for sentence in said.values())
    assert any("coin" in sentence for sentence in said.values())


ODD_VALUES = [
    "None", "True", "10**400", "float('nan')", "'x' * 10**5", "[]", "{}", "[[1], {'a': None}]", "np.array([1, 2])",
    "np.zeros(0)", "torch.zeros(2, 2)", "torch.tensor(1 + 2j)", "(i for i in range(3))", "object()",
    "[[torch.full((size, 1, 28, 28), float('nan')), torch.arange(size)] for size in [64] * 9 + [24]]",
    "[[torch.full((size, 1, 28, 28), float('nan')), torch.arange(at, at + size)] "
    "for at, size in zip(range(0, 600, 64), [64] * 9 + [24])]",
    "{'data': np.zeros(3, np.uint8), 'ends': np.array([10**12, -5, 3])}",
]  # fmt: skip


@pytest.mark.parametrize("value", ODD_VALUES)
def test_an_odd_value_is_a_wrong_answer_and_no_mistake_of_the_check(value: str) -> None:
    odd = eval(value)
    for name in (*QUESTIONS, "quiz"):
        namespace = {name: odd if name == "quiz" else lambda *_, odd=odd, **__: odd}
        found, message = status(name, LocalSubmission(namespace), 3)
        assert found == "failed", name
        assert message


@pytest.mark.parametrize("report", [None, 3, {}, {"roomy": 1}, {"first": 1}, [[]]])
def test_a_probe_that_was_lied_to_is_refused_in_words(report: object) -> None:
    class Lying(LocalSubmission):
        def probe(self, name: str, **arguments: object) -> object:
            return report

    for name in ("fresh_noise", "cached_image"):
        assert status(name, Lying({}), 3)[0] == "failed"


def test_noise_that_repeats_is_asked_after_its_seed_only_where_no_worker_copied_anything() -> None:
    copied, numbered, frozen, _, constant = (
        status("fresh_noise", submission(wrong.code), 1)[1] for wrong in find_check("pipelines.fresh_noise").wrong
    )
    assert "Whose copy" in copied
    assert "worker of the second epoch" in numbered
    assert "in its seed changes" in frozen
    assert "in its seed changes" in constant


def test_noise_of_another_shape_or_spread_is_refused() -> None:
    code = "def fresh_noise(dataset, index):\n    return {}"
    for answer, words in (
        ("torch.randn(3)", "float32 tensor"),
        ("torch.randn(8, 8).double()", "float32 tensor"),
        ("3 * torch.randn(8, 8)", "deviation"),
        ("torch.rand(8, 8)", "deviation"),
    ):
        found, message = status("fresh_noise", submission(code.format(answer)), 1)
        assert (found, words in message) == ("failed", True), message


def test_the_code_that_the_lab_calls_buggy_is_the_first_mistake_of_its_question() -> None:
    path: Path = work.checkout() / "solutions/04_pipelines/04_pipelines.ipynb"
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    shown = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
    blocks = "\n".join(re.findall(r"```python\n(.*?)```", shown, re.DOTALL))
    given = {node.name: ast.dump(node) for node in ast.parse(blocks).body if isinstance(node, ast.FunctionDef)}
    for name in ("fresh_noise", "cached_image"):
        (first,) = ast.parse(find_check(f"pipelines.{name}").wrong[0].code).body
        assert given[name] == ast.dump(first)
