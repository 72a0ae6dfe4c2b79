"""The figures of lesson 6: bits of formats, gradients over a format's range, loss scales, bytes over batch size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from accelerando.figures import BLUE, CYCLE, GREEN, GREY, INK, ORANGE, RED, SKY, Picture, draw
from accelerando.formats import Format

PARTS = (("sign", RED), ("exponent", ORANGE), ("fraction", SKY))


def bit_layout(formats: Sequence[Format], value: float = 0.1) -> Picture:
    """Draw one row of bits per format, with a value's own bits in them."""
    said = [f"{one.name} {' '.join(one.encode(value))} = {float(one.round(value)):.7g}" for one in formats]
    with draw(f"The bits of {value:g}. " + "; ".join(said), width=7.4, height=0.9 + 0.33 * len(formats)) as sheet:
        axes = sheet.axes[0]
        for row, one in enumerate(reversed(formats)):
            place = 0
            for (_, colour), bits in zip(PARTS, one.encode(value), strict=True):
                for bit in bits:
                    axes.barh(row, 1, left=place, height=0.72, color=colour, edgecolor="white", linewidth=1)
                    axes.text(place + 0.5, row, bit, ha="center", va="center", fontsize=7)
                    place += 1
            axes.text(place + 0.4, row, f"{float(one.round(value)):.7g}", va="center", fontsize=8)
        for colour, name in zip((RED, ORANGE, SKY), ("sign", "exponent", "fraction"), strict=True):
            axes.barh(0, 0, color=colour, label=name)
        axes.set_yticks(range(len(formats)), labels=[one.name for one in reversed(formats)])
        axes.set(title=f"The bits of {value:g}, and the number they stand for", xticks=[], xlim=(0, 38))
        axes.grid(visible=False)
        axes.spines["bottom"].set_visible(False)
        axes.legend(loc="lower right", ncols=3)
    return sheet.picture


def gradient_range(
    values: Mapping[str, npt.NDArray[np.float64]], form: Format, *, scale: float = 1.0, title: str = ""
) -> Picture:
    """Histograms of magnitudes over powers of two, with the range of a format behind them.

    Args:
        values: Label -> magnitudes above 0, before scaling.
        form: Whose range is shown.
        scale: Every magnitude is multiplied by it.
        title: What is shown; made up from the rest when empty.
    """
    power = np.log2(scale)
    title = title or f"Gradients times 2^{power:.0f} over the range of {form.name}"
    said = "; ".join(f"{name}: {form.fate(found * scale)}" for name, found in values.items())
    edges = np.arange(-48, 25)
    with draw(f"{title}. {said}", height=3.0) as sheet:
        axes = sheet.axes[0]
        bottom, normal, top = (np.log2(end) for end in (form.smallest / 2, form.smallest_normal, form.largest))
        low, high = edges[0], edges[-1]
        bottom, normal, top = (min(max(end, low), high) for end in (bottom, normal, top))
        axes.axvspan(low, bottom, color=RED, alpha=0.13, label="becomes 0")
        axes.axvspan(bottom, normal, color=ORANGE, alpha=0.22, label="subnormal")
        axes.axvspan(top, high, color=GREY, alpha=0.35, label="overflows")
        for colour, (name, found) in zip((BLUE, GREEN), values.items(), strict=False):
            places = np.clip(np.log2(found * scale), low, high - 1e-9)
            weights = np.full(len(places), 100 / max(1, len(places)))
            axes.hist(
                places, bins=list(edges), weights=weights, histtype="step", color=colour, label=name, linewidth=1.6
            )
        ticks = range(-48, 25, 8)
        axes.set_xticks(list(ticks), labels=[f"2$^{{{tick}}}$" for tick in ticks])
        axes.set(title=title, xlabel="magnitude", ylabel="% of the gradients", xlim=(low, high))
        axes.legend(loc="upper left", ncols=1, fontsize=8)
    return sheet.picture


def loss_scales(scales: Sequence[float], skipped: Sequence[bool]) -> Picture:
    """A gradient scaler's scale over the steps; skipped steps are marked."""
    out = [place + 1 for place, is_out in enumerate(skipped) if is_out]
    words = f"Loss scale over {len(scales)} steps, from {scales[0]:.3g} to {scales[-1]:.3g}; skipped: {out or 'none'}"
    with draw(words, height=2.6) as sheet:
        axes = sheet.axes[0]
        steps = range(1, len(scales) + 1)
        axes.step(steps, scales, where="post", color=BLUE, label="scale of the step")
        axes.plot(out, [scales[place - 1] for place in out], "x", color=RED, label="overflow: step skipped")
        axes.set_yscale("log", base=2)
        axes.set(title="A gradient scaler looks for its scale", xlabel="step", ylabel="loss scale")
        axes.legend()
    return sheet.picture


