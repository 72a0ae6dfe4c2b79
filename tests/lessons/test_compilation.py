"""Lesson 2's experiments run, their sentences follow the numbers, and mended functions compute what the cut ones do."""

import math
import os
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module

import numpy as np
import pytest
import torch
from torch import nn

from accelerando import costs, machine, models, programs, torch_compile
from accelerando.figures import compilation as pictures
from accelerando.lessons import BUDGETS
from accelerando.lessons.compilation import (
    breaks,
    fusion,
    graphs,
    kernels,
    payback,
    race,
    settings,
    shapes,
    sides,
    subjects,
    toolchain,
    traffic,
)
from accelerando.widgets import compilation as explorers

SMOKE = BUDGETS["smoke"]
NO_CODE = toolchain.Toolchain("aot_eager", "Nothing generates code here.")
WITH_CODE = toolchain.Toolchain("inductor")


@pytest.fixture(autouse=True)
def no_graph_is_left(one_thread):
    yield
    torch._dynamo.reset()


# -- how far this run goes


def test_smoke_generates_no_code_and_says_so() -> None:
    found = toolchain.find(machine.probe(), SMOKE)
    assert not found.generates_code
    assert "smoke budget" in found.sentence()


def test_a_machine_without_a_compiler_is_told_how_to_get_one() -> None:
    found = toolchain.find(replace(machine.probe(), compilers=()), BUDGETS["quick"])
    assert found.backend == "aot_eager"
    assert "no C++ compiler" in found.sentence()
    assert "apt install g++" in found.sentence()


def test_a_python_without_its_headers_is_told_so(monkeypatch: pytest.MonkeyPatch, tmp_path: os.PathLike) -> None:
    here = replace(machine.probe(), compilers=(programs.Program("g++", "GCC", "12", "/usr/bin/g++"),))
    monkeypatch.setattr(toolchain.sysconfig, "get_path", lambda name: str(tmp_path))
    found = toolchain.find(here, BUDGETS["quick"])
    assert not found.generates_code
    assert "Python.h" in found.why


def test_compile_caches_are_fresh_and_leave_nothing() -> None:
    with torch_compile.fresh_caches() as first, torch_compile.fresh_caches() as second:
        folders = {variables["TORCHINDUCTOR_CACHE_DIR"] for variables in (first, second)}
        assert len(folders) == 2
        assert all(os.listdir(folder) == [] for folder in folders)
    assert not any(os.path.exists(folder) for folder in folders)


# -- the stages


