"""Words: American spelling without slips, in everything a reader reads.

Read are the markdown of pages and notebooks, and every sentence in kvlib: docstrings, titles, notes, messages. Code, formulas,
citations and addresses are taken out first.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# Words that codespell takes for slips and that are none, one a line.
ACCEPTED = Path(__file__).with_name("spelling_accepted.txt")
DICTIONARIES = "clear,rare,en-GB_to_en-US"
MARKDOWN = [*ROOT.glob("*.md"), *(ROOT / "book").rglob("*.md")]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
MODULES = sorted((ROOT / "kvlib").rglob("*.py"))
# What is not prose, each replaced by one word so that the sentence around it stays one.
NOT_PROSE = re.compile(
    r"```(?!\{exercise|\{solution|\{glossary).*?```"     # code, and directives without sentences
    r"|\$\$.*?\$\$|``.*?``|`[^`]*`|\$[^$\n]*\$"          # formulas, code, roles and their arguments
    r"|\{[a-z:]+\}|\]\([^)]*\)|https?://\S+|^\[.*?\]: .*?$"
    r"|^ *>>> .*?$|^ *\.\.\. .*?$|^ *[\w, ]+ : .*?$",    # examples, and the names that numpydoc lists
    re.DOTALL | re.MULTILINE,
)


def prose(text: str) -> str:
    return NOT_PROSE.sub(" x ", text)


def sentences_in(module: Path) -> Iterator[str]:
    """Every text of a module that has more than one word; f-strings in one piece."""
    for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value.strip():
            yield node.value


def markdown_of(notebook: Path) -> str:
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    return "\n\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")


def texts() -> dict[str, str]:
    """The prose of each file, by its path in the repository."""
    pages = {page: page.read_text(encoding="utf-8") for page in MARKDOWN}
    notebooks = {notebook: markdown_of(notebook) for notebook in NOTEBOOKS}
    modules = {module: "\n\n".join(sentences_in(module)) for module in MODULES}
    return {str(path.relative_to(ROOT)): prose(text) for path, text in {**pages, **notebooks, **modules}.items()}


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> Path:
    """The prose as files, for codespell to read."""
    folder = tmp_path_factory.mktemp("prose")
    for name, text in texts().items():
        path = folder / f"{name}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return folder


def misspelled(folder: Path) -> str:
    command = [sys.executable, "-m", "codespell_lib", "--builtin", DICTIONARIES, "--ignore-words", str(ACCEPTED), "."]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True).stdout


def test_every_word_is_spelled_as_in_america(written):
    assert misspelled(written) == ""


def test_the_check_sees_slips_and_british_forms(tmp_path):
    (tmp_path / "page.txt").write_text("The colour of a bandwith.", encoding="utf-8")
    found = misspelled(tmp_path)
    assert "color" in found and "bandwidth" in found


DOUBLED = re.compile(r"\b(?!x\b)([A-Za-z]{2,})[ \n]+\1\b")


def test_no_word_stands_twice():
    read = {name: text for name, text in texts().items() if name.endswith((".md", ".ipynb"))}
    assert not [(name, match.group()) for name, text in read.items() for match in DOUBLED.finditer(text)]


def test_the_check_of_doubles_sees_them_across_lines():
    assert DOUBLED.search("the\nthe end") and not DOUBLED.search("that hat")
