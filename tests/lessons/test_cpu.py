"""Lesson 3's experiments run, their sentences follow the numbers on any machine, and its arithmetic is right."""

import contextlib
import os
import sys
import threading
from dataclasses import replace
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest
import torch

from accelerando import machine, noise, surroundings
from accelerando.lessons import BUDGETS, cpu
from accelerando.lessons.cpu import (
    blocking,
    extension,
    halves,
    hardware,
    load,
    memory,
    onednn,
    openmp,
    placement,
    roofline,
    setups,
    simd,
    threads,
    turns,
    ways,
)
from accelerando.readers import linux
from accelerando.rounds import RoundPoint
from accelerando.workers import Experiment

SMOKE = BUDGETS["smoke"]
CACHES = {"L1d": machine.Cache(32 * 1024, 2), "L2": machine.Cache(2**20, 2)}


pytestmark = pytest.mark.usefixtures("one_thread")


def point(key: int, seconds: float, first_s: float = 1.0) -> RoundPoint:
    ratio = first_s / seconds
    return RoundPoint(key, seconds, ratio, (ratio * 0.9, ratio * 1.1), (seconds,))


def reading(seconds: float, first_s: float) -> turns.Reading:
    ratio = first_s / seconds
    return turns.Reading(seconds, ratio, (ratio * 0.95, ratio * 1.05))


# -- turns ------------------------------------------------------------------------------------------------------------


def test_ratios_are_taken_within_rounds_to_the_first_setting_that_has_the_kernel() -> None:
    slow_minute = [1.0, 10.0, 1.0, 1.0, 1.0, 1.0]
    samples = {
        "first": [{"a": 2.0 * x} for x in slow_minute],
        "second": [{"a": 1.0 * x, "b": 3.0 * x} for x in slow_minute],
        "third": [{"b": 6.0 * x} for x in slow_minute],
    }
    found = turns.summarise(samples)
    assert found["a"]["second"].ratio == pytest.approx(2.0)
    assert found["a"]["second"].interval == pytest.approx((2.0, 2.0))
    assert found["b"]["second"].ratio == 1.0
    assert found["b"]["third"].ratio == pytest.approx(0.5)


def test_a_process_that_fails_is_named_and_the_others_go_on() -> None:
    experiments = {
        "broken": Experiment("accelerando.lessons.cpu.simd:no_such_function", prepares=True),
        "good": Experiment("accelerando.lessons.cpu.hardware:prepare_product", prepares=True),
    }
    found = turns.measure_in_turns(experiments, 1, rest_s=0.0)
    assert list(found.readings["linear layer"]) == ["good"]
    assert "no_such_function" in found.failed["broken"]


# -- simd -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "architecture", "expected"),
    [
        ("AVX512+AMX", "x86_64", ["lowest", "AVX2", "best (AVX512+AMX)"]),
        ("AVX2", "x86_64", ["lowest", "best (AVX2)"]),
        ("SSE4.2", "x86_64", ["best (SSE4.2)"]),
        ("SVE2", "aarch64", ["portable", "best (SVE2)"]),
        ("NEON", "arm64", ["best (NEON)"]),
        (None, "x86_64", ["best (unknown)"]),
    ],
)
def test_levels_are_those_that_the_processor_has(name: str | None, architecture: str, expected: list[str]) -> None:
    assert [level.name for level in simd.levels(name, architecture)] == expected


def test_every_level_sets_or_removes_the_same_variables() -> None:
    for name, architecture in (("AVX512", "x86_64"), ("SVE2", "aarch64")):
        assert len({tuple(sorted(level.environment)) for level in simd.levels(name, architecture)}) == 1


def simd_table(best: dict[str, float], halves: dict[str, float]) -> simd.SimdTable:
    """A table in which every kernel takes a second at the lowest level."""
    names = ("lowest", "AVX2", "best")
    rows = {kernel: {name: reading(1 / gain, 1.0) for name, gain in zip(names, (1.0, gain, gain), strict=True)}
            for kernel, gain in best.items()}  # fmt: skip
    rows |= {kind: {name: reading(seconds, 1.0) for name in names} for kind, seconds in halves.items()}
    named = {"fp32": "jit:wide", "bf16": "jit:bf16", "fp16": ""}
    facts = {name: {"oneDNN": named if name == "best" else {"fp32": "jit:narrow"}} for name in names}
    return simd.SimdTable(names, turns.Turns(rows, facts))


