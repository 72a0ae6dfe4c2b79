"""Intel's extension for PyTorch (IPEX) beside stock PyTorch, each in a process of its own.

IPEX overrides operators of the whole process it is imported into, so it is never imported into a kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import metadata
from typing import TYPE_CHECKING, Any

from accelerando import datasets, models, seeds, training
from accelerando.lessons import Budget
from accelerando.lessons.cpu.turns import measure_in_turns, time_once
from accelerando.lessons.cpu.ways import IPEX, IPEX_TRACED, STEPS_COMPARED, ExtensionTable, tabulate
from accelerando.recipes import Recipe
from accelerando.workers import Experiment

if TYPE_CHECKING:
    import torch
    from torch import nn

PREPARE_STOCK = "accelerando.lessons.cpu.extension:prepare_stock"
PREPARE_IPEX = "accelerando.lessons.cpu.extension:prepare_ipex"
RECIPE = Recipe(batch_size=64, optimizer="adam", learning_rate=0.001, schedule="constant", test_images=10)
_OPTIMIZER = "+ fused optimizer"
TRAINING = {
    "as it comes": {"optimizer_kind": "for_loop"},
    "channels last": {"optimizer_kind": "for_loop", "layout": "channels_last"},
    _OPTIMIZER: {"optimizer_kind": "fused", "layout": "channels_last"},
}
COMPILED = "+ torch.compile"


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
        recipes[COMPILED] = recipes[_OPTIMIZER].changed(compile=True)
    kernels: dict[str, Callable[[], object]] = {}
    losses = {}
    for name, recipe in recipes.items():
        step = training.stepper(recipe, data)
        losses[name] = [step() for _ in range(STEPS_COMPARED)][-1]
        kernels[f"train: {name}"] = step
    model, images = _answering()
    kernels["answer: as it comes"] = _without_gradients(model, images)
    last = images.contiguous(memory_format=torch.channels_last)
    model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    kernels["answer: channels last"] = _without_gradients(model, last)
    kernels["answer: oneDNN fusion"] = _without_gradients(_fused_by_onednn(model, last), last)
    if with_compile:
        kernels["answer: torch.compile"] = _without_gradients(torch.compile(model), last)
        kernels["answer: torch.compile"]()
    return lambda: {"seconds": time_once(kernels, sample_s), "facts": {"losses": losses}}


def _fused_by_onednn(model: nn.Module, images: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
    """Trace and freeze a model, so that BatchNorm goes into the convolution and ReLU is done on its way out."""
    import torch

    torch.jit.enable_onednn_fusion(True)
    return _traced(model, images)


def _traced(model: nn.Module, images: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
    """Turn a model into a frozen graph, which whoever fuses graphs then fuses."""
    import torch

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
    loss = [step() for _ in range(STEPS_COMPARED)][-1]
    model, images = _answering()
    images = images.contiguous(memory_format=torch.channels_last)
    optimized = ipex.optimize(model.to(memory_format=torch.channels_last))  # type: ignore[call-overload]
    kernels: dict[str, Callable[[], object]] = {
        f"train: {IPEX}": step,
        f"answer: {IPEX}": _without_gradients(optimized, images),
        f"answer: {IPEX_TRACED}": _without_gradients(_traced(optimized, images), images),
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
