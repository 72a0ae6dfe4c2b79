"""Lesson 2: what `torch.compile` makes of a program, what that costs, and when it pays.

`toolchain` says how far this run goes, `graphs` shows the stages, `breaks` and `shapes` count what goes wrong,
`fusion`, `payback`, `race` and `settings` measure what it brings. Every experiment returns a frozen result with a
``sentence``.
"""

from accelerando.lessons.compilation import breaks, shapes
from accelerando.lessons.compilation.fusion import measure_fusion
from accelerando.lessons.compilation.graphs import trace
from accelerando.lessons.compilation.payback import ceilings, measure_payback
from accelerando.lessons.compilation.race import measure_race
from accelerando.lessons.compilation.settings import measure_settings, settings_table
from accelerando.lessons.compilation.subjects import CONVOLUTIONS, GATES, ONE_GATE, SUBJECTS
from accelerando.lessons.compilation.toolchain import find as find_toolchain

__all__ = [
    "CONVOLUTIONS",
    "GATES",
    "ONE_GATE",
    "SUBJECTS",
    "breaks",
    "ceilings",
    "find_toolchain",
    "measure_fusion",
    "measure_payback",
    "measure_race",
    "measure_settings",
    "settings_table",
    "shapes",
    "trace",
]
