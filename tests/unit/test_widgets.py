"""Widgets are moved as a reader moves them, and a stored notebook shows something without them."""

import ipywidgets as ipw
import pytest

from accelerando import costs, quizzes, widgets

POINTS = {"here": [(1.0, 1.0, 1.0, 1.0), (2.0, 1.7, 1.6, 1.8)]}


def parts(widget: object, kind: type) -> list:
    found = [widget] if isinstance(widget, kind) else []
    for child in getattr(widget, "children", ()):
        found += parts(child, kind)
    return found


def test_moving_a_slider_redraws_the_curve() -> None:
    shown = widgets.speedup_explorer(POINTS, 0.1)
    (share,), (picture,) = parts(shown.widget, ipw.FloatLogSlider), parts(shown.widget, ipw.Image)
    before = picture.value
    assert before == shown.still.png
    share.value = 0.5
    assert picture.value != before
    assert "limit of 2.0x" in parts(shown.widget, ipw.HTML)[0].value


@pytest.mark.parametrize("measured", [-0.2, 0.0, 1.0, 1.4])
def test_the_explorer_opens_with_any_measured_share(measured: float) -> None:
    assert widgets.speedup_explorer(POINTS, measured).still.png


def test_a_thousand_times_on_1024_workers_can_be_reached_by_both_laws() -> None:
    (share,) = parts(widgets.speedup_explorer(POINTS).widget, ipw.FloatLogSlider)
    shares = [10 ** (share.min + number * share.step) for number in range(round((share.max - share.min) / share.step))]
    for gain in (costs.predict_speedup, costs.predict_scaled_speedup):
        assert any(abs(gain(fraction, 1024) - 1000) < 1.5 for fraction in shares)
    assert "Serial share 0.00234%: 1024 workers give 1,000.0x" in widgets.speedup_picture(2.345e-5, 1024, POINTS).words


def test_words_count_the_time_spent_waiting() -> None:
    assert "50%" in widgets.speedup_words(1 / 15, 16)  # 8 times as fast on 16


def test_a_guess_is_compared_with_what_was_measured() -> None:
    shown = widgets.guess("claim", "How many?", "times", start=2.0)
    (field,), (button,) = parts(shown.widget, ipw.FloatText), parts(shown.widget, ipw.Button)
    assert "No guess" in widgets.compare_guess("claim", 1.5, "times")
    field.value = 3.0
    button.click()
    assert "You expected more" in widgets.compare_guess("claim", 1.5, "times")
    assert "Within a tenth" in widgets.compare_guess("claim", 2.9, "times")
    assert "measured: **never**. You expected less" in widgets.compare_guess("claim", float("inf"), "times")


def test_the_quiz_answers_when_asked_to_and_writes_the_line_for_the_lab() -> None:
    shown = widgets.quiz("scaling")
    radios, buttons = parts(shown.widget, ipw.RadioButtons), parts(shown.widget, ipw.Button)
    questions, said = quizzes.read("scaling"), parts(shown.widget, ipw.HTML)
    assert all(radio.value is None for radio in radios)
    assert all(button.disabled for button in buttons)  # nothing is chosen yet
    for radio, button, question in zip(radios, buttons, questions, strict=True):
        radio.value = question.right
        assert not any("Right" in words.value for words in said[2 * questions.index(question) + 1 :])
        button.click()
        assert radio.disabled
        assert button.disabled
    line = said[-1].value
    assert line.startswith("8 of 8 at the first try")
    found: dict[str, object] = {}
    exec(line.partition("<code>")[2].partition("</code>")[0], found)  # what a reader pastes
    assert found["quiz"] == {question.id: question.right for question in questions}


def test_a_wrong_answer_asks_for_another_and_cannot_be_given_twice() -> None:
    shown = widgets.quiz("scaling")
    radio, button = parts(shown.widget, ipw.RadioButtons)[0], parts(shown.widget, ipw.Button)[0]
    question, said = quizzes.read("scaling")[0], parts(shown.widget, ipw.HTML)
    wrong, other = [key for key in question.choices if key != question.right][:2]
    radio.value = wrong
    button.click()
    assert f"✗ {wrong}) Not quite." in said[1].value
    assert "will stand here" in said[-1].value
    assert button.disabled
    assert not radio.disabled
    radio.value = other
    assert not button.disabled
    radio.value = wrong
    assert button.disabled
    radio.value = question.right
    button.click()
    assert f"✓ {question.right}) Right." in said[1].value
    assert said[-1].value.startswith("7 to go")


def test_the_quiz_says_why_a_choice_is_wrong_and_never_which_is_right() -> None:
    question = quizzes.read("scaling")[0]
    wrong = next(key for key in question.choices if key != question.right)
    assert "Not quite" in widgets.explain(question, wrong)
    assert "Right" in widgets.explain(question, question.right)


def test_without_a_kernel_there_is_a_picture_or_the_questions() -> None:
    assert "image/png" in widgets.speedup_explorer(POINTS)._repr_mimebundle_()
    still = widgets.quiz("scaling")._repr_mimebundle_()
    for question in quizzes.read("scaling"):
        assert question.text in still["text/plain"]
    assert "<" not in still["text/plain"].replace("< ", "")
