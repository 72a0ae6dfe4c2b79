"""Child processes: what reaches them, what comes back, and that nothing is left behind."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import psutil
import pytest

from accelerando import workers
from accelerando.workers import Experiment, ExperimentFailed, Worker

TARGETS = "worker_targets"
NewChildren = Callable[[], list[psutil.Process]]


@pytest.fixture(autouse=True)
def _targets_can_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))


@pytest.fixture(autouse=True)
def _nothing_is_left_behind(new_children: NewChildren):
    descriptors = psutil.Process().num_fds()
    yield
    assert new_children() == []
    assert psutil.Process().num_fds() <= descriptors


def experiment(name: str, **arguments: object) -> Experiment:
    return Experiment(f"{TARGETS}:{name}", arguments)


def is_running(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def wait_until_gone(pid: int) -> bool:
    end = time.monotonic() + 10
    while is_running(pid) and time.monotonic() < end:
        time.sleep(0.05)
    return not is_running(pid)


def test_run_returns_value_time_and_output():
    result = workers.run(experiment("add", a=2, b=3.5))
    assert result.value == 5.5
    assert 0 < result.elapsed_s < result.start_s + 60
    assert result.output == ""


def test_arrays_travel_both_ways():
    images = np.arange(12, dtype=np.float32).reshape(3, 4)
    value = workers.run(experiment("mean", images=images)).value
    assert value["mean"] == images.mean()
    np.testing.assert_array_equal(value["doubled"], images * 2)


def test_environment_and_cores_are_set_before_torch_is_imported(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("ACCELERANDO_GONE", "here")
    allowed = sorted(os.sched_getaffinity(0))
    asked = Experiment(
        f"{TARGETS}:settings",
        {"names": ["OMP_NUM_THREADS", "ACCELERANDO_GONE"]},
        # On one core torch would take one thread by itself.
        environment={"OMP_NUM_THREADS": "2", "ACCELERANDO_GONE": None},
        cpus=(allowed[-1],),
    )
    value = workers.run(asked).value
    assert value["torch_was_loaded"] is False
    assert value["variables"] == {"OMP_NUM_THREADS": "2", "ACCELERANDO_GONE": None}
    assert value["torch_threads"] == 2
    assert value["cpus"] == [allowed[-1]]
    assert value["leads_group"] is True
    assert os.environ["ACCELERANDO_GONE"] == "here"


def test_a_worker_keeps_its_state_between_calls_and_repeats_inside():
    with Worker(Experiment(f"{TARGETS}:counter", {"start": 10}, prepares=True)) as worker:
        assert worker.call() == 11
        assert worker.call(5) == 16
        assert worker.call(2, with_value=False) is None
        worker.settle(sampling=True)
        assert worker.call() == 19
        assert worker.elapsed_s > 0


def test_an_idle_worker_uses_no_processor_time(new_children: NewChildren):
    with Worker(Experiment(f"{TARGETS}:spins", {"milliseconds": 5}, prepares=True)) as worker:
        worker.call()
        (child,) = new_children()
        before = child.cpu_times()
        time.sleep(1.0)
        after = child.cpu_times()
        assert after.user + after.system - before.user - before.system <= 0.2  # seconds of one: a spin takes all


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (Experiment("no_such_module_xyz:f"), "No module named 'no_such_module_xyz'"),
        (Experiment(f"{TARGETS}:no_such"), "no attribute 'no_such'"),
        (Experiment(f"{TARGETS}:not_a_function"), "is a int, not a function"),
        (Experiment(f"{TARGETS}:add", {"a": 1, "b": 2}, prepares=True), "must return a function"),
        (Experiment(f"{TARGETS}:add", {"c": 1}), "unexpected keyword argument 'c'"),
        (experiment("raises", text="wanted"), "KeyError: 'wanted' (worker_targets.py, line"),
        (experiment("leaves", how="exit"), "SystemExit: 7"),
        (experiment("leaves", how="_exit"), "ended with exit status 7"),
        (experiment("leaves", how="kill"), "ended by SIGKILL (often: out of memory)"),
        (experiment("unsendable"), "type object, which cannot be sent"),
        (experiment("forks_and_dies"), "ended with exit status 5"),
    ],
)
def test_each_failure_is_one_clear_sentence(asked: Experiment, said: str):
    with pytest.raises(ExperimentFailed) as caught:
        workers.run(asked, time_limit_s=60)
    assert said in str(caught.value)
    assert str(caught.value).startswith(asked.target)


def test_a_failure_shows_the_last_lines_that_were_printed():
    with pytest.raises(ExperimentFailed, match="last words"):
        workers.run(experiment("leaves", how="_exit"))


def test_a_hanging_experiment_is_ended_at_its_limit():
    begun = time.monotonic()
    with Worker(experiment("hangs", seconds=600)) as worker:
        with pytest.raises(ExperimentFailed, match=r"no answer within 0\.5 s(.|\n)*going to sleep"):
            worker.call(time_limit_s=0.5)
        with pytest.raises(ExperimentFailed, match="not running"):
            worker.call()
    assert time.monotonic() - begun < 60


def test_a_hundred_megabytes_of_output_are_cut_in_the_middle():
    result = workers.run(experiment("prints", megabytes=100))
    assert result.value == "printed"
    assert result.output.startswith("the beginning")
    assert result.output.endswith("the end\n")
    assert "bytes left out" in result.output
    assert len(result.output) < 20_000


def test_closing_standard_output_does_not_lose_the_reply():
    assert workers.run(experiment("scribbles_on_descriptors")).value == 5


@pytest.mark.parametrize("dies", [False, True])
def test_grandchildren_end_with_the_worker(dies: bool):
    with Worker(experiment("with_grandchild", dies=dies)) as worker:
        if dies:
            with pytest.raises(ExperimentFailed, match="exit status 3"):
                worker.call()
            grandchild = int(worker.output.split()[1])  # all of it, once the worker is closed
        else:
            grandchild = worker.call()
            assert is_running(grandchild)
    assert wait_until_gone(grandchild)


def test_an_error_in_the_block_ends_the_worker(new_children: NewChildren):
    worker = Worker(experiment("add", a=1, b=1))
    with pytest.raises(ZeroDivisionError), worker:
        1 / (worker.call() - 2)
    assert new_children() == []


def in_another_process(text: str) -> subprocess.Popen[str]:
    lines = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
    lines += "from accelerando.workers import Worker, Experiment\nimport psutil, time\n" + text
    return subprocess.Popen([sys.executable, "-c", lines], stdout=subprocess.PIPE, text=True)


@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGINT])
def test_a_worker_does_not_outlive_its_parent(sent: signal.Signals):
    parent = in_another_process(
        "with Worker(Experiment('worker_targets:hangs', {'seconds': 600})) as worker:\n"
        "    print(psutil.Process().children()[0].pid, flush=True)\n"
        "    worker.call()\n"
    )
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    assert is_running(child)
    parent.send_signal(sent)
    parent.wait(timeout=20)
    parent.stdout.close()
    assert wait_until_gone(child)


@pytest.mark.parametrize(
    "wrong",
    [
        {"target": "module"},
        {"target": "module:"},
        {"target": "a b:c"},
        {"target": "m:f", "environment": {"A=B": "1"}},
        {"target": "m:f", "environment": {"A": 1}},
        {"target": "m:f", "cpus": ()},
    ],
)
def test_wrong_experiments_are_refused_at_once(wrong: dict):
    with pytest.raises(ValueError, match=r"target|environment|cpus"):
        Experiment(**wrong)


def test_a_core_that_is_not_ours_is_refused():
    with pytest.raises(ValueError, match="allowed here are"):
        workers.run(Experiment(f"{TARGETS}:add", {"a": 1, "b": 1}, cpus=(4095,)))


def test_two_threads_that_close_one_worker_close_each_descriptor_once(monkeypatch: pytest.MonkeyPatch) -> None:
    class Slow(threading.Thread):
        """Leaves the other thread time to come in between."""

        def join(self, timeout: float | None = None) -> None:
            time.sleep(0.1)
            super().join(timeout)

    monkeypatch.setattr(workers.threading, "Thread", Slow)
    worker = Worker(experiment("add", a=1, b=2)).__enter__()
    closed: list[int] = []
    close = os.close
    monkeypatch.setattr(os, "close", lambda descriptor: (closed.append(descriptor), close(descriptor)))
    raised: list[BaseException] = []

    def end() -> None:
        try:
            worker.close()
        except BaseException as error:
            raised.append(error)

    other = threading.Thread(target=end)
    other.start()
    end()
    other.join()
    assert raised == []
    ours = [descriptor for descriptor in closed if closed.count(descriptor) > 1]
    assert ours == []
