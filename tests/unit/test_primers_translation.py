"""Address translation keeps offsets and tells pages apart; the access-time formula bends where it should."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvlib.errors import ConfigError
from kvlib.primers.translation import effective_access_ns, translate

quick = settings(max_examples=60, deadline=None, derandomize=True)


@quick
@given(st.lists(st.integers(0, 40), min_size=1, max_size=8, unique=True), st.integers(1, 64))
def test_no_two_virtual_addresses_meet_and_offsets_stay(table, page_size):
    virtual = range(len(table) * page_size)
    physical = [translate(table, page_size, address) for address in virtual]
    assert len(set(physical)) == len(physical)
    assert all(p % page_size == v % page_size for p, v in zip(physical, virtual))
    assert {p // page_size for p in physical} == set(table)


@quick
@given(st.floats(0, 1), st.floats(0, 10), st.floats(1, 200), st.integers(1, 5))
def test_an_access_costs_between_all_hits_and_all_misses(hit_rate, tlb_ns, memory_ns, levels):
    mean = effective_access_ns(hit_rate, tlb_ns, memory_ns, levels)
    assert tlb_ns + memory_ns <= mean <= tlb_ns + (1 + levels) * memory_ns + 1e-9


def test_effective_access_by_hand():
    # 98 of 100 accesses: 1 + 100. Two of 100: 1 + 4 * 100 + 100. Mean: (98 * 101 + 2 * 501) / 100 = 109.
    assert effective_access_ns(0.98, 1, 100, 4) == pytest.approx(109.0, abs=1e-9)


@pytest.mark.parametrize("hit_rate", [-0.1, 1.01, math.nan, math.inf, True, "0.9"])
def test_a_hit_rate_is_a_share(hit_rate):
    with pytest.raises(ConfigError, match="hit_rate"):
        effective_access_ns(hit_rate, 1, 100, 4)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"tlb_ns": -1}, "tlb_ns"), ({"memory_ns": math.nan}, "memory_ns"),
        ({"levels": 0}, "levels"), ({"levels": 2.0}, "levels"),
    ],
)
def test_times_and_levels_are_checked(change, field):
    with pytest.raises(ConfigError, match=field):
        effective_access_ns(**{"hit_rate": 0.9, "tlb_ns": 1, "memory_ns": 100, "levels": 4, **change})


@pytest.mark.parametrize("address", [-1, 32, True, 1.0])
def test_an_address_outside_the_pages_is_refused(address):
    with pytest.raises(ConfigError, match="virtual_address"):
        translate([5, 2], 16, address)
