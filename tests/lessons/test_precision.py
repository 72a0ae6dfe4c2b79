"""Lesson 6's experiments run, predictions meet measurements, and sentences follow the numbers on any machine."""

import dataclasses
import math

import numpy as np
import pytest
import torch

from accelerando import counts, formats, machine, measure, models
from accelerando.lessons import BUDGETS, precision
from accelerando.lessons.precision import (
    casting,
    gradients,
    lowered,
    memory,
    orders,
    rounding,
    runs,
    scaler,
    speed,
    task,
)
from accelerando.recipes import Recipe

SMOKE = BUDGETS["smoke"]


pytestmark = pytest.mark.usefixtures("one_thread")


# -- gradients


@pytest.fixture(scope="module")
def sample() -> gradients.GradientSample:
    return gradients.sample_gradients(SMOKE)


def test_gradients_of_both_kinds_are_drawn(sample: gradients.GradientSample) -> None:
    for kind in gradients.KINDS:
        found = sample.magnitudes(kind)
        assert len(found) > 100
        assert np.isfinite(found).all()
    assert np.median(sample.magnitudes("activations")) < np.median(sample.magnitudes("weights"))


def test_watching_leaves_no_hook_behind() -> None:
    module = models.build(models.SLIM_CNN)
    with gradients._watched(module) as seen:
        module(torch.zeros(2, 1, 28, 28)).sum().backward()
    before = len(seen["activations"])
    assert before == 4  # three convolutions and the head
    module(torch.zeros(2, 1, 28, 28)).sum().backward()
    assert len(seen["activations"]) == before


def test_the_sentence_is_prepared_for_gradients_that_fit() -> None:
    tiny, fine = (np.full(100, value, dtype=np.float32) for value in (1e-9, 1e-2))
    lost = gradients.GradientSample({"activations": tiny, "weights": fine}, 1, 1).sentence()
    kept = gradients.GradientSample({"activations": fine, "weights": fine}, 1, 1).sentence()
    assert "**100%** of them would be zero" in lost
    assert "hardly any" in kept


def test_underflow_is_what_the_histogram_predicts() -> None:
    trained = dataclasses.replace(SMOKE, train_images=1024)
    found = gradients.measure_underflow(trained, exponents=(0, 8, 40), batch_size=64)
    assert found.predicted[0] > 0.02
    assert found.measured[0] == pytest.approx(found.predicted[0], abs=0.05)
    assert found.measured[1] < found.measured[0] / 3
    assert found.overflowed == (False, False, True)
    assert found.among[2] == gradients.KINDS
    assert "2^40" in found.sentence()
    assert found.sentence().startswith("With no loss scale fp16 lost")


def test_the_sentence_is_prepared_for_no_underflow_and_for_overflow_only() -> None:
    summed = gradients.Underflow((1.0, 2.0), (0.1, 0.0), (0.1, 0.0), (False, True), ((), ("weights",)))
    assert "With 2^1 some of the weights' gradients" in summed.sentence()
    assert "nothing to mend" in gradients.Underflow((1.0,), (0.0,), (0.0,), (False,)).sentence()
    assert "every scale" in gradients.Underflow((1.0,), (0.0,), (0.0,), (True,)).sentence()


# -- rounding


@pytest.mark.parametrize("name", rounding.DTYPES)
def test_counting_ends_where_predicted(name: str) -> None:
    assert rounding.measure_stuck(rounding.DTYPES[name]) == rounding.predict_stuck(formats.find(name)) > 0


def test_counting_ends_nowhere_in_a_format_without_room() -> None:
    assert rounding.predict_stuck(formats.Format("tiny", 2, 6)) == 0
    assert rounding.measure_stuck(torch.float32, limit=100) == 0


def test_more_updates_vanish_in_a_narrower_fraction() -> None:
    shares = rounding.measure_swallowed(dataclasses.replace(SMOKE, train_images=1024)).shares
    assert shares["bf16"] > shares["fp16"] > shares["fp32"] >= 0


def test_accuracy_is_compared_run_by_run() -> None:
    found = rounding.compare_accuracy(dataclasses.replace(SMOKE, train_images=256, test_images=100), epochs=1)
    assert [row.verdict.runs for row in found.rows] == [(1, 1), (1, 1)]
    assert "autocast" in found.rows[0].name
    assert "2 run(s)" not in found.sentence()


def test_the_accuracy_that_decides_is_that_of_the_net_it_decides_for() -> None:
    found = precision.judge_accuracy(dataclasses.replace(SMOKE, train_images=64, test_images=50), table(1.6))
    assert found is not None
    assert found.net == "wide MLP"
    assert [row.name for row in found.rows] == [rounding.AUTOCAST]
    assert precision.judge_accuracy(SMOKE, table(1.0, verdict="undecided")) is None


