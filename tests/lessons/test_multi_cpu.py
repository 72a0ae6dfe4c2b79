"""Lesson 8: predictions agree with their formula, sentences with their numbers, and real ranks do what is said."""

import itertools
import math
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from accelerando import costs, machine, ranks, seeds
from accelerando.figures import multi_cpu as pictures
from accelerando.lessons import BUDGETS
from accelerando.lessons.multi_cpu import (
    backends,
    global_batch,
    launchers,
    layouts,
    on_teams,
    race,
    sockets,
    task,
    teams,
    throughput,
    waiting,
)
from accelerando.lessons.multi_cpu.layouts import Layout, StepCost
from accelerando.widgets import multi_cpu as explorers
from accelerando.workers import ExperimentFailed

SMOKE = BUDGETS["smoke"]
FREE_LINK = costs.Link(0.0, 1e18)
COST = StepCost(1e-3, 2e-4, 0.25, costs.Link(1e-4, 1e9), 100_000)
LIMIT_S = 240.0  # of a machine that has much else to do


# -- the model --------------------------------------------------------------------------------------------------------


def test_one_process_follows_amdahls_law() -> None:
    cost = replace(COST, fixed_s=0.0)
    alone = layouts.predict_step_s(cost, Layout(1, 1), 64, 8)
    for threads in (1, 2, 4, 8):
        found = layouts.predict_step_s(cost, Layout(1, threads), 64, 8)
        assert alone / found == pytest.approx(costs.predict_speedup(cost.serial_share, threads))


def test_processes_divide_the_images_and_pay_a_message() -> None:
    for count in (1, 2, 4, 8):
        found = layouts.predict_step_s(COST, Layout(count, 1), 64, 8)
        message_s = costs.predict_ring_all_reduce_s(COST.message_bytes, count, COST.link)
        assert found == pytest.approx(COST.fixed_s + 64 / count * COST.image_s + message_s)


def test_threads_beyond_the_cores_gain_nothing_and_processes_beyond_them_take_turns() -> None:
    assert layouts.predict_step_s(COST, Layout(2, 8), 64, 4) == layouts.predict_step_s(COST, Layout(2, 2), 64, 4)
    free = replace(COST, link=FREE_LINK)
    enough, crowded = (layouts.predict_step_s(free, Layout(8, 1), 64, cores) for cores in (8, 4))
    assert crowded == pytest.approx(2 * enough)


def test_the_four_numbers_are_found_again_from_steps_that_they_predict() -> None:
    for cores in (2, 3, 8):
        whole, fewer, threaded = (
            layouts.predict_step_s(COST, Layout(1, threads), batch, cores)
            for threads, batch in ((1, layouts.BATCH), (1, layouts.FEWER), (cores, layouts.BATCH))
        )
        found = layouts.fit_cost(whole, fewer, threaded, cores, COST.link, COST.message_bytes)
        assert found.fixed_s == pytest.approx(COST.fixed_s)
        assert found.image_s == pytest.approx(COST.image_s)
        assert found.serial_share == pytest.approx(COST.serial_share)


def test_a_noisy_measurement_gives_numbers_that_can_be() -> None:
    found = layouts.fit_cost(0.01, 0.02, 0.5, 2, COST.link, 1000)
    assert found.image_s > 0
    assert 0 <= found.serial_share <= 1
    assert all(seconds > 0 for seconds in layouts.predict_map(found, 2).values())


@pytest.mark.parametrize("cores", [1, 2, 3, 6, 8, 64])
def test_the_grid_holds_the_belief_and_what_is_too_much(cores: int) -> None:
    found = layouts.grid(cores)
    assert len(set(found)) == len(found)
    assert {Layout(1, 1), Layout(1, cores), Layout(1, 2 * cores)} <= set(found)
    assert max(layout.processes for layout in found) <= max(2, layouts.MOST_PROCESSES)


# -- the race and the map ---------------------------------------------------------------------------------------------


