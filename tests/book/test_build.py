"""The build itself: versions, failing cells, missing npm, search."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import nbformat
import pytest
from conftest import ROOT, SITE

TOC = "format: jb-book\nroot: book/small\nchapters:\n  - file: notebooks/cell\n"


def test_jupyter_book_is_version_one():
    """Case A10: version 2 ignores _config.yml and _toc.yml."""
    assert version("jupyter-book").startswith("1.")


def test_the_lock_file_names_no_host():
    lock = json.loads((ROOT / "package-lock.json").read_text(encoding="utf-8"))
    assert all("resolved" not in package for package in lock["packages"].values())
    assert all(package.get("integrity") for name, package in lock["packages"].items() if name)


def small_book(folder, source):
    """A book of one page and one notebook, with this book's own configuration and glue."""
    for name in ("_static", "_ext"):
        shutil.copytree(ROOT / "book" / name, folder / "book" / name)
    shutil.copytree(ROOT / "kvlib", folder / "kvlib", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "_config.yml", folder)
    (folder / "book" / "references.bib").write_text("")
    (folder / "_toc.yml").write_text(TOC)
    (folder / "book" / "small.md").write_text("# Small\n\n```{explorer} kv_cache.size\n```\n")
    (folder / "notebooks").mkdir()
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell("# Cell"), nbformat.v4.new_code_cell(source)])
    nbformat.write(notebook, folder / "notebooks" / "cell.ipynb")
    return subprocess.run(
        [Path(sys.executable).with_name("jupyter-book"), "build", ".", "-W", "-n", "--keep-going"],
        cwd=folder, capture_output=True, text=True, env={**os.environ, "NO_COLOR": "1"},
    )


@pytest.mark.parametrize("source", ["raise RuntimeError('on purpose')", "from kvlib.explore import show\nshow('kv_cache.no_such')"])
def test_a_failing_cell_fails_the_build(tmp_path, source):
    """Case A14."""
    run = small_book(tmp_path, source)
    assert run.returncode != 0
    assert "cell.ipynb" in run.stdout + run.stderr


def test_without_npm_the_build_says_so_once_and_uses_a_cdn(tmp_path):
    run = small_book(tmp_path, "print('fine')")
    assert run.returncode == 0, run.stdout + run.stderr
    assert (run.stdout + run.stderr).count("node_modules is missing") == 1
    page = (tmp_path / "_build" / "html" / "book" / "small.html").read_text(encoding="utf-8")
    assert re.search(r'plotly: "https://[^"]+plotly-basic.min.js"', page)


@pytest.mark.parametrize("book, works, left", [
    ("false", False, "old"),
    ("mkdir -p _build/next/_build/html && echo new > _build/next/_build/html/index.html", True, "new"),
])
def test_make_html_replaces_the_pages_only_by_new_ones(tmp_path, book, works, left):
    """`book` stands in for the build; all that is installed counts as done."""
    shutil.copy(ROOT / "Makefile", tmp_path)
    for name in ("pyproject.toml", "package.json", "package-lock.json", ".venv/bin/python", ".venv/book.done", "node_modules/done"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    page = tmp_path / "_build" / "html" / "index.html"
    page.parent.mkdir(parents=True)
    page.write_text("old")
    run = subprocess.run(["make", "html", f"BOOK={book}"], cwd=tmp_path, capture_output=True, text=True)
    assert (run.returncode == 0) == works, run.stderr
    assert page.read_text().strip() == left
    assert not (tmp_path / "_build" / "next").exists()


def test_search_finds_a_chapter(open_page):
    page, watch = open_page("search.html?q=fragmentation")
    page.locator("#search-results li a").first.wait_for()
    watch.assert_quiet()


def test_builds_are_the_same_byte_for_byte():
    """What our glue writes depends on nothing but the source."""
    sys.path.insert(0, str(ROOT / "book" / "_ext"))
    import kvbook

    target = SITE / "_static" / "kv" / "kvlib.zip"
    again = target.with_suffix(".again")
    kvbook.write_library(again)
    assert again.read_bytes() == target.read_bytes()
    again.unlink()