# -- scaler


def test_the_scale_halves_at_overflow_and_doubles_after_clean_steps() -> None:
    found = scaler.trace_scale(dataclasses.replace(SMOKE, rounds=2), init_scale=2.0**26, growth_interval=5)
    clean = 0
    for place in range(len(found.scales) - 1):
        clean = 0 if found.skipped[place] else clean + 1
        factor = 0.5 if found.skipped[place] else 2.0 if clean == 5 else 1.0
        clean %= 5
        assert found.scales[place + 1] == found.scales[place] * factor
    assert found.skipped[0]
    assert not all(found.skipped)
    assert "doubled" in found.sentence()


def test_the_sentence_is_prepared_for_a_run_of_overflows() -> None:
    assert "Every step overflowed" in scaler.ScaleTrace((8.0, 4.0), (True, True), 8).sentence()


def half_runs(*verdicts: str) -> runs.HalfRuns:
    from accelerando.stats import AccuracyVerdict

    made = [AccuracyVerdict(one, 0.0, (-0.01, 0.01), 0.95, (1, 1), 10, "") for one in verdicts]  # type: ignore[arg-type]
    ways = zip(((1, False), (2**20, False), (2**20, True)), made, strict=True)
    return runs.HalfRuns(tuple(runs.HalfRun(terms, has, 0.7, one) for (terms, has), one in ways), 0.7, 1)


def test_a_loss_over_many_terms_learns_nothing_without_a_scale() -> None:
    few = dataclasses.replace(SMOKE, train_images=2000, test_images=400)
    bare, many, scaled = runs.train_in_half(few).rows
    assert many.accuracy < 0.3 < scaled.accuracy
    assert many.verdict.verdict == "lost"
    assert abs(bare.accuracy - scaled.accuracy) < 0.1


def test_the_sentence_on_runs_in_half_follows_the_verdicts() -> None:
    shown = half_runs("kept", "lost", "kept").sentence()
    assert "No error was raised" in shown
    assert "The scaler brought it back" in shown
    assert "Nor does every loss" in shown
    assert "brought it back" not in half_runs("kept", "lost", "undecided").sentence()
    assert "none of these runs" in half_runs("undecided", "undecided", "kept").sentence()


def test_only_the_right_order_is_right() -> None:
    right, clip_first, unscale_each, summed, past = orders.compare_orders(SMOKE).rows
    assert right.error < 0.02
    assert clip_first.length < 0.01
    assert "unscale_" in unscale_each.raised
    assert summed.length == pytest.approx(3, rel=0.3)
    assert past.length > 100


def test_a_table_of_orders_says_which_were_noticed() -> None:
    found = orders.compare_orders(SMOKE)
    assert found.markdown().count("\n") == 1 + len(orders.ORDERS)
    assert "of the 4 others" in found.sentence()


def test_a_restart_with_state_skips_fewer_steps() -> None:
    found, usual = scaler.measure_restart(SMOKE).rows
    assert found.skipped_with < found.skipped_without
    assert found.settled < found.start == 2.0**24
    assert usual.start == 2.0**16
    told = scaler.Restarts((found, usual)).sentence()
    assert "256 times torch's default" in told
    assert told.count("\n| 2^") == 2


# -- casting


def test_products_are_cast_down_and_a_loss_up() -> None:
    found = {rule.operator: rule for rule in casting.rules()}
    assert found["linear, matmul"].kind.startswith("narrow")
    assert found["conv2d"].kind.startswith("narrow")
    assert found["mse_loss"].kind.startswith("wide")
    assert found["relu, add, max_pool"].kind.startswith("neither")
    assert found["cat, stack"].kind == "joins: of one of each it makes fp32"
    assert casting.rules_table(tuple(found.values())).count("\n") == 1 + len(found)


def test_every_trap_goes_wrong_here() -> None:
    found = casting.traps()
    assert [trap.name for trap in found if not trap.is_wrong] == []
    assert casting.traps_table(found).count("✗") == len(found)


# -- memory


def test_bytes_kept_are_those_of_the_layers_inputs() -> None:
    batch, width = 64, 2048
    kept = memory.measure_saved("wide MLP", batch).kept_bytes["fp32"]
    assert kept == 4 * batch * (784 + 2 * width)  # the input, and each ReLU's output, which is the next layer's input


def test_autocast_keeps_more_for_few_images_and_less_for_many() -> None:
    few, many = (memory.measure_saved(net, batch).ratio for net, batch in (("wide MLP", 8), ("slim CNN", 256)))
    assert few > 1 > many > 0.4
    found = memory.sweep_saved((8, 32))
    assert "weigh more" in found.sentence()