def raced(processes_s: float, same_s: float, spread: float = 0.01) -> race.Race:
    noise = 1 + spread * np.linspace(-1, 1, 9)
    seconds = {"1 × 2": 0.02 * noise, race.FREE: processes_s * noise[::-1], race.OWN: processes_s * noise[::-1]}
    seconds[race.SAME] = same_s * noise
    return race.Race(2, Layout(1, 2), Layout(2, 1), {name: list(taken) for name, taken in seconds.items()})


def test_the_races_sentence_fits_whatever_came_out() -> None:
    assert "Processes won" in raced(0.015, 0.04).sentence()
    assert "Threads won" in raced(0.03, 0.06).sentence()
    assert "does not tell who is faster" in raced(0.02, 0.04, spread=0.1).sentence()
    few = race.Race(2, Layout(1, 2), Layout(2, 1), {"1 × 2": [0.02], race.FREE: [0.01]})
    assert "too few rounds" in few.sentence()
    assert "does not tell" in few.sentence()
    assert "one core" in race.Race(1, Layout(1, 1), Layout(2, 1), few.seconds).sentence()


def test_pinning_all_ranks_to_one_core_is_told_as_a_factor() -> None:
    assert "**2.0 times as long**" in raced(0.02, 0.04).pinning_sentence()
    assert "hardly longer" in raced(0.02, 0.02).pinning_sentence()
    assert "stood idle" not in raced(0.02, 0.02).pinning_sentence()
    cannot = race.Race(2, Layout(1, 2), Layout(2, 1), {"1 × 2": [0.02], race.FREE: [0.01]})
    assert "cannot pin" in cannot.pinning_sentence()


def test_what_disturbed_a_measurement_stands_beside_it() -> None:
    noisy = replace(raced(0.015, 0.04), disturbances=("other processes used 60% of the CPU time",))
    assert "Meanwhile other processes used 60%" in noisy.sentence()
    assert "Meanwhile" not in raced(0.015, 0.04).sentence()


def told_map(factor: dict[Layout, float], half_factor: float = 1.0) -> dict:
    """What ranks would tell of a machine that follows `COST`, but for some factors."""
    seconds = [
        [layouts.predict_step_s(COST, layout, layouts.BATCH, 2) * factor.get(layout, 1.0)] * 7
        for layout in layouts.grid(2)
    ]
    half, fewer = ([layouts.predict_step_s(COST, Layout(1, 1), few, 2)] * 7 for few in (layouts.HALF, layouts.FEWER))
    return {
        "seconds": [*seconds, [half_factor * second for second in half], fewer],
        "link": [COST.link.latency_s, COST.link.bandwidth_bytes_per_s],
        "message_bytes": COST.message_bytes,
    }


def test_a_machine_that_follows_the_model_is_predicted_exactly() -> None:
    found = throughput.read_map(2, layouts.grid(2), told_map({}))
    for layout, seconds in found.measured_s.items():
        assert found.predicted_s[layout] == pytest.approx(seconds)


def test_the_maps_sentence_names_the_best_and_what_the_model_leaves_out() -> None:
    found = throughput.read_map(2, layouts.grid(2), told_map({Layout(4, 4): 9.0}))
    assert found.best == Layout(2, 1)
    said = found.sentence()
    assert "Measured best: **2 × 1**" in said
    assert "The slowest of all is 4 × 4, 16 threads on 2 cores" in said
    assert "fitted to 1 × 1 and 1 × 2, so" in said
    assert "Not fitted was 2 × 1: " in said
    assert "costs less in a smaller batch" not in said
    assert "costs less in a smaller batch" in throughput.read_map(2, layouts.grid(2), told_map({}, 0.8)).sentence()
    kept = throughput.read_map(
        2, layouts.grid(2), told_map({layout: 3.0 for layout in layouts.grid(2) if layout[0] > 1})
    )
    assert kept.best.processes == 1


