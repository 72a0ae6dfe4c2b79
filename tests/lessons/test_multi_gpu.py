"""Lesson 9: what is read and predicted holds on its own; what is measured is told whichever way it came."""

import importlib.util
import itertools
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from torch import nn

from accelerando import collectives, costs, lessons, programs, ranks, readers
from accelerando.figures import multi_gpu as pictures
from accelerando.lessons.multi_gpu import (
    imitation,
    lab,
    layers,
    logs,
    norms,
    overlap,
    placement,
    rings,
    rules,
    topologies,
    wires,
)
from accelerando.widgets import multi_gpu as explorers

LINK = costs.Link(5e-6, 25e9)
QUICK, SMOKE = lessons.BUDGETS["quick"], lessons.BUDGETS["smoke"]


# -- wires and topologies ---------------------------------------------------------------------------------------------


def test_pcie_speed_is_transfers_times_lanes_less_the_line_code() -> None:
    assert wires.predict_pcie_bytes_per_s(3) == pytest.approx(15.75e9, rel=1e-3)
    assert wires.predict_pcie_bytes_per_s(5, 8) == pytest.approx(2 * wires.predict_pcie_bytes_per_s(3))
    with pytest.raises(ValueError, match="generation is 6"):
        wires.predict_pcie_bytes_per_s(6)


def test_a_faster_wire_takes_less_time_in_the_table() -> None:
    rows = [row.split("|") for row in wires.table().splitlines()[2:]]
    times = [float(row[3].replace("ms", "")) for row in rows]
    assert times == sorted(times, reverse=True)
    assert len(rows) == len(wires.WIRES)


@pytest.mark.parametrize("name", ["NV0x", "", "PCI"])
def test_an_unknown_link_is_refused_with_the_known_ones(name: str) -> None:
    with pytest.raises((ValueError, KeyError)):
        wires.hop(name, "V100")


@pytest.mark.parametrize("machine", topologies.MACHINES)
def test_no_ring_has_a_faster_slowest_hop_than_the_one_shown(machine: str) -> None:
    found = topologies.read(topologies.text(machine))
    assert found.ring is not None
    gpu = topologies.MACHINES[machine][1]

    def pace(order: tuple[int, ...]) -> float:
        return min(wires.hop(name, gpu).bandwidth_bytes_per_s for name in found.hops(order))

    every: Iterator[tuple[int, ...]] = itertools.permutations(range(1, found.gpus))
    best = max(pace((0, *rest)) for rest in itertools.islice(every, 5040))
    assert pace(found.ring) == best
    assert found.slowest in found.hops(found.ring)


def test_the_slowest_hop_sets_the_time_of_a_ring() -> None:
    square = topologies.read(topologies.text("4 x V100, a square"))
    fast = topologies.predict_ring_s(square, (0, 2, 1, 3), 1e8, "V100")
    slow = topologies.predict_ring_s(square, (0, 1, 2, 3), 1e8, "V100")
    assert slow / fast == pytest.approx(40 / 12, rel=0.01)


def test_equal_links_give_the_price_of_the_schedule() -> None:
    for make in collectives.ALGORITHMS.values():
        schedule = make(4)
        links = {(a, b): LINK for a in range(4) for b in range(4) if a != b}
        assert topologies.predict_paced_s(schedule, 1e6, links) == pytest.approx(schedule.predict_s(1e6, LINK))


def test_matrix_and_xml_of_one_machine_agree() -> None:
    assert "the same as the matrix" in topologies.read_xml()
    assert "NOT" not in topologies.read_xml()


def test_a_sentence_for_machines_of_every_kind() -> None:
    said = {machine: topologies.read(text).sentence() for machine, text in topologies.texts().items()}
    assert "one island" in said["8 x H100, NVSwitch"]
    assert "without NVLink" in said["8 GPUs, PCIe only"]
    assert "2 islands" in said["8 x V100, cube mesh"]
    assert "(in the order of their numbers it would be SYS)" in said["8 x V100, cube mesh"]
    lonely = "\tGPU0\tGPU1\tGPU2\nGPU0\t X \tNV4\tSYS\nGPU1\tNV4\t X \tSYS\nGPU2\tSYS\tSYS\t X \n"
    assert "1 alone" in topologies.read(lonely).sentence()