def test_copies_of_weights_are_those_that_the_way_back_needs() -> None:
    wide, slim = (memory.measure_saved(net, 8) for net in ("wide MLP", "slim CNN"))
    assert (wide.copies, wide.layers) == (2, 3)  # the images need no gradient
    assert wide.copy_bytes == 2 * (2048 * 2048 + 2048 * 10)
    assert wide.kept_bytes["bf16"] > wide.copy_bytes > slim.copy_bytes > 0
    assert "2 of the 3 layers" in memory.SavedSweep((wide, slim)).sentence()


def test_recomputing_keeps_less() -> None:
    kept = memory.measure_saved("slim CNN", 32, with_recomputing=True).kept_bytes
    assert kept["fp32 recomputed"] < kept["fp32"] / 1.5
    assert kept["bf16 recomputed"] <= kept["fp32 recomputed"]
    told = memory.recompute_table(128)
    assert told.count("\n|") == 3
    assert "for the wide MLP it saves nothing in fp32 and keeps" in told


def test_recomputing_changes_no_gradient() -> None:
    module, batch = models.build(models.MlpSizes(hidden=(16, 16))), torch.randn(4, 1, 28, 28)
    found = []
    for segments in (0, 2):
        module.zero_grad()
        memory._forward(module, batch.clone(), segments).sum().backward()
        found.append(torch.cat([entry.grad.reshape(-1) for entry in module.parameters()]))
    torch.testing.assert_close(found[0], found[1])


# -- speed


def comparison(ratio: float, verdict: str, pairs: int = 9, spread: float = 0.1) -> measure.Comparison:
    side = measure.Measurement("x", 1.0, (0.9, 1.1), 0.95, (1.0,), 1, 1.0, 0.0, 0.0, 1.0, machine.UNKNOWN_STATE)
    ends = (ratio * (1 - spread), ratio * (1 + spread))
    return measure.Comparison(
        verdict, ratio, ends, 0.99, 1.0, pairs, 20, side, side, 3.0, 1.0, "", (), machine.UNKNOWN_STATE  # type: ignore[arg-type]
    )  # fmt: skip


def table(*ratios: float, has_units: bool | None = True, verdict: str = "faster", pairs: int = 9) -> speed.SpeedTable:
    names = ("wide MLP", "slim CNN")
    rows = [
        speed.SpeedRow(name, "bf16", comparison(r, verdict, pairs), has_units)
        for name, r in zip(names, ratios, strict=False)
    ]
    return speed.SpeedTable(tuple(rows))


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (table(2.5, 2.4), "more than twice as fast"),
        (table(1.9, 1.95), "Whether it is twice as fast the intervals do not tell"),
        (table(1.6, 1.3), "not twice as fast"),
        (table(1.6, 0.8), "It depends on what is computed"),
        (table(1.3, 1.2, has_units=False), "although the flags name no units"),
        (table(0.15, 0.2, has_units=False), "at least 4.5 times. The flags said so"),
        (table(0.5, 0.6), "trust the measurement"),
        (table(1.0, 1.02), "nothing is shown to be won"),
        (table(1.0, pairs=0), "not one pair"),
    ],
)
def test_the_sentence_is_prepared_for_every_machine(found: speed.SpeedTable, words: str) -> None:
    assert words in found.sentence()


def test_a_detour_that_is_quick_clears_the_conversions() -> None:
    rows = [
        speed.SpeedRow("product", name, comparison(ratio, "not faster"), False)
        for name, ratio in (("fp16", 0.02), ("fp16" + speed.BY_HAND, 0.8))
    ]
    told = speed.SpeedTable(tuple(rows)).sentence()
    assert "The conversions are not to blame" in told
    assert "1.2 times as long as in fp32, and torch's own way 50 times" in told
    rows[1] = speed.SpeedRow("product", "fp16" + speed.BY_HAND, comparison(0.03, "not faster"), False)
    assert "to blame" not in speed.SpeedTable(tuple(rows)).sentence()


@pytest.mark.parametrize(
    ("product", "words"), [(3.0, "gains less"), (1.0, "gains more"), (1.5, "two intervals overlap")]
)
def test_a_step_is_set_beside_its_product(product: float, words: str) -> None:
    assert words in precision.compare_gains(table(product), table(1.6, 1.55))


@pytest.mark.parametrize(
    ("ratio", "words"), [(0.2, "slower, as it would be"), (2.0, "still faster"), (1.02, "too close to call")]
)
def test_without_units_every_outcome_has_its_words(ratio: float, words: str) -> None:
    assert words in lowered.Lowered((comparison(ratio, "undecided"),)).sentence()


