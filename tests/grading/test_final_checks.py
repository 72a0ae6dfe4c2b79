"""The final's untimed checks: the course's own answers pass, every listed mistake loses its question."""

import json
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from accelerando import catalog, submission
from accelerando.checks import final, final_ranks, final_recipe
from accelerando.grading import starters
from accelerando.grading.cells import marks_of
from accelerando.submission import LocalSubmission, NotAnswered, Result, SpeedTask

SOURCE = Path(__file__).parents[2] / "solutions" / "final" / "final.ipynb"
TIMED = ("final.train", "final.train_further", "final.train_furthest")
CHEAP = ("final.train", "final.shard", "final.resume", "final.claims", "final.quiz")


@cache
def cells() -> dict[str, str]:
    """The marked cells of the source by grade id."""
    notebook = json.loads(SOURCE.read_text(encoding="utf-8"))
    return {marks_of(cell)["grade_id"]: "".join(cell["source"]) for cell in notebook["cells"] if marks_of(cell)}


def names_of(*sources: str) -> dict:
    import linecache

    names: dict = {}
    given = [source for name, source in cells().items() if name.startswith("setup")]
    for number, source in enumerate((*given, *sources)):
        file = f"<final {number} {hash(source)}>"
        linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
        exec(compile(source, file, "exec"), names)
    return names


def judged(question: str, *sources: str) -> Result | SpeedTask:
    return submission.judge(question, LocalSubmission(names_of(*sources)), seed=11)


def wrong_answers(*questions: str) -> list:
    found = [(question, wrong) for question in questions for wrong in submission.find_check(question).wrong]
    return [pytest.param(question, wrong.code, id=f"{question}: {wrong.mistake}") for question, wrong in found]


def test_catalog_source_and_checks_name_the_same_questions() -> None:
    questions = [question.id for question in catalog.final().questions]
    assert questions == [key.removeprefix("test-").replace("-", ".") for key in cells() if key.startswith("test-")]
    assert all(submission.find_check(question) for question in questions)
    assert catalog.final().points == 100


@pytest.mark.parametrize("question", ["final.shard", "final.resume", "final.claims", "final.quiz"])
def test_own_answer_passes(question: str) -> None:
    outcome = judged(question, cells()[question.replace(".", "-")])
    assert isinstance(outcome, Result)
    assert (outcome.status, outcome.message) == ("passed", "right")


@pytest.mark.parametrize("question", TIMED)
def test_reference_is_ready_to_be_timed_on_every_tier(question: str) -> None:
    assert isinstance(judged(question, starters.solution_of(cells()["final-train"])), SpeedTask)


def test_starter_is_ready_to_be_timed() -> None:
    assert isinstance(judged("final.train", starters.starter_of(cells()["final-train"])), SpeedTask)


@pytest.mark.parametrize(("question", "code"), wrong_answers(*CHEAP))
def test_listed_mistake_loses_its_question(question: str, code: str) -> None:
    outcome = judged(question, code)
    assert isinstance(outcome, Result)
    assert outcome.status == "failed"
    assert outcome.message != "not answered yet"


@pytest.mark.parametrize(
    ("question", "blank"),
    [
        ("final.shard", "def shard(n, rank, world_size, epoch): raise NotImplementedError()"),
        ("final.average_gradients", "def average_gradients(model, images):\n    raise NotImplementedError()"),
        ("final.global_recipe", "def global_recipe(base, world_size): raise NotImplementedError()"),
        ("final.resume", "def resume(run, rank, world_size, ahead): raise NotImplementedError()"),
        ("final.claims", "claims = []"),
        ("final.quiz", "quiz = {}"),
    ],
)
def test_blank_is_told_as_not_answered(question: str, blank: str) -> None:
    outcome = judged(question, blank)
    assert isinstance(outcome, Result)
    assert (outcome.status, outcome.message) == ("failed", str(NotAnswered()))


def test_own_gradients_equal_one_big_batch_on_real_ranks() -> None:
    outcome = judged("final.average_gradients", cells()["final-average_gradients"])
    assert isinstance(outcome, Result)
    assert (outcome.status, outcome.message) == ("passed", "right")


