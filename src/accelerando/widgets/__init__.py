"""What a reader can move, guess and answer: the only door to ipywidgets.

Each widget comes with a picture or a text that shows without a kernel too, so that a stored notebook is complete.
"""

from __future__ import annotations

import html
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from accelerando import costs, figures, quizzes

Row = tuple[float, float, float, float]
_guesses: dict[str, float] = {}  # of this kernel: what the reader wrote down before measuring


class Shown:
    """A widget with what stands in for it where no kernel runs: both are in the output, a front end shows one."""

    def __init__(self, widget: Any, still: figures.Picture | None, words: str) -> None:
        """Keep all three; ``words`` are for those who see neither."""
        self.widget, self.still, self.words = widget, still, words

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        bundle: dict[str, Any] = dict(self.widget._repr_mimebundle_())
        bundle["text/plain"] = html.unescape(re.sub(r"<[^>]+>", " ", self.words)).strip()
        if self.still is not None:
            bundle["image/png"] = self.still.png
        elif "<" in self.words:
            bundle["text/html"] = self.words
        return bundle


def speedup_picture(serial_fraction: float, workers: int, points: Mapping[str, Sequence[Row]]) -> figures.Picture:
    """Amdahl's and Gustafson's curves for one serial fraction, with measured points on them."""
    counts = sorted({*(2**power for power in range(11) if 2**power < workers), workers})
    lines = {
        "perfect": (counts, [float(count) for count in counts]),
        "Amdahl: the same work": (counts, [costs.predict_speedup(serial_fraction, count) for count in counts]),
        "Gustafson: more work": (counts, [costs.predict_scaled_speedup(serial_fraction, count) for count in counts]),
    }
    gain = lines["Amdahl: the same work"][1][-1]
    title = f"Serial share {100 * serial_fraction:.3g}%: {workers} workers give {gain:,.1f}x"
    return figures.speedups(lines, points, title=title, is_log=True)


def speedup_explorer(points: Mapping[str, Sequence[Row]], serial_fraction: float = 0.1) -> Shown:
    """Sliders for the serial share and the number of workers, over this machine's measured points.

    Args:
        points: Label -> rows of (workers, speed-up, interval's lower and upper end).
        serial_fraction: Where the slider starts; it goes from a thousandth of a percent, in powers of ten, to all.
    """
    import ipywidgets as ipw

    start = min(1.0, max(1e-5, serial_fraction))
    share = ipw.FloatLogSlider(
        value=start, min=-5, max=0, step=0.02, description="serial share", readout_format=".3p", continuous_update=False
    )
    workers = ipw.SelectionSlider(options=[2**power for power in range(1, 11)], value=16, description="workers")
    still = speedup_picture(start, 16, points)
    picture, words = ipw.Image(value=still.png, format="png", width=726), ipw.HTML()

    def draw(*_: object) -> None:
        now = speedup_picture(share.value, workers.value, points)
        picture.value, picture.alt = now.png, now.words
        words.value = html.escape(speedup_words(share.value, workers.value))

    share.observe(draw, "value")
    workers.observe(draw, "value")
    draw()
    return Shown(ipw.VBox([ipw.HBox([share, workers]), words, picture]), still, still.words)


def speedup_words(serial_fraction: float, workers: int) -> str:
    """Say what a serial share costs, in money terms: how much of the workers' time is spent waiting."""
    same = costs.predict_speedup(serial_fraction, workers)
    more = costs.predict_scaled_speedup(serial_fraction, workers)
    limit = "no limit" if serial_fraction == 0 else f"a limit of {1 / serial_fraction:,.1f}x"
    return (
        f"The same work: {same:,.1f}x as fast, so {1 - same / workers:.0%} of the {workers} workers' time is spent "
        f"waiting ({limit}). As much work as fills the time: {more:,.1f}x as much."
    )


def guess(name: str, question: str, unit: str = "", start: float = 1.0) -> Shown:
    """A place to write a prediction down before it is measured; `compare_guess` looks at it afterwards.

    Args:
        name: Of the guess, for `compare_guess`.
        question: What is asked.
        unit: Of the number.
        start: What the field holds at first.
    """
    import ipywidgets as ipw

    field = ipw.FloatText(value=start, layout=ipw.Layout(width="9em"))
    button, said = ipw.Button(description="write it down"), ipw.HTML()

    def keep(_: object) -> None:
        _guesses[name] = float(field.value)
        said.value = f"written down: {field.value:g} {html.escape(unit)}"

    button.on_click(keep)
    label = ipw.HTML(f"<b>{html.escape(question)}</b>")
    row = ipw.HBox([field, ipw.HTML(html.escape(unit)), button, said])
    return Shown(ipw.VBox([label, row]), None, f"Your guess: {html.escape(question)}")