GAINS = {simd.CONVOLUTION: 3.0, simd.GELU: 4.0, simd.MULTIPLY_ADD: 3.5, simd.TRIAD: 1.05, simd.PRODUCT: 1.0}
HALVES = {"fp32": 1.0, "bf16": 0.5, "fp16": 6.0}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "**3.0 times** as fast as at the lowest"),
        ({}, "it waits for memory"),
        ({}, "hears neither variable"),
        ({}, "convolution 1.00, GELU, in cache 1.00, multiply-add, in cache 1.00"),
        ({simd.CONVOLUTION: 1.0}, "the belief survives"),
        ({simd.TRIAD: 3.5}, "cannot keep the memory busy"),
        ({simd.PRODUCT: 2.0}, "changes too"),
    ],
)
def test_the_simd_sentence_is_prepared_for_every_machine(changes: dict[str, float], words: str) -> None:
    table = simd_table({**GAINS, **changes}, HALVES)
    assert words in table.sentence()
    assert table.table().count("\n") == 1 + len(simd.KERNELS)


@pytest.mark.parametrize(
    ("seconds", "flags", "words"),
    [
        (HALVES, (True, False), "has units for bf16, and the convolution runs at **2.00 times"),
        (HALVES, (True, False), "half is no gain here"),
        ({**HALVES, "bf16": 1.0}, (True, False), "and yet this small convolution"),
        ({**HALVES, "fp16": 0.5}, (True, False), "fewer bytes help too"),
        (HALVES, (None, None), "does not say about bf16"),
    ],
)
def test_the_half_sentence_sets_flags_beside_times(seconds: dict, flags: tuple, words: str) -> None:
    assert words in halves.HalfPrecision(simd_table(GAINS, seconds), *flags).sentence()


def test_only_a_processor_with_units_is_shown_what_it_would_be_without() -> None:
    table = simd_table(GAINS, HALVES)
    told = halves.HalfPrecision(table, True, False).sentence()
    assert "held at AVX2" in told
    assert "names no kernel for it either" in told
    assert "held at" not in halves.HalfPrecision(table, False, False).sentence()


def test_the_half_sentence_names_the_kernels_that_ran() -> None:
    told = halves.HalfPrecision(simd_table(GAINS, HALVES), True, False).sentence()
    assert "`jit:wide` for fp32 and `jit:bf16` for bf16" in told
    assert "For fp16 it names none" in told
    silent = simd.SimdTable(("lowest", "best"), turns.Turns(simd_table(GAINS, HALVES).turns.readings))
    assert "names" not in halves.HalfPrecision(silent, False, False).sentence()


def test_a_kernel_is_read_from_what_onednn_prints() -> None:
    lines = (
        "onednn_verbose,v1,info,cpu,runtime:OpenMP\n"
        "onednn_verbose,v1,primitive,exec,cpu,reorder,jit:blk,undef,src:f32,,2x32x14x14,0.03\n"
        "onednn_verbose,v1,primitive,exec,cpu,convolution,jit:avx2,forward_training,src:f32,,mb2,0.09\n"
    )
    assert onednn.read_kernel(lines, "convolution") == "jit:avx2"
    assert onednn.read_kernel(lines, "eltwise") == ""


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this torch was built without oneDNN")
def test_onednn_names_what_it_ran_and_the_output_comes_back(capfd: pytest.CaptureFixture[str]) -> None:
    images, filters = torch.rand(2, 32, 14, 14), torch.rand(32, 32, 3, 3)
    assert onednn.name_kernels(lambda: torch.conv2d(images, filters), "convolution")
    assert onednn.name_kernels(lambda: images.add(1.0), "convolution") == ""
    os.write(1, b"heard\n")
    assert capfd.readouterr().out == "heard\n"


def test_smoke_starts_no_process_and_says_so() -> None:
    table = cpu.measure_simd(SMOKE, "AVX512", "x86_64", triad_bytes=2**20)
    assert "smoke" in table.sentence()
    assert not table.is_measured
    assert "smoke" in cpu.HalfPrecision(table, True, True).sentence()
    assert "smoke" in cpu.measure_openmp(SMOKE, 2, None).sentence()
    assert "smoke" in cpu.measure_extension(SMOKE, has_compiler=True).sentence()
    assert "smoke" in cpu.try_setup(cpu.SLOW_SETUP, {}, SMOKE)