def underflow(
    scales: Sequence[float], predicted: Sequence[float], measured: Sequence[float], overflowed: Sequence[bool]
) -> Picture:
    """Share of gradients that become zero in fp16 over the loss scale: predicted from a histogram, and measured."""
    said = "; ".join(
        f"2^{np.log2(scale):.0f}: {guess:.1%} and {found:.1%}{' (overflow)' if is_over else ''}"
        for scale, guess, found, is_over in zip(scales, predicted, measured, overflowed, strict=True)
    )
    with draw(f"Gradients lost in fp16, predicted and measured, by loss scale. {said}", height=2.7) as sheet:
        axes = sheet.axes[0]
        shares = [100 * share for share in predicted]
        axes.plot(scales, shares, "--", color=GREY, label="predicted from fp32's histogram")
        fine = [(x, 100 * y) for x, y, is_over in zip(scales, measured, overflowed, strict=True) if not is_over]
        bad = [(x, 100 * y) for x, y, is_over in zip(scales, measured, overflowed, strict=True) if is_over]
        if fine:
            axes.plot(*zip(*fine, strict=True), "o", color=BLUE, label="measured in a backward in fp16")
        if bad:
            axes.plot(*zip(*bad, strict=True), "x", color=RED, label="measured, with infinities among them")
        axes.set_xscale("log", base=2)
        axes.set(title="Gradients that become zero in fp16", xlabel="loss scale", ylabel="%")
        axes.set_ylim(bottom=-1)
        axes.legend()
    return sheet.picture


def bytes_over_batch(ratios: Mapping[str, tuple[Sequence[int], Sequence[float]]]) -> Picture:
    """Bytes kept for backward under bf16 autocast, relative to fp32, over batch size.

    Args:
        ratios: Network -> (batch sizes, ratios).
    """
    said = "; ".join(
        f"{net}: " + ", ".join(f"{ratio:.2f} at {size}" for size, ratio in zip(*rows, strict=True))
        for net, rows in ratios.items()
    )
    with draw(f"Bytes kept for backward, bf16 relative to fp32, over batch size. {said}", height=2.7) as sheet:
        axes = sheet.axes[0]
        axes.axhline(1.0, color=INK, linewidth=1)
        axes.axhline(0.5, color=GREY, linestyle="--", label="half")
        for mark, colour, (net, (sizes, found)) in zip("osD", CYCLE, ratios.items(), strict=False):
            axes.plot(sizes, found, marker=mark, color=colour, label=net, markersize=5)
            axes.set_xticks(list(sizes), labels=[f"{size:g}" for size in sizes])
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter("{x:g}")
        axes.set_yscale("log", base=2)
        axes.yaxis.set_major_formatter("{x:g}")
        axes.minorticks_off()
        axes.set(title="Bytes kept for backward under bf16 autocast", xlabel="batch size", ylabel="times those of fp32")
        axes.legend()
    return sheet.picture


def ratio_over_batch(rows: Mapping[int, tuple[float, float, float]], title: str) -> Picture:
    """A speed ratio with its 99 % interval over batch size; 1 is a line.

    Args:
        rows: Batch size -> ratio, lower and upper end.
        title: What is shown.
    """
    said = "; ".join(f"{ratio:.2f} at {size}" for size, (ratio, _, _) in rows.items())
    with draw(f"{title}. {said}", height=2.6) as sheet:
        axes = sheet.axes[0]
        axes.axhline(1.0, color=INK, linewidth=1)
        ratios = [ratio for ratio, _, _ in rows.values()]
        ends = [(low, high) if np.isfinite(high) else (ratio, ratio) for ratio, low, high in rows.values()]
        spread = [
            [max(0.0, ratio - low) for ratio, (low, _) in zip(ratios, ends, strict=True)],
            [max(0.0, high - ratio) for ratio, (_, high) in zip(ratios, ends, strict=True)],
        ]
        axes.errorbar(list(rows), ratios, spread, fmt="o-", color=BLUE, capsize=3)
        axes.set_xscale("log", base=2)
        axes.set_xticks(list(rows), labels=[f"{size:g}" for size in rows])
        axes.minorticks_off()
        axes.set(title=title, xlabel="batch size (bars: 99 % intervals)", ylabel="times as fast as fp32")
        axes.set_ylim(bottom=0)
    return sheet.picture
