"""Keeping accuracy while the global batch grows: what the learning rate, the warm-up and the optimizer do."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from accelerando import datasets, models, training
from accelerando.lessons import Budget
from accelerando.lessons.multi_gpu import layers
from accelerando.recipes import Recipe

SIZES = models.MlpSizes(hidden=(128, 128, 128))
BATCH, RATE, EPOCHS = 32, 0.02, 8
"""Images of each rank; the learning rate that is good for one; times that all images are gone through."""
WARMUP = 0.2
"""Share of the steps in which the rate climbs."""


def predict_rate(rule: str, ranks: int, rate: float = RATE) -> float:
    """The learning rate for a global batch that is ``ranks`` times as large.

    Args:
        rule: "unchanged", "square root" or "linear".
        ranks: At least 1.
        rate: Good for one rank.

    Source:
        Linear: P. Goyal et al. (2017). Square root: A. Krizhevsky (2014), One weird trick.
    """
    powers = {"unchanged": 0.0, "square root": 0.5, "linear": 1.0}
    if rule not in powers:
        raise ValueError(f"rule is {rule!r}: say one of {', '.join(powers)}")
    return float(rate * ranks ** powers[rule])


@dataclass(frozen=True)
class Way:
    """One way to train with many ranks' batches.

    Args:
        label: Of the way.
        ranks: Whose batches of `BATCH` images make a step.
        rate: Highest learning rate.
        warmup: Share of the steps in which it climbs.
        optimizer: "sgd", "lars" or "lamb".
    """

    label: str
    ranks: int
    rate: float
    warmup: float = 0.0
    optimizer: str = "sgd"


WAYS = (
    Way("one rank", 1, RATE),
    Way("unchanged", 8, predict_rate("unchanged", 8)),
    Way("square root", 8, predict_rate("square root", 8)),
    Way("linear", 8, predict_rate("linear", 8)),
    Way("linear, warm-up", 8, predict_rate("linear", 8), WARMUP),
    Way("twice linear", 8, 2 * predict_rate("linear", 8)),
    Way("twice linear, warm-up", 8, 2 * predict_rate("linear", 8), WARMUP),
    Way("LARS, warm-up", 8, 1.0, WARMUP, "lars"),
    Way("LAMB, warm-up", 8, 0.02, WARMUP, "lamb"),
    Way("quarter root, warm-up", 32, predict_rate("square root", 32) / 4, WARMUP),
    Way("half root, warm-up", 32, predict_rate("square root", 32) / 2, WARMUP),
    Way("square root, warm-up", 32, predict_rate("square root", 32), WARMUP),
    Way("half linear, warm-up", 32, predict_rate("linear", 32) / 2, WARMUP),
    Way("linear, warm-up", 32, predict_rate("linear", 32), WARMUP),
    Way("LARS, warm-up", 32, 2.0, WARMUP, "lars"),
    Way("LAMB, warm-up", 32, 0.04, WARMUP, "lamb"),
)


@dataclass(frozen=True)
class Trained:
    """What came of one way: accuracy is the mean over seeds, the error one standard error."""

    way: Way
    steps: int
    accuracies: tuple[float, ...]
    accuracy_error: float

    @property
    def accuracy(self) -> float:
        """Mean over seeds."""
        return float(np.mean(self.accuracies))


@dataclass(frozen=True)
class RuleStory:
    """Accuracy at equal epochs, by rule.

    Args:
        trained: One for each way; the first is one rank.
        epochs: Times that all images were gone through.
    """

    trained: tuple[Trained, ...]
    epochs: int

    def lost(self, label: str, ranks: int = 8) -> float | None:
        """Points of accuracy lost against one rank; None where that way was not run."""
        found = self._find(label, ranks)
        return None if found is None else 100 * (self.trained[0].accuracy - found.accuracy)

    def points(self, ranks: int) -> dict[str, tuple[float, float]]:
        """Label -> accuracy and its standard error, one rank first."""
        kept = [self.trained[0], *(one for one in self.trained if one.way.ranks == ranks)]
        return {f"{one.way.label} ({one.way.rate:.3g})": (one.accuracy, one.accuracy_error) for one in kept}

    def sentence(self) -> str:
        """What this run showed at 8 ranks about the rate."""
        first, same, linear = self.trained[0], self._find("unchanged", 8), self._find("linear, warm-up", 8)
        if same is None or linear is None:
            return "The smoke budget trains too little to tell the rules apart."
        kept = "keeps it" if not self._is_lower(linear) else f"loses {100 * (first.accuracy - linear.accuracy):.1f}"
        if not self._is_lower(same):
            return (
                f"In this run even the unchanged rate kept the accuracy ({same.accuracy:.1%} after {same.steps} steps "
                f"against {first.accuracy:.1%} after {first.steps:,}): the belief survives here. The linear rule "
                f"{kept}."
            )
        return (
            f"{same.steps} steps in place of {first.steps:,}. With the rate unchanged "
            f"**{100 * (first.accuracy - same.accuracy):.1f} points are lost** ({same.accuracy:.1%} against "
            f"{first.accuracy:.1%}); 8 times the rate, with warm-up, {kept} ({linear.accuracy:.1%})."
        )

    def rules_sentence(self) -> str:
        """Whether this run tells the two rules for the rate apart, both without warm-up."""
        root, linear = self._find("square root", 8), self._find("linear", 8)
        if root is None or linear is None:
            return "The smoke budget leaves the square root out."
        told = (
            f"Both without warm-up, the square root reaches {root.accuracy:.1%} and the linear rule "
            f"{linear.accuracy:.1%}"
        )
        ahead = linear.accuracy - root.accuracy
        if abs(ahead) <= 2 * math.hypot(root.accuracy_error, linear.accuracy_error):
            return f"{told}: with {len(linear.accuracies)} runs each they cannot be told apart."
        return f"{told}: the {'linear rule' if ahead > 0 else 'square root'} is ahead, beyond chance."

    def warmup_sentence(self) -> str:
        """What warm-up did where the rate is too high to begin with."""
        cold, warm = self._find("twice linear", 8), self._find("twice linear, warm-up", 8)
        if cold is None or warm is None:
            return "The smoke budget leaves the warm-up out."
        runs = [", ".join(f"{accuracy:.1%}" for accuracy in one.accuracies) for one in (cold, warm)]
        told = (
            f"{self._mild_warmup()}16 times the rate, run by run: {runs[0]} from the first step on, {runs[1]} with "
            "warm-up"
        )
        saved = 100 * (min(warm.accuracies) - min(cold.accuracies))
        if saved > 5:
            return (
                f"{told}. **At worst, warm-up saved {saved:.0f} points**: what the weights cannot bear in the "
                "beginning, they can later."
            )
        return f"{told}. In this run warm-up decided nothing there; with other seeds, or a higher rate, it may."

    def _mild_warmup(self) -> str:
        cold, warm = self._find("linear", 8), self._find("linear, warm-up", 8)
        if cold is None or warm is None:
            return ""
        seen = abs(warm.accuracy - cold.accuracy) > 2 * math.hypot(cold.accuracy_error, warm.accuracy_error)
        return (
            f"At 8 times the rate warm-up made {'a' if seen else 'no'} difference beyond chance ({cold.accuracy:.1%} "
            f"without, {warm.accuracy:.1%} with). "
        )

    def limit_sentence(self) -> str:
        """What happens at 32 ranks."""
        first, many = self.trained[0], [one for one in self.trained if one.way.ranks == 32]
        if not many:
            return "The smoke budget leaves 32 ranks out."
        best = max(many, key=lambda one: one.accuracy)
        told = f"With 32 ranks a run has {best.steps} steps. " + ", ".join(
            f"{one.way.label.partition(',')[0]} reaches {one.accuracy:.1%}" for one in many
        )
        told += f". {self._plain_and_layered(many)}"
        name = best.way.label.partition(",")[0]
        if self._is_lower(best):
            return (
                f"{told}The best of them, {name}, still loses "
                f"{100 * (first.accuracy - best.accuracy):.1f} points: so few steps are not repaired by any rule here."
            )
        return f"{told}{name} keeps the accuracy of one rank, within chance."

    def _plain_and_layered(self, many: Sequence[Trained]) -> str:
        plain = [one for one in many if one.way.optimizer == "sgd"]
        layered = [one for one in many if one.way.optimizer != "sgd"]
        if not plain or not layered:
            return ""
        sgd, other = (max(ways, key=lambda one: one.accuracy) for ways in (plain, layered))
        name, ahead = other.way.label.partition(",")[0], 100 * (other.accuracy - sgd.accuracy)
        rates = [one.way.rate for one in plain]
        edges = {
            min(rates): ", the lowest: a lower one may do better",
            max(rates): ", the highest: a higher one may do better",
        }
        best = f"At the best of {len(plain)} rates tried ({sgd.way.rate:.3g}{edges.get(sgd.way.rate, '')}) plain SGD is"
        if abs(ahead) <= 200 * math.hypot(sgd.accuracy_error, other.accuracy_error):
            return f"{best} within chance of {name}. "
        return f"{best} {abs(ahead):.1f} points {'behind' if ahead > 0 else 'ahead of'} {name}. "

    def _find(self, label: str, ranks: int) -> Trained | None:
        return next((one for one in self.trained if (one.way.label, one.way.ranks) == (label, ranks)), None)

    def _is_lower(self, one: Trained) -> bool:
        first = self.trained[0]
        return first.accuracy - one.accuracy > 2 * math.hypot(first.accuracy_error, one.accuracy_error)


def measure_rules(budget: Budget, ways: Sequence[Way] = WAYS) -> RuleStory:
    """Train every way through the same images; one process gets the batch of all ranks, as `imitation` allows.

    Args:
        budget: How many images; in smoke two ways only, once each.
        ways: The first is what the others are compared to.
    """
    data, is_smoke = images(budget), budget.name == "smoke"
    epochs, runs = (1, 1) if is_smoke else (EPOCHS, 2)
    trained = []
    for way in ways[:2] if is_smoke else ways:
        more = not is_smoke and way.label.startswith("twice")  # some of these runs collapse, and some do not
        results = [train(way, data, seed, epochs) for seed in range(runs + more)]
        accuracies = [result.accuracy for result in results]
        trained.append(Trained(way, results[0].steps, tuple(accuracies), standard_error(accuracies, len(data.test))))
    return RuleStory(tuple(trained), epochs)


def train(way: Way, data: datasets.Dataset, seed: int, epochs: int = EPOCHS) -> training.FitResult:
    """Train one way once; one thread, so that busy cores change nothing."""
    recipe = Recipe(
        batch_size=min(BATCH * way.ranks, len(data.train)), epochs=epochs, learning_rate=way.rate, schedule="cosine",
        warmup_fraction=way.warmup, drop_last=True, threads=1, seed=seed,
    )  # fmt: skip
    return training.fit(recipe, data, model=SIZES, prepare=layers.optimizer(way.optimizer))


def standard_error(accuracies: list[float], test_images: int) -> float:
    """One standard error of a mean accuracy, from the test images and from the seeds."""
    mean = float(np.mean(accuracies))
    spread = float(np.std(accuracies, ddof=1)) / math.sqrt(len(accuracies)) if len(accuracies) > 1 else 0.0
    return math.hypot(math.sqrt(max(mean * (1 - mean), 1e-9) / test_images), spread)


@cache
def _embedded(train_images: int, test_images: int) -> datasets.Dataset:
    return datasets.fashion_mnist(embedded_only=True, train_images=train_images, test_images=test_images)


def images(budget: Budget) -> datasets.Dataset:
    """The images of this lesson's experiments: real ones from the package, the same on every machine."""
    return _embedded(min(12_000, 2 * budget.train_images), budget.test_images)