def test_units_are_taken_away_only_where_there_are_some() -> None:
    here = dataclasses.replace(machine.probe(), has_bf16=False)
    assert "no bf16 units" in lowered.measure_lowered(BUDGETS["quick"], here).sentence()
    assert (
        "no time for processes"
        in lowered.measure_lowered(SMOKE, dataclasses.replace(here, has_bf16=True, architecture="x86_64")).sentence()
    )
    step = lowered.prepare_step("slim CNN", "bf16", 128, 50)
    assert math.isfinite(step())


@pytest.mark.parametrize("flag", [True, False, None])
def test_hardware_is_described_also_when_it_is_unknown(flag: bool | None) -> None:
    here = dataclasses.replace(machine.probe(), has_bf16=flag, has_fp16=flag, simd=None, gpus=())
    assert "none, so nothing below was measured on one" in precision.describe_hardware(here)


def accuracy(verdict: str) -> rounding.AccuracyTable:
    from accelerando.stats import AccuracyVerdict

    found = AccuracyVerdict(verdict, 0.0, (-0.01, 0.01), 0.95, (1, 1), 10, "")  # type: ignore[arg-type]
    return rounding.AccuracyTable((rounding.AccuracyRow("autocast", 0.8, 0.8, found),), 1, 0.01)


SAVED = memory.Saved("wide MLP", 256, {"fp32": 100, "bf16": 120}, 10)


@pytest.mark.parametrize(
    ("verdict", "kept", "expected", "words"),
    [
        ("faster", "kept", "bf16", "1.60 times as fast"),
        ("faster", "undecided", "fp32", "more seeds"),
        ("faster", "lost", "fp32", "That is a loss"),
        ("not faster", "kept", "fp32", "1.20 times the bytes"),
        ("undecided", "kept", "fp32", "not decided"),
    ],
)
def test_the_decision_follows_the_measurements(verdict: str, kept: str, expected: str, words: str) -> None:
    found = precision.decide(table(1.6, verdict=verdict), accuracy(kept), SAVED)
    assert found.precision == expected
    assert words in found.sentence()


def test_without_a_gain_no_accuracy_is_needed() -> None:
    assert precision.decide(table(0.4, verdict="not faster"), None, SAVED).precision == "fp32"


def test_everything_about_speed_runs_on_this_machine() -> None:
    here = machine.probe()
    assert len(precision.measure_products(SMOKE, here).rows) == 5 - bool(here.has_bf16) - bool(here.has_fp16)
    steps = precision.measure_steps(SMOKE, here, precisions=("bf16",))
    assert steps.find("wide MLP", "bf16").comparison.ratio > 0 or not steps.rows[0].comparison.pairs
    assert list(precision.measure_batches(SMOKE).comparisons) == [16]


@pytest.mark.parametrize(
    ("first", "last", "words"),
    [
        (1.2, 2.0, "the less both of them count"),
        (2.0, 1.2, "something else decides"),
        (1.5, 1.52, "hardly counts here"),
    ],
)
def test_the_batch_table_says_which_way_it_goes(first: float, last: float, words: str) -> None:
    found = {16: comparison(first, "faster"), 64: comparison(1.5, "faster", 0), 256: comparison(last, "faster")}
    table = speed.BatchTable(found)
    assert list(table.rows) == [16, 256]
    assert words in table.sentence()
    assert "Too little" in speed.BatchTable({16: comparison(1.0, "faster")}).sentence()


def test_a_product_in_fp32_is_told_from_one_in_bf16() -> None:
    before = torch.get_float32_matmul_precision()
    found = precision.measure_matmul_errors(64)
    narrow = dataclasses.replace(found, measured={**found.measured, "medium": found.predicted["bf16"]})
    assert "fewer bits, once" in narrow.sentence()
    assert torch.get_float32_matmul_precision() == before
    assert found.predicted["bf16"] > found.predicted["tf32"] > found.predicted["fp32"]
    assert found.nearest("highest") == "fp32"
    assert '"medium"' in found.sentence()


# -- the lab's timed question


def test_the_start_is_a_recipe_and_the_experiment_can_be_found() -> None:
    assert Recipe.from_dict(task.SLOW_START).precision == "fp32"
    module, _, function = task.TRAIN_RECIPE.partition(":")
    assert getattr(__import__(module, fromlist=[function]), function) is task.train_recipe
    assert len(task.task_data().test.labels) == 2000


def test_the_wide_net_is_as_wide_as_the_text_says() -> None:
    assert 5.7e6 < counts.parameters(models.build(task.WIDE_MLP)) < 5.9e6
    assert math.isclose(models.flops_per_image(task.WIDE_MLP), 3 * 2 * 5.8e6, rel_tol=0.2)
