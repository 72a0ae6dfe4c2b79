"""The explorer of lesson 10: what a link of any bandwidth leaves of many nodes, and what sending less buys back."""

from __future__ import annotations

import html
from collections.abc import Sequence

from accelerando import costs, figures
from accelerando.costs import Work
from accelerando.figures import clusters as pictures
from accelerando.widgets import Shown

SPEEDS_MBIT = tuple(10 ** (power / 8) for power in range(8, 49))
"""10 Mbit/s to 1,000 Gbit/s."""
SENDS = {"gradients in every step": (1, 1), "half as many bytes (fp16)": (1, 2), "one message for 4 batches": (4, 1),
         "one message for 16 batches": (16, 1)}  # fmt: skip
"""What is sent -> batches for one message, and by what its bytes are divided."""


def curves(work: Work, nodes: int, batches: int, divisor: int) -> dict[str, list[float]]:
    """Predicted efficiency over `SPEEDS_MBIT`: the two bounds, each message for so many batches."""
    return {
        name: [efficiency_at(work, nodes, batches, divisor, speed, overlap) for speed in SPEEDS_MBIT]
        for name, overlap in {"all of backward hides it": 1.0, "nothing hides it": 0.0}.items()
    }


def efficiency_at(work: Work, nodes: int, batches: int, divisor: int, megabits_per_s: float, overlap: float) -> float:
    """Predicted efficiency of one link."""
    link = costs.Link(0.0, megabits_per_s * 1e6 / 8)
    sent = Work(work.forward_s, work.backward_s, work.message_bytes / divisor)
    return costs.predict_link_efficiency(sent, link, nodes, overlap=overlap, batches_per_message=batches)


def words(work: Work, nodes: int, batches: int, divisor: int, megabits_per_s: float) -> str:
    """Say what the marked bandwidth gives, and which one would be needed for nine tenths."""
    low, high = (efficiency_at(work, nodes, batches, divisor, megabits_per_s, overlap) for overlap in (0.0, 1.0))
    enough = [s for s in SPEEDS_MBIT if efficiency_at(work, nodes, batches, divisor, s, 1.0) >= 0.9]
    wanted = f"from {_speed(enough[0])} on" if enough else "on none of these links"
    return (
        f"At {_speed(megabits_per_s)}: {low:.0%} to {high:.0%}, so {nodes} nodes do the work of {nodes * low:.1f} to "
        f"{nodes * high:.1f}. Nine tenths at best {wanted}."
    )


def _speed(megabits_per_s: float) -> str:
    return f"{megabits_per_s / 1000:.3g} Gbit/s" if megabits_per_s >= 1000 else f"{megabits_per_s:.3g} Mbit/s"


def efficiency_picture(
    work: Work, nodes: int, sent: str, megabits_per_s: float, points: Sequence[pictures.Row]
) -> figures.Picture:
    """The curves of one setting; measured points belong to the setting that was measured only."""
    batches, divisor = SENDS[sent]
    computing_ms = 1e3 * (work.forward_s + work.backward_s)
    title = f"{nodes} nodes, {work.message_bytes / 1e6:.3g} MB of gradients, {computing_ms:.3g} ms a batch"
    return pictures.efficiency(
        SPEEDS_MBIT, curves(work, nodes, batches, divisor), points, title=title, marked=megabits_per_s
    )


def efficiency_explorer(own: Work, rows: Sequence[pictures.Row] = ()) -> Shown:
    """Sliders for bandwidth, nodes, gradients and computing, over what was measured on this machine.

    Args:
        own: What a rank computes and sends, measured or an example.
        rows: Measured with it, on two nodes: (Mbit/s, efficiency, interval's lower and upper end).
    """
    import ipywidgets as ipw

    options = [(_speed(speed), speed) for speed in SPEEDS_MBIT]
    start = min(SPEEDS_MBIT, key=lambda speed: abs(speed - 100))
    speed = ipw.SelectionSlider(options=options, value=start, description="bandwidth", continuous_update=False)
    nodes = ipw.SelectionSlider(options=[2, 4, 8, 16, 64, 256, 1024], value=2, description="nodes")
    bytes_ = ipw.FloatLogSlider(
        value=own.message_bytes / 1e6, min=-1, max=5, step=0.05, description="MB to send", continuous_update=False
    )
    batch = ipw.FloatLogSlider(
        value=1e3 * (own.forward_s + own.backward_s), min=0, max=4, step=0.05, description="ms a batch",
        continuous_update=False,
    )  # fmt: skip
    sent = ipw.Dropdown(options=list(SENDS), description="sent")
    still = efficiency_picture(own, 2, next(iter(SENDS)), start, rows)
    picture, told = ipw.Image(value=still.png, format="png", width=726), ipw.HTML()

    def draw(*_: object) -> None:
        share = own.forward_s / (own.forward_s + own.backward_s)
        work = Work(share * batch.value / 1e3, (1 - share) * batch.value / 1e3, 1e6 * bytes_.value)
        is_own = nodes.value == 2 and sent.value == next(iter(SENDS)) and _is_near(work, own)
        now = efficiency_picture(own if is_own else work, nodes.value, sent.value, speed.value, rows if is_own else ())
        picture.value, picture.alt = now.png, now.words
        told.value = html.escape(words(own if is_own else work, nodes.value, *SENDS[sent.value], speed.value))

    for widget in (speed, nodes, bytes_, batch, sent):
        widget.observe(draw, "value")
    draw()
    box = ipw.VBox([ipw.HBox([speed, nodes, sent]), ipw.HBox([bytes_, batch]), told, picture])
    return Shown(box, still, still.words)


def _is_near(work: Work, own: Work) -> bool:
    """The sliders stand where they stood first, but for their rounding."""
    pairs = ((work.message_bytes, own.message_bytes), (work.forward_s, own.forward_s))
    return all(abs(a / b - 1) < 0.1 for a, b in pairs)