def gelu_of_sum(x: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
    return nn.functional.gelu(x + shift)


def test_the_stages_of_a_function_with_a_gradient() -> None:
    x = torch.randn(6, 4, requires_grad=True)
    work = graphs.trace(gelu_of_sum, x, torch.ones(4), toolchain=NO_CODE)
    assert work.graphs == 1
    assert "gelu" in work.dynamo
    assert "f32[6, 4]" in work.dynamo
    assert any("L['x']" in guard and "[6, 4]" in guard for guard in work.guards)
    assert "gelu_backward" in work.joint
    assert {"gelu", "gelu_backward"} <= set(work.as_written)
    assert "gelu_backward" not in work.decomposed
    assert "erf" in work.decomposed
    assert "`gelu_backward`" in work.decomposition_sentence()
    assert work.backward
    assert work.forward.splitlines()[-1] in work.joint_sentence()
    assert x.grad is None
    assert work.kernel_sentence() == NO_CODE.why
    written, decomposed = sum(work.as_written.values()), sum(work.decomposed.values())
    said = replace(work, kernels=(kernels.Kernel("cpp_fused_0", "C++", ""),)).kernel_sentence()
    assert f"{written} operators, forward and backward ({decomposed} after the rules" in said
    assert "became one kernel of C++" in said


def test_without_a_gradient_there_is_no_joint_graph() -> None:
    work = graphs.trace(gelu_of_sum, torch.randn(6, 4), torch.ones(4), toolchain=NO_CODE)
    assert work.joint == work.backward == ""
    assert "no joint graph" in work.joint_sentence()


def test_a_function_of_core_operators_stays_as_it_is_written() -> None:
    work = graphs.trace(lambda x: torch.exp(x * 2), torch.randn(3), toolchain=NO_CODE)
    assert "already" in work.decomposition_sentence()


def test_a_function_in_pieces_shows_all_its_graphs() -> None:
    work = graphs.trace(breaks.chain_in_pieces, torch.randn(8), toolchain=NO_CODE)
    assert work.graphs == 4
    assert work.dynamo.count("return") == 4
    assert "cannot be captured" in work.graph_sentence()


def test_traffic_agrees_with_bytes_counted_by_hand() -> None:
    x, y = torch.randn(10, 5), torch.randn(5)
    found = traffic.count_traffic(lambda x, y: torch.exp(x * y).reshape(50), x, y)
    assert found.operators == 2
    assert found.eager_bytes == (200 + 20 + 200) + (200 + 200)
    assert found.fused_bytes == 200 + 20 + 200
    assert found.predicted_gain == pytest.approx(820 / 420)


def test_kernels_are_found_in_what_inductor_writes() -> None:
    source = """
cpp_fused_add_0 = async_compile.cpp_pybinding(['const float*', 'float*'], '''
#include "/somewhere/abc.h"
extern "C"  void kernel(const float* in_ptr0)
{ }
''')
triton_poi_fused_mul_1 = async_compile.triton('triton_poi_fused_mul_1', '''
import triton
''', device_str='cuda')
"""
    first, second = kernels.read_kernels(source)
    assert (first.name, first.language) == ("cpp_fused_add_0", "C++")
    assert first.text.startswith('extern "C"')
    assert (second.name, second.language, second.text) == ("triton_poi_fused_mul_1", "Triton", "import triton")


@pytest.mark.skipif(not toolchain.find(machine.probe(), BUDGETS["quick"]).generates_code, reason="no C++ compiler")
def test_a_chain_of_operators_becomes_one_kernel() -> None:
    (kernel,) = kernels.generate(breaks.chain, torch.randn(64))
    assert kernel.language == "C++"
    assert "#include" not in kernel.text


def fused(ratio: float, verdict: str, moved: traffic.Traffic, tools: toolchain.Toolchain = WITH_CODE) -> fusion.Fusion:
    measured = fusion.measure.compare(lambda: sum(range(500)), lambda: sum(range(500)), budget_s=0.05)
    found = replace(measured, ratio=ratio, interval=(ratio * 0.9, ratio * 1.1), verdict=verdict)
    return fusion.Fusion(moved, 5, found, tools)


@pytest.mark.parametrize(
    ("ratio", "verdict", "words"),
    [
        (1.0, "not faster", "not what the function waited for"),
        (2.0, "faster", "60% less than predicted"),
        (4.4, "faster", "12% less than predicted"),
        (5.0, "faster", "lies within the interval"),
        (5.9, "faster", "18% more than predicted"),
        (9.0, "faster", "80% more than predicted"),
    ],
)
def test_the_sentence_on_fusion_is_prepared_for_every_machine(ratio: float, verdict: str, words: str) -> None:
    found = fused(ratio, verdict, traffic.Traffic(5, 500, 100))
    assert words in found.sentence()
    assert "5.0 times" in found.prediction()
    assert "nothing to gain" in replace(found, toolchain=NO_CODE).sentence()


# -- breaks


@pytest.mark.parametrize("example", breaks.EXAMPLES, ids=lambda example: example.name)
@pytest.mark.parametrize("scale", [0.1, 1.5])
def test_a_mended_function_computes_what_the_cut_one_does(example: breaks.Example, scale: float) -> None:
    x = torch.randn(20, 7, generator=torch.Generator().manual_seed(1)) * scale
    mended = example.mended(x)
    mended = mended[0] if isinstance(mended, tuple) else mended
    torch.testing.assert_close(mended, example.cut(x), rtol=1e-5, atol=2e-3)  # the sum ends where terms are small


def test_a_decision_left_in_the_graph_has_the_gradient_of_the_branch_that_is_chosen() -> None:
    for x in (torch.zeros(4, 3), torch.full((4, 3), 0.5), torch.linspace(-5, 4, 12).view(4, 3)):
        gradients = []
        for function in (breaks.clip_by_if, breaks.clip_by_where):
            wanted = x.clone().requires_grad_()
            gradients.append(torch.autograd.grad(function(wanted).sum(), wanted)[0])
        torch.testing.assert_close(*gradients)


def test_every_example_is_cut_and_its_twin_is_whole() -> None:
    reports = breaks.explain()
    for report in reports:
        assert report.cut.graphs != 1, report.name
        assert (report.mended.graphs, report.mended.breaks) == (1, 0), report.name
    assert reports[-1].cut.graphs == 0, "a cut inside a loop"
    assert all(report.cut.reasons for report in reports[:-1])
    assert "nothing is compiled" in breaks.table(reports)
    assert breaks.table(reports).count("\n") == 1 + len(reports)


def test_fullgraph_refuses_what_is_cut_and_nothing_else() -> None:
    x = torch.randn(4)
    said = breaks.refusal(breaks.clip_by_if, x)
    assert "Unsupported" in said or "UserError" in said
    assert "/" not in said
    assert "one piece" in breaks.refusal(breaks.clip_by_where, x)


def test_both_chains_are_the_same_function() -> None:
    x = torch.randn(50)
    torch.testing.assert_close(breaks.chain(x), breaks.chain_in_pieces(x))
    found = breaks.measure_cuts(SMOKE, NO_CODE)
    assert (found.pieces, found.predicted) == (4, 4.0)
    assert NO_CODE.why in found.sentence()


@pytest.mark.parametrize(
    ("ratio", "words"),
    [
        (4.8, "it is 20% more. A cut brings more"),
        (4.2, "the interval contains that"),
        (3.0, "it is 25% less"),
        (0.5, "the pieces won"),
    ],
)
def test_what_cuts_cost_is_set_beside_what_the_bytes_promise(ratio: float, words: str) -> None:
    measured = fused(ratio, "faster", traffic.Traffic(5, 500, 100)).found
    said = breaks.BreakCost(measured, 4, 4.0, WITH_CODE).sentence()
    assert words in said
    assert ("**4.0 times**" in said) == (ratio > 1)


# -- shapes


def test_remedies_for_the_last_batch() -> None:
    found = {trial.name: trial for trial in shapes.try_remedies(100, 32, 2)}
    assert {name: trial.recompiles for name, trial in found.items()} == {
        "nothing": 1,
        "`dynamic=False`": 1,
        "`dynamic=True`": 0,
        "`torch._dynamo.mark_dynamic(x, 0)`": 0,
        "`drop_last=True`": 0,
        "padding": 0,
    }
    assert found["`drop_last=True`"].examples == 96
    assert (found["padding"].examples, found["padding"].rows) == (100, 128)
    assert shapes.table(tuple(found.values())).count("\n") == 1 + len(found)


def test_lengths_without_dynamic_shapes_run_into_the_limit() -> None:
    found = {trial.name: trial.recompiles for trial in shapes.try_lengths()}
    assert found["nothing"] == 1
    assert found["`dynamic=False`"] == torch._dynamo.config.recompile_limit - 1
    assert found["`dynamic=False`, buckets of 16"] == 2


def test_surprises_are_counted_and_only_the_first_is_none() -> None:
    rows = [row.split("|") for row in shapes.surprises().splitlines()[2:]]
    counted = {row[1].strip(): int(row[3]) for row in rows}
    assert counted.pop("the same shape again") == 0
    assert min(counted.values()) >= 1, counted


# -- what it costs and when it pays


@pytest.mark.parametrize(
    ("given", "steps"), [((10.0, 0.5, 0.25), 40.0), ((0.0, 0.5, 0.25), 0.0), ((10.0, 0.5, 0.5), math.inf)]
)
def test_break_even_is_what_compiling_costs_over_what_a_step_saves(given: tuple, steps: float) -> None:
    assert costs.predict_break_even_steps(*given) == steps


def test_break_even_refuses_a_step_of_no_time() -> None:
    with pytest.raises(ValueError, match="eager_step_s"):
        costs.predict_break_even_steps(1.0, 0.0, 0.1)


@pytest.mark.parametrize(
    ("eager", "compiled", "expected"),
    [
        ([1, 2, 3, 4], [3, 3, 3, 3], 3),
        ([1, 2, 3, 4], [0, 1, 2, 3], 1),
        ([1, 2, 3], [5, 6, 7], None),
        ([1, 2, 3, 4], [0, 3, 3, 3], 3),
        ([1, 2, 3], [0, 0, 9], None),
    ],
)
def test_the_crossing_is_the_step_after_which_nobody_falls_behind_again(
    eager: list, compiled: list, expected: int | None
) -> None:
    assert race.crossing(eager, compiled) == expected


def paid(ratio: float, low: float, high: float, **more: object) -> payback.Payback:
    fields = {
        "start_s": 5.0,
        "compile_s": 10.0,
        "recompile_s": 4.0,
        "eager_step_s": 0.1,
        "compiled_step_s": 0.1 / ratio,
    }
    fields |= {"library_share": 0.5, "loss_difference": 1e-7, "toolchain": WITH_CODE, **more}
    return payback.Payback(subjects.GATES, ratio=ratio, interval=(low, high), **fields)


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (paid(2.0, 1.8, 2.2), "another 5.0 s to get it ready, after **300**."),
        (paid(2.0, 1.8, 2.2, start_s=0.0), "paid back after about **200 steps**."),
        (paid(0.8, 0.7, 0.9), "never paid back"),
        (paid(1.0, 0.9, 1.1), "cannot be told"),
        (paid(1.0, 0.9, 1.1, toolchain=NO_CODE), "Nothing generates code here."),
    ],
)
def test_the_sentence_on_payback_is_prepared_for_every_machine(found: payback.Payback, words: str) -> None:
    assert words in found.sentence()
    assert "differ by 1e-07" in found.check_sentence()
    assert "50% of an eager step" in found.ceiling_sentence()