def test_a_cut_matrix_has_no_ring_and_says_so() -> None:
    cut = "\tGPU0\tGPU1\tGPU2\nGPU0\t X \tNV4\tSYS\n"
    found = topologies.read(cut)
    assert found.ring is None
    assert "not all pairs are known" in found.sentence()
    assert pictures.topology("cut", found.gpus, found.links, found.ring, found.slowest).png


def test_the_explorer_follows_a_pasted_matrix_and_refuses_other_text() -> None:
    shown = explorers.topology_explorer(topologies.texts(), topologies.read)
    choice, field, said, picture = shown.widget.children
    before = picture.value
    choice.value = "8 x H100, NVSwitch"
    assert "one island" in said.value
    assert picture.value != before
    after = picture.value
    field.value = "hello"
    assert "no matrix that can be read" in said.value
    assert picture.value == after
    field.value = topologies.text("4 x A100, bridges across sockets").replace("SYS", "NODE")
    assert "slowest hop is NODE" in said.value
    assert "as pasted" in picture.alt


@pytest.mark.parametrize(
    ("answer", "is_offered"),
    [
        ("\tGPU0\tGPU1\nGPU0\t X \tNV4\nGPU1\tNV4\t X \n", True),
        ("\tGPU0\nGPU0\t X \n", False),
        ("no driver", False),
        (None, False),
    ],
)
def test_the_explorer_offers_this_machine_where_it_has_several_gpus(
    monkeypatch: pytest.MonkeyPatch, answer: str | None, is_offered: bool
) -> None:
    monkeypatch.setattr(programs, "ask", lambda *words: answer)
    found = topologies.texts()
    assert next(iter(found)) == next(iter(topologies.MACHINES))
    assert ("this machine" in found) == is_offered


# -- rings ------------------------------------------------------------------------------------------------------------


def test_one_slow_hop_costs_as_much_as_four() -> None:
    predicted = rings.predict_cases_s()
    assert predicted["one slow hop"] == pytest.approx(predicted["four slow hops"])
    assert predicted["one slow hop"] > 6 * predicted["four fast hops"]
    assert predicted["tree, short"] < predicted["ring, short"]
    assert predicted["tree, long"] > predicted["four fast hops"]


@pytest.mark.parametrize("slow_factor", [1.0, 0.4])
def test_paced_rings_tell_what_came_out(slow_factor: float) -> None:
    predicted = rings.predict_cases_s()
    measured = {label: [seconds, seconds] for label, seconds in predicted.items()}
    measured["one slow hop"] = [predicted["one slow hop"] * slow_factor] * 2
    told = rings.read_rings([{"seconds": measured, "is_right": True}] * 4)
    assert ("save next to nothing" in told.sentence()) == (slow_factor == 1.0)
    assert told.slowdown == pytest.approx(slow_factor * predicted["one slow hop"] / predicted["four fast hops"])
    assert "**tree** wins" in told.tree_sentence()
    assert "tree 8.16 ms (8.16 ms to 8.16 ms), 8.16 ms predicted" in told.tree_sentence()
    assert "longer than predicted" not in told.tree_sentence()
    assert "links of 2 ms and 6.4 MB/s, or 0.8 MB/s" in told.sentence()
    assert told.is_right


def test_short_messages_that_miss_the_prediction_are_told_with_their_spread() -> None:
    measured = {label: [seconds, 1.5 * seconds, 2 * seconds] for label, seconds in rings.predict_cases_s().items()}
    told = rings.read_rings([{"seconds": measured, "is_right": True}] * 4)
    assert "tree 12.2 ms (8.16 ms to 16.3 ms), 8.16 ms predicted" in told.tree_sentence()
    assert "The 256 bytes take up to 50% longer than predicted" in told.tree_sentence()
    assert told.sentence().count(" ms to ") == 3


def test_the_smoke_budget_only_predicts() -> None:
    told = rings.measure_rings(SMOKE)
    assert told.measured_s == {}
    assert "Predicted only" in told.sentence()
    assert all(row[1] is None for row in told.rows_s(list(rings.SLOW_HOPS)).values())


@pytest.mark.parametrize("world_size", [4, 8, 13, 64, 512])
def test_the_tree_wins_up_to_the_crossover_and_not_beyond(world_size: int) -> None:
    crossover = rings.predict_crossover_bytes(world_size, LINK)
    for share, winner in ((0.9, "tree"), (1.1, "ring")):
        times = {name: rings.predict_nccl_s(name, share * crossover, world_size, LINK) for name in ("ring", "tree")}
        assert min(times, key=lambda name: times[name]) == winner
    with pytest.raises(ValueError, match="say ring or tree"):
        rings.predict_nccl_s("star", 1.0, 4, LINK)