def compare_guess(name: str, measured: float, unit: str = "") -> str:
    """Set a guess beside what was measured, as Markdown; says so when nothing was written down."""
    if measured == math.inf:
        told = "never"
    else:
        told = f"{measured:{',.0f' if abs(measured) >= 1000 else '.3g'}} {unit}".strip()
    if name not in _guesses:
        return f"Measured: **{told}**. (No guess was written down above; the next one is yours.)"
    guessed = _guesses[name]
    if measured and abs(guessed / measured - 1) < 0.1:
        return f"You guessed {guessed:g} {unit}; measured: **{told}**. Within a tenth."
    way = "more" if guessed > measured else "less"
    return f"You guessed {guessed:g} {unit}; measured: **{told}**. You expected {way}: why?"


def quiz(lesson: str) -> Shown:
    """A lesson's quiz: choose, answer, learn why it is right or wrong, and take what is right to the lab.

    Why stands there only after the answer, and a wrong one asks for another thought: it cannot be given twice.

    Args:
        lesson: As `catalog.find` takes it.
    """
    import ipywidgets as ipw

    questions = quizzes.read(lesson)
    tries: dict[str, list[str]] = {question.id: [] for question in questions}
    line = ipw.HTML(_answers_line(questions, tries))

    def take(question: quizzes.QuizQuestion, key: str) -> None:
        tries[question.id].append(key)
        line.value = _answers_line(questions, tries)

    boxes = [_ask(number, question, take) for number, question in enumerate(questions, 1)]
    still = "".join(
        f"<p><b>{number}. {html.escape(question.text)}</b><br>"
        + "<br>".join(f"{key}) {html.escape(choice.text)}" for key, choice in question.choices.items())
        + "</p>"
        for number, question in enumerate(questions, 1)
    )
    return Shown(ipw.VBox([*boxes, line]), None, still)


def _ask(number: int, question: quizzes.QuizQuestion, take: Callable[[quizzes.QuizQuestion, str], None]) -> Any:
    """One question as a widget; ``take`` is given each answer."""
    import ipywidgets as ipw

    options = [(f"{key}) {choice.text}", key) for key, choice in question.choices.items()]
    choice = ipw.RadioButtons(options=options, value=None, layout=ipw.Layout(width="auto"))
    button, why = ipw.Button(description="answer", disabled=True), ipw.HTML()
    given: set[str] = set()

    def allow(_: object) -> None:
        button.disabled = choice.value in given

    def answer(_: object) -> None:
        given.add(choice.value)
        why.value = explain(question, choice.value)
        button.disabled, choice.disabled = True, choice.value == question.right
        take(question, choice.value)

    choice.observe(allow, "value")
    button.on_click(answer)
    return ipw.VBox([ipw.HTML(f"<b>{number}. {html.escape(question.text)}</b>"), choice, button, why])


def explain(question: quizzes.QuizQuestion, key: str) -> str:
    """Why a choice is right or wrong, as HTML; words and sign, not colour alone."""
    is_right = key == question.right
    colour, sign = ("#1a7f37", f"✓ {key}) Right.") if is_right else ("#b42318", f"✗ {key}) Not quite.")
    return (
        f'<div style="border-left:4px solid {colour};padding-left:.7em;margin:.2em 0 .8em">'
        f'<b style="color:{colour}">{sign}</b> '
        f"{html.escape(question.choices[key].why)}</div>"
    )


def _answers_line(questions: Sequence[quizzes.QuizQuestion], tries: Mapping[str, Sequence[str]]) -> str:
    """The right answers so far as a line of code, and how many came at once."""
    found = [question for question in questions if question.right in tries[question.id]]
    if not found:
        return "What you answer right will stand here, as a line for the lab."
    pairs = ", ".join(f'"{question.id}": "{question.right}"' for question in found)
    left = len(questions) - len(found)
    at_once = sum(len(tries[question.id]) == 1 for question in found)
    note = (
        f"{left} to go. So far:"
        if left
        else f"{at_once} of {len(found)} at the first try. For the lab's last question:"
    )
    return f"{note}<br><code>quiz = {{{html.escape(pairs, quote=False)}}}</code>"
