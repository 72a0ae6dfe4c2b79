"""Lesson 10: plans are priced as they are sent, a checkpoint survives a kill, lines of real clusters, what is told."""

import math
import os
import shlex
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

from accelerando import costs, figures, ranks, readers
from accelerando.cluster import hosts, launch
from accelerando.lessons import BUDGETS
from accelerando.lessons.clusters import (
    checkpoints,
    commands,
    efficiency,
    elastic,
    failures,
    hangs,
    jobs,
    launching,
    on_nodes,
    on_plans,
    plans,
    recovery,
    slow_wire,
    task,
)
from accelerando.lessons.clusters.stage import Stage
from accelerando.ranks import RanksFailed, RanksResult, record

LIMIT_S = 240.0  # of a machine that has much else to do
SMOKE, QUICK = BUDGETS["smoke"], BUDGETS["quick"]


# -- plans ------------------------------------------------------------------------------------------------------------


def test_the_parameters_that_are_priced_are_those_of_the_model() -> None:
    shapes = [tuple(parameter.shape) for parameter in on_plans._model(0).parameters()]
    assert tuple(shapes) == plans.LAYERS


@pytest.mark.parametrize("answer", [
    None, [], {"speed": 2}, {"compression": "zip"},
    {"compression": ["fp16"]}, {"average_every": 0}, {"accumulate": 2.0},
    {"accumulate": True}, {"learning_rate": math.nan}, {"learning_rate": 0}, {"learning_rate": "0.1"},
    {"powersgd_rank": 10**30}, {"warmup_steps": -1}, {"average_every": 4, "compression": "fp16"}, {3: 4},
])  # fmt: skip
def test_what_is_no_plan_is_refused_in_words(answer: object) -> None:
    with pytest.raises(ValueError, match=r"."):
        plans.check_plan(answer)


def test_a_plan_is_completed_from_the_start() -> None:
    assert plans.check_plan({}) == plans.Plan(**plans.START)
    assert plans.check_plan({"accumulate": 4}) == plans.Plan().changed(accumulate=4)
    assert plans.Plan(compression="fp16", warmup_steps=3).words() == "compression fp16, warmup_steps 3"