# -- logs and places --------------------------------------------------------------------------------------------------


def test_each_log_is_told_for_what_it_is() -> None:
    told = {label: logs.read(label, logs.text(label)) for label in logs.LOGS}
    assert told["as it should be"].is_direct
    assert told["as it should be"].is_rdma
    assert set(told["somebody's old job script"].switched_off) == {"NCCL_P2P_DISABLE", "NCCL_IB_DISABLE"}
    assert not told["somebody's old job script"].is_direct
    assert "failed in line 9" in told["does not start"].sentence()
    shown = logs.excerpt().splitlines()
    assert sum(" via " in line for line in shown) == 6
    assert "NCCL_P2P_DISABLE set by environment to 1" in shown
    cut = logs.text("as it should be").splitlines()[:4]
    assert "unknown" in logs.read("cut", "\n".join(cut) + "\n").sentence()
    with pytest.raises(readers.Unreadable):
        logs.read("none", "hello\n")


def test_every_setting_that_the_lab_asks_for_is_explained() -> None:
    table = logs.settings_table()
    for name in (
        "NCCL_P2P_DISABLE",
        "NCCL_IB_DISABLE",
        "NCCL_NET_GDR_LEVEL",
        "NCCL_SOCKET_IFNAME",
        "NCCL_DEBUG",
        "NCCL_ALGO",
    ):
        assert name in table


def test_only_local_rank_gives_each_process_its_own_gpu() -> None:
    for nodes, gpus in ((2, 4), (3, 8)):
        rows = {row.split("|")[1].strip(" `"): row for row in placement.device_table(nodes, gpus).splitlines()[2:]}
        assert rows["set_device(LOCAL_RANK)"].endswith("| right |")
        assert "invalid device ordinal" in rows["set_device(RANK)"]
        assert f"{gpus} ranks on one GPU" in rows["nothing said"]
    assert placement.device_table(1, 4).count("| right |") == 2


@pytest.mark.parametrize(
    ("gpus", "backend", "count"), [(0, "gloo", 4), (1, "gloo", 4), (2, "nccl", 2), (16, "nccl", 8)]
)
def test_nccl_is_chosen_where_each_rank_gets_a_gpu(
    monkeypatch: pytest.MonkeyPatch, gpus: int, backend: str, count: int
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: True)
    place = placement.choose()
    assert (place.backend, place.ranks) == (backend, count)
    assert ("none of it was measured" in place.sentence()) == (backend == "gloo")


def test_a_rank_takes_its_device_before_it_joins(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "set_device", taken.append)
    monkeypatch.setenv("RANK", "6")
    monkeypatch.setenv("LOCAL_RANK", "2")
    assert placement.take("nccl") == torch.device("cuda", 2)
    assert taken == [torch.device("cuda", 2)]
    assert placement.take("gloo") == torch.device("cpu")


# -- overlap ----------------------------------------------------------------------------------------------------------


def test_a_single_bucket_hides_nothing_and_many_hide_all_but_the_last() -> None:
    link = costs.Link(0.0, 1e8)
    assert overlap.predict_backward_s(1.0, [1e8], link) == pytest.approx(2.0)
    assert overlap.predict_backward_s(1.0, [2.5e7] * 4, link) == pytest.approx(1.25)
    assert overlap.predict_backward_s(1.0, [2.5e7] * 4, costs.Link(0.0, 1e9)) == pytest.approx(1.025)
    assert overlap.predict_backward_s(1.0, [1e6] * 100, costs.Link(0.05, 1e12)) > 5.0


@pytest.mark.parametrize(
    ("measured", "words"), [((2.0, 1.3), "70% of the message's time is hidden"), ((2.0, 2.0), "next to nothing")]
)
def test_overlap_tells_what_came_out(measured: tuple[float, float], words: str) -> None:
    told = {
        "backward_s": 0.7,
        "bandwidth_bytes_per_s": 1e6,
        "buckets": {"one bucket": [1_000_000], "buckets": [500_000, 500_000]},
        "seconds": {
            "no messages": [0.9, 1.0, 1.4],
            **{n: [s] * 3 for n, s in zip(overlap.CAPS_MB, measured, strict=True)},
        },
    }
    story = overlap.read_overlap(told)
    assert words in story.sentence()
    assert ("predicted: 35%, if" in story.sentence()) == (words != "next to nothing")
    assert "a step takes 1 s (900 ms to 1.4 s); with one message" in story.sentence()
    assert "longer than predicted" not in story.sentence()
    assert story.predicted_s["one bucket"] == pytest.approx(0.3 + 1.7)
    assert pictures.overlap(story.messages_ms()).words.startswith("one bucket")