def test_the_kernels_of_a_level_run() -> None:
    found = simd.prepare(0.0005, 2**20)()
    assert set(found["seconds"]) == {*simd.KERNELS, *simd.HALF_KERNELS}
    assert all(seconds > 0 for seconds in found["seconds"].values())


# -- memory -----------------------------------------------------------------------------------------------------------


def test_the_reader_reads_every_number_in_every_pass() -> None:
    size = 48 * 2**10
    total = memory.reader(size)()
    ones = torch.rand(size // 4, generator=torch.Generator().manual_seed(0))
    assert total.item() == pytest.approx(memory.passes(size) * ones.sum().item(), rel=1e-3)
    assert memory.passes(size) * size <= 4 * 2**20 < (memory.passes(size) + 1) * size


def test_steps_of_the_staircase_leave_out_sizes_near_an_edge() -> None:
    sizes = (8 * 2**10, 16 * 2**10, 30 * 2**10, 2**17, 2**18, 2**20, 2**24)
    rates = (100e9, 100e9, 1.0, 50e9, 50e9, 1.0, 10e9)
    stairs = memory.Staircase(sizes, rates, {"L1d": 2**15, "L2": 2**20})
    assert stairs.steps() == {"L1d": 100e9, "L2": 50e9, "memory": 10e9}
    assert "**10 times**" in stairs.sentence()
    assert stairs.at(2**15) == 1.0
    assert stairs.at(2**30) == 10e9


def test_memory_begins_several_times_beyond_the_largest_cache() -> None:
    stairs = memory.Staircase((2**13, 2**21, 2**22, 2**23), (9e9, 3e9, 2e9, 1e9), {"L1d": 2**15, "L2": 2**20})
    assert stairs.steps()["memory"] == 1e9
    short = memory.Staircase((2**13, 2**21, 2**22), (9e9, 3e9, 2e9), {"L1d": 2**15, "L2": 2**20})
    assert short.steps()["memory"] == 3e9


def test_the_staircase_says_where_there_is_no_step() -> None:
    stairs = memory.Staircase((2**13, 2**18, 2**24), (50e9, 50e9, 10e9), {"L1d": 2**15, "L2": 2**20})
    assert "Between L1d and L2 there is no step" in stairs.sentence()
    assert "not known" in memory.Staircase((2**13,), (1e9,), {}).sentence()


@pytest.mark.parametrize("block", [1, 7, 64, 1000, 5000])
def test_blocks_change_the_order_and_not_the_result(block: int) -> None:
    values = torch.rand(1000 if block > 1 else 20)
    whole = blocking.run_chain(values, torch.empty_like(values), values.numel())
    assert torch.equal(blocking.run_chain(values, torch.empty_like(values), block), whole)
    expected = -((((values * 0.5 + 1) ** 2 - 0.25).clamp(0, 4)) * 0.5 + 0.125)
    torch.testing.assert_close(whole, expected)


def test_the_predicted_gain_of_blocks_counts_passes_over_memory() -> None:
    assert blocking.predict_blocked_speedup(1, 10e9, 100e9) == pytest.approx(1.0)
    assert blocking.predict_blocked_speedup(8, 10e9, 1e18) == pytest.approx(8.0)
    assert blocking.predict_blocked_speedup(8, 10e9, 10e9) == pytest.approx(1.0)


def test_the_block_sentence_tells_gain_and_cost() -> None:
    curve = blocking.BlockCurve((point(2**23, 1.0), point(2**16, 0.25), point(2**10, 1.0)), 10e9, 100e9)
    assert curve.predicted == pytest.approx(8 / 1.7)
    assert "blocks of 256 KiB: **4.0 times**" in curve.sentence()
    assert "from the whole, predict 4.7." in curve.sentence()
    assert "was not counted" in curve.sentence()
    assert "was not counted" not in replace(curve, block_bytes_per_s=60e9).sentence()
    assert "Blocks of 4 KiB reach only 1.00 times" in curve.sentence()
    flat = blocking.BlockCurve((point(2**23, 1.0), point(2**16, 0.98)), 10e9, 100e9)
    assert "Blocks gain nothing" in flat.sentence()


@pytest.mark.parametrize(
    ("two", "words"), [(0.5, "cannot keep this memory busy"), (0.7, "share the way"), (0.99, "get no more than one")]
)
def test_the_triad_sentence_is_prepared_for_every_memory(two: float, words: str) -> None:
    found = memory.TriadByThreads((point(1, 1.0), point(2, two)), 10**10)
    assert words in found.sentence()
    assert found.bytes_per_s(1) == 1e10
    assert "one usable core" in memory.TriadByThreads((point(1, 1.0),), 10**10).sentence()


def test_memory_experiments_run_in_miniature() -> None:
    stairs = cpu.measure_staircase(SMOKE, CACHES, 2**33)
    assert len(stairs.sizes_bytes) == len(stairs.bytes_per_s) > 2
    curve = cpu.measure_blocking(SMOKE, stairs, 2**20)
    assert curve.points[0].ratio == 1.0
    assert curve.sentence()
    assert torch.get_num_threads() == 1


# -- roofline ---------------------------------------------------------------------------------------------------------


def test_a_kernel_lies_under_the_roof_that_its_intensity_gives_it() -> None:
    found = cpu.measure_roofline(SMOKE, cpu.kernels(SMOKE), 2**20)
    for place in found.points:
        roof = min(found.peak_flops_per_s, place.flops_per_byte * found.bandwidth_bytes_per_s)
        assert place.predicted_flops_per_s == pytest.approx(roof)
        assert place.flops_per_s <= found.peak_flops_per_s
    assert found.table().count("\n") == 1 + len(found.points)
    assert found.fastest


def test_counted_operations_are_those_that_torch_counts() -> None:
    from torch.utils.flop_counter import FlopCounterMode

    for kernel in cpu.kernels(SMOKE):
        if kernel.name in ("add", "softmax of rows", "matrix × vector"):  # torch counts products and convolutions
            continue
        with FlopCounterMode(display=False) as counter:
            kernel.run()
        assert counter.get_total_flops() == kernel.flops, kernel.name


def test_the_roofline_sentence_names_what_lies_above_and_far_below() -> None:
    points = (
        roofline.RoofPoint("add", 0.1, 3e9, 1e9),
        roofline.RoofPoint("slow", 50.0, 10e9, 100e9),
        roofline.RoofPoint("good", 50.0, 95e9, 100e9),
    )
    found = roofline.Roofline(100e9, 10e9, points, 2, "good").sentence()
    assert "the fastest kernel, good, makes the flat roof: 100 GFLOP/s" in found
    assert "meet at 10 operations per byte: 1 of these 3" in found
    assert "Above the roof: add." in found
    assert "slow (10%)" in found


# -- threads ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("cores", "counts"), [(1, (1, 2, 4)), (2, (1, 2, 3, 4, 8)), (6, (1, 6, 7, 12, 24))])
def test_thread_counts_go_beyond_the_cores(cores: int, counts: tuple[int, ...]) -> None:
    assert threads.thread_counts(cores) == counts


@pytest.mark.parametrize(
    ("three", "words"), [(1.0, "**2.00 times** as long"), (0.51, "costs little"), (0.4, "*faster* here")]
)
def test_the_oversubscription_sentence_is_prepared_for_every_machine(three: float, words: str) -> None:
    found = threads.Oversubscription((point(1, 1.0), point(2, 0.5), point(3, three)), 2, 64)
    assert found.cost(3) == pytest.approx(three / 0.5)
    assert words in found.sentence()


def test_oversubscription_runs_in_miniature() -> None:
    found = cpu.measure_oversubscription(SMOKE, 1)
    assert [p.key for p in found.points] == [1, 2, 4]
    assert set(found.sleeps) == {1, 2}


def test_a_crowd_is_set_beside_its_pieces_on_paper_and_its_sleeps() -> None:
    found = threads.Oversubscription((point(1, 1.0), point(2, 0.5), point(3, 1.0)), 2, 64, {2: 1.0, 3: 270.0})
    assert "3 equal pieces on 2 core(s) are two rounds instead of one, each a little shorter: 1.33" in found.sentence()
    assert "goes to sleep 1 times with 2 of them, 270 with 3" in found.sentence()
    assert "sleep" not in replace(found, sleeps={}).sentence()


def test_a_variable_set_after_import_is_not_heard_and_nothing_is_left_behind() -> None:
    variables = dict(os.environ)
    found = cpu.set_too_late()
    assert (found.before, found.asked, found.after_variable, found.after_call) == (1, 2, 1, 2)
    assert "nothing happened" in found.sentence()
    assert dict(os.environ) == variables
    assert torch.get_num_threads() == 1


def test_settings_of_intels_runtime_need_it() -> None:
    assert list(openmp.settings(2, None)) == ["libgomp", "libgomp, pinned", "libgomp, passive"]
    with_intel = openmp.settings(2, "/x/libiomp5.so")
    assert with_intel["libiomp5, no spinning"]["KMP_BLOCKTIME"] == "0"
    for variables in with_intel.values():
        assert set(openmp.OMP_VARIABLES) <= set(variables)
        Experiment(openmp.PREPARE, environment=variables)


def openmp_table(pieces: dict[str, float], shared_s: float = 2.0, **more: object) -> openmp.OpenMpTable:
    """Steps take a second, beside a neighbour 2, and with the last setting ``shared_s``."""
    last = list(pieces)[-1]
    rows = {
        openmp.STEP: {name: reading(1.0, 1.0) for name in pieces},
        openmp.SHARED_STEP: {name: reading(shared_s if name == last else 2.0, 2.0) for name in pieces},
        openmp.PIECES: {name: reading(seconds, 1.0) for name, seconds in pieces.items()},
    }
    return openmp.OpenMpTable(turns.Turns(rows), **more)


def test_the_openmp_sentence_tells_clear_differences_only() -> None:
    table = openmp_table({"libgomp": 1.0, "libgomp, passive": 1.1, "libiomp5": 0.8, "libiomp5, no spinning": 1.6})
    assert "A training step: no setting differs clearly" in table.sentence()
    assert "*libiomp5* 1.25" in table.sentence()
    assert "With `KMP_BLOCKTIME=0` the short pieces take 2.0 times as long" in table.sentence()
    assert "`OMP_WAIT_POLICY=passive` costs the short pieces nothing" in table.sentence()
    assert "no other setting is clearly faster then" in table.sentence()
    broken = openmp.OpenMpTable(turns.Turns(failed={"libgomp": "it died"}))
    assert broken.sentence() == "*libgomp* gave no time: it died."
    assert "left out: why" in openmp_table({"libgomp": 1.0}, why_no_intel="why").sentence()


def test_the_setting_that_bears_a_neighbour_best_is_named() -> None:
    table = openmp_table({"libgomp": 1.0, "libgomp, passive": 8.0}, shared_s=0.5)
    assert "2.0 times as long with libgomp; fastest is then *libgomp, passive*, **4.0 times**" in table.sentence()


def test_the_waits_beside_the_neighbour_are_told_per_step() -> None:
    table = openmp_table({"libgomp": 1.0, "libgomp, pinned": 1.0})
    assert "scheduler" not in table.sentence()
    counted = {"libgomp": {openmp.NEIGHBOUR: {"steps": 10, "waited_s": 18.0, "slices": 6000}}}
    told = replace(table, turns=replace(table.turns, facts=counted)).sentence()
    assert "a core 600 times and had waited 3.0 ms for it each time, 1,800 ms together" in told
    assert "1.00 times as fast alone, and 1.00 times beside the neighbour" in told
    assert table.table().count("\n") == 3


def test_every_second_call_beside_a_neighbour_leaves_the_pieces_out() -> None:
    run = openmp.prepare(0.0005, has_neighbour=True)
    both = {openmp.STEP, openmp.PIECES}
    calls = [run() for _ in range(3)]
    assert [set(call["seconds"]) for call in calls] == [both, {openmp.STEP}, both]
    counted = calls[2]["facts"][openmp.NEIGHBOUR]
    assert counted["steps"] > 0 if sys.platform == "linux" else counted["slices"] == 0
    assert set(openmp.prepare(0.0005)()["seconds"]) == {openmp.STEP, openmp.PIECES}


def test_the_neighbour_leaves_no_thread_behind() -> None:
    before = threading.active_count()
    with openmp.busy_neighbour():
        assert threading.active_count() == before + 1
    assert threading.active_count() == before


def test_one_more_call_of_each_visit_is_kept_apart() -> None:
    entered = []

    @contextlib.contextmanager
    def around():
        entered.append(1)
        yield

    prepared = Experiment("accelerando.lessons.cpu.hardware:prepare_product", prepares=True)
    found = turns.measure_in_turns({"one": prepared}, 2, rest_s=0.0, also={"again": around})
    assert set(found.readings) == {"linear layer", "linear layer, again"}
    assert len(entered) == 2


@pytest.mark.skipif(sys.platform != "linux", reason="Linux only: elsewhere torch brings LLVM's runtime")
def test_the_runtime_of_this_process_is_gnus() -> None:
    assert openmp.loaded_runtime() == "libgomp"


def test_one_cpu_per_core_stays_among_the_usable_ones() -> None:
    siblings = {0: (0, 4), 4: (0, 4), 1: (1, 5), 5: (1, 5)}
    assert placement.one_cpu_per_core(siblings, (0, 1, 4, 5)) == (0, 1)
    assert placement.one_cpu_per_core(siblings, (4, 5)) == (4, 5)
    assert placement.one_cpu_per_core({}, (3, 7)) == (3, 7)


@pytest.mark.parametrize(("ratio", "words"), [(1.3, "finds pauses"), (0.9, "arithmetic units busy")])
def test_the_hyper_thread_sentence_is_prepared_for_both_outcomes(ratio: float, words: str) -> None:
    told = placement.told_hyper_threads(8, 4, ratio)
    assert f"8 CPUs are 4 cores. 8 threads make a training step **{ratio:.2f} times** as fast as 4" in told
    assert words in told


def test_placement_says_why_there_is_nothing_to_compare() -> None:
    plain = cpu.measure_placement(SMOKE, (0, 1), {0: (0,), 1: (1,)}, {0: (0, 1)}).sentence()
    assert "a core of its own" in plain
    assert "one node" in plain
    rich = cpu.measure_placement(SMOKE, (0, 1), {0: (0, 1), 1: (0, 1)}, {0: (0,), 1: (1,)}).sentence()
    assert "2 CPUs are 1 cores" in rich
    assert "2 nodes" in rich
    assert "does not say" in cpu.measure_placement(SMOKE, (0,), {}, {}).sentence()


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="Linux only: this system cannot pin a process")
def test_a_triad_runs_on_other_cores_than_those_that_hold_its_memory() -> None:
    cpus = machine.allowed_cpus()
    try:
        found = placement.prepare_numa([cpus[0]], [cpus[-1]], total_bytes=2**20)()
        assert machine.allowed_cpus() == (cpus[-1],)
        assert found["seconds"]["triad"] > 0
    finally:
        os.sched_setaffinity(0, cpus)