def test_two_races_of_one_pair_are_set_side_by_side() -> None:
    chart = throughput.read_map(2, layouts.grid(2), told_map({}))
    usual_s = chart.measured_s[Layout(1, 2)]

    def told(ratio: float, spread: float = 0.01) -> str:
        """What the map says to a race in which processes were so many times as fast."""
        wobble = 1 + spread * np.linspace(-1, 1, 9)
        seconds = {"1 × 2": list(usual_s * wobble), race.FREE: list(usual_s / ratio * wobble[::-1])}
        return chart.race_sentence(race.Race(2, Layout(1, 2), Layout(2, 1), seconds))

    here = usual_s / chart.measured_s[Layout(2, 1)]
    assert here > 1.05
    alike = told(here)
    assert "overlap" in alike
    assert "the belief fails here" in alike
    assert "that it is faster both agree" in told(1.5 * here)
    assert "no single run settles who is faster" in told(0.6)
    assert "overlap" in told(1.0, spread=0.3)
    assert chart.race_sentence(race.Race(2, Layout(1, 2), Layout(2, 1))) == ""
    assert chart.race_sentence(race.Race(3, Layout(1, 3), Layout(3, 1), {"1 × 3": [1.0], race.FREE: [1.0]})) == ""


def test_crowded_layouts_are_on_the_map_and_one_of_them_gives_up_waiting_early() -> None:
    for cores in (2, 3, 6, 8, 64):
        patient, early = waiting.crowded(cores)
        assert {patient, early} <= set(layouts.grid(cores))
        assert patient.threads <= cores < early.threads
        assert patient.processes * patient.threads > cores


def test_what_sleeping_threads_gain_is_told_whichever_way_it_came_out() -> None:
    patient, early = waiting.crowded(2)
    usual = {patient: [0.2] * 3, early: [0.1] * 3}
    much = waiting.Waiting(2, usual, {patient: [0.05] * 3, early: [0.05] * 3})
    assert "4 × 2 is **4.0 times as fast**" in much.sentence()
    assert "| 4 × 2 | 2 on 2 | 200 ms | 50 ms |" in much.table()
    assert "not what made it slow" in waiting.Waiting(2, usual, usual).sentence()


def test_the_explorer_predicts_this_machine_and_larger_ones() -> None:
    chart = throughput.read_map(2, layouts.grid(2), told_map({}))
    knobs = chart.knobs()
    here = throughput.predict_cells(knobs)
    assert here == pytest.approx(chart.images_per_s(is_predicted=True))
    large = throughput.predict_cells(replace(knobs, cores=64))
    assert max(large.values()) > 2 * max(here.values())
    heavy = throughput.predict_cells(replace(knobs, cores=64, message_bytes=2**28))
    assert max(heavy, key=lambda cell: heavy[cell])[0] == 1
    words = explorers.layout_words(heavy, replace(knobs, cores=64))
    assert "Predicted best: 1 processes" in words
    shown = explorers.layout_explorer(throughput.predict_cells, knobs, here)
    assert shown.still is not None
    assert shown.still.png.startswith(b"\x89PNG")


# -- sockets ----------------------------------------------------------------------------------------------------------


def test_the_example_has_two_nodes_with_a_core_for_every_id() -> None:
    read = sockets.read_example()
    assert (read["sockets"], read["cores"], read["logical_online"]) == (2, 112, 224)
    assert [len(node) for node in sockets.example_cores()] == [56, 56]
    assert sockets.example_cores()[1][0] == 56


NODES = ((0, 2, 4, 6, 8, 10), (1, 3, 5, 7, 9, 11))


@pytest.mark.parametrize("world_size", range(1, 13))
def test_ranks_share_nothing_leave_nothing_and_stay_on_their_node(world_size: int) -> None:
    found = sockets.cpus_of_ranks(NODES, world_size)
    assert sorted(itertools.chain(*found)) == list(range(12))
    if world_size > 1:
        assert all(any(set(own) <= set(node) for node in NODES) for own in found)
        for node in NODES:
            sizes = [len(own) for own in found if set(own) <= set(node)]
            assert max(sizes) - min(sizes) <= 1


