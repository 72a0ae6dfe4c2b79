"""A processor under full load for a while: does it keep its speed, and does the host leave it its time?"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from accelerando import measure, seeds
from accelerando.lessons import Budget
from accelerando.noise import MachineState
from accelerando.readers import linux

SECONDS = {"smoke": 0.6, "quick": 30.0, "full": 60.0}
_SLICE_S = 0.5


@dataclass(frozen=True)
class LoadWatch:
    """Speed and state of the machine, slice by slice.

    Args:
        flops_per_s: Of each slice, all cores.
        states: Of the machine during each slice.
        slice_s: Seconds of one.
        counters: What is counted of throttling here: "heat", "quota" of the control group, both or nothing.
    """

    flops_per_s: tuple[float, ...]
    states: tuple[MachineState, ...]
    slice_s: float
    counters: tuple[str, ...] = ()

    @property
    def seconds(self) -> float:
        """How long it was watched."""
        return self.slice_s * len(self.flops_per_s)

    @property
    def kept(self) -> float:
        """Speed in the last third / speed in the first third."""
        third = max(1, len(self.flops_per_s) // 3)
        return statistics.median(self.flops_per_s[-third:]) / statistics.median(self.flops_per_s[:third])

    @property
    def worst(self) -> float:
        """The slowest slice / the median slice."""
        return min(self.flops_per_s) / statistics.median(self.flops_per_s)

    def sentence(self) -> str:
        """What this run showed."""
        median = statistics.median(self.flops_per_s)
        start = f"{self.seconds:.0f} s of full load at {median / 1e9:.0f} GFLOP/s in the middle."
        if self.kept < 0.93:
            heat = f" The last third ran at **{self.kept:.0%}** of the first: the processor slowed down as it went."
        else:
            heat = f" The last third ran at {self.kept:.0%} of the first: no slowing down with time."
        dips = f" The slowest half second reached {self.worst:.0%} of the middle one."
        return f"{start}{heat}{dips} {self._stolen()} {self._clock()} {self._throttled()}{self._unexplained()}"

    def _unexplained(self) -> str:
        """Whether there is a dip that none of the counters saw."""
        place = self.flops_per_s.index(min(self.flops_per_s))
        state = self.states[place]
        lost = 1 - self.worst
        seen = (state.steal_fraction or 0.0) + (state.others_fraction or 0.0)
        if lost < 0.1 or seen > lost / 2 or state.throttled:
            return ""
        return " Nothing that is counted here explains the slowest half second: from inside, its cause is not seen."

    def _stolen(self) -> str:
        steals = [state.steal_fraction for state in self.states if state.steal_fraction is not None]
        others = [state.others_fraction for state in self.states if state.others_fraction is not None]
        if not steals:
            return "Whether a host took time away is not counted on this system."
        busy = f" Other programs here used up to {max(others):.0%}." if others and max(others) > 0.15 else ""
        if max(steals) < 0.01:
            return f"The host stole less than a hundredth.{busy}"
        return f"The host stole up to {max(steals):.1%} of the CPU time in a slice.{busy}"

    def _throttled(self) -> str:
        told = [state.throttled for state in self.states if state.throttled is not None]
        if not told:
            return "No counter of throttling is visible here (usual in a virtual machine): speed tells."
        slowed = f"counted in {sum(told)} of {len(told)} slices"
        if "heat" in self.counters:
            both = ", the control group's quota included" if "quota" in self.counters else ""
            return f"Throttling, for heat{both}, was {slowed}."
        return f"Throttling by the control group's quota was {slowed}; heat is not counted where we can see it."

    def _clock(self) -> str:
        clocks = [state.frequency_mhz for state in self.states if state.frequency_mhz]
        if not clocks:
            return "No clock is to be read here."
        if max(clocks) - min(clocks) < 0.001 * max(clocks):
            return (
                f"The clock reads {max(clocks):,.0f} MHz in every slice, as a virtual machine's often does whatever "
                "the processor really does: it says nothing."
            )
        return f"The clock stood between {min(clocks):,.0f} and {max(clocks):,.0f} MHz."


def measure_full_load(budget: Budget, *, on_slice: Callable[[int], None] = lambda done: None) -> LoadWatch:
    """Keep all cores busy with matrix products and watch, half a second at a time.

    Args:
        budget: "quick" watches half a minute, "full" a whole one.
        on_slice: Told how many slices are done.
    """
    import torch

    size = 768 if budget.name != "smoke" else 256
    square = torch.rand(size, size, generator=seeds.generator(0))
    out = torch.empty_like(square)
    slice_s = min(_SLICE_S, SECONDS[budget.name] / 3)
    rates, states = [], []
    for done in range(round(SECONDS[budget.name] / slice_s)):
        taken = measure.measure(
            lambda: torch.mm(square, square, out=out), budget_s=slice_s, precision=0.0, warmup_calls=0
        )
        rates.append(2 * size**3 / taken.median_s)
        states.append(taken.state)
        on_slice(done + 1)
    return LoadWatch(tuple(rates), tuple(states), slice_s, tuple(linux.throttle_counts(Path("/"))))
