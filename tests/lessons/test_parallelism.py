"""Lesson 7: schedules and predictions agree with their formulas, and real ranks do what the lesson says of them."""

import itertools
import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from accelerando import cluster, collectives, costs, ranks, strategies
from accelerando.figures import parallelism as pictures
from accelerando.lessons import BUDGETS
from accelerando.lessons.parallelism import batches, on_replicas, on_shards, on_wires, replicas, shards, wires
from accelerando.widgets import parallelism as explorers

SMOKE = BUDGETS["smoke"]
LIMIT_S = 240.0  # of a machine that has much else to do
LINK = costs.Link(1e-3, 1e8)


# -- schedules --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", collectives.ALGORITHMS)
def test_every_schedule_leaves_every_rank_with_every_contribution_once(algorithm: str) -> None:
    for count in range(1, 12):
        schedule = collectives.ALGORITHMS[algorithm](count)
        last = schedule.follow()[-1]  # raises where something is added twice
        assert all(piece == frozenset(range(count)) for row in last for piece in row)


def test_schedules_cost_what_the_formulas_say() -> None:
    formulas = {
        "naive": costs.predict_naive_all_reduce_s,
        "ring": costs.predict_ring_all_reduce_s,
        "tree": costs.predict_tree_all_reduce_s,
    }
    for (name, formula), count, size in itertools.product(formulas.items(), (1, 2, 3, 4, 7, 8), (0, 1000, 10**8)):
        schedule = collectives.ALGORITHMS[name](count)
        overlapped_s = 2 * max(0, count - 2) * LINK.latency_s if name == "naive" else 0.0  # all send to rank 0 at once
        assert schedule.predict_s(size, LINK) == pytest.approx(formula(size, count, LINK) + overlapped_s)


def test_the_naive_way_waits_for_two_latencies_and_moves_every_message_through_one_link() -> None:
    predict = costs.predict_naive_all_reduce_s
    assert [predict(0, count, LINK) for count in (1, 2, 8)] == pytest.approx([0, 2e-3, 2e-3])
    assert predict(10**8, 8, LINK) == pytest.approx(2e-3 + 14)


def test_in_a_ring_all_ranks_send_the_same_and_a_naive_root_sends_most() -> None:
    assert set(collectives.ring(5).sent_bytes(1000)) == {costs.ring_all_reduce_sent_bytes(1000, 5)}
    assert collectives.naive(5).sent_bytes(1000) == (4000, 1000, 1000, 1000, 1000)


def test_a_contribution_that_is_added_twice_is_found() -> None:
    twice = (collectives.Transfer(0, 1, 0, True),)
    with pytest.raises(ValueError, match="second time"):
        collectives.Schedule("wrong", 2, 1, (twice, twice)).follow()


@pytest.mark.parametrize("count", [0, 65, 2.0, True])
def test_a_number_of_ranks_that_cannot_be_is_refused(count: object) -> None:
    with pytest.raises(ValueError, match="ranks is"):
        collectives.ring(count)  # type: ignore[arg-type]


# -- strategies -------------------------------------------------------------------------------------------------------


STACK = strategies.Stack(parameters=1e6, blocks=4, boundary_bytes=1e4, inner_bytes=4e4)


def test_one_rank_holds_the_same_whatever_the_strategy_and_sends_nothing() -> None:
    assert len({strategies.predict_memory(name, STACK, 1).total for name in strategies.NAMES}) == 1
    assert {strategies.predict_sent_bytes(name, STACK, 1) for name in strategies.NAMES} == {0}


def test_data_parallelism_shares_activations_only_and_full_sharding_shares_everything() -> None:
    one, data, full = (
        strategies.predict_memory(name, STACK, n) for name, n in (("data", 1), ("data", 8), ("fully sharded", 8))
    )
    assert replace(data, activations=one.activations) == one
    assert full.total == pytest.approx(one.total / 8)


def test_mixed_precision_with_adam_needs_sixteen_bytes_for_a_parameter() -> None:
    states = replace(STACK, boundary_bytes=0, inner_bytes=0)
    found = strategies.predict_memory("data", states, 4, precision="bf16 + fp32 copy")
    assert found.total == 16 * STACK.parameters
    assert found.optimizer == 12 * STACK.parameters


