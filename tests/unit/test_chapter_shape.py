"""Every chapter has the same shape, so that a reader knows where to look."""

import json
import re
from pathlib import Path

import pytest

import kvlib.figures  # noqa: F401 (declares the explorers)
from kvlib.explore import EXERCISES, REGISTRY, Search

CHAPTERS = sorted((Path(__file__).resolve().parents[2] / "notebooks").glob("[0-9][0-9]_*.ipynb"))
PARTS = [
    r"^# \d+ · [^:]+: .*\?$",
    r"^\*\*After this chapter you can\*\* ",
    r"^\*\*Before you start:\*\* ",
    r"\*\*Time:\*\* \d+ minutes; the part up to \*The short answer\* takes eight\.",
    r"^## Play first$",
    r"^:::\{admonition\} The short answer$",
    r"^## Papers?, lectures?, this book$",
    r"^## Pitfalls$",
    r"^## Exercises$",
    r"^## The ledger",
    r"^## (What next|Where this ends)$",
    r"^\*\*Sources\.\*\* ",
]


@pytest.fixture(params=CHAPTERS, ids=lambda path: path.stem)
def cells(request):
    return json.loads(request.param.read_text("utf-8"))["cells"]


def prose(cells):
    return "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")


def shown(cells):
    code = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    return re.findall(r'show\("([\w.]+)"\)', code)


def test_every_chapter_has_every_part(cells):
    places = [re.search(part, prose(cells), re.M) for part in PARTS]
    assert all(places), [part for part, place in zip(PARTS, places) if not place]
    assert [place.start() for place in places] == sorted(place.start() for place in places)


def test_a_prediction_comes_before_the_short_answer(cells):
    texts = ["".join(cell["source"]) for cell in cells]
    answer = next(i for i, text in enumerate(texts) if "The short answer\n:class:" in text)
    assert any(REGISTRY[shown_id].predict for shown_id in shown(cells[:answer]))


def test_the_comparison_is_computed(cells):
    # The table is printed by kvlib.explore.compare, so that this book's column cannot be typed by hand.
    assert any("print(comparison(" in "".join(cell["source"]) for cell in cells)


def test_every_chapter_says_whose_the_numbers_are(cells):
    said = prose(cells).partition("this book")[2]
    assert re.search(r"\breported\b", said) and re.search(r"\b(computed|simulated|measured)\b", said)


def test_there_are_at_least_four_pitfalls(cells):
    pitfalls = re.search(r"^## Pitfalls$(.*?)^## Exercises$", prose(cells), re.M | re.S)[1]
    assert len(re.findall(r"^\*\*[“\"].*[.”\"]\*\*", pitfalls, re.M)) >= 4


def test_four_exercises_check_themselves_and_one_asks_for_a_setting(cells):
    drawn = [EXERCISES[shown_id].draw() for shown_id in shown(cells) if shown_id in set(EXERCISES)]
    assert len(drawn) >= 4
    assert any(isinstance(one, Search) for one in drawn)


def test_the_ledger_is_the_librarys(cells):
    place = next(i for i, cell in enumerate(cells) if "## The ledger" in "".join(cell["source"]))
    assert "ledger(" in "".join(cells[place + 1]["source"])


def test_every_solution_computes_something(cells):
    # Exercises of the sphinx-exercise kind: between solution-start and solution-end stands a code cell.
    texts = [(cell["cell_type"], "".join(cell["source"])) for cell in cells]
    starts = [i for i, (_, text) in enumerate(texts) if "{solution-start}" in text]
    for start in starts:
        end = next(i for i in range(start, len(texts)) if "{solution-end}" in texts[i][1])
        assert any(kind == "code" and "print(" in text for kind, text in texts[start:end]), texts[start][1]
    assert starts
