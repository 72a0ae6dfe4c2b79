"""Intel's extension for PyTorch (IPEX) beside stock PyTorch, each in a process of its own.

IPEX overrides operators of the whole process it is imported into, so it is never imported into a kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from typing import TYPE_CHECKING, Any

from accelerando import datasets, models, seeds, training
from accelerando.lessons import Budget
from accelerando.lessons.cpu.turns import Turns, measure_in_turns, time_once
from accelerando.recipes import Recipe
from accelerando.workers import Experiment

if TYPE_CHECKING:
    import torch
    from torch import nn

PREPARE_STOCK = "accelerando.lessons.cpu.extension:prepare_stock"
PREPARE_IPEX = "accelerando.lessons.cpu.extension:prepare_ipex"
RECIPE = Recipe(batch_size=64, optimizer="adam", learning_rate=0.001, schedule="constant", test_images=10)
TRAINING = {
    "as it comes": {"optimizer_kind": "for_loop"},
    "channels last": {"optimizer_kind": "for_loop", "layout": "channels_last"},
    "+ fused optimizer": {"optimizer_kind": "fused", "layout": "channels_last"},
}
COMPILED = "+ torch.compile"
IPEX = "ipex.optimize"
_STEPS_COMPARED = 5


def optimize(model: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[nn.Module, torch.optim.Optimizer]:
    """Let IPEX prepare model and optimizer for training, in float32: layout, packed weights, fused update.

    Give it to `training.fit` as ``prepare``. Only in a process made for it.
    """
    import intel_extension_for_pytorch as ipex

    found: tuple[nn.Module, torch.optim.Optimizer] = ipex.optimize(model, optimizer=optimizer, inplace=True)
    return found


def prepare_stock(sample_s: float, with_compile: bool) -> Callable[[], dict[str, Any]]:
    """Prepare the stock ways to train and to answer in a child process.

    Args:
        sample_s: Seconds for one sample of each.
        with_compile: Also through torch.compile, which takes its time here and none later.
    """
    import torch

    data = datasets.synthetic(256, 10)
    recipes = {name: RECIPE.changed(**fields) for name, fields in TRAINING.items()}
    if with_compile:
        recipes[COMPILED] = recipes["+ fused optimizer"].changed(compile=True)
    kernels: dict[str, Callable[[], object]] = {}
    losses = {}
    for name, recipe in recipes.items():
        step = training.stepper(recipe, data)
        losses[name] = [step() for _ in range(_STEPS_COMPARED)][-1]
        kernels[f"train: {name}"] = step
    model, images = _answering()
    kernels["answer: as it comes"] = _without_gradients(model, images)
    last = images.contiguous(memory_format=torch.channels_last)
    model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    kernels["answer: channels last"] = _without_gradients(model, last)
    kernels["answer: oneDNN fusion"] = _without_gradients(_fused_by_onednn(model, last), last)
    return lambda: {"seconds": time_once(kernels, sample_s), "facts": {"losses": losses}}


def _fused_by_onednn(model: nn.Module, images: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
    """Trace and freeze a model, so that BatchNorm goes into the convolution and ReLU is done on its way out."""
    import torch

    torch.jit.enable_onednn_fusion(True)
    with torch.no_grad():
        frozen = torch.jit.freeze(torch.jit.trace(model, images))
        for _ in range(3):  # the first calls look at the shapes, then the graph is fused
            frozen(images)
    found: Callable[[torch.Tensor], torch.Tensor] = frozen
    return found


def prepare_ipex(sample_s: float) -> Callable[[], dict[str, Any]]:
    """Prepare training and answering through IPEX in a child process.

    Args:
        sample_s: Seconds for one sample of each.
    """
    import intel_extension_for_pytorch as ipex
    import torch

    step = training.stepper(RECIPE.changed(layout="channels_last"), datasets.synthetic(256, 10), prepare=optimize)
    loss = [step() for _ in range(_STEPS_COMPARED)][-1]
    model, images = _answering()
    images = images.contiguous(memory_format=torch.channels_last)
    optimized = ipex.optimize(model.to(memory_format=torch.channels_last))  # type: ignore[call-overload]
    kernels: dict[str, Callable[[], object]] = {
        f"train: {IPEX}": step,
        f"answer: {IPEX}": _without_gradients(optimized, images),
    }
    facts = {"losses": {IPEX: loss}, "version": str(ipex.__version__)}
    return lambda: {"seconds": time_once(kernels, sample_s), "facts": facts}


def _answering() -> tuple[nn.Module, torch.Tensor]:
    import torch

    with seeds.preserved():
        seeds.seed(0)
        model = models.build(models.SLIM_CNN).eval()
    return model, torch.rand(64, 1, models.IMAGE_PIXELS, models.IMAGE_PIXELS, generator=seeds.generator(1))


def _without_gradients(model: Callable[..., Any], images: torch.Tensor) -> Callable[[], object]:
    import torch

    def run() -> object:
        with torch.inference_mode():
            return model(images)

    return run


@dataclass(frozen=True)
class Way:
    """One way to train or to answer.

    Args:
        name: A few words.
        median_s: Seconds per batch.
        ratio: Times as fast as stock PyTorch as it comes, within rounds.
        interval: 95 % interval for the ratio; (0, inf) with fewer than six rounds.
    """

    name: str
    median_s: float
    ratio: float
    interval: tuple[float, float]


@dataclass(frozen=True)
class ExtensionTable:
    """Stock PyTorch and IPEX, training and answering.

    Args:
        training: Ways to train, stock first.
        answering: Ways to answer.
        loss_gap: Largest relative difference between the losses after a few steps, over all ways to train.
        version: Of IPEX; None when it gave no time.
        why_not: Why IPEX, or torch.compile, is left out; empty when both are there.
    """

    training: tuple[Way, ...] = ()
    answering: tuple[Way, ...] = ()
    loss_gap: float = 0.0
    version: str | None = None
    why_not: str = ""

    def sentence(self) -> str:
        """What this run showed."""
        if not self.training:
            return self.why_not
        stock = [way for way in self.training if way.name != IPEX]
        best = max(stock, key=lambda way: way.ratio)
        parts = [f"Training: the best stock way is *{best.name}*, {best.ratio:.2f} times as fast as it comes."]
        own = next((way for way in self.training if way.name == IPEX), None)
        if own is not None:
            against = own.ratio / best.ratio
            judged = (
                f"{against:.2f} times the best stock way: on this processor there was still something in it"
                if against > 1.05
                else f"{against:.2f} times the best stock way: nothing is lost by moving"
                if against < 0.95
                else "as fast as the best stock way, within a twentieth"
            )
            parts.append(f"IPEX {self.version} reaches {own.ratio:.2f}, {judged}.")
        if self.answering:
            told = ", ".join(f"*{way.name}* {way.ratio:.2f}" for way in self.answering[1:])
            parts.append(f"Answering, times as fast as it comes: {told}.")
        parts.append(f"After {_STEPS_COMPARED} steps the losses of all ways agree to {self.loss_gap:.1g}.")
        if self.why_not:
            parts.append(self.why_not)
        return " ".join(parts)


def why_no_ipex() -> str:
    """Why IPEX cannot be used here, as far as can be told without starting a process; empty when it may work."""
    try:
        found = metadata.version("intel-extension-for-pytorch")
    except metadata.PackageNotFoundError:
        return "IPEX is not installed (it exists for Linux on x86-64 only, and its last release is 2.8)"
    stock = metadata.version("torch")
    if found.split(".")[:2] != stock.split(".")[:2]:
        return f"IPEX {found} needs torch {'.'.join(found.split('.')[:2])}, and this is torch {stock}"
    return ""


def measure_extension(budget: Budget, *, has_compiler: bool) -> ExtensionTable:
    """Measure stock ways and IPEX in two child processes, in turns.

    Args:
        budget: How many rounds; the smoke budget starts no process.
        has_compiler: Whether torch.compile has something to compile with.
    """
    if not budget.process_s:
        return ExtensionTable(why_not="Nothing was measured: the smoke budget has no time for processes.")
    sample_s = 0.08 if budget.name == "quick" else 0.4
    stock = {"sample_s": sample_s, "with_compile": has_compiler}
    variables = {"TORCHINDUCTOR_COMPILE_THREADS": "1"}
    experiments = {"stock": Experiment(PREPARE_STOCK, stock, variables, prepares=True)}
    why = why_no_ipex()
    if not why:
        experiments["ipex"] = Experiment(PREPARE_IPEX, {"sample_s": sample_s}, prepares=True)
    turns = measure_in_turns(experiments, budget.rounds)
    if "stock" in turns.failed:
        return ExtensionTable(why_not=f"The stock side gave no time: {turns.failed['stock']}.")
    if "ipex" in turns.failed:
        why = f"IPEX gave no time: {turns.failed['ipex']}"
    reasons = [f"{why}: the stock ways stand for themselves."] if why else []
    if not has_compiler:
        reasons.append("torch.compile is left out: there is no C++ compiler here.")
    return tabulate(turns, " ".join(reasons))


def tabulate(turns: Turns, why_not: str = "") -> ExtensionTable:
    """Turn what two processes measured into ways, each compared to stock PyTorch as it comes."""
    losses: dict[str, float] = {}
    for facts in turns.facts.values():
        losses |= facts["losses"]
    first = losses["as it comes"]
    gap = max(abs(loss / first - 1) for loss in losses.values())
    version = turns.facts.get("ipex", {}).get("version")
    return ExtensionTable(_ways(turns, "train"), _ways(turns, "answer"), gap, version, why_not)


def _ways(turns: Turns, task: str) -> tuple[Way, ...]:
    kernels = [(setting, name) for setting, rows in turns.samples.items() for name in rows[0]]
    ways = [(setting, name) for setting, name in kernels if name.startswith(f"{task}: ")]
    return tuple(
        Way(name.partition(": ")[2], reading.median_s, reading.ratio, reading.interval)
        for setting, name in ways
        if (reading := turns.compare(("stock", f"{task}: as it comes"), (setting, name)))
    )