def test_the_ceiling_is_amdahls_limit_of_the_library_share() -> None:
    assert paid(1.1, 1.0, 1.2, library_share=0.8).ceiling == pytest.approx(1.25)
    assert "another layout" in paid(1.9, 1.8, 2.0, library_share=0.8).ceiling_sentence()
    picture = payback.ceilings([paid(2.0, 1.8, 2.2), paid(1.0, 0.9, math.inf, library_share=0.0)])
    assert "2.00 of at most 2.0" in picture.words


def raced(crossed_at: int | None, found: payback.Payback) -> race.Race:
    steps = np.arange(1, 301)
    return race.Race(found, steps, steps * 0.1, 10 + steps * 0.05, crossed_at)


def test_the_race_is_told_whether_or_not_it_is_won() -> None:
    won, lost = raced(200, paid(2.0, 1.8, 2.2)), raced(None, paid(0.9, 0.8, 0.95))
    assert "ahead from step **200**" in won.sentence()
    assert "0% off" in won.sentence()
    assert "never" in lost.sentence()
    assert "behind" in lost.sentence()
    assert "one of fewer than 300." in won.sentence()
    assert won.mean_steps_s() == pytest.approx((0.1, 0.05))
    assert "100 ms eager and 50 ms compiled on average" in won.sentence()
    assert "5.0 s later" in won.picture().words
    assert "measured at step 200" in won.picture().words
    assert "not within" in lost.picture().words


