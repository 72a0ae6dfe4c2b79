"""The room as a learner sees it: the landing page, JupyterLab, a failing and a passing check, a slider that moves."""

import contextlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Locator, Page, expect, sync_playwright
from rooms import Room

from accelerando import catalog

CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)
QUIET = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
PATIENCE_MS = 90_000
LESSON = catalog.find("scaling")

pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine: `apt install chromium`"),
    pytest.mark.timeout(240),
]

TRIAL = [
    "import ipywidgets\nfrom accelerando.submission import check",
    "def predict_time(t1_s, tn_s, n, m):\n    raise NotImplementedError",
    'check("scaling.predict_time")',
    "def predict_time(t1_s, tn_s, n, m):\n"
    "    serial_s = min(max((n * tn_s - t1_s) / (n - 1), 0.0), t1_s)\n"
    "    return serial_s + (t1_s - serial_s) / m",
    'check("scaling.predict_time")',
    "ipywidgets.interactive(lambda cores: print(f'{cores} cores'), cores=ipywidgets.IntSlider(3, 1, 8))",
]


@pytest.fixture(scope="module")
def trial(room: Room) -> str:
    """A notebook that the learner has written beside the lab."""
    cells = [
        {"cell_type": "code", "id": f"c{i}", "source": source, "metadata": {}, "outputs": [], "execution_count": None}
        for i, source in enumerate(TRIAL)
    ]
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    notebook = {"cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}
    name = f"labs/{LESSON.folder}/trial.ipynb"
    (room.folder / name).parent.mkdir(parents=True, exist_ok=True)
    (room.folder / name).write_text(json.dumps(notebook))
    return name


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """The machine's Chromium, with a profile of its own."""
    with sync_playwright() as playwright, tempfile.TemporaryDirectory() as home:
        environment = os.environ | {"HOME": home}
        started = playwright.chromium.launch(executable_path=CHROMIUM, headless=True, args=QUIET, env=environment)
        yield started
        started.close()


@pytest.fixture
def page(browser: Browser, request: pytest.FixtureRequest) -> Iterator[Page]:
    """A fresh tab; set ACCELERANDO_SHOTS to a folder to keep a picture of how each test ended."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    context.set_default_timeout(PATIENCE_MS)
    expect.set_options(timeout=PATIENCE_MS)
    tab = context.new_page()
    yield tab
    if folder := os.environ.get("ACCELERANDO_SHOTS"):
        for number, shown in enumerate(context.pages):
            shown.screenshot(path=Path(folder) / f"{request.node.name}-{number}.png")
    context.close()


def open_in_lab(room: Room, page: Page, path: str) -> Locator:
    """Open a notebook in JupyterLab, wait until its kernel can run cells, and return the cells.

    In a workspace of its own: JupyterLab opens again what an earlier test had open.
    """
    page.goto(f"{room.base}lab/workspaces/{Path(path).stem}/tree/{path}?token={room.token}")
    cells = page.locator(".jp-Notebook .jp-Cell")
    expect(cells.first).to_be_visible()
    expect(page.locator(".jp-Notebook-ExecutionIndicator[data-status=idle]")).to_be_visible()
    return cells


def run(page: Page, cells: Locator, first: int, last: int) -> None:
    """Click into a cell and press Shift+Enter until the last one was run.

    JupyterLab forgets keys pressed while it is still arranging a long notebook: then the cell is clicked again.
    """
    for _ in range(6):
        cells.nth(first).locator(".cm-content").click()
        for _ in range(first, last + 1):
            page.keyboard.press("Shift+Enter")
        with contextlib.suppress(AssertionError):
            expect(cells.nth(first).locator(".jp-InputPrompt")).not_to_have_text("[ ]:", timeout=10_000)
            return
    raise AssertionError(f"cell {first} does not start to run")


def test_the_landing_page_shows_ten_lessons_and_one_next_step(room: Room, page: Page) -> None:
    page.goto(room.address)
    expect(page.locator("ol > li[id^=lesson-]")).to_have_count(10)
    for lesson in catalog.lessons():
        expect(page.locator(f"#lesson-{lesson.number} h3")).to_have_text(lesson.title)
    expect(page.locator(".next .button")).to_have_count(1)
    expect(page.locator("li.is-next")).to_have_count(1)


def test_the_tabs_of_a_lesson_and_its_lab_can_be_told_apart(room: Room, page: Page) -> None:
    name = f"{LESSON.folder}.ipynb"
    paths = f"notebooks/{name}", f"labs/{LESSON.folder}/{name}"
    for path, word in zip(paths, ("Lesson", "Lab"), strict=True):
        page.goto(f"{room.base}lab/workspaces/tabs/tree/{path}?token={room.token}")
        label = page.locator(f".lm-DockPanel-tabBar .lm-TabBar-tab[title*='{path}'] .lm-TabBar-tabLabel")
        expect(label).to_have_text(name)  # who changes the label renames the file
        expect(label).to_have_css("font-weight", "400")
        shown = label.evaluate("label => getComputedStyle(label, '::before').content")
        assert shown == f'"{word} · "'
    assert all((room.folder / path).is_file() for path in paths)


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_landing_page_fits_the_screen(room: Room, page: Page, width: int, scheme: str) -> None:
    page.set_viewport_size({"width": width, "height": 900})
    page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
    page.goto(room.address)
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")


def test_a_link_opens_the_lab_in_jupyterlab_and_the_top_bar_leads_back(room: Room, page: Page) -> None:
    page.goto(room.address)
    with page.context.expect_page() as opened:
        page.locator("#lesson-1 .actions a", has_text="Lab").click()
    lab = opened.value
    expect(lab.locator(".jp-Notebook h1").first).to_contain_text(re.compile("lab", re.IGNORECASE))
    expect(lab.locator("#accelerando-course-link a")).to_have_attribute("href", f"{room.base}accelerando")


def test_checks_show_their_cards_a_slider_moves_and_the_landing_page_counts(room: Room, page: Page, trial: str) -> None:
    landing = page.context.new_page()
    landing.goto(room.address)
    practised = landing.locator("#lesson-1 .score b").first
    expect(practised).to_have_text("0")

    cells = open_in_lab(room, page, trial)
    run(page, cells, 0, 2)
    card = cells.nth(2).locator(".jp-OutputArea")
    expect(card).to_contain_text("not answered yet")
    expect(card).to_contain_text("0 of 3 points")
    expect(card).not_to_contain_text("Traceback")

    run(page, cells, 3, 5)
    expect(cells.nth(4).locator(".jp-OutputArea")).to_contain_text("3 of 3 points")

    explorer = cells.nth(5).locator(".jp-OutputArea").first
    expect(explorer).to_contain_text("3 cores")
    cells.nth(5).locator(".noUi-handle").focus()
    page.keyboard.press("ArrowRight")
    expect(explorer).to_contain_text("4 cores")

    expect(practised).to_have_text("3")  # without a reload


def test_lesson_1_opens_from_the_landing_page_and_its_explorer_moves(room: Room, page: Page) -> None:
    notebook = json.loads((room.folder / "notebooks" / f"{LESSON.folder}.ipynb").read_text(encoding="utf-8"))
    sources = ["".join(cell["source"]) for cell in notebook["cells"]]

    def find(code: str) -> int:
        return next(number for number, source in enumerate(sources) if code in source)

    page.goto(room.address)
    lesson = page.locator("#lesson-1 .actions a", has_text="Lesson")
    path = (lesson.get_attribute("href") or "").partition("lab/tree/")[2]
    assert path == f"notebooks/{LESSON.folder}.ipynb"

    cells = open_in_lab(room, page, path)
    expect(cells.first).to_contain_text(LESSON.title)
    for code in ("machine.probe()", "scaling.measure_threads(", "widgets.speedup_explorer("):
        number = find(code)
        run(page, cells, number, number)
        expect(cells.nth(number).locator(".jp-InputPrompt")).to_have_text(re.compile(r"\[\d+\]:"))
        expect(cells.nth(number)).not_to_contain_text("Traceback")
    explorer = cells.nth(number).locator(".jp-OutputArea").first
    words = explorer.locator(".widget-html").last
    expect(words).to_contain_text("workers")
    before = words.inner_text()
    explorer.locator(".noUi-handle").last.focus()
    page.keyboard.press("ArrowRight")
    expect(words).not_to_have_text(before)
    expect(explorer.locator("img")).to_be_visible()


def test_the_final_opens_from_the_landing_page_and_its_checks_answer(room: Room, page: Page) -> None:
    notebook = json.loads((room.folder / "assessment/final/final.ipynb").read_text(encoding="utf-8"))
    sources = ["".join(cell["source"]) for cell in notebook["cells"]]
    page.goto(room.address)
    final = page.locator("#final")
    expect(final.locator("h3")).to_have_text(catalog.final().title)
    path = (final.locator(".actions a").get_attribute("href") or "").partition("lab/tree/")[2]
    cells = open_in_lab(room, page, path)
    for code in ("import torch", "def shard(", 'check("final.shard")'):
        number = next(number for number, source in enumerate(sources) if code in source)
        run(page, cells, number, number)
        expect(cells.nth(number).locator(".jp-InputPrompt")).to_have_text(re.compile(r"\[\d+\]:"))
    expect(cells.nth(number)).to_contain_text("not answered yet")
    expect(cells.nth(number)).to_contain_text(f"0 of {catalog.question('final.shard').points} points")


def test_a_certificate_opens_from_the_landing_page(room: Room, page: Page) -> None:
    certificate = room.folder / "results/final-2026-01-02-030405/certificate.html"
    certificate.parent.mkdir(parents=True)
    certificate.write_text("<!doctype html><title>Final</title><h1>Final assessment passed</h1>", encoding="utf-8")
    page.goto(room.address)
    with page.context.expect_page() as opened:
        page.locator("#final .actions a", has_text="Certificate").click()
    expect(opened.value.locator("h1")).to_have_text("Final assessment passed")