# -- load, extension, hardware, setups --------------------------------------------------------------------------------


def states(steal: float | None, throttled: bool | None, count: int) -> tuple[noise.MachineState, ...]:
    return (noise.MachineState(steal, 0.0, 0.0, throttled, 3000.0),) * count


@pytest.mark.parametrize(
    ("rates", "state", "words"),
    [
        ((100e9,) * 6, (0.0, False), "no slowing down"),
        ((100e9,) * 6, (0.0, None), "No counter of throttling"),
        ((100e9, 100e9, 90e9, 80e9, 70e9, 70e9), (0.0, False), "**70%** of the first"),
        ((100e9,) * 6, (0.25, True), "stole up to 25.0%"),
        ((100e9,) * 6, (0.0, True), "quota was counted in 6 of 6"),
        ((100e9,) * 6, (0.0, False), "3,000 MHz in every slice"),
        ((100e9,) * 5 + (70e9,), (0.0, False), "its cause is not seen"),
        ((100e9,) * 6, (None, None), "not counted on this system"),
    ],
)
def test_the_load_sentence_tells_heat_steal_and_throttling(rates: tuple, state: tuple, words: str) -> None:
    assert words in load.LoadWatch(rates, states(*state, len(rates)), 0.5).sentence()


def test_full_load_is_watched_in_slices() -> None:
    done = []
    found = cpu.measure_full_load(SMOKE, on_slice=done.append)
    assert done == [1, 2, 3]
    assert len(found.flops_per_s) == len(found.states) == 3


