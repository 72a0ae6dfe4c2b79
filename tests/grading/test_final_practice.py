"""A trial in the learner's notebook: starter and own cell in turn, on tasks that are practice and never a session's."""

import contextlib
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_final
from fake_sides import FakeSides, tasks

from accelerando import noise
from accelerando.catalog import Lesson
from accelerando.grading import assess, final_task, practice
from accelerando.grading.notebooks import Unreadable
from accelerando.grading.sides import FinalSubmission
from accelerando.grading.trainer import SandboxTrainer, SideFailed, TooSlow, Trained
from accelerando.noise import MachineState

USUAL = {"starter": 9.0, "submission": 3.0}


def tried(sides: FakeSides, **options) -> practice.Trial:
    def make_trainer(cells, masked):
        return sides

    own = options.pop("own", "pass")
    return practice.try_final(own, make_tasks=lambda seed, **sizes: tasks(), make_trainer=make_trainer, **options)


@pytest.fixture(autouse=True)
def lanes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Whatever this machine is doing meanwhile, and whoever else is being graded on it."""
    asked: list[str] = []
    monkeypatch.setattr(noise, "compare_readings", lambda *_: MachineState(0.0, 0.9, 1.0, False, None))
    monkeypatch.setattr(practice, "lane", lambda mode, on_wait: contextlib.nullcontext(asked.append(mode)))
    return asked


def test_both_sides_are_trained_in_each_round_on_both_tasks_with_images_in_a_new_order(lanes: list[str]) -> None:
    sides = FakeSides(USUAL)
    found = tried(sides, rounds=3)
    runs = [(side, task) for side, task, _ in sides.asked]
    pairs = list(zip(runs[::2], runs[1::2], strict=True))
    assert [{task for _, task in pair} for pair in pairs] == [{"real"}, {"rule"}] * 3
    assert all({side for side, _ in pair} == {"starter", "submission"} for pair in pairs)
    assert sides.orders[::2] == sides.orders[1::2]
    assert len(set(sides.orders)) == len(pairs)
    assert [interval.pairs for interval in found.intervals.values()] == [3, 3]
    assert lanes == ["exclusive"]


def test_the_slower_task_counts_and_its_interval_holds_the_truth() -> None:
    found = tried(FakeSides({**USUAL, "submission/rule": 4.5}))
    assert found.ratio == found.intervals["rule"].ratio == pytest.approx(2.0, rel=0.05)
    assert found.intervals["rule"].low < 2.0 < found.intervals["rule"].high
    assert found.intervals["real"].low < 3.0 < found.intervals["real"].high
    assert f"what counts is the slower one: {found.ratio:.2f} times as fast" in str(found)


def test_accuracy_is_set_beside_the_starters() -> None:
    found = tried(FakeSides(USUAL, {"submission/rule": 0.75}))
    assert found.accuracy["rule"].difference == pytest.approx(-0.1, abs=0.01)
    assert found.accuracy["rule"].verdict == "lost"
    assert re.search(r"^true labels: .* accuracy [+-]0\.\d points", str(found), re.MULTILINE)
    assert re.search(r"^practice rule: .* accuracy -(9|10)\.\d points", str(found), re.MULTILINE)


@pytest.mark.parametrize(("jitter", "is_restless"), [(0.0, False), (0.6, True)])
def test_a_restless_machine_is_told_and_widens_the_interval(jitter: float, is_restless: bool) -> None:
    found = tried(FakeSides(USUAL, jitter=jitter))
    assert ("close other programs" in str(found)) == is_restless
    width = math.log(found.intervals["real"].high / found.intervals["real"].low)
    assert (width > 1) == is_restless


def test_what_is_known_to_have_disturbed_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(noise, "compare_readings", lambda *_: MachineState(0.3, 0.9, 1.0, False, None))
    told = str(tried(FakeSides(USUAL, jitter=0.0)))
    assert "the hypervisor took 30% of the CPU time" in told
    assert "other processes" not in told


def test_a_cell_that_gives_no_time_is_told_and_ends_the_trial() -> None:
    sides = FakeSides(USUAL, failures={"submission": SideFailed("`train` is not answered yet")})
    found = tried(sides)
    assert str(found) == "your cell gave no time: `train` is not answered yet"
    assert len(sides.asked) <= 2
    assert math.isnan(found.ratio)
    busy = str(tried(FakeSides(USUAL, failures={"starter": TooSlow("did not end")})))
    assert busy == "the starter gave no time: did not end. Close other programs and run it again."


@pytest.mark.parametrize("options", [{"images": 1005}, {"images": 10}, {"images": 12_010}, {"rounds": 1}, {"draw": -1}])
def test_numbers_out_of_range_are_refused(options: dict) -> None:
    with pytest.raises(ValueError, match=r"must be|are needed"):
        tried(FakeSides(USUAL), **options)


def test_cell_is_found_by_the_function_that_was_defined_in_it() -> None:
    import linecache

    names: dict = {}
    source = "RATE = 2\n\ndef train(images, labels, budget_s):\n    return RATE\n"
    linecache.cache["<cell>"] = (len(source), None, source.splitlines(keepends=True), "<cell>")
    exec(compile(source, "<cell>", "exec"), names)
    given: dict[str, Sequence] = {}

    def make_trainer(cells: Mapping[str, Sequence], masked: Sequence[str]) -> FakeSides:
        given.update(cells, masked=masked)
        return FakeSides(USUAL)

    practice.try_final(names["train"], make_tasks=lambda seed, **sizes: tasks(), make_trainer=make_trainer)
    assert given["submission"][-1].source == source
    assert given["starter"][-1].source == practice.starter()
    assert "accelerando.datasets" in given["masked"]
    with pytest.raises(ValueError, match="text cannot be found"):
        practice.try_final(len)


def test_practice_tasks_are_like_a_sessions_and_never_one_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def make_tasks(seed: int, **sizes: int):
        asked.append((seed, sizes))
        return tasks()

    for draw in (0, 3):
        practice.try_final("", draw=draw, make_tasks=make_tasks, make_trainer=lambda cells, masked: FakeSides(USUAL))
    assert [sizes for _, sizes in asked] == [{"train_images": 4000, "held_out_images": 3330}] * 2
    drawn: list[int] = []
    monkeypatch.setattr(assess.secrets, "randbits", lambda bits: drawn.append(2**bits - 1) or drawn[-1])
    with pytest.raises(ValueError, match="none"):
        assess.assess(Path("none.ipynb"), read=_unreadable)
    assert max(drawn) < min(seed for seed, _ in asked)
    assert len({seed for seed, _ in asked}) == 2
    one, other = (final_task.make_task("rule", seed, train_images=700, held_out_images=300) for seed, _ in asked)
    assert not np.array_equal(one.train.labels, other.train.labels)


def _unreadable(path: Path, lesson: Lesson) -> FinalSubmission:
    raise Unreadable(f"{path}: none")


def test_the_cell_really_runs_in_its_sandbox_by_the_graders_clock() -> None:
    class StarterByDecree(SandboxTrainer):
        def __call__(self, side: str, task: final_task.Task, order: np.ndarray, limit_s: float) -> Trained:
            if side == "submission":
                return super().__call__(side, task, order, limit_s)
            return Trained(tiny_final.STARTER_S, np.eye(10, dtype=np.float32)[task.held_out.labels])

    made: dict[str, Any] = {"make_tasks": lambda seed, **sizes: tiny_final.tasks(seed), "make_trainer": StarterByDecree}
    found = practice.try_final(tiny_final.HONEST, **made)
    assert not found.failure
    assert found.ratio > 0
    assert [verdict.runs for verdict in found.accuracy.values()] == [(2, 2)] * 2
    failure = practice.try_final(f"from accelerando.grading import practice\n{tiny_final.HONEST}", **made).failure
    assert "cell yours" in failure
    assert "ModuleNotFoundError" in failure


def test_starter_can_be_changed_as_the_notebook_says() -> None:
    text = (Path(__file__).parents[2] / "solutions/final/final.ipynb").read_text(encoding="utf-8").replace('\\"', '"')
    change = re.search(r'starter\(\)\.replace\("(.+?)", "(.+?)"\)', text)
    assert change
    assert practice.starter().count(change[1]) == 1
    assert change[2] not in practice.starter()
