"""The book's Sphinx glue: explorers in pages, browser files beside them, nothing from other hosts.

* While notebooks run it asks kvlib for the page face.
* It adds ``{explorer}`` and ``{exercise-check}`` for markdown pages, where no notebook cell can call ``show``, and
  ``{facts}`` for the reference pages. ``front.py`` adds those that need to know what stands where.
* After the build it writes the precomputed states, the Python that the worker runs, and the npm files.
"""

from __future__ import annotations

import os
import re
import shutil
import zipfile
from pathlib import Path

from docutils import nodes
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective

from kvlib.explore import EXERCISES, REGISTRY
from kvlib.explore.page import exercise_html, explorer_html, states_script, table_html
from kvlib.explore.show import FACE_VARIABLE
from kvlib.explore.view import cell_text
from kvlib.specs.facts import facts

ROOT = Path(__file__).resolve().parents[2]
NODE = ROOT / "node_modules"
MATHJAX = NODE / "mathjax" / "es5"
# Where the same files live when npm was not there at build time; versions as in package.json.
CDN = "https://cdn.jsdelivr.net"
CDN_SETTINGS = (
    "window.KV_SETTINGS = {"
    f'plotly: "{CDN}/npm/plotly.js-basic-dist-min@4.1.1/plotly-basic.min.js", '
    f'pyodide: ["{CDN}/npm/pyodide@314.0.7/"]'
    "};"
)
LOCAL_SETTINGS = f'window.KV_SETTINGS = {{pyodide: ["kv/pyodide/", "{CDN}/npm/pyodide@314.0.7/"]}};'
PYODIDE_FILES = ("pyodide.mjs", "pyodide.asm.mjs", "pyodide.asm.wasm", "python_stdlib.zip", "pyodide-lock.json")
# MathJax piece by piece: its one-file bundle carries a menu as large as all of these together.
MATHJAX_PARTS = ["core", "input/tex", "output/chtml", "a11y/assistive-mml"]
MATHJAX_FONT = "output/chtml/fonts/tex"
# Our other Sphinx modules: the front pages, first uses of glossary terms, the benchmarks page, addresses outside the book.
EXTENSIONS = ("front", "terms", "benchmarks", "outside_links")
# In the order in which they need one another.
SCRIPTS = ("common.js", "controls.js", "explorer.js", "exercise.js", "page.js")
# A fixed date keeps the archive the same, byte for byte, from build to build.
ZIP_DATE = (2020, 1, 1, 0, 0, 0)

log = logging.getLogger(__name__)


class ExplorerDirective(SphinxDirective):
    """``{explorer} module.name`` puts an explorer on a markdown page."""

    required_arguments = 1

    def run(self):
        return [nodes.raw("", explorer_html(REGISTRY[self.arguments[0]]), format="html")]


class ExerciseCheckDirective(SphinxDirective):
    """``{exercise-check} module.name`` puts a self-checked exercise on a markdown page."""

    required_arguments = 1

    def run(self):
        return [nodes.raw("", exercise_html(EXERCISES[self.arguments[0]]), format="html")]


class FactsDirective(SphinxDirective):
    """``{facts} models`` (gpus, links, formats) puts a table of kvlib.specs on a markdown page."""

    required_arguments = 1

    def run(self):
        table = [[cell_text(cell) for cell in row] for row in facts(self.arguments[0])]
        html = f'<div class="kv-facts" tabindex="0">{table_html(table)}</div>'
        return [nodes.raw("", html, format="html")]


def choose_hosts(app, config):
    """Use the npm files where they are installed, else say once that the pages will ask a CDN."""
    if MATHJAX.is_dir():
        config.mathjax_path = "kv/mathjax/startup.js"
        config.mathjax3_config = {**(config.mathjax3_config or {}), "loader": {"load": MATHJAX_PARTS}}
        app.add_js_file(None, body=LOCAL_SETTINGS)
    else:
        log.info("kvbook: node_modules is missing (run `npm ci`), so the pages will load MathJax, plotly and Python from a CDN")
        app.add_js_file(None, body=CDN_SETTINGS)
    for script in SCRIPTS:
        app.add_js_file(script, loading_method="defer")
    app.add_css_file("explorer.css")