def test_waits_and_throttling_are_read_by_their_reason(tmp_path: Path) -> None:
    assert linux.core_waits(tmp_path) is None
    assert linux.throttle_counts(tmp_path) == {}
    for task, line in (("7", "10 2000000000 3\n"), ("8", "0 500000000 1\n"), ("9", "odd\n")):
        folder = tmp_path / "proc/self/task" / task
        folder.mkdir(parents=True)
        (folder / "schedstat").write_text(line)
    assert linux.core_waits(tmp_path) == linux.CoreWaits(2.5, 4)
    heat = tmp_path / "sys/devices/system/cpu/cpu0/thermal_throttle"
    heat.mkdir(parents=True)
    (heat / "core_throttle_count").write_text("5\n")
    assert linux.throttle_counts(tmp_path) == {"heat": 5}
    assert linux.throttle_events(tmp_path) == 5


def test_a_dip_that_something_explains_is_not_called_unexplained() -> None:
    rates = (100e9,) * 5 + (70e9,)
    assert "not seen" not in load.LoadWatch(rates, states(0.2, False, 6), 0.5).sentence()
    assert "not seen" not in load.LoadWatch(rates, states(0.0, True, 6), 0.5).sentence()
    heat = load.LoadWatch(rates, states(0.0, True, 6), 0.5, ("heat", "quota")).sentence()
    assert "for heat, the control group's quota included, was counted in 6 of 6" in heat


