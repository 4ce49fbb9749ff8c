"""A page on paper: pictures and tables, dark on white, nothing that can only be clicked."""

from __future__ import annotations

import pytest
from conftest import settle

# A4 less margins of 12 mm, at 96 dots per inch.
PAPER_WIDTH = 703
PAGE = "notebooks/01_kv_cache.html"

BRIGHTNESS = """(e, name) => {
  const [red, green, blue, alpha = 1] = getComputedStyle(e)[name].match(/[\\d.]+/g).map(Number);
  return alpha === 0 ? 255 : (red + green + blue) / 3;
}"""


@pytest.fixture(params=["light", "dark"], scope="module")
def sheet(browser, address, request):
    """The page drawn for a window, then put on paper; no test changes it."""
    context = browser.new_context(viewport={"width": 1280, "height": 800}, color_scheme=request.param)
    page = context.new_page()
    page.goto(address + PAGE)
    settle(page)
    page.emulate_media(media="print", color_scheme=request.param)
    page.set_viewport_size({"width": PAPER_WIDTH, "height": 1000})
    yield page
    context.close()


@pytest.mark.parametrize("what", [
    ".kv-controls", ".kv-prediction", ".kv-status", ".kv-solution", ".bd-sidebar-primary", ".bd-sidebar-secondary",
    ".bd-header-article", ".dropdown",
])
def test_what_can_only_be_clicked_is_not_printed(sheet, what):
    found = sheet.locator(what)
    assert found.count() and not [i for i in range(found.count()) if found.nth(i).is_visible()]


def test_every_explorer_prints_its_picture_and_its_table(sheet):
    explorers = sheet.locator(".kv-explorer")
    assert explorers.count() > 3
    for i in range(explorers.count()):
        picture = explorers.nth(i).locator(".kv-picture svg").first
        assert picture.is_visible()
        assert picture.evaluate("p => p.getBoundingClientRect().right") <= PAPER_WIDTH
        assert explorers.nth(i).locator(".kv-numbers table").is_visible()


def test_exercises_print_their_questions(sheet):
    questions = sheet.locator(".kv-exercise .kv-question")
    assert questions.count() > 3 and all(questions.nth(i).is_visible() for i in range(questions.count()))


@pytest.mark.parametrize("what", ["body", ".kv-explorer", ".admonition-title", "div.cell_input pre"])
def test_paper_is_white_and_letters_are_dark(sheet, what):
    element = sheet.locator(what).first
    assert element.evaluate(BRIGHTNESS, "backgroundColor") > 240
    assert element.evaluate(BRIGHTNESS, "color") < 90


def test_the_letters_in_pictures_are_dark(sheet):
    assert sheet.locator(".kv-picture .main-svg text").first.evaluate(BRIGHTNESS, "fill") < 90
    assert sheet.locator(".kv-svg svg text").first.evaluate(BRIGHTNESS, "fill") < 90


def test_nothing_is_cut_off(sheet):
    assert sheet.evaluate("document.documentElement.scrollWidth") <= PAPER_WIDTH
    cut = "document.querySelectorAll('.bd-article pre')"
    assert sheet.evaluate(f"[...{cut}].filter(p => p.scrollWidth > p.clientWidth + 1).length") == 0


def test_an_address_outside_the_book_is_spelt_out_and_one_inside_is_not(open_page):
    page, _ = open_page("book/index.html")
    page.emulate_media(media="print")
    behind = "a => getComputedStyle(a, '::after').content"
    inside = page.locator(".bd-article p a").first
    assert inside.evaluate(behind) == "none"
    inside.evaluate("a => a.setAttribute('href', 'https://example.org/paper')")
    assert "https://example.org/paper" in inside.evaluate(behind)