@pytest.mark.parametrize("subject", subjects.SUBJECTS, ids=lambda subject: subject.name)
def test_every_subject_trains_alike_on_both_sides(subject: subjects.Subject) -> None:
    found = payback.measure_payback(subject, SMOKE, NO_CODE)
    assert found.loss_difference < 1e-3
    assert 0 < found.library_share < 1
    assert math.isfinite(found.ratio)
    assert NO_CODE.why in found.sentence()


def test_convolutions_have_a_larger_library_share_than_gates() -> None:
    gates, _, convolutions = (payback.measure_payback(subject, SMOKE, NO_CODE) for subject in subjects.SUBJECTS)
    assert convolutions.library_share > gates.library_share


def test_a_short_race_in_this_process() -> None:
    found = race.measure_race(subjects.GATES, SMOKE, NO_CODE)
    assert len(found.steps) == len(found.eager_s) == len(found.compiled_s) == 10
    assert (np.diff(found.eager_s) > 0).all()


def test_settings_that_generate_code_are_left_out_where_there_is_none() -> None:
    found = settings.measure_settings(subjects.GATES, SMOKE, NO_CODE)
    assert [entry.setting.arguments["backend"] for entry in found] == ["eager", "aot_eager"]
    assert sum(row.startswith("| `") for row in settings.settings_table(found).splitlines()) == 3