def extension_turns(ipex_s: float | None) -> turns.Turns:
    """Six rounds, of which one met a slow minute: within a round the ratios are what they are."""
    minutes = (1.0, 1.0, 5.0, 1.0, 1.0, 1.0)
    stock = {"train: as it comes": 1.0, "train: channels last": 0.8, "answer: as it comes": 1.0}
    samples = {"stock": [{name: seconds * slow for name, seconds in stock.items()} for slow in minutes]}
    facts = {"stock": {"losses": {"as it comes": 2.0, "channels last": 2.002}}}
    if ipex_s is not None:
        samples["ipex"] = [{f"train: {ways.IPEX}": ipex_s * slow} for slow in minutes]
        facts["ipex"] = {"losses": {ways.IPEX: 2.0}, "version": "2.8.0"}
    return turns.Turns(turns.summarise(samples), facts, {}, samples)


@pytest.mark.parametrize(
    ("ipex_s", "words"),
    [
        (0.5, "is **1.60 times** as fast (95 % interval 1.60 to 1.60): on this processor there was still"),
        (0.8, "no difference can be told"),
        (1.2, "nothing is lost by moving"),
        (None, "stock way"),
    ],
)
def test_the_extension_sentence_is_prepared_for_every_outcome(ipex_s: float | None, words: str) -> None:
    table = ways.tabulate(extension_turns(ipex_s), "IPEX is not installed." if ipex_s is None else "")
    assert words in table.sentence()
    assert table.loss_gap == pytest.approx(0.001)
    assert list(table.training.values())[1].ratio == pytest.approx(1.25)