def test_the_hidden_share_is_one_of_the_message_and_ddps_own_work_is_told_apart() -> None:
    told = {
        "backward_s": 0.7,
        "bandwidth_bytes_per_s": 1e6,
        "buckets": {"one bucket": [1_000_000], "buckets": [500_000, 500_000]},
        "seconds": {"no messages": [1.0], "one bucket": [2.5], "buckets": [1.9]},
    }
    said = overlap.read_overlap(told).sentence()
    assert "The link needs 1 s for all gradients; **60% of the message's time is hidden**" in said
    assert "500 ms longer than predicted" in said
    assert "none of them was measured" in said


def test_a_rank_that_is_alone_times_its_messages() -> None:
    hidden = overlap.measure_overlap(QUICK)
    assert hidden is not None
    assert len(hidden.buckets["one bucket"]) == 1
    assert sum(hidden.buckets["buckets"]) == sum(hidden.buckets["one bucket"])
    assert len(hidden.buckets["buckets"]) > 2
    assert hidden.message_s == pytest.approx(hidden.backward_s)
    assert overlap.measure_overlap(SMOKE) is None


# -- many ranks and one process ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def proved() -> imitation.ImitationStory:
    """One launch on two real ranks for all tests below."""
    place = placement.Place("gloo", 2, "a test")
    values = ranks.run(imitation.TELL, 2, payload={"backend": "gloo"}, time_limit_s=120.0).values
    return imitation.read_imitation(place, list(values))


def test_average_and_late_clipping_equal_one_big_batch(proved: imitation.ImitationStory) -> None:
    for way in ("average the gradients", "two halves in turn, then one average", "average, then clip"):
        assert proved.errors[way].whole < imitation.SAME
        assert proved.errors[way].turns < imitation.SAME
    early = proved.errors["clip on each rank, then average"]
    assert min(early.whole, early.turns) > 0.02


def test_batch_norm_equals_turns_by_itself_and_the_whole_batch_when_synchronised(
    proved: imitation.ImitationStory,
) -> None:
    own, synced = proved.errors["BatchNorm, each rank its own"], proved.errors["BatchNorm over all ranks"]
    assert own.turns < imitation.SAME < 0.02 < own.whole
    assert synced.whole < imitation.SAME < 0.02 < synced.turns


def test_the_story_of_the_launch_is_told(proved: imitation.ImitationStory) -> None:
    assert proved.table().count("yes") == 8
    assert proved.mean_norm <= max(proved.norms)
    assert "SyncBatchNorm" in proved.sentence()
    assert "the limit is 0.5." in proved.sentence()


def test_smoke_starts_no_ranks_and_says_so() -> None:
    story = imitation.measure_imitation(SMOKE)
    assert story.errors == {}
    assert "Nothing was measured" in story.table()


@pytest.mark.parametrize("parts", [1, 2, 4])
def test_ghost_batch_norm_is_batch_norm_of_each_part(parts: int) -> None:
    torch.manual_seed(0)
    x = torch.randn(16, 5) * 3 + 1
    ghost, plain = norms.GhostBatchNorm(5, parts), nn.BatchNorm1d(5)
    expected = torch.cat([nn.BatchNorm1d(5)(part) for part in x.chunk(parts)])
    assert torch.allclose(ghost(x), expected, atol=1e-5)
    plain(x.chunk(parts)[0])
    for name in ("running_mean", "running_var"):
        assert torch.allclose(getattr(ghost, name), getattr(plain, name), atol=1e-5)
    assert torch.allclose(ghost.eval()(x), plain.eval()(x), atol=1e-5)


# -- rules, layers, norms ---------------------------------------------------------------------------------------------


def test_the_rules_for_the_rate() -> None:
    assert [rules.predict_rate(rule, 16, 0.1) for rule in ("unchanged", "square root", "linear")] == pytest.approx(
        [0.1, 0.4, 1.6]
    )
    assert all(rules.predict_rate(rule, 1) == rules.RATE for rule in ("unchanged", "square root", "linear"))
    with pytest.raises(ValueError, match="cubic"):
        rules.predict_rate("cubic", 2)


