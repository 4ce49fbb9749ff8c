"""Every paper that a page cites stands in the bibliography: a second here, minutes into a build otherwise."""

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*(ROOT / "notebooks").glob("*.ipynb"), *(ROOT / "book").rglob("*.md")])
KEYS = re.findall(r"^@\w+\{([^,\s]+),", (ROOT / "book" / "references.bib").read_text("utf-8"), re.M)


def prose(page):
    text = page.read_text("utf-8")
    if page.suffix == ".md":
        return text
    cells = json.loads(text)["cells"]
    return "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_cited_keys_are_known(page):
    cited = {key.strip() for keys in re.findall(r"\{cite:\w+\}`([^`]+)`", prose(page)) for key in keys.split(",")}
    assert cited <= set(KEYS), "enter these in book/references.bib"


def test_every_entry_stands_once_and_is_cited():
    assert len(set(KEYS)) == len(KEYS)
    cited = "\n".join(prose(page) for page in PAGES)
    assert [key for key in KEYS if key not in cited] == []