@pytest.mark.parametrize("function", [payback.steps_in_child, race.race_in_child, settings.settings_in_child])
def test_a_child_process_finds_its_target(function: Callable[..., object]) -> None:
    module, _, name = sides.target_of(function).partition(":")
    assert getattr(import_module(module), name) is function


def test_the_network_of_gates_is_what_its_sizes_say() -> None:
    sizes = models.GatedSizes(inputs=5, width=7, blocks=2)
    assert models.sizes_from_dict(models.sizes_to_dict(sizes)) == sizes
    model = models.build(sizes)
    assert model(models.example_input(sizes, 3)).shape == (3, 10)
    assert sum(p.numel() for p in model.parameters()) == (5 * 7 + 7) + 2 * 6 * 7 + (7 * 10 + 10)


# -- the explorer


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ((30.0, 0.1, 1.25, 10_000, 1), "from step 1,500 on"),
        ((30.0, 0.1, 1.25, 1000, 1), "ends before step 1,500"),
        ((30.0, 0.1, 1.25, 10_000, 2), "from step 3,000 on"),
        ((30.0, 0.1, 1.0, 1000, 1), "no number of steps"),
        ((30.0, 0.1, 0.8, 1000, 1), "no number of steps"),
        ((30.0, 0.1, 1.25, 10_000, 2, 10.0), "waits 40 s. It pays from step 3,500 on"),
        ((30.0, 0.1, 1.25, 1000, 1, 10.0), "before step 2,000, where it would pay. A recompile moves it by 1,500"),
    ],
)
def test_the_explorer_says_when_it_pays(given: tuple, words: str) -> None:
    assert words in explorers.explain(*given)
    assert pictures.break_even(*given).png


def test_the_explorer_starts_from_any_measurement_and_shows_without_a_kernel() -> None:
    for compile_s, step_s, gain in ((0.01, 1e-6, 0.1), (1e4, 100.0, 50.0), (12.0, 0.02, 2.0)):
        bundle = explorers.break_even_explorer(compile_s, step_s, gain)._repr_mimebundle_()
        assert "image/png" in bundle
        assert "A run of" in bundle["text/plain"]


@pytest.mark.parametrize(("even", "steps"), [(math.inf, 1000), (939, 2000), (2607, 4000), (10, 30), (1e9, 1_000_000)])
def test_the_explorer_begins_with_a_run_that_goes_beyond_its_break_even_step(even: float, steps: int) -> None:
    assert explorers.long_enough(even) == steps