def test_what_is_sent_depends_on_the_model_or_on_the_batch() -> None:
    twice = replace(STACK, boundary_bytes=2 * STACK.boundary_bytes)
    grown = {
        n: strategies.predict_sent_bytes(n, twice, 4) / strategies.predict_sent_bytes(n, STACK, 4)
        for n in strategies.NAMES
    }
    assert grown == {"data": 1, "optimizer sharded": 1, "fully sharded": 1, "tensor": 2, "pipeline": 2}


@pytest.mark.parametrize("change", [{"strategy": "magic"}, {"optimizer": "Lion"}, {"precision": "int4"}, {"ranks": 0}])
def test_unknown_names_are_refused_with_those_that_exist(change: dict) -> None:
    arguments = {"strategy": "data", "ranks": 2, "optimizer": "Adam", "precision": "fp32", **change}
    with pytest.raises(ValueError, match=r"say one of|at least 1"):
        strategies.predict_memory(arguments.pop("strategy"), STACK, arguments.pop("ranks"), **arguments)


# -- batches ----------------------------------------------------------------------------------------------------------


def test_the_noise_scale_of_known_noise_is_found() -> None:
    draw = np.random.default_rng(0)
    mean = draw.normal(size=400) * 0.1
    per_image = 2.0  # standard deviation of every entry
    gradients = mean + draw.normal(size=(600, 400)) * per_image / math.sqrt(16)
    expected = 400 * per_image**2 / float((mean**2).sum())
    assert batches.noise_of(gradients, 16) == pytest.approx(expected, rel=0.15)


def test_gradients_without_a_common_part_have_no_finite_noise_scale() -> None:
    draw = np.random.default_rng(1)
    found = [batches.noise_of(draw.normal(size=(10, 50)), 4) for _ in range(20)]
    assert any(math.isinf(scale) for scale in found)
    assert min(found) > 50


def test_an_image_is_worth_half_at_the_noise_scale() -> None:
    assert batches.predict_worth(300, 300) == 0.5
    assert batches.predict_worth(1, 1e9) == pytest.approx(1)


