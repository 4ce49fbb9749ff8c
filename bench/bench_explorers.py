"""How fast explorers answer: in the kernel, from the stored states, and live in the browser.

    python bench/bench_explorers.py          needs a built book (make html) and Chromium
"""

from __future__ import annotations

import json
import os
import random
import statistics
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from playwright.sync_api import Page, sync_playwright
from speeds import Speed, report

from kvlib.explore import REGISTRY

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tools"))

from find_chromium import find  # noqa: E402
from serve import server  # noqa: E402

KERNEL_MS, STAR_MS, BROWSER_MS, USABLE_S = 100, 50, 250, 2
MOVES = 7

LIVE = """async ([base, asked]) => {
  const worker = new Worker(base + "worker.mjs", {type: "module"});
  const heard = () => new Promise(done => { worker.onmessage = ({data}) => done(data); });
  const boot = performance.now();
  worker.postMessage({start: {pyodide: [base + "kv/pyodide/"], kvlib: base + "kv/kvlib.zip"}});
  await heard();
  const booted = performance.now() - boot, times = {};
  for (const [id, request] of asked) {
    const start = performance.now();
    worker.postMessage({call: 1, registry: "explorer", id, request});
    await heard();
    (times[id] ??= []).push(performance.now() - start);
  }
  return [booted, times];
}"""

STAR = """async section => {
  const input = section.querySelector(".kv-controls input[type=range]");
  const title = section.querySelector(".kv-title"), times = [];
  for (let i = 0; i < 9; i++) {
    const value = Number(input.value) < Number(input.max) ? Number(input.value) + 1 : 0;
    const before = title.textContent, start = performance.now();
    input.value = value;
    input.dispatchEvent(new Event("input"));
    await new Promise(done => requestAnimationFrame(() => setTimeout(done)));
    for (let n = 0; n < 100 && title.textContent === before; n++) await new Promise(requestAnimationFrame);
    times.push(performance.now() - start);
  }
  return times;
}"""


def random_settings() -> list[tuple[str, str]]:
    """An explorer's id and a request, some for each explorer."""
    draw = random.Random(1)
    return [
        (explorer_id, json.dumps({c.name: draw.choice(c.positions) for c in explorer.controls if c.positions is not None}))
        for explorer_id, explorer in REGISTRY.items()
        for _ in range(MOVES)
    ]


def moves(where: str, times_ms: dict[str, list[float]], target_ms: float) -> Iterator[Speed]:
    """The explorers' medians, after a first call that also imports the explorer's module."""
    medians = {explorer_id: statistics.median(times[1:]) for explorer_id, times in times_ms.items()}
    slowest = max(medians, key=medians.get)
    middle_ms = statistics.median(medians.values())
    words = {"kernel": "in Python", "browser": "in the browser"}[where]
    yield Speed(f"explorers.{where}", f"one move {words}: median of {len(medians)} explorers", middle_ms, "ms", target_ms)
    what = f"one move {words}: slowest explorer, {slowest}"
    yield Speed(f"explorers.{where}_slowest", what, medians[slowest], "ms", target_ms)


def kernel() -> Iterator[Speed]:
    times: dict[str, list[float]] = {}
    for explorer_id, request in random_settings():
        start = time.perf_counter()
        REGISTRY[explorer_id].json(request)
        times.setdefault(explorer_id, []).append(1e3 * (time.perf_counter() - start))
    yield from moves("kernel", times, KERNEL_MS)


def first_page(page: Page, base: str) -> Iterator[Speed]:
    start = time.perf_counter()
    page.goto(base + "notebooks/01_kv_cache.html")
    page.locator(".kv-plotly .main-svg").first.wait_for()
    yield Speed("explorers.usable", "chapter 1 opened cold: first figure drawn", time.perf_counter() - start, "s", USABLE_S)
    times = page.locator('[data-explorer="kv_cache.wall"]').evaluate(STAR)
    yield Speed("explorers.star", "first drag: from the slider to the repainted figure", statistics.median(times[1:]), "ms", STAR_MS)


def browser() -> Iterator[Speed]:
    httpd = server()
    threading.Thread(target=httpd.serve_forever, daemon=True).start()
    base = f"http://127.0.0.1:{httpd.server_port}/"
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=find(), args=["--no-sandbox"] if os.geteuid() == 0 else [])
        page = chromium.new_page()
        yield from first_page(page, base)
        booted_ms, times = page.evaluate(LIVE, [base + "_static/", random_settings()])
        yield Speed("explorers.boot", "Python started in the browser", booted_ms / 1e3, "s")
        yield from moves("browser", times, BROWSER_MS)
        chromium.close()


def measure() -> Iterator[Speed]:
    yield from kernel()
    yield from browser()


if __name__ == "__main__":
    report(measure())
