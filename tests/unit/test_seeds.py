"""Seeds: one number decides every draw, and neighbours do not share a stream."""

import random

import numpy as np
import pytest
import torch

from accelerando import seeds


def draws() -> tuple[float, float, float]:
    return random.random(), float(np.random.rand()), float(torch.rand(()))


def test_one_call_repeats_python_numpy_and_torch():
    seeds.seed(3)
    first = draws()
    seeds.seed(3)
    assert draws() == first
    seeds.seed(4)
    assert all(here != there for here, there in zip(draws(), first, strict=True))


def test_every_rank_draws_something_else_and_rank_0_draws_what_one_process_draws():
    seeds.seed(3)
    alone = draws()
    by_rank = []
    for rank in range(4):
        seeds.seed(3, rank=rank)
        by_rank.append(draws())
    assert by_rank[0] == alone
    assert len(set(by_rank)) == 4


def test_next_seed_on_one_rank_is_not_this_seed_on_the_next_rank():
    streams = {seeds.stream_seed(seed, rank) for seed in range(20) for rank in range(1, 20)}
    assert len(streams) == 20 * 19


def test_generator_does_not_depend_on_what_else_was_drawn():
    first = torch.rand(3, generator=seeds.generator(1, 2))
    torch.rand(100)
    torch.testing.assert_close(torch.rand(3, generator=seeds.generator(1, 2)), first, rtol=0, atol=0)
    assert not torch.equal(torch.rand(3, generator=seeds.generator(1, 3)), first)


class NumpyNoise(torch.utils.data.Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return np.random.randint(2**31)


def test_loader_workers_draw_different_numpy_numbers():
    loader = torch.utils.data.DataLoader(
        NumpyNoise(), batch_size=1, num_workers=2, worker_init_fn=seeds.seed_worker, generator=seeds.generator(5)
    )
    values = [int(value) for value in loader]
    assert len(set(values)) == 8


def test_preserved_puts_the_readers_generators_back():
    seeds.seed(7)
    expected = draws()
    seeds.seed(7)
    with seeds.preserved():
        seeds.seed(99)
        draws()
    assert draws() == expected


@pytest.mark.parametrize("bad", [-1, 2**32, 1.5, "1", True, None])
def test_impossible_seed_is_refused_with_what_is_allowed(bad):
    with pytest.raises(ValueError, match="whole number from 0 to 4294967295"):
        seeds.seed(bad)
