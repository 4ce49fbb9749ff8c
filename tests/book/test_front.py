"""The front pages: chapters that say what they need, the map, the ledger, the question index."""

from __future__ import annotations

import html
import json
import re
import sys

import pytest
from conftest import ROOT, SITE
from kvlib.errors import ConfigError
from kvlib.explore import REGISTRY
from kvlib.figures.questions import QUESTIONS, answer

sys.path.insert(0, str(ROOT / "book" / "_ext"))

from chapter_map import THREADS, chapter_map  # noqa: E402
from chapters import Chapter, chapters, imported_rooms, rooms_below  # noqa: E402
from front import place_of  # noqa: E402

CHAPTERS = chapters()
LIVE_TIMEOUT_MS = 60_000


def built(path: str) -> str:
    return (SITE / path).read_text(encoding="utf-8")


@pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda c: c.doc)
def test_a_chapter_says_its_time_its_prerequisites_and_its_ledger(chapter):
    assert 20 <= chapter.minutes <= 60
    assert chapter.needs and all((ROOT / doc).with_suffix(".md" if "primers" in doc else ".ipynb").is_file() for doc in chapter.needs)
    assert chapter.question.endswith("?")
    assert {line.user for line in chapter.ledger} == {"short chat", "long document"}


def test_a_chapter_needs_only_what_comes_before_it():
    order = [chapter.doc for chapter in CHAPTERS]
    for chapter in CHAPTERS:
        assert all(order.index(doc) < order.index(chapter.doc) for doc in chapter.needs if doc in order), chapter.doc


def first_cell(text):
    return Chapter("notebooks/07_sample", [{"cell_type": "markdown", "source": text}])


def test_prerequisites_are_read_from_links_and_from_numbers():
    chapter = first_cell("# 7 · A: Why?\n\n**Before you start:** chapters 2 and 3, and [x](04_copy_on_write.ipynb) or\n"
                         "[bits](../book/primers/bits.md) ([chapter 10](10_disaggregation.ipynb)).\n**Time:** 30 minutes; …")
    assert [doc.split("/")[-1] for doc in chapter.needs] == [
        "02_fragmentation", "03_paging", "04_copy_on_write", "bits", "10_disaggregation",
    ]
    assert (chapter.name, chapter.question, chapter.minutes) == ("A", "Why?", 30)


@pytest.mark.parametrize("field", ["minutes", "before", "title"])
def test_a_chapter_that_does_not_say_it_is_refused(field):
    with pytest.raises(ConfigError, match="notebooks/07_sample"):
        getattr(first_cell("# A title without a number"), field)


def test_rooms_are_followed_through_their_imports():
    """The engine hands out blocks, so a chapter that imports only `serving` is built on the allocator all the same."""
    assert imported_rooms("from kvlib.serving import simulate\n%matplotlib inline") == {"serving"}
    assert {"blocks", "specs"} <= rooms_below({"serving"})
    assert "serving" not in rooms_below({"blocks"})


def test_the_map_links_every_chapter_and_names_its_needs():
    drawn = chapter_map(CHAPTERS, {}, lambda doc: doc + ".html")
    assert re.findall(r'<a href="([^"]+)"', drawn) == [chapter.doc + ".html" for chapter in CHAPTERS]
    assert 'role="group"' in drawn and 'role="img"' not in drawn
    bows = sum(len([doc for doc in chapter.needs if doc.startswith("notebooks/")]) for chapter in CHAPTERS)
    assert drawn.count("<polygon") == bows
    direct = sum(room in chapter.rooms for chapter in CHAPTERS for room, _, _ in THREADS)
    # The legend holds one filled and one open stop.
    assert len(re.findall(r'<circle [^>]*fill="#', drawn)) == direct + 1


def test_the_first_page_shows_what_the_notebooks_say():
    page = html.unescape(built("book/index.html"))
    for chapter in CHAPTERS:
        assert f"{chapter.number} · {chapter.name}</a></td><td>{chapter.question}</td><td>{chapter.minutes}</td>" in page


def test_the_ledger_page_shows_every_printed_line():
    rows = re.findall(r"<tr><td><a [^>]*>(.*?)</a></td>(.*?)</tr>", html.unescape(built("book/ledger.html")))
    shown = [(name, re.findall(r"<td>(.*?)</td>", cells)[:6]) for name, cells in rows]
    wanted = []
    for chapter in CHAPTERS:
        for variant in dict.fromkeys(line.variant for line in chapter.ledger):
            lines = {line.user: line for line in chapter.ledger if line.variant == variant}
            chat, document = lines["short chat"], lines["long document"]
            name = f"{chapter.number} · {chapter.name}" + (f": {variant}" if variant else "")
            wanted.append((name, [chat.requests_held, document.requests_held, chat.prefill_tokens_saved, document.prefill_tokens_saved,
                                  chat.ttft_ms, document.ttft_ms]))
    assert shown == wanted


def test_the_question_page_links_every_question_to_its_explorer():
    page = html.unescape(built("book/questions.html"))
    for question in QUESTIONS.values():
        target = f"../{place_of(question.explorer_id)}.html{question.link}"
        assert page.count(f'href="{target}"') == 2, question.id  # in the index and in its section
        assert f'data-explorer="{question.explorer_id}"' in built(f"{place_of(question.explorer_id)}.html")
        assert f"<strong>{answer(question).text}.</strong>" in page


@pytest.mark.parametrize("question_id", ["network", "bits"])
def test_a_question_opens_its_explorer_in_its_state(open_page, question_id):
    """`network` is the default state, `bits` moves a control away from it, so one is shown from the page and one from its star."""
    question = QUESTIONS[question_id]
    page, watch = open_page(f"{place_of(question.explorer_id)}.html{question.link}")
    title = answer(question).finding
    section = page.locator(f'[data-explorer="{question.explorer_id}"]')
    page.wait_for_function(
        "([s, title]) => s.querySelector('.kv-title').textContent === title", arg=[section.element_handle(), title], timeout=LIVE_TIMEOUT_MS
    )
    read = section.evaluate("s => s.kv.read()")
    wanted = {**REGISTRY[question.explorer_id].defaults, **question.params}
    assert read == json.loads(json.dumps(wanted))
    assert section.locator(".kv-title").evaluate("t => t.getBoundingClientRect().bottom") <= 800
    watch.assert_quiet()


def test_the_first_page_works_within_its_first_screen(open_page):
    page, _ = open_page("book/index.html")
    section = page.locator('[data-explorer="kv_cache.wall"]')
    # The last mark of the plot area: what lies below it is the name of the axis.
    assert section.locator(".kv-picture .xy").first.evaluate("p => p.getBoundingClientRect().bottom") < 800
    before = section.locator(".kv-title").text_content()
    section.locator("input[type=range]").first.press("ArrowRight")
    page.wait_for_function("([s, before]) => s.querySelector('.kv-title').textContent !== before", arg=[section.element_handle(), before])


def test_on_a_phone_the_first_slider_is_in_the_first_screen(open_page):
    page, _ = open_page("book/index.html", width=375)
    assert page.locator(".kv-front input[type=range]").first.evaluate("i => i.getBoundingClientRect().bottom") < 667
