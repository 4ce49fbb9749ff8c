"""How fast explorers answer: in the kernel, from the star, and live in the browser. Medians and ratios to the targets.

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
from pathlib import Path

from playwright.sync_api import sync_playwright

from kvlib.explore import REGISTRY

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tools"))

from find_chromium import find  # noqa: E402
from serve import server  # noqa: E402

KERNEL_MS, STAR_MS, BROWSER_MS, USABLE_MS = 100, 50, 250, 2000
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


def random_setting(explorer, draw) -> dict:
    return {c.name: draw.choice(c.positions) for c in explorer.controls if c.positions is not None}


def report(what: str, median_ms: float, target_ms: float) -> None:
    print(f"{what:<48} {median_ms:8.1f} ms   {median_ms / target_ms:5.2f} of {target_ms} ms")


def kernel() -> None:
    medians = {}
    for explorer_id, explorer in REGISTRY.items():
        draw = random.Random(1)
        times = []
        for _ in range(MOVES):
            request = json.dumps(random_setting(explorer, draw))
            start = time.perf_counter()
            explorer.json(request)
            times.append(1e3 * (time.perf_counter() - start))
        medians[explorer_id] = statistics.median(times)
    for explorer_id, median in sorted(medians.items(), key=lambda item: -item[1])[:10]:
        report(f"kernel {explorer_id}", median, KERNEL_MS)
    report(f"kernel, median of {len(medians)} explorers", statistics.median(medians.values()), KERNEL_MS)


def browser() -> None:
    httpd = server()
    threading.Thread(target=httpd.serve_forever, daemon=True).start()
    base = f"http://127.0.0.1:{httpd.server_port}/"
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=find(), args=["--no-sandbox"] if os.geteuid() == 0 else [])
        page = chromium.new_page()
        start = time.perf_counter()
        page.goto(base + "notebooks/01_kv_cache.html")
        page.locator(".kv-plotly .main-svg").first.wait_for()
        report("page usable (first plot drawn), cold", 1e3 * (time.perf_counter() - start), USABLE_MS)
        times = page.locator('[data-explorer="kv_cache.wall"]').evaluate(STAR)
        report("star hit to repaint, kv_cache.wall", statistics.median(times[1:]), STAR_MS)
        draw = random.Random(1)
        asked = [(i, json.dumps(random_setting(e, draw))) for i, e in REGISTRY.items() for _ in range(MOVES)]
        booted, times = page.evaluate(LIVE, [base + "_static/", asked])
        print(f"Python booted in the browser in {booted / 1e3:.1f} s")
        # The first call of an explorer imports its module.
        medians = {i: statistics.median(t[1:]) for i, t in times.items()}
        for explorer_id, median in sorted(medians.items(), key=lambda item: -item[1])[:10]:
            report(f"browser {explorer_id}", median, BROWSER_MS)
        report(f"browser, median of {len(medians)} explorers", statistics.median(medians.values()), BROWSER_MS)
        chromium.close()


if __name__ == "__main__":
    kernel()
    browser()