def test_a_missing_or_unfitting_ipex_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    versions = {"intel-extension-for-pytorch": "2.8.0", "torch": "2.11.0"}
    monkeypatch.setattr(extension.metadata, "version", versions.__getitem__)
    assert "needs torch 2.8" in extension.why_no_ipex()
    versions["torch"] = "2.8.0+cpu"
    assert extension.why_no_ipex() == ""

    def missing(name: str) -> str:
        raise extension.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(extension.metadata, "version", missing)
    assert "not installed" in extension.why_no_ipex()


def test_onednn_fusion_answers_as_before() -> None:
    model, images = extension._answering()
    fused = extension._fused_by_onednn(model, images)
    with torch.no_grad():
        torch.testing.assert_close(fused(images), model(images), rtol=1e-3, atol=1e-4)


def test_the_passport_has_a_line_for_everything() -> None:
    here = machine.probe()
    assert cpu.passport(here).count("\n") == 8
    unknown = replace(here, caches={}, simd=None, has_bf16=None, numa_nodes={}, gpus=())
    for words in ("| caches | unknown", "bf16: unknown", "none found"):
        assert words in cpu.passport(unknown)


def test_integrated_gpus_and_arm_are_told_from_what_the_machine_is(monkeypatch: pytest.MonkeyPatch) -> None:
    here = machine.probe()
    monkeypatch.setattr(hardware, "shared_memory_device", lambda: None)
    assert "None is listed" in cpu.measure_other_processors(SMOKE, replace(here, gpus=()))
    intel = machine.Gpu("Intel", "UHD", None, "i915", True)
    assert "Intel UHD (integrated) is listed" in cpu.measure_other_processors(SMOKE, replace(here, gpus=(intel,)))
    arm = replace(here, architecture="aarch64", simd="NEON", has_bf16=False)
    assert "no bf16 units" in cpu.measure_other_processors(SMOKE, arm)
    assert "with SVE2 and bf16 units" in cpu.measure_other_processors(SMOKE, replace(arm, simd="SVE2", has_bf16=True))


