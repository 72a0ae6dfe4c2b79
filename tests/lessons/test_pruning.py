"""Lesson 5's experiments: NNI's scores equal their definitions, removal keeps what it should, refusals say where."""

import copy
import logging
import math
import sys
import warnings

import numpy as np
import pytest
import torch
from torch import nn

from accelerando import seeds
from accelerando.lessons import BUDGETS, pruning
from accelerando.lessons.pruning import (
    accuracy,
    channels,
    config,
    criteria,
    gap,
    masks,
    nets,
    task,
    tracing,
    trade_off,
    warm_up,
)
from accelerando.rounds import RoundPoint

SMOKE = BUDGETS["smoke"]
EXAMPLE = torch.zeros(2, 1, 12, 12)


pytestmark = pytest.mark.usefixtures("one_thread")


def chain(widths: tuple[int, ...] = (12, 20), seed: int = 0) -> nn.Sequential:
    """Conv-BN-ReLU twice, flattened into a linear layer; statistics and shifts as after some training."""
    with seeds.preserved():
        seeds.seed(seed)
        first, second = widths
        model = nn.Sequential(
            nn.Conv2d(1, first, 3, bias=False), nn.BatchNorm2d(first), nn.ReLU(inplace=True), nn.MaxPool2d(2),
            nn.Conv2d(first, second, 3), nn.BatchNorm2d(second), nn.ReLU(inplace=True),
            nn.Flatten(), nn.Linear(second * 9, 5),
        )  # fmt: skip
        with torch.no_grad():
            for name, value in (*model.named_parameters(), *model.named_buffers()):
                if value.is_floating_point():
                    value.copy_(
                        torch.rand_like(value) + 0.5 if name.endswith("running_var") else torch.randn_like(value)
                    )
    return model