def test_the_table_shows_this_machine_beside_the_example() -> None:
    here = machine.probe()
    text = sockets.table(here)
    assert "0-55,112-167" in text
    assert f"| usable here | {here.usable_cores} |" in text
    two = replace(here, cpus=(0, 1, 2, 3), numa_nodes={0: (0, 2), 1: (1, 3)})
    assert sockets.usable_nodes(two) == ((0, 2), (1, 3))
    assert "2 NUMA nodes" in sockets.sentence(two)
    assert sockets.usable_nodes(replace(here, numa_nodes={})) == (here.cpus,)


# -- backends, launchers, batches: what the sentences make of numbers -------------------------------------------------


def told_backends(gloo_s: float, ccl_s: float | None) -> backends.Backends:
    wobble = np.linspace(0.98, 1.02, 9)
    each = {"gloo": list(gloo_s * wobble)} | ({} if ccl_s is None else {"ccl": list(ccl_s * wobble[::-1])})
    value = {
        "reason": None if ccl_s is not None else "there is no C++ compiler",
        "version": None if ccl_s is None else "Gold-2021",
        "seconds": {"1024": each, "16777216": each},
        "sent": {"gloo": 2**24, "ccl": 0} if ccl_s is not None else {"gloo": 2**24},
        "steps": {"wide MLP": {"no message": [0.01] * 9, **each}},
        "memory": {"start_bytes": 3e8, "copy_bytes": 2**26, "mapped_bytes": 4096, "is_same": True},
    }
    return backends.read_backends([value, value])


def test_a_backend_that_is_ahead_behind_or_equal_is_called_so() -> None:
    assert "oneCCL is ahead at 1 KiB, 16 MiB" in told_backends(0.03, 0.01).sentence()
    assert "oneCCL is ahead at no size, gloo at 1 KiB, 16 MiB" in told_backends(0.01, 0.03).sentence()
    assert "too close to call" in told_backends(0.01, 0.01).sentence()
    assert "16 MiB to its sockets under gloo, and 0 bytes under oneCCL" in told_backends(0.03, 0.01).sentence()


def test_without_oneccl_gloo_goes_on_alone_and_the_reason_is_said() -> None:
    alone = told_backends(0.01, None)
    assert "there is no C++ compiler" in alone.sentence()
    assert [curve.label for curve in alone.curves()] == ["gloo, this run"]
    assert "with gloo" in alone.step_sentence()
    assert "oneCCL" not in alone.step_sentence()


def test_memory_that_is_mapped_is_nobodys_own() -> None:
    said = told_backends(0.01, 0.01).memory_sentence()
    assert "**64 MiB**" in said
    assert "**4 KiB**" in said


def test_the_kept_curves_carry_their_machine_and_day() -> None:
    curves = backends.stored_curves()
    assert len(curves) == 2
    assert all("EPYC" in curve.label and "2026" in curve.label for curve in curves)
    assert len(curves[0].sizes_bytes) >= 8
    assert backends.stored_curves(Path("/nowhere")) == []
    link, where = backends.stored_link()
    gloo = curves[0]
    again_s = costs.predict_ring_all_reduce_s(gloo.sizes_bytes[-1], 2, link)
    assert again_s == pytest.approx(1e-3 * gloo.milliseconds[-1][0])
    assert where == gloo.label


def test_what_launchers_did_is_read_from_what_their_ranks_saw() -> None:
    def rank(threads: str | None, cpus: tuple[int, ...], local: str | None) -> launchers.Found:
        return launchers.Found(threads, cpus, local)

    found = {
        launchers.TORCHRUN: [rank("1", (0, 1), "0"), rank("1", (0, 1), "1")],
        launchers.MPIRUN: [rank(None, (0,), None), rank(None, (1,), None)],
        launchers.UNBOUND: [rank(None, (0, 1), None)] * 2,
    }
    said = launchers.Launchers(found)
    assert "torchrun set `OMP_NUM_THREADS=1`" in said.sentence()
    assert "mpirun gave each rank a single CPU" in said.sentence()
    assert "does not know `LOCAL_RANK`" in said.sentence()
    assert "| mpirun, nothing said about cores | not set | not set and not set | {0} and {1} |" in said.table()
    free = {**found, launchers.MPIRUN: found[launchers.UNBOUND]}
    assert "mpirun bound nobody" in launchers.Launchers(free).sentence()
    without = launchers.Launchers({}, {launchers.MPIRUN: "Open MPI is not installed here"})
    assert "Open MPI is not installed here" in without.table()


