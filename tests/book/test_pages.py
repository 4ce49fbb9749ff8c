"""Every page of the built book: offline, quiet, drawn, legible, narrow enough, small."""

from __future__ import annotations

import gzip
import re
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlparse

import pytest
from conftest import ROOT, SITE, pages

AXE = ROOT / "node_modules" / "axe-core" / "axe.min.js"
PAGE_LIMIT_BYTES = 200_000
WORKING_LIMIT_GZIP_BYTES = 1_000_000
PAGES = [p for p in pages() if p != "index.html"]
READ_PAGES = [p for p in PAGES if p not in {"search.html", "genindex.html"}]


def test_the_book_has_pages():
    assert len(READ_PAGES) >= 3
    reports = SITE / "reports"
    assert not reports.exists() or not list(reports.rglob("*")), "a notebook failed during the build"


def test_the_root_leads_to_the_first_page(open_page):
    page, watch = open_page("index.html")
    page.wait_for_url("**/book/index.html")
    watch.assert_quiet()


@pytest.mark.parametrize("width, theme", [(1280, "light"), (375, "dark")])
@pytest.mark.parametrize("path", PAGES)
def test_page(open_page, path, width, theme):
    page, watch = open_page(path, width, theme)
    assert not any("pyodide" in url for url in watch.requests), "Python was loaded before the first touch"
    page.evaluate("window.scrollTo(500, 0)")
    assert page.evaluate("window.scrollX") == 0, "the page scrolls sideways"
    drawings = page.locator(".kv-svg .kv-picture")
    # One image to a screen reader, unless it holds links, which an image would hide.
    described = page.locator(".kv-svg .kv-picture > svg[role=img]:not(:has(a)), .kv-svg .kv-picture > svg[role=group]:has(a)")
    assert drawings.count() == described.count()
    assert page.locator(".kv-controls input:not([id]), .kv-controls select:not([id])").count() == 0
    # A browser that goes back would otherwise put old values under a fresh picture.
    kept = ".kv-explorer :is(input, select):not([autocomplete=off], [type=file])"
    assert page.locator(kept).count() == 0
    page.evaluate(AXE.read_text(encoding="utf-8"))
    found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")["violations"]
    serious = [(v["id"], v["nodes"][0]["target"], v["nodes"][0].get("failureSummary")) for v in found if v["impact"] in {"serious", "critical"}]
    assert not serious
    watch.assert_quiet()


# The alphabetical index names everything once and is not for reading.
@pytest.mark.parametrize("path", READ_PAGES)
def test_page_is_small(path):
    assert (SITE / path).stat().st_size < PAGE_LIMIT_BYTES


@pytest.mark.parametrize("path", READ_PAGES)
def test_working_page_is_small(open_page, path):
    _, watch = open_page(path)
    files = {SITE / unquote(urlparse(url).path).lstrip("/") for url in watch.requests}
    total = sum(len(gzip.compress(f.read_bytes())) for f in files if f.is_file() and f.suffix not in {".woff2"})
    fonts = sum(f.stat().st_size for f in files if f.suffix == ".woff2")
    assert total + fonts < WORKING_LIMIT_GZIP_BYTES, f"{total + fonts:,} bytes"


class Links(HTMLParser):
    def __init__(self):
        super().__init__()
        self.links, self.ids = [], set()

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        self.ids.add(given.get("id"))
        if tag == "a" and given.get("href"):
            self.links.append(given["href"])


@cache
def parsed(path: Path) -> Links:
    reader = Links()
    reader.feed(path.read_text(encoding="utf-8"))
    return reader


@pytest.mark.parametrize("path", PAGES)
def test_links_inside_the_book_lead_somewhere(path):
    here = SITE / path
    for link in parsed(here).links:
        url = urlparse(link)
        if url.scheme or link.startswith("#kv="):
            continue
        target = (here.parent / unquote(url.path)).resolve() if url.path else here
        assert target.is_file(), f"{link} leads nowhere"
        if url.fragment and not url.fragment.startswith("kv=") and target.suffix == ".html":
            assert unquote(url.fragment) in parsed(target).ids, f"{link}: no such place"


@pytest.mark.parametrize("path", PAGES)
def test_pages_name_no_notebook_without_its_explorers(path):
    text = (SITE / path).read_text(encoding="utf-8")
    for item_id in re.findall(r'data-(?:explorer|exercise)="([^"]+)"', text):
        assert (SITE / "_static" / "kv" / "explorers" / f"{item_id}.js").is_file()
    assert "application/vnd.jupyter.widget" not in text
