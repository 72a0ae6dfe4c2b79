"""When a sequential comparison looks at its data, and how much of its error rate each look may spend. Pure."""

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, special

_FIRST_LOOK, _RANK_LOOK, _GROWTH = 4, 12, 1.25  # signed ranks need about a dozen pairs


def plan_looks(planned_pairs: int) -> tuple[int, ...]:
    """Return after how many pairs to look: each time a quarter more, the last time at ``planned_pairs``."""
    look = float(min(_RANK_LOOK, max(_FIRST_LOOK, planned_pairs // 4)))
    looks: list[int] = []
    while look < planned_pairs:
        looks.append(int(look))
        look = max(look + 1, look * _GROWTH)
    return (*looks, max(planned_pairs, 2))


def last_look(pairs: int, planned_pairs: int, error_rate: float, *, is_last: bool = False) -> tuple[int, float]:
    """Return after how many of these pairs the latest look was, and its one-sided error level; (0, nan) before one.

    Args:
        pairs: Taken so far.
        planned_pairs: The most that will be taken; fixed before the first one.
        error_rate: Of all looks together.
        is_last: No more pairs will come: look now, and spend what is left.
    """
    looks = plan_looks(max(planned_pairs, pairs) if is_last else planned_pairs)
    taken = tuple(look for look in looks if look <= pairs)
    if is_last and pairs > (taken[-1] if taken else 1):
        return pairs, look_levels((*taken, pairs), pairs, error_rate)[-1]
    if not taken:
        return 0, math.nan
    return taken[-1], look_levels(looks, looks[-1], error_rate)[len(taken) - 1]


@lru_cache(maxsize=256)
def look_levels(looks: tuple[int, ...], planned_pairs: int, error_rate: float) -> tuple[float, ...]:
    """Return the one-sided error level of the interval at each look, so that all looks together err at ``error_rate``.

    The partial sums of the pairs are followed as a Brownian motion: its density below the boundary is carried
    from look to look on a grid, and each boundary is set so that the share of paths crossing it there is what the
    spending function allows.

    Source:
        Armitage, McPherson and Rowe (1969); Lan and DeMets (1983); Jennison and Turnbull (2000), chapters 9 and 19.
    """
    start = min(_FIRST_LOOK, looks[0]) / 2
    spent = [error_rate * math.log(n / start) / math.log(planned_pairs / start) for n in looks]
    levels: list[float] = []
    sums, density = np.zeros(1), np.ones(1)  # a point mass before the first pair
    before, spent_before = 0, 0.0
    for n, total in zip(looks, spent, strict=True):
        step = math.sqrt(n - before)
        boundary = _boundary(sums, density, step, math.sqrt(n), total - spent_before)
        levels.append(float(special.ndtr(-boundary)))
        grid = np.linspace(-8 * math.sqrt(n), boundary * math.sqrt(n), 321)
        kernel = np.exp(-0.5 * ((grid[:, None] - sums[None, :]) / step) ** 2) / (step * math.sqrt(2 * math.pi))
        weights = np.full(grid.size, grid[1] - grid[0])
        weights[[0, -1]] /= 2
        sums, density = grid, (kernel @ density) * weights
        before, spent_before = n, total
    return tuple(levels)


def _boundary(sums: NDArray, density: NDArray, step: float, scale: float, share: float) -> float:
    def excess(z: float) -> float:
        return float(density @ special.ndtr((sums - z * scale) / step)) - share

    return float(optimize.brentq(excess, 0.0, 8.0)) if excess(8.0) < 0 else 8.0