def drop_thebe(app, pagename, templatename, context, doctree):
    """Thebe is not used, and its script asks another host for its code on every page."""
    def wanted(script):
        return "thebe" not in str(getattr(script, "filename", "")) + str(getattr(script, "attributes", ""))

    for key in ("script_files", "css_files"):
        context[key] = [item for item in context.get(key, []) if wanted(item)]


def write_assets(app, exception):
    if exception or app.builder.format != "html":
        return
    mend_theme(Path(app.outdir))
    out = Path(app.outdir) / "_static" / "kv"
    write_states(out / "explorers")
    write_library(out / "kvlib.zip")
    if MATHJAX.is_dir():
        copy_npm_files(out)


def mend_theme(site: Path):
    """Take out what the theme's template loads on every page for nothing: about 0.6 MB, compressed.

    The icons come from the theme's web font; its script would only replace them by drawings. The search
    index is for the search page, since this book does not search while one types. And say in words what the
    arrow in the sidebar opens.
    """
    icons, search = r"fontawesome\.js", r"(searchtools|language_data|searchindex)\.js"
    for page in site.rglob("*.html"):
        unneeded = icons if page.name == "search.html" else f"({icons}|{search})"
        text = re.sub(rf'<script[^>]*{unneeded}[^>]*></script>\s*', "", page.read_text(encoding="utf-8"))
        text = text.replace('<summary><span class="toctree-toggle"', '<summary aria-label="pages below"><span class="toctree-toggle"')
        page.write_text(text, encoding="utf-8")
    redirect = site / "index.html"
    redirect.write_text('<link rel="icon" href="_static/favicon.svg">\n' + redirect.read_text(encoding="utf-8"), encoding="utf-8")


def write_states(folder: Path):
    folder.mkdir(parents=True, exist_ok=True)
    for item_id, item in [*REGISTRY.items(), *EXERCISES.items()]:
        (folder / f"{item_id}.js").write_text(states_script(item), encoding="utf-8")


def write_library(path: Path):
    """kvlib's Python as one archive, for the worker to unpack."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for source in sorted((ROOT / "kvlib").rglob("*")):
            if source.suffix in {".py", ".json"}:
                entry = zipfile.ZipInfo(str(source.relative_to(ROOT)), ZIP_DATE)
                archive.writestr(entry, source.read_bytes(), zipfile.ZIP_DEFLATED)


def copy_npm_files(out: Path):
    shutil.copy2(NODE / "plotly.js-basic-dist-min" / "plotly-basic.min.js", out / "plotly.min.js")
    (out / "pyodide").mkdir(exist_ok=True)
    for name in PYODIDE_FILES:
        shutil.copy2(NODE / "pyodide" / name, out / "pyodide" / name)
    fonts = Path("output", "chtml", "fonts", "woff-v2")
    for part in ["startup", *MATHJAX_PARTS, MATHJAX_FONT]:
        target = (out / "mathjax" / part).with_suffix(".js")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2((MATHJAX / part).with_suffix(".js"), target)
    shutil.copytree(MATHJAX / fonts, out / "mathjax" / fonts, dirs_exist_ok=True)


def setup(app):
    os.environ[FACE_VARIABLE] = "page"
    app.add_directive("explorer", ExplorerDirective)
    app.add_directive("exercise-check", ExerciseCheckDirective)
    app.add_directive("facts", FactsDirective)
    for extension in EXTENSIONS:
        app.setup_extension(extension)
    app.connect("config-inited", choose_hosts)
    app.connect("html-page-context", drop_thebe, priority=900)
    app.connect("build-finished", write_assets)
    return {"version": "1", "parallel_read_safe": True}
