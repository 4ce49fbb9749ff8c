"""Shared links: equal shares, nothing lost, nothing early."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvlib.cluster import SharedLink
from kvlib.cost import transfer_s
from kvlib.specs import LinkSpec, get_link

S = 10**9


def run(link, starts):
    """Start transfers ``(time, bytes)`` and return when each ends."""
    ends, waiting = {}, sorted((time, number, size) for number, (time, size) in enumerate(starts))
    while waiting or link.num_running:
        due = link.next_end_ns()
        if waiting and (due is None or waiting[0][0] < due):
            time, number, size = waiting.pop(0)
            link.start(time, size, number)
        else:
            ends |= dict.fromkeys(link.finish(due), due)
    return [ends[number] for number in range(len(starts))]


def test_two_at_once_share_and_the_first_done_leaves_the_rest():
    # 10 bytes/s. 10 and 30 bytes: 5 each per second, so the first ends at 2 s; the second has 20 left, at full rate.
    assert run(SharedLink(LinkSpec("ten", 10)), [(0, 10), (0, 30)]) == [2 * S, 4 * S]


def test_a_late_one_slows_an_early_one():
    # Alone for 1 s (10 of 20 bytes), then half the rate for 2 s. The late one gets its other 10 bytes alone.
    assert run(SharedLink(LinkSpec("ten", 10)), [(0, 20), (S, 20)]) == [3 * S, 4 * S]


def test_alone_it_is_the_cost_models_formula():
    link = get_link("net-100g")
    assert run(SharedLink(link), [(0, 10**9)])[0] == pytest.approx(S * transfer_s(10**9, link), abs=2)
    assert SharedLink(link).estimate_ns(10**9) == round(S * transfer_s(10**9, link))


def test_the_estimate_counts_those_under_way():
    link = SharedLink(LinkSpec("ten", 10))
    link.start(0, 100, "a")
    assert (link.num_running, link.estimate_ns(10)) == (1, 2 * S)


@settings(derandomize=True, deadline=None, max_examples=80)
@given(starts=st.lists(st.tuples(st.integers(0, 5 * S), st.integers(1, 10**6)), min_size=1, max_size=8))
def test_conservation_and_causality(starts):  # L1, L5
    rate = 10**5
    ends = run(SharedLink(LinkSpec("any", rate)), starts)
    total = sum(size for _, size in starts)
    for (time, size), end in zip(starts, ends):
        alone = size * S / rate
        assert time + alone - 20_000 <= end <= time + total * S / rate + 20_000  # a byte is 10,000 ns here
    # The link is busy without a break from the first start to the last end if all start at once.
    together = run(SharedLink(LinkSpec("any", rate)), [(0, size) for _, size in starts])
    assert max(together) == pytest.approx(total * S / rate, abs=20_000)
    assert [e for _, e in sorted(zip([s for _, s in starts], together))] == sorted(together)


def test_no_bandwidth_is_refused():
    with pytest.raises(ValueError, match="bytes_per_s"):
        LinkSpec("none", 0)
