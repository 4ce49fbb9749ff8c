"""A notebook as a reader opens it: in a real JupyterLab, run all, drag a slider, the figure changes."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request

import pytest
from conftest import ROOT


@pytest.fixture
def lab(tmp_path):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    folders = {f"JUPYTER_{kind}_DIR": str(tmp_path / kind) for kind in ("CONFIG", "DATA", "RUNTIME")}
    work = tmp_path / "work"
    work.mkdir()
    for notebook in (ROOT / "notebooks").glob("01_*.ipynb"):
        (work / notebook.name).write_bytes(notebook.read_bytes())
    server = subprocess.Popen(
        [sys.executable, "-m", "jupyterlab", "--no-browser", "--ip=127.0.0.1", f"--port={port}", "--allow-root",
         "--IdentityProvider.token=", f"--ServerApp.root_dir={work}"],
        env={**os.environ, **folders, "PATH": f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}"},
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )
    address = f"http://127.0.0.1:{port}/"
    for _ in range(120):
        try:
            urllib.request.urlopen(address + "api", timeout=1).read()
            break
        except OSError:
            time.sleep(0.5)
    yield address
    os.killpg(server.pid, signal.SIGTERM)
    server.wait(10)


def test_run_all_then_drag(browser, lab):
    page = browser.new_context(viewport={"width": 1280, "height": 1400}).new_page()
    page.set_default_timeout(90_000)
    page.goto(lab + "lab/tree/01_kv_cache.ipynb?reset")
    # The toolbar's "idle" comes before the kernel is attached; the status bar's does not.
    page.get_by_text("Python 3 (ipykernel) | Idle").wait_for()
    page.get_by_role("menuitem", name="Run", exact=True).click()
    page.get_by_text("Run All Cells", exact=True).click()
    page.locator(".js-plotly-plot .main-svg").first.wait_for()
    title = page.locator(".jp-OutputArea h4").first
    title.wait_for()
    before = title.text_content()
    handle = page.locator(".widget-slider .noUi-handle").first
    handle.focus()
    handle.press("ArrowRight")
    page.wait_for_function("before => document.querySelector('.jp-OutputArea h4').textContent !== before", arg=before)
    wall = page.evaluate("document.querySelector('.js-plotly-plot').data[1].x[0]")
    assert f"{int(wall)} requests" in title.text_content()
