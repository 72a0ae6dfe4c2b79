"""One step at a time is the same training as `fit`."""

import pytest
import torch

from accelerando import datasets, models, training
from accelerando.recipes import Recipe

DATA = datasets.synthetic(64, 10)
RECIPE = Recipe(batch_size=16, epochs=2, schedule="constant", learning_rate=0.05, threads=1)


def test_steps_one_by_one_lose_what_fit_loses() -> None:
    step = training.stepper(RECIPE, DATA)
    assert [step() for _ in range(8)] == pytest.approx(list(training.fit(RECIPE, DATA).losses), rel=1e-5)


def test_it_never_ends_and_goes_on_learning() -> None:
    step = training.stepper(RECIPE, DATA, model=models.MlpSizes(hidden=(16,)))
    losses = [step() for _ in range(60)]
    assert sum(losses[-8:]) < 0.5 * sum(losses[:8])


def test_it_leaves_threads_and_random_numbers_as_they_were() -> None:
    torch.manual_seed(5)
    before = torch.get_num_threads(), torch.get_rng_state()
    step = training.stepper(RECIPE.changed(threads=before[0] + 1), DATA)
    step()
    assert torch.get_num_threads() == before[0]
    assert torch.equal(torch.get_rng_state(), before[1])


def test_each_call_enters_every_phase_once() -> None:
    timer = training.PhaseTimer()
    step = training.stepper(RECIPE, DATA, phases=timer.phase)
    for _ in range(3):
        step()
    assert timer.calls == dict.fromkeys(training.PHASES, 3)