ASKED = {
    "nothing is exchanged": "own gradient, a sum, or the mean",
    "summed, not averaged": "own gradient, a sum, or the mean",
    "shares count alike": "weight does the mean of a smaller share",
    "a rank without an image does not take part": "the same collective calls",
}


@pytest.mark.parametrize(
    "wrong", submission.find_check("final.average_gradients").wrong, ids=lambda wrong: wrong.mistake
)
def test_wrong_average_is_found_on_real_ranks_and_asked_about_its_cause(wrong: submission.WrongAnswer) -> None:
    outcome = judged("final.average_gradients", wrong.code)
    assert isinstance(outcome, Result)
    assert outcome.status == "failed"
    assert ASKED[wrong.mistake] in outcome.message


@pytest.fixture
def learns_best_near(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stands in for the real training: accuracy falls with the distance of the rate from the best one, as measured."""

    def predictions(data, recipe, world_size: int, seed: int, limit_s: float) -> np.ndarray:
        best = final_ranks.LEARNING_RATE * world_size
        steps = final_ranks.steps_of(6000, world_size)
        far = abs(np.log2(recipe["learning_rate"] / best)) + 4 * (recipe["warmup_steps"] > steps / 2)
        labels = known_labels()
        wrong = np.random.default_rng(seed).random(len(labels)) < 0.17 + 0.03 * far
        return np.where(wrong, (labels + 1) % 10, labels)

    monkeypatch.setattr(final_ranks, "predictions", predictions)


@cache
def known_labels() -> np.ndarray:
    from accelerando import datasets

    return datasets.fashion_mnist(embedded_only=True).test.labels


@pytest.mark.usefixtures("learns_best_near")
def test_recipe_is_judged_by_the_accuracy_that_it_keeps() -> None:
    own = judged("final.global_recipe", cells()["final-global_recipe"])
    assert isinstance(own, Result)
    assert (own.status, own.message) == ("passed", "right")
    for wrong in submission.find_check("final.global_recipe").wrong:
        outcome = judged("final.global_recipe", wrong.code)
        assert isinstance(outcome, Result)
        assert outcome.status == "failed", wrong.mistake


@pytest.mark.usefixtures("learns_best_near")
@pytest.mark.parametrize("factor", [256, 1, 0.25])
def test_lost_accuracy_is_asked_about_in_the_direction_that_helps(factor: float) -> None:
    rate = f'base["learning_rate"] * {factor} ** (n > 1)'
    outcome = judged(
        "final.global_recipe", f'def global_recipe(base, n): return {{"learning_rate": {rate}, "warmup_steps": 0}}'
    )
    assert isinstance(outcome, Result)
    assert outcome.status == "failed"
    assert ("does the training still converge" in outcome.message) == (factor > 4)
    assert ("what must each of them do" in outcome.message) == (factor <= 4)


@pytest.mark.parametrize(("lost", "status", "seeds"), [(0.0, "passed", 2), (0.08, "failed", 2), (0.03, "undecided", 4)])
def test_recipe_too_close_to_call_is_undecided_after_more_seeds(
    monkeypatch: pytest.MonkeyPatch, lost: float, status: str, seeds: int
) -> None:
    trained: list[int] = []

    def predictions(data, recipe, world_size: int, seed: int, limit_s: float) -> np.ndarray:
        trained.append(world_size)
        labels = known_labels()
        hardness = np.random.default_rng(5).random(len(labels))
        return np.where(hardness < 0.17 + lost * (world_size > 1), (labels + 1) % 10, labels)

    monkeypatch.setattr(final_ranks, "predictions", predictions)
    outcome = judged("final.global_recipe", cells()["final-global_recipe"])
    assert isinstance(outcome, Result)
    assert outcome.status == status
    assert trained == [1, final_ranks.WORLD_SIZE] * seeds


def test_training_that_does_not_end_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    from accelerando import ranks

    def predictions(*_, **__) -> np.ndarray:
        raise ranks.RanksFailed(SimpleNamespace(failed_rank=None, outputs=("",), reason="not finished after 150 s"))

    monkeypatch.setattr(final_ranks, "predictions", predictions)
    outcome = judged("final.global_recipe", cells()["final-global_recipe"])
    assert isinstance(outcome, Result)
    assert outcome.status == "not measurable here"


def resumed_by(old: str, new: str) -> Result:
    """How the course's own answer does with one change."""
    source = cells()["final-resume"]
    assert old in source
    outcome = judged("final.resume", source.replace(old, new))
    assert isinstance(outcome, Result)
    return outcome


def test_who_takes_which_image_of_a_step_is_the_learners_choice() -> None:
    blocks = "[::-1]\n    return np.array_split(whole, world_size)[rank].tolist()"
    changed = resumed_by(
        "return order[step * together : (step + 1) * together][rank::world_size]",
        f"whole = order[step * together : (step + 1) * together]{blocks}",
    )
    assert (changed.status, changed.message) == ("passed", "right")


@pytest.mark.parametrize(
    ("old", "new", "hint"),
    [
        ('run["step"] + ahead', "ahead", "from the front of epoch 0 again"),
        ('run["ranks"]', "world_size", "global batches of 6 images; before the failure they had 4"),
        ('run["epoch"] + epochs', 'run["epoch"]', "epoch 1 runs, and the images come in the order of epoch 0"),
        ('-(-run["images"] // together)', 'run["images"] // together', "the last 2 images of an epoch are passed over"),
        ("[rank::world_size]", "[: world_size - rank]", "came more than once in one step"),
        ("[rank::world_size]", "[rank::world_size][:1]", "1 of the step's 4 images are on no rank"),
        ("[rank::world_size]", "[:0]", "no rank takes an image"),
    ],
)
def test_mistake_after_a_failure_is_named_by_its_cause(old: str, new: str, hint: str) -> None:
    found = resumed_by(old, new)
    assert found.status == "failed"
    assert hint in found.message


def test_scores_in_half_precision_are_scores_and_what_is_no_array_is_told() -> None:
    import torch

    half = torch.arange(20.0).reshape(2, 10).bfloat16()
    assert np.array_equal(final.judge_scores(half, 2, 10), np.arange(20.0).reshape(2, 10))
    for odd in ([[1.0], [1.0, 2.0]], "scores", None, torch.zeros(2, 10, dtype=torch.complex64)):
        with pytest.raises(submission.Wrong, match="It should return an array of scores"):
            final.judge_scores(odd, 2, 10)


def test_ranks_that_do_not_report_are_not_taken_for_right(monkeypatch: pytest.MonkeyPatch) -> None:
    from accelerando.probes import final as probe

    for reports in ([[], [], []], [[{}], [{}], [{}]], [None] * 3):
        monkeypatch.setattr(probe, "average_gradients", lambda *_, reports=reports, **__: reports)
        outcome = judged("final.average_gradients", cells()["final-average_gradients"])
        assert isinstance(outcome, Result)
        assert (outcome.status, outcome.message) == (
            "failed", "In a run with equal shares, not every rank gave its gradients.",
        )  # fmt: skip


def test_training_that_takes_too_long_at_the_second_look_is_undecided(monkeypatch: pytest.MonkeyPatch) -> None:
    from accelerando import ranks

    asked: list[float] = []

    def predictions(data, recipe, world_size: int, seed: int, limit_s: float) -> np.ndarray:
        asked.append(limit_s)
        if len(asked) > 4:
            raise ranks.RanksFailed(SimpleNamespace(failed_rank=None, outputs=("",), reason="not finished"))
        labels = known_labels()
        hardness = np.random.default_rng(5).random(len(labels))
        return np.where(hardness < 0.17 + 0.03 * (world_size > 1), (labels + 1) % 10, labels)

    monkeypatch.setattr(final_ranks, "predictions", predictions)
    outcome = judged("final.global_recipe", cells()["final-global_recipe"])
    assert isinstance(outcome, Result)
    assert outcome.status == "undecided"
    assert all(limit_s <= final_recipe.LIMIT_S for limit_s in asked)