def sweep(*accuracies: float) -> batches.BatchSweep:
    points = [batches.BatchPoint(16 * 4**n, 0.01, 750 // 4**n, a, 0.005) for n, a in enumerate(accuracies)]
    return batches.BatchSweep(tuple(points), 3, 200.0)


def test_the_sweep_says_what_was_lost_or_that_the_belief_survives() -> None:
    assert "belief survives" in sweep(0.80, 0.81, 0.80).sentence()
    assert "**20.0 points**" in sweep(0.80, 0.795, 0.60).sentence()
    assert "Up to batch 64 no loss can be told from chance (0.5 ± 1.4 points)" in sweep(0.80, 0.795, 0.60).sentence()
    assert "beyond what could be seen" in replace(sweep(0.8, 0.6), noise_images=math.inf).sentence()


def test_the_sweep_says_what_the_noise_scale_and_the_highest_rate_have_to_do_with_it() -> None:
    found = sweep(0.80, 0.795, 0.65, 0.60)
    assert "batch 256, the one next to it, lost 15.0 points" in found.sentence()
    assert "| 1,024 | 0.01 (capped) | 11 | 60.0% | 20.0 ± 1.4 |" in found.table()
    assert "| 16 | 0.01 | 750 | 80.0% | 0.0 |" in found.table()
    assert "batch 64 (0.04), 256 (0.16), 1,024 (0.64)" in found.sentence()
    points = [replace(point, learning_rate=point.asked_rate) for point in found.points]
    assert "held there" not in replace(found, points=tuple(points)).sentence()


def test_noise_and_sweep_run_on_a_few_images() -> None:
    story = batches.measure_noise(SMOKE)
    assert story.early.images > 0
    assert story.sentence()
    found = batches.sweep_batches(SMOKE, story.late.images)
    assert found.sentence()
    worth = {"now": [batches.predict_worth(size, 100.0) for size in batches.BATCHES]}
    reached = [(point.batch_size, point.accuracy, point.accuracy_error) for point in found.points]
    assert pictures.worth_and_accuracy(batches.BATCHES, worth, reached, 100.0).png


# -- on real ranks ----------------------------------------------------------------------------------------------------


def test_all_reduce_by_hand_gives_the_sum_on_three_real_ranks() -> None:
    payload = {"sizes_bytes": list(wires.SIZES_BYTES), "repeats": 1}
    values = ranks.run(wires.TIME, 3, payload=payload, time_limit_s=LIMIT_S).values
    assert all(value["is_right"] for value in values)
    link = costs.Link(values[0]["latency_s"], values[0]["bandwidth_bytes_per_s"])
    found = wires.read_times("three ranks", link, 3, values, is_shaped=False)
    assert set(found.measured_s) == {*collectives.ALGORITHMS, wires.OWN} == set(values[0]["seconds"])
    assert found.sentence().startswith("three ranks: 2.1 MB took")
    doubled = replace(found, measured_s={n: tuple(2 * t for t in times) for n, times in found.predicted_s.items()})
    assert doubled.sentence().count("measured: 2.0 times as long)") == 2


def test_every_collective_moves_what_it_has_to() -> None:
    values = ranks.run(wires.COUNT, 3, payload={"message_bytes": 3 * 2**16}, time_limit_s=LIMIT_S).values
    assert all(value["is_right"] for value in values)
    found = wires.read_counts(3 * 2**16, [value["sent"] for value in values])
    assert set(found.sent_bytes) | set(found.refused) == set(wires.AFTERWARDS)
    for name, sent in found.sent_bytes.items():
        needed = wires.predict_moved_bytes(name, 3 * 2**16, 3)
        assert sum(sent) >= 0.99 * needed, name
        assert sum(sent) < 2.1 * needed + 5000, name
    assert sum(found.sent_bytes["all-reduce"]) == pytest.approx(4 * 3 * 2**16, rel=0.05)


def test_the_ways_to_ddp_are_right_or_wrong_as_the_lesson_says() -> None:
    values = ranks.run(replicas.TELL, 2, payload={"rounds": 1, "steps": 1}, time_limit_s=LIMIT_S).values
    story = replicas.read_story(values)
    wrong = {name for name, way in story.ways.items() if not way.is_right}
    assert wrong == {replicas.SILENT, "average from different starts", replicas.INNER}
    assert story.ways[replicas.INNER].sent_bytes < 1e5
    assert story.ways[replicas.DDP].sent_bytes == pytest.approx(4 * story.parameters, rel=0.2)
    always, seldom = story.accumulation["every time"], story.accumulation["no_sync"]
    assert always["sent_bytes"] / seldom["sent_bytes"] == pytest.approx(4, rel=0.1)
    half = story.accumulation["no_sync around backward only"]
    assert half["sent_bytes"] == pytest.approx(always["sent_bytes"], rel=0.1)
    assert max(always["error"], seldom["error"]) < 1e-3
    assert all(sum(sizes) == 4 * story.parameters for sizes in story.buckets.values())
    assert len(story.buckets["0.5"]) > len(story.buckets["25"])
    assert story.buckets[replicas.LEFT_OUT][0] < story.buckets["25"][0]  # 25 as well, but the first one is small
    assert "`bucket_cap_mb` left out" in story.bucket_sentence()
    assert "Expected to have finished reduction" in story.unused["as it is"]
    assert story.unused["find_unused_parameters=True"] == "two steps went well"
    assert story.joined_steps == (4, 2)
    assert story.joined_apart < 1e-6
    assert "imed out" in story.waited
    for text in (
        story.table(),
        story.right_sentence(),
        story.bucket_sentence(),
        story.accumulation_sentence(),
        story.uneven_sentence(),
    ):
        assert text != replicas.NOT_RUN
    assert replicas.ALONE in story.milliseconds()


def test_every_strategy_learns_the_same_and_holds_what_was_predicted() -> None:
    story = shards.read_story(list(ranks.run(shards.TELL, 2, time_limit_s=LIMIT_S).values))
    assert {name: one.error for name, one in story.dealt.items()} == dict.fromkeys(strategies.NAMES, "")
    for name, one in story.dealt.items():
        assert one.memory is not None
        assert one.memory.total == pytest.approx(one.predicted.total, rel=0.02), name
        assert one.loss_error is not None
        assert one.loss_error < 1e-4, name
        assert one.sent_bytes is None or 0.95 < one.sent_bytes / one.predicted_sent_bytes < 2.1, name
    assert "Least: **fully sharded and pipeline**" in story.sentence()
    assert story.table().count("\n") == 1 + len(strategies.NAMES)


def test_the_lesson_and_its_ranks_speak_of_the_same_model() -> None:
    assert sum(p.numel() for p in on_shards.stack().parameters()) == shards.STACK.parameters
    assert on_shards.batch()[0].nbytes == shards.STACK.boundary_bytes
    assert {replicas.ALONE, replicas.SILENT} == {on_replicas.ALONE, on_replicas.SILENT}
    assert replicas.LEFT_OUT == on_replicas.LEFT_OUT
    assert {replicas.SILENT, replicas.DDP, replicas.INNER} <= set(on_replicas.WAYS)
    assert wires.OWN == on_wires.OWN


# -- smoke, sentences, pictures ---------------------------------------------------------------------------------------


def test_smoke_starts_no_process_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a process was started")

    monkeypatch.setattr(ranks, "run", refuse)
    monkeypatch.setattr(cluster, "up", refuse)
    assert "smoke" in wires.count_collectives(SMOKE).sentence()
    assert "Predicted only" in wires.measure_all_reduce(SMOKE).sentence()
    assert "Predicted only" in shards.measure_shards(SMOKE).sentence()
    story = replicas.measure_replicas(SMOKE)
    for text in (
        story.table(),
        story.right_sentence(),
        story.speed_sentence(),
        story.bucket_sentence(),
        story.uneven_sentence(),
    ):
        assert text == replicas.NOT_RUN
    assert math.isnan(story.speedup)
    assert pictures.step_times(story.milliseconds(), "nothing").png


def test_without_a_shaped_link_the_sentence_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise cluster.ClusterError("no namespaces here")

    seconds = {name: [[0.001, 0.002], [0.1, 0.2]] for name in (*collectives.ALGORITHMS, wires.OWN)}
    told = {"latency_s": 1e-4, "bandwidth_bytes_per_s": 1e9, "is_right": True, "seconds": seconds}
    monkeypatch.setattr(cluster, "up", refuse)
    monkeypatch.setattr(ranks, "run", lambda *_, **__: SimpleNamespace(values=[told] * 4))
    found = wires.measure_all_reduce(BUDGETS["quick"])
    assert not found.is_shaped
    assert "no namespaces here" in found.where
    assert found.link == costs.Link(1e-4, 1e9)
    assert found.predicted_s["naive"][0] == pytest.approx(2 * 1e-4 + 6 * 64 / 1e9)
    assert found.rows_s(1)["tree"][1:] == (pytest.approx(0.15), (pytest.approx(0.1), pytest.approx(0.2)))
    assert pictures.predicted_and_measured({"2 MB": found.rows_s(1)}).png


def raced(**short_s: tuple[float, float, float]) -> str:
    """What is said of three repeats for each algorithm with 64 bytes."""
    seconds = {name: [[*short_s.get(name, (0.004, 0.004, 0.004))], [0.1, 0.1, 0.1]] for name in collectives.ALGORITHMS}
    told = {"seconds": seconds | {wires.OWN: [[0.004] * 3, [0.05] * 3]}}
    return wires.read_times("here", costs.Link(1e-4, 1e9), 4, [told] * 4, is_shaped=True).sentence()


def test_algorithms_are_ranked_only_where_their_intervals_lie_apart() -> None:
    tree = (0.0012, 0.0014, 0.0016)
    assert "of 64 bytes: **tree**, where naive was predicted" in raced(tree=tree)
    assert "of 64 bytes: **tree** and **naive**, too close to call; naive" in raced(tree=tree, naive=(0.0015,) * 3)
    assert "Fastest of 2.1 MB: **gloo's own**; of 64 bytes: **naive**, as predicted." in raced(naive=(0.001,) * 3)


def told(**seconds: float) -> replicas.ReplicaStory:
    names = {
        "silent": replicas.SILENT,
        "each": "average each gradient",
        "flat": "average in one message",
        "hooks": "average while backward runs",
        "ddp": replicas.DDP,
    }
    ways = {names[key]: replicas.Way(0, 0, 10, s, (s, math.inf)) for key, s in seconds.items()}
    return replicas.ReplicaStory(parameters=10, ways=ways, alone_s=0.1)


def test_the_speed_sentence_fits_whatever_came_out() -> None:
    slow = told(silent=0.05, each=0.09, flat=0.085, hooks=0.09, ddp=0.08).speed_sentence()
    assert "**1.25 times** as fast, not 2" in slow
    assert "talking costs 38%" in slow
    assert "overlap saved nothing here" in slow
    fast = told(silent=0.05, each=0.05, flat=0.05, hooks=0.04, ddp=0.05).speed_sentence()
    assert "belief survives" in fast
    assert "cost nothing that can be seen" in fast
    assert "overlap saved 20%" in fast


def test_a_speedup_has_an_interval_and_overlap_is_only_praised_where_intervals_lie_apart() -> None:
    story = told(silent=0.05, each=0.09, flat=0.085, hooks=0.09, ddp=0.08)
    assert "too close to one message for all to call" in story.speed_sentence()

    def sharp(ddp_s: float) -> replicas.ReplicaStory:
        ways = {
            name: replace(way, interval_s=(way.step_s or 0.0, way.step_s or 0.0)) for name, way in story.ways.items()
        }
        ways[replicas.DDP] = replace(ways[replicas.DDP], step_s=ddp_s, interval_s=(ddp_s, ddp_s))
        return replace(story, ways=ways, alone_interval_s=(0.09, 0.11), speedup_interval=(1.2, 1.3))

    assert "6% less than one message for all" in sharp(0.08).speed_sentence()
    assert "**1.25 times** (1.20 to 1.30) as fast, not 2" in sharp(0.08).speed_sentence()
    assert "6% more than one message for all" in sharp(0.09).speed_sentence()
    assert sharp(0.08).milliseconds()[replicas.ALONE] == pytest.approx((100, 90, 110))


def test_a_step_is_predicted_from_its_work_and_its_message() -> None:
    link = costs.Link(0.0, 1e8)
    assert replicas.predict_step_s(1.0, 1, 10**8, link) == 1.0
    assert replicas.predict_step_s(1.0, 2, 10**8, link) == pytest.approx(0.5 + 1.0)


def test_what_gloo_refuses_or_wastes_is_told() -> None:
    sent = [{"broadcast": 300, "reduce": 900, "all-reduce": 150, "scatter": "not supported"} for _ in range(4)]
    found = wires.read_counts(400, sent)
    assert "not supported" in found.table()
    assert found.sentence().startswith("Most was moved for **reduce**, 3.6 KB. ")
    assert "more is moved for reduce (reduce: 3.0 times as much)" in found.sentence()
    with pytest.raises(ValueError, match="no collective"):
        wires.predict_moved_bytes("gossip", 1, 2)


def test_a_strategy_that_does_not_run_is_named() -> None:
    row = {"parameters": 1, "gradients": 1, "optimizer": 1, "activations": 1, "sent_bytes": None, "loss": 1.0}
    values = [{name: dict(row) for name in ("alone", *strategies.NAMES)} for _ in range(2)]
    values[1]["tensor"] = {"error": "RuntimeError: not today"}
    story = shards.read_story(values)
    assert story.dealt["tensor"].error == "RuntimeError: not today"
    assert "Not running with this version here: tensor" in story.sentence()


def test_explorers_show_a_picture_without_a_kernel_and_follow_their_sliders() -> None:
    for shown in (explorers.all_reduce_explorer(), explorers.memory_explorer()):
        assert shown._repr_mimebundle_()["image/png"].startswith(b"\x89PNG")
        assert len(shown.words) > 30
    widget = explorers.all_reduce_explorer().widget
    (chosen, count), (_, place) = (row.children for row in widget.children[:2])
    chosen.value, count.value = "tree", 8
    assert place.max == 6
    assert "6 steps" in widget.children[2].value


def test_the_calculator_says_what_fits() -> None:
    words = explorers.memory_words(7e9, 8, "Adam", "bf16 + fp32 copy", 80)
    assert "data," not in words.split(".")[0]
    assert "fully sharded" in words.split(".")[0]
    assert "none" in explorers.memory_words(70e9, 1, "Adam", "fp32", 8)
    assert "data 24.5 GB, optimizer sharded 36.8 GB" in words
    assert "ZeRO 1 itself need not send more than data" in words


def test_the_picture_of_a_step_says_who_sends_what() -> None:
    shown = pictures.all_reduce_step(collectives.ring(3), 1)
    assert "rank 1 sends for adding to 2 piece 1" in shown.words
    assert torch.frombuffer(bytearray(shown.png[:4]), dtype=torch.uint8).tolist() == [0x89, 0x50, 0x4E, 0x47]