@pytest.mark.parametrize(
    ("setup", "words"),
    [
        ([], "a setup is a dictionary"),
        ({"epochs": 1}, "there is no 'epochs'"),
        ({"layout": "sideways"}, "one of contiguous, channels_last"),
        ({"layout": ["contiguous"]}, "one of contiguous"),
        ({"environment": "OMP_NUM_THREADS=2"}, "a dictionary of variables"),
        ({"environment": {"LD_PRELOAD": "/tmp/mine.so"}}, "this task knows OMP_NUM_THREADS"),
        ({"environment": {"OMP_NUM_THREADS": 2}}, "variables are text"),
        ({"environment": {"OMP_NUM_THREADS": "0"}}, "from 1 to 256"),
        ({"environment": {"OMP_NUM_THREADS": "1000"}}, "from 1 to 256"),
        ({"environment": {"OMP_PLACES": "a b"}}, "no value that OpenMP understands"),
        ({"library": "ipex", "optimizer_kind": "fused"}, "must be 'default'"),
    ],
)
def test_a_setup_that_is_none_is_refused_in_words(setup: object, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        setups.check_setup(setup)


def test_a_setup_sets_its_variables_and_removes_all_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(surroundings, "find_intel_openmp", lambda: "/x/libiomp5.so")
    plain = setups.environment_of(setups.check_setup({}))
    assert plain == {**dict.fromkeys(openmp.OMP_VARIABLES), "LD_PRELOAD": None, "OMP_NUM_THREADS": "1"}
    intel = setups.check_setup({"openmp": "libiomp5", "environment": {"KMP_BLOCKTIME": "0"}})
    assert setups.environment_of(intel)["LD_PRELOAD"] == "/x/libiomp5.so"
    assert setups.environment_of(intel)["OMP_NUM_THREADS"] is None
    monkeypatch.setattr(surroundings, "find_intel_openmp", lambda: None)
    assert "use libgomp" in setups.why_not_here(intel)


def test_layout_and_update_leave_the_training_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    from accelerando import datasets

    monkeypatch.setattr(setups, "task_data", lambda: datasets.synthetic(128, 50))
    plain, other = (
        setups.train(layout, kind, "stock") for layout, kind in (("contiguous", "for_loop"), ("channels_last", "fused"))
    )
    assert plain["seconds"] > 0
    assert (np.asarray(plain["predictions"]) == np.asarray(other["predictions"])).mean() > 0.9


def test_experiments_can_be_found_by_a_child_process() -> None:
    import importlib

    for target in (
        simd.PREPARE, openmp.PREPARE, placement.PREPARE_NUMA, extension.PREPARE_STOCK, extension.PREPARE_IPEX,
        hardware.PREPARE_PRODUCT, setups.TRAIN, setups.PREPARE_STEPS,
    ):  # fmt: skip
        module, _, name = target.partition(":")
        assert callable(getattr(importlib.import_module(module), name))


def test_intels_runtime_is_a_file_of_its_package() -> None:
    found = surroundings.find_intel_openmp()
    is_installed = any(entry.name.replace("_", "-") == "intel-openmp" for entry in metadata.distributions())
    assert (found is not None) == is_installed
    assert found is None or (os.path.isfile(found) and found.endswith("libiomp5.so"))