def test_accuracy_is_compared_image_by_image() -> None:
    draw = np.random.default_rng(0)
    alone = draw.random((2, 2000)) < 0.85
    worse = alone & (draw.random((2, 2000)) < 0.9)
    found = global_batch.GlobalBatch(
        3,
        {global_batch.ALONE: alone, global_batch.SAME_RATE: worse, global_batch.SCALED: alone},
        {global_batch.ALONE: 1125, global_batch.SAME_RATE: 279, global_batch.SCALED: 279},
        {global_batch.ALONE: [3.0, 2.25], global_batch.SAME_RATE: [1.0], global_batch.SCALED: [1.116]},
    )
    assert found.verdict(global_batch.SAME_RATE).verdict == "lost"
    assert found.verdict(global_batch.SCALED).verdict == "kept"
    said = found.sentence()
    assert f"kept by *{global_batch.SCALED}*" in said
    assert f"lost by *{global_batch.SAME_RATE}*" in said
    assert "Too close to call" not in said
    assert "2 runs of each recipe" in said
    assert "4 images needs 2 ms for a step, with 16 4 ms: 4 times the images in 2.0 times the time" in said
    assert f"| {global_batch.ALONE} | 1,125 | 2.25 s | 2 ms |" in found.table()
    rows = found.accuracies()
    assert rows[global_batch.SAME_RATE][0] == pytest.approx(-100 * (alone.mean() - worse.mean()))
    assert pictures.differences(rows, 2.0, "x").png.startswith(b"\x89PNG")


def test_smoke_starts_no_rank_and_says_so() -> None:
    here = machine.probe()
    said = [
        race.measure_race(SMOKE, here.cpus, here.usable_cores).sentence(),
        backends.measure_backends(SMOKE).sentence(),
        launchers.measure_launchers(SMOKE).sentence(),
        global_batch.measure_global_batch(SMOKE, 2).sentence(),
        waiting.measure_waiting(SMOKE, 2, {}).sentence(),
        task.try_layout(task.START, SMOKE),
    ]
    assert all("smoke budget starts no ranks" in sentence for sentence in said)
    chart = throughput.measure_map(SMOKE, 2)
    assert "Predicted only" in chart.sentence()
    assert "EPYC" in chart.sentence()  # where the message was measured
    assert chart.cost.image_s > 0


# -- pictures ---------------------------------------------------------------------------------------------------------


def test_pictures_say_in_words_what_they_show() -> None:
    heat = pictures.heat_maps({"measured": ({(1, 1): 10.0, (2, 1): 20.0, (2, 2): 5.0}, 2)}, "map")
    assert "2 × 1 20" in heat.words
    plans = {"good": sockets.cpus_of_ranks(NODES, 4), "all alike": [NODES[0][:2]] * 3}
    seats = pictures.seats(NODES, plans, "a machine")
    assert "good: 0 cores idle, 0 with more than one rank, 0 rank(s) on two nodes" in seats.words
    assert "all alike: 10 cores idle, 2 with more than one rank" in seats.words
    bars = pictures.bars({"a": (1.0, 0.9, 1.1), "b": (2.0, 0.0, math.inf)}, "bars", "x")
    assert bars.png.startswith(b"\x89PNG")
    curve = [("gloo", (1024, 2**20), ((1.0, 0.9, 1.1), (3.0, 2.5, 3.5)))]
    assert "gloo: 1 ms at 1,024 bytes" in pictures.messages(curve, [], "messages").words


# -- the task ---------------------------------------------------------------------------------------------------------


def test_the_graders_rivals_never_have_more_threads_than_cores() -> None:
    for cores in (1, 2, 3, 8, 64):
        found = task.rivals(cores)
        assert all(processes * threads <= cores for processes, threads in found)
        assert (1, cores) in found
        assert sum(processes for processes, _ in found) <= 15


