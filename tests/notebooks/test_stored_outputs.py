"""nbval compares stored outputs; these tests make sure that there is something worth comparing."""

from __future__ import annotations

import re
from pathlib import Path

import nbformat
import pytest
import yaml
from nbclient import NotebookClient

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
LOOSE = {"nbval-ignore-output", "nbval-skip"}
# A time, a path, a version or a device in a compared output differs from machine to machine.
FORBIDDEN = re.compile(r"(/home/|/root/|/tmp/|/work/|[A-Z]:\\|\bcuda:\d|\bPython 3\.\d|\d+(\.\d+)? ?(seconds|sec) elapsed|it/s)")


def outputs(cell):
    for output in cell.get("outputs", []):
        yield output.get("text") or output.get("data", {}).get("text/plain", "")


@pytest.fixture(params=NOTEBOOKS, ids=lambda path: path.name)
def notebook(request):
    return nbformat.read(request.param, as_version=4)


def test_there_are_notebooks():
    assert NOTEBOOKS


def test_every_notebook_is_in_the_table_of_contents():
    toc = (ROOT / "_toc.yml").read_text(encoding="utf-8")
    files = re.findall(r"file: (\S+)", toc)
    assert yaml.safe_load(toc)["format"] == "jb-book"
    missing = [p.name for p in NOTEBOOKS if f"notebooks/{p.stem}" not in files]
    assert not missing


def test_cells_that_show_something_have_stored_it(notebook):
    speaking = [c for c in notebook.cells if c.cell_type == "code" and re.search(r"\b(print|show)\(", c.source)]
    assert speaking
    for cell in speaking:
        assert LOOSE & set(cell.metadata.get("tags", [])) or any(outputs(cell)), cell.source


def test_stored_outputs_are_the_same_everywhere(notebook):
    for cell in notebook.cells:
        if cell.cell_type == "code" and not LOOSE & set(cell.metadata.get("tags", [])):
            for text in outputs(cell):
                assert not FORBIDDEN.search(text), text


def test_few_cells_escape_comparison(notebook):
    code = [c for c in notebook.cells if c.cell_type == "code"]
    loose = [c for c in code if LOOSE & set(c.metadata.get("tags", []))]
    assert len(loose) <= len(code) / 5


def test_notebook_is_normalized(notebook):
    assert notebook.metadata.kernelspec.name == "python3"
    assert "widgets" not in notebook.metadata
    for cell in notebook.cells:
        assert "execution" not in cell.metadata
        for output in cell.get("outputs", []):
            assert "application/vnd.jupyter.widget-view+json" not in output.get("data", {})
            assert output.output_type != "error" or "raises-exception" in cell.metadata.get("tags", [])


def test_notebook_is_small(notebook):
    assert len(nbformat.writes(notebook)) < 300_000


@pytest.mark.parametrize("folder", ["notebooks", ".", "tests/unit", "elsewhere"])
def test_notebooks_run_from_any_folder(folder, tmp_path):
    def said():
        # Joined, because how a stream is cut into pieces differs from run to run.
        return ["".join(outputs(cell)) for cell in notebook.cells]

    notebook = nbformat.read(NOTEBOOKS[0], as_version=4)
    stored = said()
    place = tmp_path if folder == "elsewhere" else ROOT / folder
    NotebookClient(notebook, timeout=120, kernel_name="python3", resources={"metadata": {"path": str(place)}}).execute()
    assert said() == stored
