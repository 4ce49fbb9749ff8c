"""The built book, served on this machine, in a real browser."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

import pytest
from playwright.sync_api import sync_playwright

ROOT = Path(__file__).resolve().parents[2]
SITE = ROOT / "_build" / "html"
sys.path.insert(0, str(ROOT / "tools"))

from find_chromium import find  # noqa: E402
from serve import server  # noqa: E402


def pages() -> list[str]:
    """Every page of the built book, as paths below the site."""
    return sorted(str(p.relative_to(SITE)) for p in SITE.rglob("*.html") if "_static" not in p.parts)


@pytest.fixture(scope="session")
def address():
    assert (SITE / "index.html").is_file(), f"no book in {SITE}; run `make html` first"
    httpd = server(SITE)
    threading.Thread(target=httpd.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{httpd.server_port}/"
    httpd.shutdown()


@pytest.fixture(scope="session")
def browser():
    path = find()
    assert path, "no Chromium; run `python tools/find_chromium.py --install`"
    # Chromium refuses its sandbox to root, which is who continuous integration runs as.
    flags = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=path, args=flags)
        yield started
        started.close()


class Watch:
    """What a page did that a reader offline would suffer from."""

    def __init__(self, page, address):
        self.outside, self.failed, self.errors, self.requests = [], [], [], []
        page.on("request", lambda r: self._request(r.url, address))
        # A page that redirects at once gives up what it was still asking for.
        page.on("requestfailed", lambda r: self.failed.append(r.url) if "ABORTED" not in (r.failure or "") else None)
        page.on("response", lambda r: self.failed.append(r.url) if r.status >= 400 else None)
        page.on("console", lambda m: self.errors.append(m.text) if m.type == "error" else None)
        page.on("pageerror", lambda e: self.errors.append(str(e)))

    def _request(self, url, address):
        self.requests.append(url)
        if not url.startswith((address, "data:", "blob:")):
            self.outside.append(url)

    def assert_quiet(self):
        assert (self.outside, self.failed, self.errors) == ([], [], [])


@pytest.fixture
def open_page(browser, address):
    """``open_page("notebooks/01_kv_cache.html", width=375, theme="dark")`` → (page, watch)."""
    contexts = []

    def opened(path, width=1280, theme="light"):
        context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=theme)
        contexts.append(context)
        page = context.new_page()
        watch = Watch(page, address)
        page.goto(address + path)
        settle(page)
        return page, watch

    yield opened
    for context in contexts:
        context.close()


def settle(page):
    """Until every plot of the page is drawn."""
    page.wait_for_function(
        "[...document.querySelectorAll('.kv-plotly .kv-picture')].every(d => d.querySelector('.main-svg'))", timeout=30_000
    )

