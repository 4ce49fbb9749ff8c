"""The proof of coverage: every mechanism, lecture section, exercise and pitfall points to something that exists.

The rows stand in tests/coverage/*.yaml. This file follows their pointers: the page, its explorers, a quotation from it, and a
test. The lists below repeat which ids there are, so that a row cannot get lost; where the source documents lie beside the
repository, both are compared with those.
"""

import ast
import json
import os
import re
from functools import lru_cache
from pathlib import Path

import pytest
import yaml

import kvlib.figures  # noqa: F401 (declares the explorers)
from kvlib.explore import REGISTRY

ROOT = Path(__file__).resolve().parents[2]
SHARED = Path(os.environ.get("KVLIB_SHARED", ROOT.parent / "shared"))
ROWS = [row for path in sorted((ROOT / "tests/coverage").glob("*.yaml")) for row in yaml.safe_load(path.read_text("utf-8"))]
PAGES = {path.stem: path for folder in ("notebooks", "book") for path in (ROOT / folder).rglob("*") if path.suffix in (".ipynb", ".md")}
# Mechanisms: how many ids a prefix has, and which of them need an explorer with live controls.
MECHANISMS = {
    "PRIM": (4, {1, 2, 3, 4}), "SIZE": (4, {1, 3}), "FRAG": (5, {1, 2, 3, 4, 5}), "PAGE": (8, {1, 5}), "COW": (5, {1, 2}),
    "PRE": (4, {1, 2, 3}), "SERVE": (6, {1, 4, 6}), "PFX": (8, {1, 3, 4, 5, 6, 8}), "TIER": (5, {1, 2, 4, 5}),
    "MOON": (9, {2, 3, 4, 5, 6, 8, 9}), "DIST": (1, {1}), "GEN": (9, {2, 3, 8, 9}), "STRA": (7, {1, 2, 3, 5}),
    "SMALL": (4, {1, 2, 3}), "PLAN": (2, {1}),
}  # fmt: skip
LECTURES = {
    "L7": "0 0.1 0.2 0.3 0.4 1 2 3 3.1 3.2 3.3 3.4 4 4.1 4.2 4.3 4.4 4.5 5 5.1 5.2 5.3 6 6.1 6.2 6.3 7 8 8.1 8.2 8.3 8.4 8.5 "
    "9 9.1 9.2 9.3 9.4 9.5 9.6 9.7 10 11 12 13 14 15 16",
    "L9": "0 0.1 0.2 0.3 0.4 0.5 1 1.1 1.2 2 2.1 2.2 2.3 2.4 2.5 2.6 3 3.1 3.2 3.3 3.4 3.5 4 4.1 4.2 4.3 4.4 5 6 7 8 9 10 11",
}
NOTES = {"P": 4, "K": 18}
EXERCISES_OF = {"7": 12, "9": 8}
PITFALLS_OF = {"7": 10, "9": 8}
OURS: set[str] = set()  # prefixes among them that stand in no document: chapters of our own
LIVE = {f"{prefix}-{number}" for prefix, (_, live) in MECHANISMS.items() for number in live}
IDS = (
    [f"{prefix}-{n}" for prefix, (count, _) in MECHANISMS.items() for n in range(1, count + 1)]
    + [f"{lecture}-{section}" for lecture, sections in LECTURES.items() for section in sections.split()]
    + [f"{notes}-{n}" for notes, count in NOTES.items() for n in range(1, count + 1)]
    + [f"EX-{lecture}.{n}" for lecture, count in EXERCISES_OF.items() for n in range(1, count + 1)]
    + [f"PIT-{lecture}.{n}" for lecture, count in PITFALLS_OF.items() for n in range(1, count + 1)]
)


def one_space(text):
    return " ".join(text.split())