def test_pinning_gives_each_rank_its_own_cores_or_all_the_same() -> None:
    assert task.cpus_of("own cores", 2, (4, 5, 6, 7)) == [(4, 5), (6, 7)]
    assert task.cpus_of("own cores", 3, (4, 5)) == [(4,), (5,), (4,)]
    assert task.cpus_of("one core", 2, (4, 5)) == [(4,), (4,)]
    assert task.cpus_of("none", 2, (4, 5)) == [None, None]


# -- real ranks: few and short ----------------------------------------------------------------------------------------


def test_ranks_time_settings_in_turns_pin_and_agree() -> None:
    settings = [
        layouts.setting(Layout(1, 1), batch=8),
        layouts.setting(Layout(2, 1), batch=8),
        layouts.setting(Layout(2, 1), [[min(machine.allowed_cpus())]] * 2, batch=8),
    ]
    payload = {"settings": settings, "rounds": 2, "sample_s": 0.01}
    values = ranks.run(layouts.TIME, 2, payload=payload, time_limit_s=LIMIT_S).values
    assert values[0]["seconds"] == values[1]["seconds"]  # a step is over when the last rank is done
    assert [len(taken) for taken in values[0]["seconds"]] == [2, 2, 2]
    assert all(second > 0 for taken in values[0]["seconds"] for second in taken)
    assert values[0]["message_bytes"] > 100_000


def test_a_team_stays_up_trains_alike_in_every_layout_and_tells_who_failed() -> None:
    order = {"images": 320, "epochs": 1}
    with task.team(2, 1, None, "gloo") as two:
        first = task.train(two, batch=8, learning_rate=0.01, seed=5, **order)
        again = task.train(two, batch=8, learning_rate=0.01, seed=5, **order)
        other = task.train(two, batch=8, learning_rate=0.01, seed=6, **order)
        pids = [worker._process.pid for worker in two._workers if worker._process]
        with task.team(1, 1, None, "gloo") as one:
            alone = task.train(one, batch=16, learning_rate=0.01, seed=5, **order)
        with pytest.raises(ExperimentFailed, match="TypeError"):
            two.call(time_limit_s=20.0, batch="many", learning_rate=0.1, epochs=1, seed=0)
    assert (first["predictions"] == again["predictions"]).all()
    assert (first["predictions"] != other["predictions"]).any()
    assert (first["predictions"] == alone["predictions"]).mean() > 0.99  # rounding may move a few
    assert first["seconds"] > 0
    assert len(pids) == 2
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_a_silent_step_packs_and_divides_and_sends_nothing() -> None:
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    draw = seeds.generator(1)
    images, labels = torch.randn(8, 1, 4, 4, generator=draw), torch.randint(10, (8,), generator=draw)
    on_teams.train_step(model, optimizer, images, labels, 1)
    own = [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]
    on_teams.train_step(model, optimizer, images, labels, 2, is_silent=True)  # there is no group that could send
    for before, parameter in zip(own, model.parameters(), strict=True):
        torch.testing.assert_close(parameter.grad, before / 2)


def test_several_rates_are_all_looked_at_before_a_rank_starts() -> None:
    with pytest.raises(ValueError, match="learning_rate is 11"):
        task.try_layout(task.START, BUDGETS["quick"], rates=(0.1, 11))


def test_ranks_find_the_variables_of_torchrun() -> None:
    values = ranks.run(launchers.TELL, 2, environment={"OMP_NUM_THREADS": None}, time_limit_s=LIMIT_S).values
    assert [value["variables"]["OMP_NUM_THREADS"] for value in values] == ["1", "1"]
    assert [value["variables"]["LOCAL_RANK"] for value in values] == ["0", "1"]


def test_the_order_of_a_team_is_read_from_its_folder(tmp_path: Path) -> None:
    (tmp_path / teams.ORDER).write_text('{"batch": 4}', encoding="utf-8")
    assert teams.read_order(str(tmp_path)) == {"batch": 4}
