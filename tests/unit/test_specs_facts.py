"""The tables of the reference part hold every fact, each with its source."""

import pytest

from kvlib.specs import GPUS, KV_DTYPES, LINKS, MODELS
from kvlib.specs.facts import facts


@pytest.mark.parametrize("what, known", [("models", MODELS), ("gpus", GPUS), ("links", LINKS), ("formats", KV_DTYPES)])
def test_every_fact_is_a_row_with_a_source(what, known):
    headings, *rows = facts(what)
    assert len(rows) == len(known)
    assert all(len(row) == len(headings) for row in rows)
    assert all(len(row[-1]) > 4 for row in rows), "a source"