@lru_cache
def words_of(page):
    """What a page says in prose, and what its code cells contain and print, in single spaces."""
    text = PAGES[page].read_text("utf-8")
    if PAGES[page].suffix == ".md":
        return one_space(text), ""
    prose, code = [], []
    for cell in json.loads(text)["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            prose.append(source)
            continue
        code.append(source)
        for output in cell["outputs"]:
            code.append("".join(output.get("text") or output.get("data", {}).get("text/plain", "")))
    return one_space("\n".join(prose)), one_space("\n".join(code))


@lru_cache
def functions_of(test_file):
    (path,) = (ROOT / "tests").rglob(test_file)
    tree = ast.parse(path.read_text("utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def shown_on(page):
    prose, code = words_of(page)
    return set(re.findall(r'show\("([\w.]+)"\)', code)) | set(re.findall(r"\{explorer\} ([\w.]+)", prose))


def test_every_id_stands_once():
    ids = [row["id"] for row in ROWS]
    assert len(set(ids)) == len(ids)
    assert set(ids) - set(IDS) == set(), "a new id: enter its prefix in MECHANISMS, or in OURS if no document asks for it"
    assert set(IDS) - set(ids) == set(), "an id without a row"


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["id"])
def test_a_row_points_to_what_exists(row):
    assert row.keys() <= {"id", "title", "page", "explorers", "prints", "reads", "test"}
    prose, code = words_of(row["page"])
    said = {"prints": code, "reads": prose}
    quoted = row.keys() & said
    assert quoted, "a row quotes its page"
    for kind in quoted:
        assert one_space(row[kind]) in said[kind], f"{kind}: {row[kind]!r} is not on {row['page']}"
    for explorer_id in row.get("explorers", []):
        assert explorer_id in set(REGISTRY), f"no such explorer: {explorer_id}"
        assert explorer_id in shown_on(row["page"]), f"{explorer_id} is not on {row['page']}"
    test_file, _, function = row["test"].partition("::")
    assert function in functions_of(test_file), f"no such test: {row['test']}"


@pytest.mark.parametrize("row_id", sorted(LIVE))
def test_what_needs_sliders_has_sliders(row_id):
    (row,) = (row for row in ROWS if row["id"] == row_id)
    assert row["explorers"]


def test_mechanisms_are_computed_and_not_only_told():
    # A page of the course has code cells; only the primers are prose around explorers.
    told = {row["id"] for row in ROWS if row["id"].partition("-")[0] in MECHANISMS and "prints" not in row}
    assert told == {"PRIM-1", "PRIM-2", "PRIM-3", "PRIM-4"}


def test_the_lectures_exercises_print_their_answers():
    assert all({"reads", "prints"} <= row.keys() for row in ROWS if row["id"].startswith("EX-"))


def test_every_explorer_of_a_chapter_serves_a_row():
    # A question index or a reference page may declare explorers of its own; a chapter's are there to teach a mechanism.
    in_chapters = set().union(*(shown_on(page) for page in PAGES if re.match(r"\d\d_", page)))
    used = {explorer_id for row in ROWS for explorer_id in row.get("explorers", [])}
    assert not in_chapters & set(REGISTRY) - used


# --- against the source documents, where they lie beside the repository ---


def source(pattern):
    found = sorted(SHARED.glob(pattern))
    if not found:
        pytest.skip("the source documents are not here")
    return found[0].read_text("utf-8")


def test_mechanisms_are_those_of_the_coverage_document():
    listed = re.findall(r"^\| ([A-Z]+-\d+)( \[S\])? \|", source("coverage.md"), re.M)
    asked = MECHANISMS.keys() - OURS
    assert sorted(row_id for row_id, _ in listed) == sorted(row_id for row_id in IDS if row_id.partition("-")[0] in asked)
    assert {row_id for row_id, live in listed if live} == LIVE


@pytest.mark.parametrize(("lecture", "pattern"), [("L7", "seeds/000_*"), ("L9", "seeds/001_*")])
def test_sections_are_those_of_the_lecture(lecture, pattern):
    # A heading is a number and a few words between empty lines, as in "3.1 …" or "9. …"; points of a list have neighbors.
    numbers = re.findall(r"(?<=\n\n)(\d+\.\d+|\d+(?=\.))\.? [^\n]{1,80}(?=\n\n)", source(pattern))
    assert numbers == LECTURES[lecture].split()


@pytest.mark.parametrize(("notes", "pattern"), [("P", "seeds/002_*"), ("K", "seeds/003_*")])
def test_sections_are_those_of_the_notes(notes, pattern):
    lines = source(pattern).split("\n")
    # A heading stands alone, is short, and is neither a sentence nor a formula nor an example.
    headings = [line for line in lines if 0 < len(line) <= 40 and not re.search(r"[=\\（\d。•]|[:：，]$|->", line)]
    assert len(headings) == NOTES[notes]


@pytest.mark.parametrize(("lecture", "pattern"), [("7", "seeds/000_*"), ("9", "seeds/001_*")])
def test_exercises_and_pitfalls_are_all_of_the_lectures(lecture, pattern):
    text = source(pattern)
    numbers = {int(n) for n in re.findall(r"^练习 (\d+)（", text, re.M)}
    assert numbers == set(range(1, EXERCISES_OF[lecture] + 1))
    section = re.search(r"常见误区 · Common pitfalls\n(.*?)\n\d+\. 练习", text, re.S)[1]
    assert len(re.findall(r"^\d+\. “", section, re.M)) == PITFALLS_OF[lecture]
