"""How timed questions are decided, on a fake clock."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from accelerando import catalog, noise
from accelerando.grading import seeded, speed
from accelerando.grading.sandbox import TookTooLong
from accelerando.submission import LearnerCall, Result, SpeedTask, Ungradable, Wrong
from accelerando.workers import Experiment, ExperimentFailed

QUESTION = catalog.Question("tiny.quick", "Quickly", 4, threshold=1.5, margin=0.02, is_timed=True)
SLOW, FAST = LearnerCall("slow"), LearnerCall("fast")
LABELS = np.arange(2000) % 10


@dataclass
class FakeMachine:
    """Sides that take a stated time on a clock that stands still otherwise."""

    baseline_s: float = 2.0
    candidate_s: float = 1.0
    spread: float = 0.05
    accuracy: tuple[float, float] = (0.9, 0.9)
    others_fraction: float = 0.0
    now_s: float = 0.0
    runs: list[tuple[str, int]] = field(default_factory=list)

    @contextmanager
    def open_side(
        self, what: Experiment | LearnerCall, seeds: Sequence[int], submission: object
    ) -> Iterator[speed.Side]:
        place = 0 if what is SLOW else 1
        rng = np.random.default_rng(place)
        usual_s = (self.baseline_s, self.candidate_s)[place]
        waiting = list(seeds)

        def side(limit_s: float) -> speed.Run:
            seed = waiting.pop(0)
            self.runs.append(("baseline" if place == 0 else "candidate", seed))
            took_s = usual_s * float(np.exp(rng.normal(0, self.spread)))
            self.now_s += min(took_s, limit_s)
            if took_s > limit_s:
                raise speed.TooSlow
            right = np.random.default_rng(seed % 1000).random(LABELS.size) < self.accuracy[place]
            return speed.Run(took_s, np.where(right, LABELS, (LABELS + 1) % 10))

        yield side

    @contextmanager
    def watch(self) -> Iterator[noise.Watch]:
        watch = noise.Watch()
        yield watch
        watch.state = noise.MachineState(0.0, self.others_fraction, 1.0, False, None)

    def decide(self, seed: int = 0, labels: np.ndarray | None = LABELS, budget_s: float = 45.0) -> Result:
        return speed.run(
            SpeedTask(SLOW, FAST, labels),
            QUESTION,
            seed=seed,
            open_side=self.open_side,
            clock=lambda: self.now_s,
            watch=self.watch,
            budget_s=budget_s,
        )


def test_twice_as_fast_at_the_same_accuracy_passes() -> None:
    result = FakeMachine().decide()
    assert (result.status, result.points) == ("passed", 4)
    assert 1.7 < result.evidence["ratio"] < 2.3
    assert result.evidence["judged_at"] == pytest.approx(1.5 / 1.1)


def test_the_threshold_is_judged_a_tenth_below_what_is_announced() -> None:
    assert FakeMachine(candidate_s=2.0 / 1.45, spread=0.01).decide().status == "passed"
    assert FakeMachine(candidate_s=2.0 / 1.25, spread=0.01).decide().status == "failed"


def test_the_same_code_fails_with_the_figures_in_the_sentence() -> None:
    result = FakeMachine(candidate_s=2.0).decide()
    assert (result.status, result.points) == ("failed", 0)
    assert "wanted: 1.5" in result.message


def test_speed_bought_with_accuracy_fails() -> None:
    result = FakeMachine(candidate_s=0.5, accuracy=(0.9, 0.8)).decide()
    assert result.status == "failed"
    assert "Which of your changes costs it?" in result.message


def test_accuracy_alone_left_open_gets_more_comparisons_and_more_time() -> None:
    close = FakeMachine(baseline_s=5.0, candidate_s=2.0, accuracy=(0.9, 0.884))
    planned = int(45.0 / (1.7 * 5.0))
    result = close.decide()
    assert planned < result.evidence["pairs"] <= 2 * planned
    assert 1.2 * 45 < close.now_s < 1.5 * 45 + 7
    equal = FakeMachine(baseline_s=5.0, candidate_s=2.0)
    assert equal.decide().status == "passed"
    assert equal.now_s < 45


def test_speed_that_is_settled_stays_so_while_accuracy_is_looked_at() -> None:
    class SlowLater(FakeMachine):
        @contextmanager
        def open_side(self, what: object, seeds: Sequence[int], submission: object) -> Iterator[speed.Side]:
            with super().open_side(what, seeds, submission) as side:  # type: ignore[arg-type]

                def slower(limit_s: float) -> speed.Run:
                    found = side(limit_s)
                    return replace(found, seconds=20.0) if what is FAST and len(self.runs) > 14 else found

                yield slower

    found = SlowLater(baseline_s=5.0, candidate_s=2.0, accuracy=(0.9, 0.884), spread=0.01).decide()
    assert "2.50 times as fast" in found.message


def test_accuracy_lost_by_the_whole_margin_is_rarely_called_kept() -> None:
    found = [
        FakeMachine(baseline_s=5.0, candidate_s=2.0, accuracy=(0.9, 0.88)).decide(seed=seed).status
        for seed in range(40)
    ]
    assert found.count("passed") <= 4


def test_without_labels_only_speed_counts() -> None:
    assert FakeMachine(accuracy=(0.9, 0.1)).decide(labels=None).status == "passed"


def test_too_noisy_to_tell_is_undecided_and_costs_no_more_than_the_budget() -> None:
    machine = FakeMachine(baseline_s=4.0, candidate_s=4.0 / 1.4, spread=0.8)
    result = machine.decide()
    assert result.status == "undecided"
    speed_at, accuracy_at = result.message.index("fast enough is too close to call"), result.message.index("Accuracy")
    assert speed_at < accuracy_at  # nobody reads the doubt as one about accuracy
    assert result.message.endswith("grade again.")
    assert machine.now_s < 1.5 * 45


def test_a_machine_too_slow_for_enough_pairs_is_undecided_not_failed() -> None:
    machine = FakeMachine(baseline_s=60.0, candidate_s=60.0)
    result = machine.decide()
    assert result.status == "undecided"
    assert "too long to compare" in result.message
    assert machine.now_s < 70


def test_a_start_that_does_not_end_is_undecided() -> None:
    result = FakeMachine(baseline_s=1e6).decide()
    assert (result.status, "did not end within" in result.message) == ("undecided", True)


def test_a_slow_machine_gets_more_time_for_the_fewest_pairs() -> None:
    machine = FakeMachine(baseline_s=11.0, candidate_s=4.5)
    assert machine.decide().status == "passed"
    assert 45 < machine.now_s < 2 * 45


def test_no_one_fails_for_speed_on_a_busy_machine() -> None:
    state = noise.MachineState(0.0, 0.6, 5.0, False, None)
    slow = Result("tiny.quick", "failed", 0, 4, f"0.9 times as fast. {speed._BUSY}", {"is_slow": True})
    inaccurate = Result("tiny.quick", "failed", 0, 4, "accuracy lost", {})
    passed = Result("tiny.quick", "passed", 4, 4, "fast")
    assert [speed._excuse(r, state, "").status for r in (slow, inaccurate, passed)] == ["undecided", "failed", "passed"]
    told = "0.9 times as fast. Meanwhile other programs used 60% of this machine, so it does not count. Close"
    assert speed._excuse(slow, state, "").message.startswith(told)
    learners_call = FakeMachine(candidate_s=2.0, others_fraction=0.6).decide()
    assert (learners_call.status, "other programs used 60%" in learners_call.message) == ("undecided", True)
    calm = noise.MachineState(0.0, 0.01, 0.5, False, None)
    assert speed._excuse(slow, calm, "").status == "failed"


def test_an_endless_candidate_fails_by_a_limit_that_the_baseline_sets() -> None:
    machine = FakeMachine(baseline_s=1.0, candidate_s=1e9)
    result = machine.decide()
    assert result.status == "failed"
    assert "did not end within" in result.message
    assert machine.now_s < 30


def test_both_sides_of_a_pair_get_the_same_seed_and_the_order_is_drawn() -> None:
    machine = FakeMachine(spread=0.3)
    machine.decide()
    pairs = [machine.runs[i : i + 2] for i in range(1, len(machine.runs), 2)]  # the first run plans
    first = [pair[0][0] for pair in pairs]
    assert set(first) == {"baseline", "candidate"}
    baseline = [seed for side, seed in machine.runs if side == "baseline"]
    assert len(set(baseline)) == len(baseline)


def test_wrong_predictions_are_the_sides_own_fault() -> None:
    @contextlib.contextmanager
    def open_side(what: object, seeds: object, submission: object) -> Iterator[speed.Side]:
        predictions = LABELS if what is SLOW else LABELS[:10]
        yield lambda limit_s: speed.Run(1.0, predictions)

    task = SpeedTask(SLOW, FAST, LABELS)
    result = speed.run(task, QUESTION, seed=0, open_side=open_side, clock=lambda: 0.0)
    assert result.status == "failed"
    assert "shape (2000,)" in result.message


@pytest.mark.parametrize(("broken", "status"), [(SLOW, "ungradable"), (FAST, "failed")])
def test_the_courses_own_side_failing_is_never_the_learners_fault(broken: LearnerCall, status: str) -> None:
    machine = FakeMachine()

    @contextlib.contextmanager
    def open_side(what: LearnerCall, seeds: Sequence[int], submission: object) -> Iterator[speed.Side]:
        def fail(limit_s: float) -> speed.Run:
            raise ExperimentFailed("it died")

        with machine.open_side(what, seeds, submission) as side:
            yield fail if what is broken else side

    task = SpeedTask(SLOW, FAST, None)
    assert speed.run(task, QUESTION, seed=0, open_side=open_side, clock=lambda: machine.now_s).status == status


def test_a_learners_call_is_timed_from_outside_and_its_mistakes_are_told() -> None:
    class Calls:
        def call(self, function: str, **arguments: object) -> list[int]:
            if function == "fast":
                raise Wrong("`fast` took longer than 1 s.")
            return [1, 2, 3]

    result = speed.run(SpeedTask(SLOW, FAST), QUESTION, seed=0, submission=Calls())  # type: ignore[arg-type]
    assert (result.status, result.message) == ("failed", "`fast` took longer than 1 s.")
    with pytest.raises(Ungradable, match="no worker"):
        speed.run(SpeedTask(SLOW, FAST), QUESTION, seed=0)


@pytest.mark.parametrize(("others_fraction", "status"), [(0.0, "failed"), (0.6, "undecided")])
def test_a_call_that_takes_too_long_fails_unless_others_kept_the_machine_busy(
    others_fraction: float, status: str
) -> None:
    class Late:
        def call(self, function: str, **arguments: object) -> list[int]:
            raise TookTooLong("`fast` took longer than 4.15 s.")

    machine = FakeMachine(others_fraction=others_fraction)
    result = speed.run(SpeedTask(SLOW, FAST), QUESTION, seed=0, submission=Late(), watch=machine.watch)  # type: ignore[arg-type]
    assert result.status == status
    assert "took longer than 4.15 s" in result.message


def seconds_of(seed: int, cost_s: float) -> dict[str, float]:
    return {"seconds": cost_s, "seed": seed}


def test_an_experiment_runs_with_one_seed_after_the_other() -> None:
    run = seeded.prepare(f"{__name__}:seconds_of", {"cost_s": 2.0}, [5, 6])
    assert [run()["seed"] for _ in range(3)] == [5, 6, 5]


def prepare_once(cost_s: float) -> Callable[[int], dict[str, float]]:
    started = object()  # what is made once
    return lambda seed: {"seconds": cost_s, "seed": seed, "made": id(started)}


def test_an_experiment_that_prepares_is_made_once_and_gets_a_seed_for_each_run() -> None:
    run = seeded.prepare(f"{__name__}:prepare_once", {"cost_s": 2.0}, [5, 6], prepares=True)
    found = [run() for _ in range(3)]
    assert [row["seed"] for row in found] == [5, 6, 5]
    assert len({row["made"] for row in found}) == 1


def test_a_real_experiment_gives_its_own_seconds() -> None:
    fixed = Experiment("speed_targets:train", {"seconds": 0.25})
    with speed.open_side(fixed, [3, 4], None) as side:
        first, second = side(30.0), side(30.0)
    assert first.seconds == 0.25
    assert first.predictions is not None
    assert second.predictions is not None
    assert (first.predictions[0], second.predictions[0]) == (3, 4)


def test_a_real_experiment_that_takes_too_long_is_told_from_one_that_fails() -> None:
    with speed.open_side(Experiment("speed_targets:sleep"), [3], None) as side, pytest.raises(speed.TooSlow):
        side(0.3)
    with speed.open_side(Experiment("speed_targets:fail"), [3], None) as side, pytest.raises(ExperimentFailed):
        side(30.0)


class Answering:
    """A submission whose function returns the seed it was given."""

    def __init__(self) -> None:
        self.seeds: list[int] = []

    def call(self, function: str, *, seed: int, **arguments: object) -> object:
        self.seeds.append(seed)
        return [[seed], [1, 2]]  # unequal things: no array of predictions


def test_a_call_that_takes_a_seed_gets_another_in_every_run_and_is_looked_at() -> None:
    looked_at: list[tuple[object, int]] = []
    submission = Answering()
    call = LearnerCall("answer", takes_seed=True)
    task = SpeedTask(call, call, examine=lambda value, seed: looked_at.append((value, seed)))
    result = speed.run(task, QUESTION, seed=0, submission=submission, watch=FakeMachine().watch, budget_s=0.01)  # type: ignore[arg-type]
    assert result.status in ("failed", "undecided"), result.message
    assert len(looked_at) == result.evidence["pairs"]
    assert all(value == [[seed], [1, 2]] for value, seed in looked_at)
    assert len({seed for _, seed in looked_at}) == len(looked_at)


def test_a_timed_call_that_returned_no_answer_fails_with_its_sentence() -> None:
    def refuse(value: object, seed: int) -> None:
        raise Wrong("That is no epoch.")

    task = SpeedTask(LearnerCall("a", takes_seed=True), LearnerCall("b", takes_seed=True), examine=refuse)
    result = speed.run(task, QUESTION, seed=0, submission=Answering(), watch=FakeMachine().watch)  # type: ignore[arg-type]
    assert (result.status, result.message) == ("failed", "That is no epoch.")
