"""The truth that lab 3 is judged by."""

from accelerando.workers import Experiment

from . import FakeRun

_CORES = 2


def fake_training(experiment: Experiment) -> FakeRun:
    """Threads help up to the cores there are and cost beyond them; the layout gives a fifth, the update little."""
    threads = int(experiment.environment["OMP_NUM_THREADS"] or _CORES)
    speed = min(threads, _CORES) / (1 + 0.1 * max(0, threads - _CORES))
    speed *= 1.2 if experiment.arguments["layout"] == "channels_last" else 1.0
    speed *= 1.05 if experiment.arguments["optimizer_kind"] != "for_loop" else 1.0
    return FakeRun(3.0 / speed, 0.85)


RUNS = {"cpu.faster_setup": fake_training}
