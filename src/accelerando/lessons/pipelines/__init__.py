"""Lesson 4: is it the loader or the model? Data pipelines, simulated and measured.

Every experiment returns a frozen result with a ``sentence``: what this run showed, whichever way it came out.
"""

from accelerando.lessons.pipelines.decoding import measure_caching, measure_decoding
from accelerando.lessons.pipelines.memory import measure_memory
from accelerando.lessons.pipelines.seeding import measure_seeding
from accelerando.lessons.pipelines.shared_memory import measure_shm, predict_shm_bytes
from accelerando.lessons.pipelines.sharing import measure_sharing
from accelerando.lessons.pipelines.stalls import measure_stall, measure_workers
from accelerando.lessons.pipelines.transfer import example_plans, measure_copies, predict_copies, shown_code
from accelerando.lessons.pipelines.waiting import measure_bursts, measure_start, measure_waiting
from accelerando.lessons.pipelines.whole_batches import measure_cure, measure_transforms
from accelerando.timelines import Plan, predict_images_per_s, simulate

__all__ = [
    "Plan",
    "example_plans",
    "measure_bursts",
    "measure_caching",
    "measure_copies",
    "measure_cure",
    "measure_decoding",
    "measure_memory",
    "measure_seeding",
    "measure_sharing",
    "measure_shm",
    "measure_stall",
    "measure_start",
    "measure_transforms",
    "measure_waiting",
    "measure_workers",
    "predict_copies",
    "predict_images_per_s",
    "predict_shm_bytes",
    "shown_code",
    "simulate",
]