def _story(**accuracies: tuple[float, ...]) -> rules.RuleStory:
    default = (0.86, 0.861)
    trained = []
    for way in rules.WAYS:
        found = accuracies.get(
            f"{way.label.replace(', ', '_').replace(' ', '_').replace('-', '_')}_{way.ranks}", default
        )
        trained.append(rules.Trained(way, 2000 // way.ranks, found, 0.008))
    return rules.RuleStory(tuple(trained), 8)


def test_rules_tell_a_loss_and_its_absence() -> None:
    assert "points are lost" in _story(unchanged_8=(0.80, 0.81)).sentence()
    assert "the belief survives" in _story().sentence()
    assert "loses" in _story(unchanged_8=(0.80, 0.81), linear_warm_up_8=(0.7, 0.7)).sentence()
    assert "saved 76 points" in _story(twice_linear_8=(0.85, 0.1)).warmup_sentence()
    assert "decided nothing" in _story().warmup_sentence()
    assert "made no difference beyond chance" in _story().warmup_sentence()
    assert "made a difference" in _story(linear_8=(0.7, 0.7)).warmup_sentence()
    assert "with 2 runs each they cannot be told apart" in _story().rules_sentence()
    assert "the linear rule is ahead" in _story(square_root_8=(0.8, 0.8)).rules_sentence()
    labels = ("quarter_root", "half_root", "square_root", "half_linear", "linear", "LARS", "LAMB")
    assert "still loses" in _story(**{f"{label}_warm_up_32": (0.8, 0.8) for label in labels}).limit_sentence()
    plain = {f"{label}_warm_up_32": (0.6, 0.6) for label in labels[:5]}
    ahead = _story(**{**plain, "half_linear_warm_up_32": (0.7, 0.7)})
    assert "At the best of 5 rates tried (0.32) plain SGD is 16.1 points behind LARS." in ahead.limit_sentence()
    low = _story(**{**plain, "quarter_root_warm_up_32": (0.7, 0.7)})
    assert "(0.0283, the lowest: a lower one may do better) plain SGD is 16.1 points" in low.limit_sentence()
    assert "within chance of LARS" in _story().limit_sentence()
    assert "keeps the accuracy" in _story().limit_sentence()
    assert _story(unchanged_8=(0.80, 0.82)).lost("unchanged") == pytest.approx(5.05)
    assert _story().lost("cubic") is None


def test_smoke_trains_two_ways_and_claims_nothing() -> None:
    story = rules.measure_rules(SMOKE)
    assert [one.way.label for one in story.trained] == ["one rank", "unchanged"]
    for sentence in (story.sentence(), story.rules_sentence(), story.warmup_sentence(), story.limit_sentence()):
        assert "smoke" in sentence
    normed = norms.measure_norms(SMOKE)
    assert set(normed.accuracy) == {2, norms.GLOBAL_BATCH}
    assert normed.sentence()
    assert pictures.accuracies({"a": story.points(8), "b": normed.points()}).png


def test_norms_tell_a_loss_and_its_absence() -> None:
    lost = norms.NormStory({2: 0.4, 16: 0.86, 128: 0.86}, dict.fromkeys((2, 16, 128), 0.01))
    assert "46 points more" in lost.sentence()
    assert "From 16 images" in lost.sentence()
    fewer = norms.NormStory({2: 0.4, 4: 0.8, 16: 0.86, 128: 0.86}, dict.fromkeys((2, 4, 16, 128), 0.01))
    assert "With 4 it is still 6.0 points." in fewer.sentence()
    assert next(iter(lost.points())) == "all 128 together"
    assert lost.lost == pytest.approx(46)
    same = norms.NormStory({2: 0.86, 128: 0.86}, dict.fromkeys((2, 128), 0.01))
    assert "within chance" in same.sentence()


def _one_step(name: str, rate: float) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Weights before, their gradient, and weights after one step of the library's optimizer."""
    torch.manual_seed(1)
    model = nn.Linear(7, 3, bias=False)
    before = model.weight.detach().clone()
    model(torch.randn(5, 7)).square().sum().backward()
    assert model.weight.grad is not None
    gradient = model.weight.grad.clone()
    prepare = layers.optimizer(name)
    assert prepare is not None
    _, optimizer = prepare(model, torch.optim.SGD(model.parameters(), lr=0.0))
    for group in optimizer.param_groups:
        group["lr"] = rate
    optimizer.step()
    return before, gradient, model.weight.detach()


def test_lars_of_the_library_is_the_papers() -> None:
    before, gradient, after = _one_step("lars", 0.7)
    decay = 5e-4
    trust = layers.TRUST * before.norm() / (gradient.norm() + decay * before.norm())
    assert torch.allclose(after, before - 0.7 * trust * (gradient + decay * before), atol=1e-6)


def test_lamb_of_the_library_is_the_papers() -> None:
    before, gradient, after = _one_step("lamb", 0.05)
    update = 0.1 * gradient / ((0.001 * gradient**2).sqrt() + 1e-6) + 0.01 * before
    trust = before.norm().clamp(max=10) / update.norm()
    assert torch.allclose(after, before - 0.05 * trust * update, atol=1e-5)


def test_layers_are_moved_by_different_shares() -> None:
    story = layers.measure_layers(rules.SIZES, rules.images(SMOKE), 0.16, 64)
    assert len(story.layers) == 4
    assert story.table().count("\n") == 5
    assert "times as far" in story.sentence()
    assert "LARS" not in story.table()
    with pytest.raises(ValueError, match="sgd, lars or lamb"):
        layers.optimizer("adam")


# -- the lab's task ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"global_batch": 100}, "multiple"),
        ({"global_batch": True}, "multiple"),
        ({"global_batch": 2**40}, "multiple"),
        ({"learning_rate": float("nan")}, "learning_rate"),
        ({"learning_rate": -1}, "learning_rate"),
        ({"learning_rate": "fast"}, "learning_rate"),
        ({"warmup_steps": 1.5}, "warmup_steps"),
        ({"global_batch": 256, "warmup_steps": 200}, "half of the 248"),
        ({"optimizer": "adam"}, "optimizer"),
        ({"optimizer": ["sgd"]}, "optimizer"),
    ],
)
def test_a_recipe_that_is_none_is_refused_in_words(change: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        lab.check_recipe({**lab.START, **change})


def test_recipes_need_their_four_keys() -> None:
    for answer in (None, 7, [], {}, {**lab.START, "momentum": 0.5}):
        with pytest.raises(ValueError, match="dictionary with"):
            lab.check_recipe(answer)
    assert lab.check_recipe(lab.START) == lab.START


def test_training_the_lab_is_a_matter_of_recipe_and_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lab, "IMAGES", 512)
    monkeypatch.setattr(lab, "EPOCHS", 1)
    recipe = {**lab.START, "global_batch": 128, "warmup_steps": 1, "optimizer": "lamb"}
    first = lab.accuracy_of(recipe, 123)
    lab._trained.cache_clear()
    again, other = lab.accuracy_of(recipe, 123), lab.accuracy_of(recipe, 124)
    lab._trained.cache_clear()
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


