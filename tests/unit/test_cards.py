"""The card of one question, in a notebook and as a line."""

from accelerando import cards
from accelerando.submission import Result


def test_code_and_the_section_of_the_lesson_are_set_apart_and_nothing_else_is_markup() -> None:
    said = "`a * b` is <b>2</b> * 3 * 4. See *Twice the cores* in the lesson."
    result = Result("scaling.predict_time", "failed", 0, 3, said)
    shown = cards.as_html(result)
    assert "<code>a * b</code> is &lt;b&gt;2&lt;/b&gt; * 3 * 4. See <i>Twice the cores</i> in the lesson." in shown
    assert cards.as_text(result).endswith(said)
