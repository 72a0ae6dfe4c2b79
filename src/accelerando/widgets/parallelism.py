"""The explorers of lesson 7: an all-reduce to step through, and what each strategy needs on a rank."""

from __future__ import annotations

import html

from accelerando import collectives, figures, strategies
from accelerando.figures import parallelism as pictures
from accelerando.widgets import Shown


def all_reduce_explorer(ranks: int = 4, algorithm: str = "ring", step: int = 2) -> Shown:
    """A slider over the steps of an all-reduce: who sends which piece to whom, and who has what afterwards.

    Args:
        ranks: At first, 2 to 8.
        algorithm: At first, one of `collectives.ALGORITHMS`.
        step: At first.
    """
    import ipywidgets as ipw

    chosen = ipw.ToggleButtons(options=list(collectives.ALGORITHMS), value=algorithm)
    count = ipw.IntSlider(value=ranks, min=2, max=8, description="ranks", continuous_update=False)
    schedule = collectives.ALGORITHMS[algorithm](ranks)
    place = ipw.IntSlider(value=step, min=0, max=len(schedule.steps), description="step", continuous_update=False)
    player = ipw.Play(value=step, min=0, max=len(schedule.steps), interval=900)
    ipw.jslink((player, "value"), (place, "value"))
    still = pictures.all_reduce_step(schedule, step)
    picture, words = ipw.Image(value=still.png, format="png"), ipw.HTML()

    def draw(*_: object) -> None:
        now = collectives.ALGORITHMS[chosen.value](count.value)
        place.max = player.max = len(now.steps)
        shown = pictures.all_reduce_step(now, min(place.value, len(now.steps)))
        picture.value, picture.alt = shown.png, shown.words
        words.value = html.escape(all_reduce_words(now))

    for widget in (chosen, count, place):
        widget.observe(draw, "value")
    draw()
    return Shown(ipw.VBox([ipw.HBox([chosen, count]), ipw.HBox([player, place]), words, picture]), still, still.words)


def all_reduce_words(schedule: collectives.Schedule) -> str:
    """Say what an all-reduce costs: steps, and what the busiest and the laziest rank send."""
    sent = schedule.sent_bytes(1.0)
    return (
        f"{len(schedule.steps)} steps. The busiest rank sends {max(sent):.2f} times the tensor, the laziest "
        f"{min(sent):.2f} times. Red: to be added; green: the sum, to be kept."
    )


MODELS = {"125 million": 125e6, "1.3 billion": 1.3e9, "7 billion": 7e9, "70 billion": 70e9}
WIDTHS = {125e6: (12, 768), 1.3e9: (24, 2048), 7e9: (32, 4096), 70e9: (80, 8192)}
"""Parameters -> blocks and numbers per position, as such language models have."""
POSITIONS = 4096
"""Of the global batch, in the calculator."""


def stack_of(parameters: float, bytes_per_number: int, positions: int = POSITIONS) -> strategies.Stack:
    """A transformer of that size as the strategies see it: each block keeps about 16 numbers per number of width.

    Source:
        Korthikanti et al. (2022), Reducing activation recomputation: 34 bytes per number of width in bf16, without
        what attention keeps for every pair of positions.
    """
    blocks, width = WIDTHS[parameters]
    boundary = positions * width * bytes_per_number
    return strategies.Stack(parameters, blocks, boundary, 16 * boundary)


def possible(parameters: float, ranks: int) -> list[str]:
    """The strategies that this many ranks allow: a pipeline has at most as many stages as the model has blocks."""
    return [name for name in strategies.NAMES if name != "pipeline" or ranks <= WIDTHS[parameters][0]]


def memory_picture(parameters: float, ranks: int, optimizer: str, precision: str) -> figures.Picture:
    """Bytes on one rank by strategy."""
    stack = stack_of(parameters, strategies.PRECISIONS[precision][0])
    rows = {
        name: strategies.predict_memory(name, stack, ranks, optimizer=optimizer, precision=precision).parts()
        for name in possible(parameters, ranks)
    }
    title = f"{parameters / 1e9:.3g} billion parameters on {ranks} ranks, {optimizer}, {precision}"
    return pictures.memory_bars(rows, title, unit="GB")


def memory_words(parameters: float, ranks: int, optimizer: str, precision: str, room_gb: float) -> str:
    """Say which strategies fit into the memory of a rank, and what each would send in a step."""
    size = strategies.PRECISIONS[precision][0]
    stack = stack_of(parameters, size)
    fits, sends = [], []
    for name in possible(parameters, ranks):
        total = strategies.predict_memory(name, stack, ranks, optimizer=optimizer, precision=precision).total
        if total <= room_gb * 1e9:
            fits.append(name)
        sent = strategies.predict_sent_bytes(name, stack, ranks, bytes_per_number=size)
        sends.append(f"{name} {sent / 1e9:.3g} GB")
    return (
        f"Into {room_gb:g} GB fit: {', '.join(fits) or 'none'}. A rank sends in a step: {', '.join(sends)}. "
        "(Optimizer sharded: as PyTorch's class does it; ZeRO 1 itself need not send more than data.)"
    )


def memory_explorer() -> Shown:
    """Sliders for model, ranks, optimizer and number format, over what one rank has to hold."""
    import ipywidgets as ipw

    start = (7e9, 8, "Adam", "bf16 + fp32 copy")
    model = ipw.Dropdown(options=list(MODELS.items()), value=start[0], description="parameters")
    ranks = ipw.SelectionSlider(options=[1, 2, 4, 8, 16, 32, 64, 128], value=start[1], description="ranks")
    optimizer = ipw.Dropdown(options=list(strategies.OPTIMIZERS), value=start[2], description="optimizer")
    precision = ipw.Dropdown(options=list(strategies.PRECISIONS), value=start[3], description="numbers")
    room = ipw.SelectionSlider(options=[8, 16, 24, 40, 80, 141], value=80, description="GB a rank")
    still = memory_picture(*start)
    picture, words = ipw.Image(value=still.png, format="png", width=726), ipw.HTML()

    def draw(*_: object) -> None:
        now = memory_picture(model.value, ranks.value, optimizer.value, precision.value)
        picture.value, picture.alt = now.png, now.words
        told = memory_words(model.value, ranks.value, optimizer.value, precision.value, room.value)
        words.value = html.escape(told)

    for widget in (model, ranks, optimizer, precision, room):
        widget.observe(draw, "value")
    draw()
    return Shown(
        ipw.VBox([ipw.HBox([model, ranks, room]), ipw.HBox([optimizer, precision]), words, picture]), still, still.words
    )