def state(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return list(one) == list(other) and all(one[name].equal(other[name]) for name in one)


# -- prune ------------------------------------------------------------------------------------------------------------


def test_pruning_takes_channels_out_and_leaves_the_given_model_alone(capfd: pytest.CaptureFixture[str]) -> None:
    model = chain().train()
    before, draws = state(model), torch.get_rng_state()
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        found = pruning.prune(model, 0.5, EXAMPLE)
    assert found.channels == {"0": (12, 6), "4": (20, 10), "8": (5, 5)}
    assert found.model(EXAMPLE).shape == (2, 5)
    assert same(state(model), before)
    assert model.training
    assert all(not hasattr(part, "_nni_wrapper") for part in (*model.modules(), *found.model.modules()))
    assert torch.get_rng_state().equal(draws)
    assert [str(warning.message) for warning in warned] == []
    assert capfd.readouterr() == ("", "")
    assert "0: 12 → 6" in found.sentence()


def test_a_pruned_model_keeps_names_mode_frozen_parameters_and_layout() -> None:
    model = chain().to(memory_format=torch.channels_last).train()
    model[5].eval()
    model[0].weight.requires_grad_(False)
    small = pruning.prune(model, 0.5, EXAMPLE).model
    assert list(small.state_dict()) == list(model.state_dict())
    assert [part.training for part in small.modules()] == [part.training for part in model.modules()]
    assert {n for n, p in small.named_parameters() if not p.requires_grad} == {"0.weight"}
    assert small[4].weight.is_contiguous(memory_format=torch.channels_last)
    assert all(parameter.grad is None for parameter in small.parameters())


def test_the_smaller_model_gives_the_answers_of_one_whose_channels_are_silent() -> None:
    """Reference: zero the filter, the bias and BatchNorm's scale and shift of every channel that goes."""
    model = chain().eval()
    found = pruning.prune(model, 0.5, EXAMPLE)
    silent = copy.deepcopy(model)
    with torch.no_grad():
        for layer, norm in (("0", "1"), ("4", "5")):
            gone = found.masks[layer]["weight"].flatten(1).sum(1) == 0
            for part in (silent.get_submodule(layer), silent.get_submodule(norm)):
                part.weight[gone] = 0
                if part.bias is not None:
                    part.bias[gone] = 0
    images = torch.randn(7, 1, 12, 12)
    torch.testing.assert_close(found.model(images), silent(images), rtol=1e-4, atol=1e-4)


def test_a_mask_leaves_what_batch_norm_makes_of_a_zero() -> None:
    model = chain().eval()
    found = pruning.prune(model, 0.5, EXAMPLE)
    masked = pruning.apply_masks(model, found.masks)
    images = torch.randn(7, 1, 12, 12)
    assert not torch.allclose(found.model(images), masked(images), rtol=1e-2, atol=1e-2)


def test_a_pruned_model_can_be_trained_further_and_pruned_again() -> None:
    small = pruning.prune(chain(), 0.5, EXAMPLE).model
    optimizer = torch.optim.SGD(small.parameters(), lr=0.1)
    before = state(small)
    small(torch.randn(4, 1, 12, 12)).square().mean().backward()
    optimizer.step()
    assert not same(state(small), before)
    assert pruning.prune(small, 0.5, EXAMPLE).channels == {"0": (6, 3), "4": (10, 5), "8": (5, 5)}


def test_nothing_is_removed_at_sparsity_zero() -> None:
    found = pruning.prune(chain(), 0.0, EXAMPLE)
    assert found.parameters[0] == found.parameters[1]
    assert "Nothing was removed" in found.sentence()


@pytest.mark.parametrize(
    ("multiple", "kept"), [(1, (7, 11)), (4, (8, 12)), (8, (8, 16)), (16, (12, 16)), (64, (12, 20))]
)
def test_the_channels_that_stay_are_rounded_up(multiple: int, kept: tuple[int, int]) -> None:
    found = pruning.prune(chain(), 0.45, EXAMPLE, multiple=multiple)
    assert (found.channels["0"][1], found.channels["4"][1]) == kept


def test_a_layer_can_have_its_own_share_and_others_none() -> None:
    found = pruning.prune(chain(), {"4": 0.25}, EXAMPLE)
    assert found.channels == {"0": (12, 12), "4": (20, 15), "8": (5, 5)}


@pytest.mark.parametrize("width", range(2, 130, 7))
def test_nni_removes_exactly_as_many_as_were_asked_for(width: int) -> None:
    for removed in range(1, width):
        assert int(width * config._ratio(width, removed)) == removed


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"sparsity": 1.0}, "up to, not including, 1"),
        ({"sparsity": -0.1}, "up to, not including, 1"),
        ({"sparsity": True}, "up to, not including, 1"),
        ({"sparsity": math.nan}, "up to, not including, 1"),
        ({"sparsity": {"8": 0.5}}, "no layer that can lose channels; there are 0, 4"),
        ({"sparsity": 0.5, "multiple": 0}, "whole number from 1"),
        ({"sparsity": 0.5, "method": "best"}, "one of l1, l2, fpgm, taylor, random"),
        ({"sparsity": 0.5, "method": "taylor"}, "give it batches"),
    ],
)
def test_what_cannot_be_is_refused_in_words(arguments: dict, words: str) -> None:
    arguments = dict(arguments)
    with pytest.raises(ValueError, match=words):
        pruning.prune(chain(), arguments.pop("sparsity"), EXAMPLE, **arguments)


# -- criteria: NNI's scores are what their definitions say ------------------------------------------------------------


def gone(model: nn.Module, method: str, layer: str = "4", batches: object = ()) -> set[int]:
    config = pruning.config_list(model, {layer: 0.5}, EXAMPLE)
    mask = pruning.find_masks(model, config, method, batches)[layer]["weight"]
    return set(torch.nonzero(mask.flatten(1).sum(1) == 0).flatten().tolist())