def test_predicted_bytes_of_each_way() -> None:
    whole = 4 * plans.PARAMETERS
    start = plans.Plan()
    assert plans.predict_sent_bytes(start) == start.steps * whole
    assert plans.predict_sent_bytes(plans.Plan(compression="bf16")) == start.steps * whole / 2
    assert plans.predict_sent_bytes(plans.Plan(accumulate=4)) == plans.Plan(accumulate=4).steps * whole
    local = plans.Plan(average_every=10, warmup_steps=5)
    assert plans.predict_sent_bytes(local) == (5 + (local.steps - 5) // 10 + 1) * whole
    thin, thick = (plans.predict_sent_bytes(plans.Plan(compression="powersgd", powersgd_rank=rank)) for rank in (1, 8))
    assert thin < thick < start.steps * whole / 4


def test_a_run_is_predicted_as_its_batches_and_its_messages() -> None:
    link = costs.Link(0.001, 1e6)
    plan = plans.Plan(accumulate=2)
    messages_s = plan.steps * (2 * 0.001 + 4 * plans.PARAMETERS / 1e6)
    assert plans.predict_seconds(plan, 0.01, link) == pytest.approx(plan.steps * 2 * 0.01 + messages_s)


def test_the_labs_link_makes_the_right_plan_fast_and_the_usual_half_too_slow() -> None:
    start, half, local = (
        plans.predict_seconds(plan, 0.002, task.LINK)
        for plan in (plans.Plan(), plans.Plan(compression="fp16"), plans.Plan(average_every=6))
    )
    assert start / half < 2.5 / 1.1 < 2.5 * 1.25 < start / local


# -- ranks of this process --------------------------------------------------------------------------------------------


@pytest.fixture
def alone(tmp_path: Path) -> object:
    """A process group of one rank, so that what ranks do can be tried in this process."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_every_all_reduce_of_a_slowed_block_waits_and_none_afterwards(
    alone: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []
    monkeypatch.setattr(slow_wire.time, "sleep", slept.append)
    monkeypatch.setattr(dist, "get_world_size", lambda *_: 2)
    tensor = torch.ones(250)
    with slow_wire.slowed(slow_wire.of(costs.Link(1.0, 1000.0))):
        dist.all_reduce(tensor)
        handle = dist.all_reduce(tensor, async_op=True)
    assert handle.get_future().wait()[0] is tensor
    assert slept == [pytest.approx(2.0, abs=0.2)] * 2
    dist.all_reduce(tensor)
    assert len(slept) == 2
    with slow_wire.slowed(None):
        dist.all_reduce(tensor)
    assert len(slept) == 2


def test_the_shares_of_the_nodes_are_equal_and_not_alike() -> None:
    labels = np.arange(1000) % 10
    first, second = on_plans.shares(labels)
    assert sorted([*first, *second]) == list(range(1000))
    assert len(first) == len(second) == 500
    assert (labels[first] < 5).mean() == pytest.approx(on_plans.SKEW)
    assert (labels[second] < 5).mean() == pytest.approx(1 - on_plans.SKEW)


@pytest.mark.parametrize("step", [0, 19, 20, 37])
def test_a_global_batch_is_the_same_however_many_ranks_share_it(step: int) -> None:
    whole = on_nodes._own(step, 0, 1).tolist()
    assert sorted(torch.cat([on_nodes._own(step, rank, 4) for rank in range(4)]).tolist()) == sorted(whole)
    assert whole != on_nodes._own(step + 20, 0, 1).tolist()


def test_real_ranks_send_what_was_predicted_and_classify_alike() -> None:
    chosen = {"fp16": {"compression": "fp16"}, "powersgd": {"compression": "powersgd", "warmup_steps": 20},
              "local": {"average_every": 8}, "seldom": {"accumulate": 4}}  # fmt: skip
    payload = {"plans": chosen, "seeds_of_runs": [3]}
    values = ranks.run(recovery.TARGET, 2, payload=payload, time_limit_s=LIMIT_S).values
    for name, plan in chosen.items():
        mine, other = (value["runs"][name][0] for value in values)
        assert (mine["predictions"] == other["predictions"]).all(), name
        assert (mine["predictions"] == values[0]["labels"]).mean() > 0.7, name
        if mine["sent_bytes"] is not None:
            assert mine["sent_bytes"] == pytest.approx(plans.predict_sent_bytes(plans.check_plan(plan)), rel=0.1), name


# -- checkpoints ------------------------------------------------------------------------------------------------------


def test_a_run_that_was_taken_up_again_ends_as_if_nothing_had_happened(tmp_path: Path) -> None:
    def train(parts: dict, first: int, last: int) -> None:
        for step in range(first, last):
            own = on_nodes._own(step, 0, 1)
            parts["optimizer"].zero_grad()
            parts["model"](images[own]).square().mean().backward()
            parts["optimizer"].step()
            parts["schedule"].step()

    images = torch.randn(on_nodes.IMAGES, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    parts, again = on_nodes._parts(6), on_nodes._parts(6)
    train(parts, 0, 3)
    checkpoints.save(tmp_path / "c.pt", parts, {"step": 3, "seed": 1})
    assert [path.name for path in tmp_path.iterdir()] == ["c.pt"]
    train(parts, 3, 6)
    train(again, 0, 5)  # anything else
    assert checkpoints.load(tmp_path / "c.pt", again) == {"step": 3, "seed": 1}
    train(again, 3, 6)
    for one, other in zip(parts["model"].parameters(), again["model"].parameters(), strict=True):
        assert torch.equal(one, other)


def test_a_checkpoint_that_cannot_be_finished_leaves_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = on_nodes._parts(6)
    checkpoints.save(tmp_path / "c.pt", parts, {"step": 3})

    def cut(state: object, file: object) -> None:
        file.write(b"half")  # type: ignore[attr-defined]
        raise OSError("the disk is full")

    with monkeypatch.context() as patched:
        patched.setattr(torch, "save", cut)
        with pytest.raises(OSError, match="full"):
            checkpoints.save(tmp_path / "c.pt", parts, {"step": 6})
    assert checkpoints.load(tmp_path / "c.pt", parts) == {"step": 3}


# -- launchers and failures, on a stage that plays --------------------------------------------------------------------


class Played(Stage):
    """A stage whose runs return what a test says."""

    def __init__(self, losses: dict[str, float], failing: str = "") -> None:
        super().__init__(None, 100)
        object.__setattr__(self, "losses", losses)
        object.__setattr__(self, "failing", failing)

    def launchers(self) -> tuple[str, ...]:
        return tuple(self.losses)  # type: ignore[attr-defined]

    def run(self, target: str, payload: object, *, launcher: str | None = None, **_: object) -> RanksResult:
        name = launcher or self.quickest
        is_good = name != self.failing  # type: ignore[attr-defined]
        value = {"loss": self.losses[name], "host": "node1", "first_step": 0, "losses": {}}  # type: ignore[attr-defined]
        result = RanksResult(
            record.SCHEMA, name, f"login$ {name} --agent /tmp/x/enter -n 2", 2, 1, is_good, "rank 1 raised", None, 2.0,
            ("", ""), "", (value, value),
        )  # fmt: skip
        if not is_good:
            raise RanksFailed(result)
        return result


def test_launchers_are_compared_and_a_difference_is_not_hidden() -> None:
    same = launching.measure_launches(Played({"torchrun": 0.5, "mpirun": 0.5}), QUICK)
    assert "The same loss 2 times" in same.sentence()
    assert "enter" in same.commands()
    assert "/tmp" not in same.commands()
    other = launching.measure_launches(Played({"torchrun": 0.5, "mpirun": 0.6}), QUICK)
    assert "should not be" in other.sentence()
    failing = launching.measure_launches(Played({"torchrun": 0.5, "mpirun": 0.5}, failing="mpirun"), QUICK)
    assert failing.failed == {"mpirun": "rank 1 raised"}
    assert "rank 1 raised" in failing.table()
    assert "nothing to compare" in failing.sentence()
    assert "Open MPI is not installed" in launching.measure_launches(Played({"torchrun": 0.5}), SMOKE).sentence()


def test_the_sentence_of_a_failure_says_what_was_lost_and_whether_the_end_is_the_same() -> None:
    peace = failures.End(0.5, 0, ("node1", "node2"), (1.0,) * 60)
    resumed = failures.End(0.5, 30, ("node1",), (0.8,) * 30)
    told = failures.Failure("node2", "it was lost", peace, {failures.ALONE: resumed})
    assert "7 steps had to be done again (predicted: 7)" in told.sentence()
    assert "to the last bit" in told.sentence()
    assert list(told.lines()[failures.ALONE][0]) == list(range(31, 61))
    off = failures.Failure("node2", "it was lost", peace, {failures.RENEWED: failures.End(0.6, 30, ("n",), ())})
    assert "Not the same loss" in off.sentence()
    assert "smoke budget" in failures.measure_failure(SMOKE).sentence()
    assert failures.measure_failure(SMOKE).lines() == {}


def test_a_plug_is_pulled_at_its_step_and_of_the_second_rank_only(monkeypatch: pytest.MonkeyPatch) -> None:
    killed: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "kill", lambda process, number: killed.append((process, number)))
    plug = failures.Plug(Stage(None, None))
    for rank, line in ((0, "process 5 begins at step 0"), (1, "process 77 begins at step 0"), (1, "step 36"),
                       (0, f"step {failures.KILL_AT}")):  # fmt: skip
        plug.pull(rank, line)
    assert killed == []
    plug.pull(1, f"step {failures.KILL_AT}")
    assert killed == [(77, signal.SIGKILL)]
    assert plug.at_s is not None


class Elastic(Stage):
    """A stage on which torchrun takes a run up again, as one would hear it."""

    is_enforced = True

    def run(self, target: str, payload: object, **options: Any) -> RanksResult:
        lines = (
            (0, "process 5 begins at step 0"),
            (1, "process 77 begins at step 0"),
            (1, f"step {failures.KILL_AT}"),
            (0, "RuntimeError: [/a/pair.cc:535] Read error: reset"),
            (0, "process 9 begins at step 30"),
        )
        for rank, line in lines:
            options["on_line"](rank, line)
        value = {"loss": 0.5, "host": "node1", "first_step": 30, "losses": {"30": 1.0}}
        return RanksResult(record.SCHEMA, "torchrun", "node1$ torchrun", 2, 1, True, "1 of 2 ranks finished", None, 2.0,
                           ("", ""), "", (value, None))  # fmt: skip


def test_a_restart_tells_what_was_heard_and_where_it_ended(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(os, "kill", lambda process, number: None)
    peace = failures.End(0.5, 0, ("node1", "node2"), (1.0,) * 60)
    found = elastic._watch(Elastic(None, None), tmp_path, peace)
    assert found.told == "RuntimeError: Read error: reset"
    assert found.end is not None
    assert found.end.hosts == ("node1",)
    assert "from step 30, on node1. **The same loss** at the end: to the last bit" in found.sentence()
    other = elastic.Restart(end=failures.End(0.6, 30, ("node1",), ()), undisturbed=peace)
    assert "**Not the same loss** at the end: 0.1 apart" in other.sentence()
    assert "smoke budget" in elastic.measure_restart(SMOKE).sentence()


def test_a_queue_is_shown_only_where_something_was_handed_in() -> None:
    assert "Slurm is not installed" in jobs.measure_queue(Stage(None, 100, "Slurm is not installed"), QUICK).sentence()
    assert jobs.measure_queue(Stage(None, 100), SMOKE).blocks() == ""
    shown = jobs.Queue("login$ sbatch job.sh", " 1 all R", ("node1", "node2"), 5.0)
    assert "login$ squeue\n 1 all R" in shown.blocks()
    assert "node1 and node2" in shown.sentence()


def test_the_best_interval_balances_saving_and_doing_again() -> None:
    def wasted(interval_s: float) -> float:
        return 30 / interval_s + interval_s / 2 / 86400

    best = failures.predict_best_interval_s(30.0, 86400.0)
    assert wasted(best) < min(wasted(0.9 * best), wasted(1.1 * best))
    with pytest.raises(ValueError, match="above 0"):
        failures.predict_best_interval_s(0.0, 1.0)


# -- links ------------------------------------------------------------------------------------------------------------


def told(step_s: float) -> dict:
    pairs = {"alone": [[0.01, 0.02]] * 9, "step_s": [step_s] * 9, "processor_s": [0.03] * 9}
    return {**pairs, "sent_bytes": 1e6, "message_bytes": 10**6}


def test_efficiency_is_measured_against_a_step_without_messages() -> None:
    story = efficiency.read_story([(500, True, told(0.03)), (20, True, told(0.42))])
    assert [point.megabits_per_s for point in story.points] == [20, 500]
    assert story.points[0].efficiency == pytest.approx(0.03 / 0.42)
    assert story.points[1].efficiency == pytest.approx(1.0)
    assert "less than one node without a network" in story.sentence()
    assert story.together == pytest.approx(2 * 0.03 / 0.42)  # 20 lies nearer to 100 than 500 does
    fast = efficiency.read_story([(20, False, told(0.031))])
    assert "still a gain" in fast.sentence()
    assert "simulated" in fast.sentence()
    assert "furthest off" in fast.sentence()


def test_each_link_is_predicted_by_its_own_computing() -> None:
    busy = {**told(0.06), "alone": [[0.02, 0.04]] * 9}
    story = efficiency.read_story([(20, True, told(0.42)), (10_000, True, busy)])
    slow, fast = story.points
    assert (slow.work.forward_s, fast.work.forward_s) == (pytest.approx(0.01), pytest.approx(0.02))
    assert fast.efficiency == pytest.approx(1.0)
    assert "2 of 2 links" in story.sentence()
    assert "in 7% of a step's time: gloo waits asleep" in story.sentence()
    assert [line.split(" | ")[2] for line in story.table().splitlines()[2:]] == ["30 ms", "60 ms"]


def test_the_interval_knows_that_computing_varies_too() -> None:
    alone = np.tile([0.01, 0.03], 10)
    low, high = efficiency._interval(alone, np.full(20, 0.04))
    assert low < 0.5 < high
    together = efficiency._interval(alone, 2 * alone)
    assert together == (pytest.approx(0.5), pytest.approx(0.5)), "a slow moment hits both of a pair"


def test_the_link_that_is_needed_gives_the_share_that_was_asked_for() -> None:
    work = costs.Work(0.1, 0.2, 10**8)
    for nodes, overlap, batches in ((2, 1.0, 1), (64, 0.0, 1), (64, 1.0, 16)):
        link = costs.Link(0.0, efficiency.predict_needed_mbit(work, nodes, overlap=overlap, batches=batches) * 1e6 / 8)
        share = costs.predict_link_efficiency(work, link, nodes, overlap=overlap, batches_per_message=batches)
        assert share == pytest.approx(0.9)
    assert "64 nodes" in efficiency.LinkStory(efficiency.EXAMPLE).answers()


def test_without_a_measurement_nothing_is_claimed() -> None:
    story = efficiency.measure_efficiency(Stage(None, 100), SMOKE)
    assert story.points == ()
    assert story.table() == ""
    assert math.isnan(story.together)
    assert story.sentence().startswith("Nothing was measured")
    assert "no link" in efficiency.read_story([]).sentence()


def test_recovery_is_judged_in_pairs_and_told_however_it_comes_out() -> None:
    labels = np.arange(2000) % 10
    wrong = np.where(np.arange(2000) < 200, labels + 1, labels)
    runs = {
        name: [
            {
                "seconds": 4.0 / (1 + place),
                "sent_bytes": 10,
                "predictions": wrong if name == "accumulation of 4" else labels,
            }
            for _ in range(2)
        ]
        for place, name in enumerate(recovery.PLANS)
    }
    value = {"runs": runs, "labels": labels, "batch_s": 0.002}
    found = recovery.read_recovery(100, True, [value, value])
    assert found.gain("local SGD, every 8") == pytest.approx(8.0)
    assert "Accuracy lost: accumulation of 4" in found.sentence()
    assert "fastest of them is local SGD, every 8 (8.0 times)" in found.sentence()
    assert "-10.0 points (of 4: 27 steps for 117), +0.0 points (of 4, rate × 4: 27 steps for 117)" in found.sentence()
    assert found.table().count("| kept (") == 6
    assert "| 8.0 (8.0 to 8.0) |" in found.table()
    assert found.best_kept == pytest.approx(8.0)
    ahead = recovery.measure_recovery(Stage(None, 100), SMOKE)
    assert ahead.sentence().startswith("Predicted only")
    assert math.isnan(ahead.best_kept)
    assert ahead.gain("fp16 compression") == pytest.approx(1.8, abs=0.2)


def test_figures_hold_what_was_measured() -> None:
    from accelerando.figures import clusters as pictures
    from accelerando.widgets import clusters as explorers

    story = efficiency.read_story([(20, True, told(0.42))])
    shown = explorers.efficiency_explorer(story.work, story.rows())
    assert isinstance(shown.still, figures.Picture)
    assert "measured 7 % at 20 Mbit/s" in shown.still.words
    assert "2 nodes do the work of" in explorers.words(story.work, 2, 1, 1, 100)
    slow, fast = (explorers.efficiency_at(story.work, 8, 1, 1, speed, 1.0) for speed in (10, 10_000))
    assert slow < fast <= 1
    assert explorers.efficiency_at(story.work, 8, 16, 1, 10, 1.0) > slow
    ahead = recovery.measure_recovery(Stage(None, 100), SMOKE)
    assert "times as fast" in pictures.ways(ahead.rows(), "two ranks").words
    lines = {"left in peace": (range(1, 5), [1.0, 0.9, 0.8, 0.7]), "again": (range(3, 5), [0.8, 0.7])}
    assert "Killed after step 3" in pictures.broken_off(lines, killed_at=3, saved_at=2, title="t").words


# -- command lines and hangs ------------------------------------------------------------------------------------------


def test_lines_for_a_host_file_make_one_job() -> None:
    allocation = commands.read_allocation("a slots=4\nb slots=2\n")
    lines = {host: shlex.split(line) for host, line in commands.torchrun_lines(allocation, port=1234).items()}
    assert lines["b"][1:] == [
        "--nnodes=2", "--node-rank=1", "--nproc-per-node=2", "--master-addr=a", "--master-port=1234", "train.py",
    ]  # fmt: skip
    assert {line[1] for line in lines.values()} == {"--nnodes=2"}
    words = shlex.split(commands.mpirun_line(allocation, interface="ib0"))
    assert words[words.index("--host") + 1] == "a:4,b:2"
    assert words[words.index("-n") + 1] == "6"
    assert {"MASTER_ADDR=a", "NCCL_SOCKET_IFNAME=ib0"} <= set(words)
    assert words[words.index("prte_if_include") + 1] == "ib0"
    with pytest.raises(ValueError, match="same number"):
        commands.slurm_script(allocation)


def test_lines_for_real_hosts_are_those_that_start_programs_on_the_virtual_nodes(tmp_path: Path) -> None:
    nodes = hosts.make_nodes(3)
    file = "".join(f"{node.address} slots=2\n" for node in nodes)
    lines = commands.torchrun_lines(commands.read_allocation(file), port=777).values()
    plan = launch.plan("torchrun", ["train.py"], launch.Place(nodes, 2), port=777, interface="eth0", folder=tmp_path)
    for line, step in zip(lines, plan.steps, strict=True):
        assert set(shlex.split(line)) <= set(shlex.split(step.typed))
    mine = shlex.split(commands.mpirun_line(commands.read_allocation(file), port=777))
    theirs = launch.plan(
        "mpirun", ["train.py"], launch.Place(nodes, 2), port=777, interface="eth0", folder=tmp_path, agent="enter"
    )
    typed = shlex.split(theirs.steps[0].typed)
    for option in ("--host", "-n", "--bind-to"):
        assert mine[mine.index(option) + 1] == typed[typed.index(option) + 1]


def test_lines_for_a_slurm_allocation() -> None:
    allocation = commands.read_allocation(commands.ALLOCATION)
    assert allocation.slots == {"gpu01": 8, "gpu02": 8, "gpu03": 8, "gpu07": 8}
    script = commands.slurm_script(allocation, interface="ib0")
    assert "#SBATCH --nodes=4\n#SBATCH --ntasks-per-node=8\n" in script
    assert "scontrol show hostnames" in script
    assert "#SBATCH --cpus-per-task=4\n#SBATCH --time=" in script
    assert 'srun --cpus-per-task="$SLURM_CPUS_PER_TASK" ' in script
    assert "NCCL_DEBUG=INFO OMP_NUM_THREADS=4 NCCL_SOCKET_IFNAME=ib0\n" in script
    assert commands.shown(commands.HOST_FILE, interface="ib0").count("NCCL_SOCKET_IFNAME=ib0") == 4
    assert "sbatch" not in commands.shown(commands.HOST_FILE)
    assert "--nnodes=1:4" in commands.elastic_line(1, 4, 8, "gpu01")
    with pytest.raises(ValueError, match="at most the second"):
        commands.elastic_line(4, 1, 8, "gpu01")


def test_hosts_without_slots_are_not_guessed() -> None:
    with pytest.raises(ValueError, match="ranks_per_host"):
        commands.read_allocation("alpha\nbeta\n")
    assert commands.read_allocation("alpha\nbeta\n", ranks_per_host=2).world_size == 4
    with pytest.raises(readers.Unreadable):
        commands.read_allocation("# nobody\n")


def test_a_rank_that_meets_nobody_is_told_how_many_came(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hangs, "PATIENCE_S", 1.0)
    assert "it counts: 1 of 2 came" in hangs.measure_missing(QUICK).sentence()
    assert "leaves it out" in hangs.measure_missing(SMOKE).sentence()
    assert "does not say" in hangs.Missing("something else").sentence()


def test_the_example_log_is_a_hang_and_the_table_is_complete() -> None:
    assert "**hang**" in hangs.read_log()
    assert "or the network between them stood still" in hangs.read_log()
    assert hangs.SAMPLE_LOG in hangs.shown_log()
    assert hangs.table().count("\n") == len(hangs.SYMPTOMS) + 1


def test_stages_in_words() -> None:
    assert "2 ranks of this machine" in Stage(None, 100, "no namespaces").sentence()
    assert Stage(None, 100)._told() != {}
    assert Stage(None, None)._told() == {}
