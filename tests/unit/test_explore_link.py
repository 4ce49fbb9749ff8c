"""Links to a state of an explorer."""

from __future__ import annotations

import pytest

from kvlib.errors import ConfigError
from kvlib.explore import REGISTRY
from kvlib.explore.link import state_link


def test_values_are_written_as_the_page_script_writes_them():
    """JavaScript writes 18.0 as 18 and Python's True as true; the script compares texts."""
    link = state_link("load_or_recompute.every_place", your_link=18.0)
    assert link == "#kv=load_or_recompute.every_place&your_link=18"
    assert state_link("strata.dilemma", gpu_assisted=True) == "#kv=strata.dilemma&gpu_assisted=true"


def test_a_space_survives():
    assert state_link("load_or_recompute.chat", place="network 3 Gb/s").endswith("&place=network+3+Gb%2Fs")


def test_no_position_needs_an_exponent():
    """Python and JavaScript write exponents differently, so a link could not name such a position."""
    for explorer in REGISTRY.values():
        for control in explorer.controls:
            assert not [p for p in control.positions or () if isinstance(p, float) and "e" in repr(p)], explorer.id


@pytest.mark.parametrize("params, named", [({"modle": "opt-13b"}, "modle"), ({"model": "opt-14b"}, "opt-14b")])
def test_what_does_not_exist_is_refused(params, named):
    with pytest.raises(ConfigError, match=named):
        state_link("kv_cache.size", **params)


def test_an_unknown_explorer_is_refused():
    with pytest.raises(ConfigError, match="kv_cache.siz"):
        state_link("kv_cache.siz")
