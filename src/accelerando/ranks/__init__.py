"""Runs a program on several ranks: a launcher starts them, gloo or oneCCL connects them, nothing is left of them.

What a notebook cannot do itself (a function defined in it cannot be started in another process) is one call here::

    result = ranks.run(average, 2, payload={"base": 1.0}, on_line=ranks.show)
    result.values          # what the function returned on rank 0, rank 1, …

Every rank's output comes line by line with its number. Whatever happens, error, time limit, Ctrl-C or the death of
this process, all ranks end. No port is fixed and nothing but the machine's own loopback is used, so it works in the
sandbox, and beside another run. `accelerando.cluster` starts the same programs on nodes.
"""

from accelerando.ranks.inside import give, joined, payload
from accelerando.ranks.launchers import LAUNCHERS
from accelerando.ranks.local import MOST_RANKS, run
from accelerando.ranks.outputs import OnLine, show
from accelerando.ranks.record import RanksFailed, RanksResult

__all__ = [
    "LAUNCHERS",
    "MOST_RANKS",
    "OnLine",
    "RanksFailed",
    "RanksResult",
    "give",
    "joined",
    "payload",
    "run",
    "show",
]
