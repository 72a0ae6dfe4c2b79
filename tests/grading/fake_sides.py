"""Sides of a session that train in no time, on a clock that tests move, as accurately as tests want."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from accelerando.datasets import ImageSet
from accelerando.grading.final_task import CLASSES, Task
from accelerando.grading.trainer import Trained

HELD_OUT = 2_500


def tasks() -> tuple[Task, Task]:
    """Two tasks of blank images; the labels alone matter."""
    rng = np.random.default_rng(0)
    train = ImageSet(np.zeros((50, 28, 28), np.uint8), np.arange(50, dtype=np.int64) % CLASSES)
    held_out = ImageSet(np.zeros((HELD_OUT, 28, 28), np.uint8), rng.integers(0, CLASSES, HELD_OUT))
    return Task("real", train, held_out), Task("rule", train, held_out)


@dataclass
class FakeSides:
    """Stands in for `SandboxTrainer`.

    Args:
        seconds: Of each side, or of a side on a task as ``"submission/rule"``.
        accuracy: Likewise.
        jitter: Deviation of the log of a run's seconds.
        overhead_s: What a run costs beside.
        failures: Exception of a side, raised instead of a run.
    """

    seconds: Mapping[str, float]
    accuracy: Mapping[str, float] = field(default_factory=dict)
    jitter: float = 0.02
    overhead_s: float = 4.0
    failures: Mapping[str, Exception] = field(default_factory=dict)
    now_s: float = 0.0
    asked: list[tuple[str, str, float]] = field(default_factory=list)
    orders: list[tuple[int, ...]] = field(default_factory=list)
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(3))

    def clock(self) -> float:
        return self.now_s

    def __call__(self, side: str, task: Task, order: np.ndarray, limit_s: float) -> Trained:
        self.asked.append((side, task.name, limit_s))
        self.orders.append(tuple(order))
        if side in self.failures:
            self.now_s += self.overhead_s + limit_s
            raise self.failures[side]
        own = f"{side}/{task.name}"
        seconds = self.seconds.get(own, self.seconds.get(side, 0.0)) * float(np.exp(self.jitter * self.rng.normal()))
        self.now_s += self.overhead_s + seconds
        return Trained(seconds, self._scores(task, self.accuracy.get(own, self.accuracy.get(side, 0.85))))

    def _scores(self, task: Task, accuracy: float) -> np.ndarray:
        """Which images are hard is the same for all; which side finds them hard differs a little."""
        labels = task.held_out.labels
        hardness = np.random.default_rng(7).random(len(labels)) + 0.02 * self.rng.normal(size=len(labels))
        answer = np.where(hardness < accuracy, labels, (labels + 1) % CLASSES)
        return np.eye(CLASSES, dtype=np.float32)[answer]