def lowest(scores: torch.Tensor) -> set[int]:
    return set(scores.argsort()[: len(scores) // 2].tolist())


def test_l1_l2_and_fpgm_choose_by_their_definitions() -> None:
    model = chain()
    filters = model[4].weight.detach().flatten(1)
    assert gone(model, "l1") == lowest(filters.abs().sum(1))
    assert gone(model, "l2") == lowest(filters.square().sum(1))
    assert gone(model, "fpgm") == lowest(torch.cdist(filters, filters).sum(1))


def test_taylor_chooses_by_the_gradients_of_the_batches_and_changes_no_weight() -> None:
    model = chain().eval()
    draw = seeds.generator(3)
    batches = [(torch.randn(6, 1, 12, 12, generator=draw), torch.arange(6) % 5) for _ in range(3)]
    expected = torch.zeros(20)
    for images, labels in batches:
        loss = nn.functional.cross_entropy(model(images), labels)
        (gradient,) = torch.autograd.grad(loss, [model[4].weight])
        expected += (gradient * model[4].weight.detach()).square().flatten(1).sum(1)
    before = state(model)
    assert gone(model, "taylor", batches=batches) == lowest(expected)
    assert same(state(model), before)


def test_random_is_drawn_from_the_shape_and_not_from_the_weights() -> None:
    assert gone(chain(seed=1), "random") == gone(chain(seed=2), "random") != gone(chain(seed=1), "l1")


# -- groups -----------------------------------------------------------------------------------------------------------


def test_layers_that_are_added_lose_the_same_channels() -> None:
    model = pruning.residual_cnn(16)
    found = pruning.prune(model, 0.5, torch.zeros(2, 1, 28, 28))
    added = [
        found.masks[name]["weight"].flatten(1).sum(1) > 0 for name in ("stem", "blocks.0.second", "blocks.1.second")
    ]
    assert added[0].equal(added[1])
    assert added[0].equal(added[2])
    assert {old - new for name, (old, new) in found.channels.items() if name != "head"} == {8}


def test_without_groups_only_what_all_gave_up_can_go() -> None:
    found = pruning.compare_groups(channels=16)
    assert found.groups == (("stem", "blocks.0.second", "blocks.1.second"),)
    for name in found.groups[0]:
        assert found.masked[name] == 8 == found.removed_with[name]
        assert found.removed_without[name] < 8
    assert "24 of its 48 channels were masked" in found.sentence()
    assert "one would expect 6)" in found.sentence()


def test_a_group_with_two_shares_is_refused() -> None:
    with pytest.raises(pruning.CannotPrune, match="give all of them the same sparsity"):
        pruning.prune(pruning.residual_cnn(8), {"stem": 0.5, "blocks.0.second": 0.25}, torch.zeros(2, 1, 28, 28))


class Depthwise(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.Conv2d(1, 16, 3)
        self.depth = nn.Conv2d(16, 16, 3, groups=16)
        self.grouped = nn.Conv2d(16, 12, 1, groups=4)
        self.point = nn.Conv2d(12, 8, 1)
        self.head = nn.Linear(8, 3)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        hidden = torch.relu(self.grouped(self.depth(self.wide(images))))
        return self.head(self.point(hidden).mean((2, 3)))


def test_depthwise_and_grouped_convolutions_stay_whole() -> None:
    found = pruning.prune(Depthwise(), 0.5, EXAMPLE)
    small = found.model
    assert small.depth.groups == small.depth.out_channels == small.wide.out_channels < 16
    assert small.grouped.out_channels % small.grouped.groups == 0
    assert small(EXAMPLE).shape == (2, 3)


# -- refusals ---------------------------------------------------------------------------------------------------------


def test_a_decision_by_values_is_refused_with_module_and_line() -> None:
    with pytest.raises(pruning.CannotPrune) as error:
        pruning.prune(pruning.gated_cnn(), 0.5, torch.zeros(2, 1, 28, 28))
    said = str(error.value)
    assert said.startswith("`2` (Gate), in the line `if hidden.mean() > 0:` of nets.py, decides by the values")
    assert "torch.where" in said


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(1, 8, 3), nn.Linear(8, 2)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        hidden = self.conv(images).mean((2, 3))
        for _ in range(len(images)):
            hidden = hidden + 1
        return self.head(hidden)


class FixedView(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(1, 8, 3), nn.Linear(8 * 100, 2)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.head(self.conv(images).view(-1, 8 * 100))


def helper(hidden: torch.Tensor) -> torch.Tensor:
    return hidden if hidden.sum() > 0 else -hidden


class Calling(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(1, 8, 3), nn.Linear(8, 2)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.head(helper(self.conv(images).mean((2, 3))))


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (Counting(), ["`Counting`", "for _ in range(len(images)):", "stops the trace"]),
        (FixedView(), ["`FixedView`", ".view(-1, 8 * 100)", "flatten(1)"]),
        (Calling(), ["`Calling`", "return hidden if hidden.sum() > 0", "test_pruning.py"]),
        (nn.Sequential(nn.Flatten(), nn.Linear(144, 3)), ["no layer can lose channels"]),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_refusal_names_the_line_that_stands_in_the_way(model: nn.Module, words: list[str]) -> None:
    with pytest.raises(pruning.CannotPrune) as error:
        pruning.prune(model, 0.5, EXAMPLE)
    assert all(word in str(error.value) for word in words), str(error.value)


def test_an_example_that_the_model_cannot_take_is_refused() -> None:
    with pytest.raises(pruning.CannotPrune, match="cannot run on the example"):
        pruning.prune(chain(), 0.5, torch.zeros(2, 1, 4, 4))


def test_a_model_that_still_carries_masks_is_refused() -> None:
    model = chain()
    masks.mask_weights(model, 0.5)
    with pytest.raises(pruning.CannotPrune, match="call its `remove`"):
        pruning.prune(model, 0.5, EXAMPLE)


class Moody(nn.Module):
    """A layer that runs in training only."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.extra, self.head = nn.Conv2d(1, 8, 3), nn.Conv2d(8, 8, 1), nn.Linear(8, 2)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        hidden = self.conv(images)
        if self.training:
            hidden = self.extra(hidden)
        return self.head(hidden.mean((2, 3)))


@pytest.mark.parametrize("mode", [True, False])
def test_layers_are_looked_for_in_evaluation_whatever_the_mode(mode: bool) -> None:
    model = Moody().train(mode)
    assert config._shares(model, 0.5) == {"conv": 0.5}
    assert model.training == mode


def test_the_last_layers_are_those_from_which_a_path_leads_out() -> None:
    assert [name for name, _ in tracing.layers(tracing.trace(chain()))] == ["0", "4"]
    residual = [name for name, _ in tracing.layers(tracing.trace(pruning.residual_cnn(8)))]
    assert residual == ["stem", "blocks.0.first", "blocks.0.second", "blocks.1.first", "blocks.1.second"]


def test_quiet_swallows_logs_and_restores_the_generators(capfd: pytest.CaptureFixture[str]) -> None:
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    with pruning.quiet():
        torch.rand(3)
        logging.getLogger("nni").warning("noise")
        sys.stderr.write("noise")
    assert torch.rand(1) == expected
    assert capfd.readouterr() == ("", "")


# -- masks, sparse products, the staircase ----------------------------------------------------------------------------


def test_masks_make_the_share_of_zeros_that_was_asked_for() -> None:
    for mask in (masks.mask_weights, masks.mask_channels):
        model = chain((8, 16))
        mask(model, 0.5)
        assert masks.zero_share(model) == pytest.approx(0.5, abs=0.01)
        masks.make_permanent(model)
        assert masks.zero_share(model) == pytest.approx(0.5, abs=0.01)
        assert not any(name.endswith("mask") for name, _ in model.named_buffers())


def test_masks_are_measured_and_the_sentence_follows() -> None:
    found = pruning.measure_masks(SMOKE)
    assert len(found.comparisons) == 3
    assert found.sentence()


def test_zeros_are_still_zeros_after_they_were_timed() -> None:
    found = pruning.measure_masks(SMOKE)
    assert list(found.zero_shares.values()) == pytest.approx([0.5] * 3, abs=0.01)


def point(key: int, seconds: tuple[float, ...], ratio: float = 1.0, interval=(0.9, 1.1)) -> RoundPoint:
    return RoundPoint(key, float(np.median(seconds)), ratio, interval, seconds)


def test_the_sparse_sentence_is_prepared_for_every_machine() -> None:
    dense = point(0, (1.0,))
    never = masks.SparseCurve((dense, point(50, (1.0,), 0.1, (0.1, 0.2)), point(99, (1.0,), 0.9, (0.8, 0.99))), "rows")
    assert never.crossing is None
    assert "not surely faster" in never.sentence()
    late = masks.SparseCurve((dense, point(50, (1.0,), 0.1, (0.1, 0.2)), point(99, (1.0,), 4.0, (3.8, 4.2))), "rows")
    assert late.crossing == 99
    assert "promises 100" in late.sentence()
    assert "between 50 and 99 % zeros** (0.10 times at 50 %)" in late.sentence()
    at_once = masks.SparseCurve((dense, point(50, (1.0,), 1.5, (1.4, 1.6)), point(99, (1.0,), 4.0, (3.8, 4.2))), "rows")
    assert "was faster at the smallest share that was tried" in at_once.sentence()
    assert (never.crosses_at, at_once.crosses_at) == (math.inf, 50)
    ends = (dense, point(80, (1.0,), 0.5, (0.4, 0.6)), point(90, (1.0,), 2.0, (1.9, 2.1)))
    assert masks.SparseCurve(ends, "rows").crosses_at == pytest.approx(85)


def test_sparse_products_are_right_and_run_here() -> None:
    assert [p.key for p in pruning.measure_sparse_product(SMOKE, (50, 99)).points] == [0, 50, 99]
    assert pruning.predict_sparse_speedup(0.75) == 4
    with pytest.raises(ValueError, match="not including, 1"):
        pruning.predict_sparse_speedup(1.0)


def test_the_staircase_finds_widths_that_are_slower_than_larger_ones() -> None:
    flat = tuple(1.0 + 0.001 * number for number in range(8))
    slow = tuple(1.3 * seconds for seconds in flat)
    stairs = channels.Staircase((point(47, slow), point(48, flat), point(64, slow)), 48)
    ((few, more, ratio),) = stairs.worse_than_larger
    assert (few, more) == (47, 48)
    assert ratio == pytest.approx(1.3, rel=0.01)
    assert stairs.time_ratio(47, 48) == pytest.approx(1.3, rel=0.01)
    assert math.isnan(stairs.time_ratio(47, 50))
    assert "47 channels took 1.30 times as long as 48" in stairs.sentence()
    assert stairs.predicted_s(64) == pytest.approx(np.median(flat) * (64 / 48) ** 2)
    step = channels.Staircase((point(63, flat), point(64, flat), point(65, slow)), 64)
    assert [jump[:2] for jump in step.jumps] == [(64, 65)]
    assert "from 64 to 65 the time rose by 30% and the work by 3%" in step.sentence()
    calm = channels.Staircase((point(47, flat), point(48, flat)), 48)
    assert "the belief survives" in calm.sentence()


def test_widths_are_timed_on_this_machine() -> None:
    stairs = pruning.measure_staircase(SMOKE)
    assert all(point.median_s > 0 for point in stairs.points)
    assert stairs.sentence()


def test_blocks_share_the_time_and_the_multiplications() -> None:
    model = chain((8, 16))
    before = state(model)
    model = nn.Sequential(*list(model)[:-2], nn.Flatten(), nn.Linear(16 * 11 * 11, 5))
    found = pruning.measure_blocks(model, SMOKE)
    assert [(block.name, block.channels, block.pixels) for block in found.blocks] == [
        ("0", (1, 8), 28),
        ("4", (8, 16), 13),
    ]
    by_hand = (26 * 26 * 8 * 9, 11 * 11 * 16 * 8 * 9 + 16 * 11 * 11 * 5)
    assert [block.work for block in found.blocks] == pytest.approx([part / sum(by_hand) for part in by_hand])
    assert sum(block.time for block in found.blocks) == pytest.approx(1)
    assert "| layer `4` | 8 → 16 | 13 x 13 |" in found.sentence()
    assert same({name: state(model)[name] for name in list(before)[:-2]}, dict(list(before.items())[:-2]))


# -- accuracy and speed -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def subject() -> pruning.Subject:
    return pruning.train_subject(SMOKE)


def test_every_experiment_on_the_trained_net_runs_and_leaves_it_alone(subject: pruning.Subject) -> None:
    before = state(subject.model)
    found = pruning.find_masks(subject.model, pruning.config_list(subject.model, 0.5, pruning.example()))
    reports = [
        subject,
        pruning.measure_removal(subject, found, SMOKE),
        pruning.compare_masked_and_removed(subject, SMOKE),
        pruning.compare_criteria(subject, SMOKE),
        pruning.compare_warm_up(SMOKE, epochs=2),
        pruning.compare_rounding(subject, SMOKE),
        pruning.measure_trade_off(subject, SMOKE),
    ]
    assert all(report.sentence() for report in reports)
    assert same(state(subject.model), before)
    assert reports[1].work < 0.4


def change(label: str, difference: float, interval: tuple[float, float]) -> accuracy.AccuracyChange:
    return accuracy.AccuracyChange(label, 0.85 + difference, difference, interval)


def test_a_criterion_is_ahead_when_its_interval_to_the_lot_is_above_zero() -> None:
    """Beside the lot on the same images: intervals to the dense net may overlap and still hide a lead."""
    before = {"l1": 0.5, "random": 0.3}
    tie = (change("l1", -0.01, (-0.02, 0.0)), change("random", -0.02, (-0.03, -0.01)))
    tied = criteria.CriteriaReport(0.5, before, tie, 0.85, (change("l1", 0.01, (-0.002, 0.022)),))
    assert "of no method can it be shown" in tied.sentence()
    assert "l1 +1.0 (-0.2 to +2.2)" in tied.sentence()
    assert tied.lead_points == pytest.approx(1.0)
    clear = criteria.CriteriaReport(0.5, before, tie, 0.85, (change("l1", 0.01, (0.002, 0.018)),))
    assert "l1 is ahead of drawing channels by lot" in clear.sentence()


def test_methods_are_compared_with_the_lot_image_by_image(subject: pruning.Subject) -> None:
    found = pruning.compare_criteria(subject, SMOKE)
    accuracies = {each.label: each.accuracy for each in found.tuned}
    assert {each.label for each in found.to_lot} == set(accuracies) - {"random"}
    for each in found.to_lot:
        assert each.difference == pytest.approx(accuracies[each.label] - accuracies["random"])


@pytest.mark.parametrize(
    ("early", "late", "words"),
    [
        ((0.0, (-0.01, 0.01)), (0.0, (-0.01, 0.01)), "warming up did not pay."),
        ((0.09, (0.08, 0.10)), (0.0, (-0.01, 0.01)), "clearly worth it"),
        ((0.0, (-0.01, 0.01)), (-0.02, (-0.03, -0.01)), "did not pay. Pruned after 2, it is clearly behind"),
        ((-0.01, (-0.015, -0.005)), (-0.02, (-0.03, -0.01)), "small from the start is clearly ahead"),
    ],
)
def test_the_warm_up_sentence_fits_whatever_came_out(early: tuple, late: tuple, words: str) -> None:
    told = [change("", *found) for found in ((0.0, (0.0, 0.0)), early, late)]
    points = tuple(warm_up.WarmUpPoint(warm, 3.0, to_first, to_first) for warm, to_first in enumerate(told))
    assert words in warm_up.WarmUpReport(points, 3, 5.0, 0.85).sentence()


def trade(percent: int, ratio: float, difference: float, spread: float) -> trade_off.TradeOff:
    interval = (difference - spread, difference + spread) if percent else (0.0, 0.0)
    found = RoundPoint(percent, 1 / ratio, ratio, (ratio * 0.9, ratio * 1.1), (1 / ratio,))
    return trade_off.TradeOff(percent, (4, 8), 100, 1 - percent / 100, change("", difference, interval), found, found)


def test_the_fastest_point_that_surely_keeps_its_accuracy_is_chosen() -> None:
    from accelerando.widgets import pruning as explorers

    curve = trade_off.TradeOffCurve((trade(0, 1, 0, 0), trade(50, 2, -0.01, 0.008), trade(75, 4, -0.02, 0.01)))
    for allowed, percent in ((0.0, 0), (0.02, 50), (0.03, 75)):
        assert curve.choose(allowed).percent == percent
        assert explorers.choose(curve.rows(), "classifying", allowed)["percent"] == percent
    assert "2.00 times" in curve.sentence()
    assert "slower one" not in curve.sentence()
    turned = trade_off.TradeOffCurve((trade(0, 1, 0, 0), trade(50, 3, -0.01, 0.01), trade(75, 2, -0.02, 0.01)))
    assert "The smaller net is the slower one**: 4, 8 channels" in turned.sentence()
    slow = trade_off.TradeOffCurve((trade(0, 1, 0, 0), trade(50, 3, -0.01, 0.01), trade(63, 0.8, -0.02, 0.01)))
    assert "without 63 % a step is slower than that of the dense net, 0.80 times as fast" in slow.sentence()


def test_the_rounding_sentence_fits_whatever_came_out(subject: pruning.Subject) -> None:
    found = pruning.compare_rounding(subject, SMOKE)
    assert found.multiple == 16
    assert found.sparsity == 0.53
    assert all(more >= less for less, more in zip(found.literal, found.rounded, strict=True))


def test_a_gap_of_nothing_is_called_small() -> None:
    assert "happened to be small" in gap.GapReport(0.8, 0.8, 1.0, 0.8).sentence()
    assert "not the same net" in gap.GapReport(0.8, 0.7, 0.8, 0.8).sentence()


# -- the lab's timed question -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        ({"speed": 2}, "a plan has no 'speed'"),
        ({"method": "best"}, "one of l1"),
        ({"method": ["l1"]}, "one of l1"),
        ({"multiple": 1.0}, "whole number"),
        ({"remove": 1}, "True or False"),
        ({"learning_rate": 0}, "above 0"),
        ({"learning_rate": math.nan}, "above 0"),
        ({"config_list": {}}, "list of dictionaries"),
        ({"config_list": [{"op_types": ["Conv2d"]}]}, "sparse_ratio is None"),
        ({"config_list": [{"op_types": ["Conv2d"], "sparse_ratio": 1}]}, "NNI wants a float"),
        ({"config_list": [{"sparse_ratio": 0.5}]}, "names no layer"),
        ({"config_list": [{"op_names": ["13"], "sparse_ratio": 0.5}]}, "layers that may lose channels are 0, 4, 8"),
        ({"config_list": [{"op_types": ["Linear"], "sparse_ratio": 0.5}]}, "keep its ten classes"),
        ({"config_list": [{"op_types": "Conv2d", "sparse_ratio": 0.5}]}, "list of names"),
        ({"config_list": [{"op_types": ["Conv2d"], "sparsity": 0.5}]}, "has no 'sparsity' here"),
    ],
)
def test_a_plan_that_cannot_be_is_refused_in_words(plan: dict, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        pruning.check_plan(plan)


def test_the_first_entry_that_names_a_layer_counts_as_in_nni() -> None:
    config = [
        {"op_names": ["4"], "sparse_ratio": 0.75},
        {"op_types": ["Conv2d"], "exclude_op_names": ["0"], "sparse_ratio": 0.5},
    ]
    assert task.read_config(config) == {"4": 0.75, "8": 0.5}


def test_the_plan_experiment_runs_and_can_be_found_by_a_child_process() -> None:
    module, _, function = pruning.TRAIN_PLAN.partition(":")
    assert getattr(__import__(module, fromlist=[function]), function) is pruning.train_plan
    data = pruning.images(SMOKE)
    plans = [pruning.START, {**pruning.START, "remove": True, "multiple": 8}]
    for plan in plans:
        found = task._train(plan, 3, data)
        assert found["seconds"] > 0
        assert found["predictions"].shape == (50,)


def test_a_plan_that_only_masks_leaves_the_net_as_large_as_it_was() -> None:
    from accelerando import models

    data, dense = pruning.images(SMOKE), models.build(nets.WIDE_CNN)
    shares = pruning.check_plan(pruning.START)
    masked = task.carry_out(dense, shares, pruning.START, data)
    small = task.carry_out(dense, shares, {**pruning.START, "remove": True}, data)
    assert pruning.widths(masked) == pruning.widths(dense)
    assert pruning.widths(small) == {"0": 26, "4": 52, "8": 103, "13": 10}


def test_a_trial_compares_two_plans() -> None:
    said = pruning.try_plan(pruning.START, {**pruning.START, "remove": True}, SMOKE).sentence()
    assert "times" in said
    assert "2 points may be lost" in said
    assert "run by run" in said
    assert "can only be noise" not in said


def test_a_trial_of_masks_alone_says_that_its_speed_is_noise() -> None:
    assert "can only be noise" in pruning.try_plan(pruning.START, {"method": "l2"}, SMOKE).sentence()
