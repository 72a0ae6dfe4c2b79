"""Lesson 3: what a processor is made of, what each part is worth to a training step, and how to set it up.

Every experiment returns a frozen result with a ``sentence``: what this run showed, whichever way it came out. What is
fixed when a process starts (instruction sets, OpenMP's runtime, IPEX) is measured in child processes, in turns.
"""

from accelerando.lessons.cpu.blocking import measure_blocking
from accelerando.lessons.cpu.extension import measure_extension
from accelerando.lessons.cpu.halves import HalfPrecision
from accelerando.lessons.cpu.hardware import measure_other_processors, passport
from accelerando.lessons.cpu.load import measure_full_load
from accelerando.lessons.cpu.memory import measure_staircase, measure_triad_by_threads
from accelerando.lessons.cpu.openmp import measure_openmp
from accelerando.lessons.cpu.placement import measure_placement
from accelerando.lessons.cpu.roofline import Kernel, kernels, measure_roofline
from accelerando.lessons.cpu.setups import SLOW_SETUP, try_setup
from accelerando.lessons.cpu.simd import measure_simd
from accelerando.lessons.cpu.threads import measure_oversubscription, set_too_late

__all__ = [
    "SLOW_SETUP",
    "HalfPrecision",
    "Kernel",
    "kernels",
    "measure_blocking",
    "measure_extension",
    "measure_full_load",
    "measure_openmp",
    "measure_other_processors",
    "measure_oversubscription",
    "measure_placement",
    "measure_roofline",
    "measure_simd",
    "measure_staircase",
    "measure_triad_by_threads",
    "passport",
    "set_too_late",
    "try_setup",
]