# -- the script for machines with GPUs --------------------------------------------------------------------------------


@pytest.fixture
def script() -> ModuleType:
    """The script of ``tests/device``, loaded as a module."""
    path = Path(__file__).parents[1] / "device" / "measure_gpus.py"
    spec = importlib.util.spec_from_file_location("measure_gpus", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_without_a_gpu_the_script_says_not_measured_and_writes_nothing(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    out = tmp_path / "found.json"
    assert script.main(["--out", str(out)]) == script.NOT_MEASURED
    assert "not measured" in capsys.readouterr().out
    assert not out.exists()


def test_the_script_keeps_going_when_a_part_fails_and_reports_it(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import json

    def broken() -> dict[str, object]:
        raise RuntimeError("no such cable")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(script, "label", lambda: {"gpus": ["a GPU"]})
    monkeypatch.setattr(script, "topology", broken)
    monkeypatch.setattr(script, "copies", lambda: {"bytes_per_s": {}})
    monkeypatch.setattr(script, "on_ranks", lambda part, gpus: {"world_size": gpus, "is_right": True})
    out = tmp_path / "found.json"
    assert script.main(["--out", str(out)]) == 1
    found = json.loads(out.read_text())
    assert found["parts"]["topology"]["error"] == "RuntimeError: no such cable"
    assert found["parts"]["nccl"] == {"world_size": 2, "is_right": True}
    assert found["label"]["gpus"] == ["a GPU"]


def test_the_script_reads_the_log_of_its_own_run(script: ModuleType) -> None:
    assert script.read_log(logs.text("as it should be"))["is_right"]
    assert not script.read_log(logs.text("does not start"))["is_right"]
