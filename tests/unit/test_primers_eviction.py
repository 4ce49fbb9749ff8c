"""Evicting single blocks against whole sequences: both free enough, and only one leaves others running."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvlib.errors import ConfigError
from kvlib.primers.eviction import able_to_run, evict_blocks, evict_sequences

quick = settings(max_examples=80, deadline=None, derandomize=True)
held_and_needed = st.lists(st.integers(1, 8), min_size=1, max_size=6).flatmap(
    lambda held: st.tuples(st.just(held), st.integers(0, sum(held)))
)


@quick
@given(held_and_needed)
def test_both_free_enough_and_no_more_than_there_is(case):
    held, needed = case
    for taken in (evict_blocks(held, needed), evict_sequences(held, needed)):
        assert sum(taken) >= needed
        assert all(0 <= lost <= had for lost, had in zip(taken, held))
    assert sum(evict_blocks(held, needed)) == needed


@quick
@given(held_and_needed)
def test_whole_sequences_lose_all_or_nothing_and_never_more_of_them_than_needed(case):
    held, needed = case
    taken = evict_sequences(held, needed)
    assert all(lost in (0, had) for lost, had in zip(taken, held))
    if needed:
        first = next(i for i, lost in enumerate(taken) if lost)
        assert sum(taken) - held[first] < needed


@quick
@given(st.integers(1, 6), st.integers(1, 8), st.data())
def test_with_equal_sequences_whole_eviction_leaves_at_least_as_many_running(count, each, data):
    held = [each] * count
    needed = data.draw(st.integers(0, count * each))
    assert able_to_run(evict_sequences(held, needed)) >= able_to_run(evict_blocks(held, needed))


def test_four_blocks_stop_four_sequences_or_one():
    # Oldest first takes block 0 of each of the four; a whole sequence of six covers the four at once.
    assert able_to_run(evict_blocks([6] * 4, 4)) == 0
    assert able_to_run(evict_sequences([6] * 4, 4)) == 3


@pytest.mark.parametrize("evict", [evict_blocks, evict_sequences])
@pytest.mark.parametrize(
    ("held", "needed", "field"),
    [
        ([2], 3, "needed"), ([2], -1, "needed"), ([2], True, "needed"), ([0], 0, "held"), ([1.5], 1, "held"),
    ],
)
def test_bad_demands_are_refused(evict, held, needed, field):
    with pytest.raises(ConfigError, match=field):
        evict(held, needed)
