"""Eviction policies against their definitions, written out as a search over the cached blocks; law L7."""

from functools import cache as memoize
from types import SimpleNamespace as Space

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvlib.prefix import replay
from kvlib.prefix.eviction import POLICIES

PROMPTS = st.lists(st.lists(st.integers(0, 6), min_size=1, max_size=5, unique=True), min_size=1, max_size=14)
CAPACITIES = st.integers(1, 6)


def trace_of(prompts):
    return Space(requests=[Space(block_ids=tuple(prompt)) for prompt in prompts])


def victim_by_definition(policy, cached, past, future):
    """Return the cached block that the definition in ../shared/data/README.md gives up.

    ``past`` holds all (block, depth) references so far; ``future`` the blocks still to come; ``cached``
    maps each block to the time it came in.
    """

    def last_use(block):
        return max(time for time, (other, _) in enumerate(past) if other == block)

    def count_since(block, start):
        return sum(other == block for other, _ in past[start:])

    def depth(block):
        return past[last_use(block)][1]

    def next_use(block):
        return future.index(block) if block in future else len(future)

    keys = {
        "lru": last_use,
        "fifo": lambda block: cached[block],
        "lfu": lambda block: (count_since(block, cached[block]), last_use(block)),
        "lfu_kept": lambda block: (count_since(block, 0), last_use(block)),
        "length_aware": lambda block: (count_since(block, cached[block]), -depth(block), last_use(block)),
        "belady": lambda block: (-next_use(block), last_use(block)),
    }
    return min(cached, key=keys[policy])


def hits_by_definition(policy, prompts, capacity):
    references = [(block, depth) for prompt in prompts for depth, block in enumerate(prompt)]
    cached, hits = {}, 0
    for time, (block, _) in enumerate(references):
        if block in cached:
            hits += 1
            continue
        if len(cached) == capacity:
            future = [other for other, _ in references[time:]]
            del cached[victim_by_definition(policy, cached, references[:time], future)]
        cached[block] = time
    return hits


@pytest.mark.parametrize("policy", POLICIES)
@settings(derandomize=True, deadline=None, max_examples=60)
@given(prompts=PROMPTS, capacity=CAPACITIES)
def test_policy_follows_its_definition(policy, prompts, capacity):
    assert replay(trace_of(prompts), capacity, policy).hits == hits_by_definition(policy, prompts, capacity)


@settings(derandomize=True, deadline=None, max_examples=100)
@given(prompts=PROMPTS, capacity=CAPACITIES)
def test_no_policy_hits_more_than_belady(prompts, capacity):  # L7
    trace = trace_of(prompts)
    ceiling = replay(trace, capacity, "belady").hits
    assert all(0 <= replay(trace, capacity, policy).hits <= ceiling for policy in POLICIES)


@settings(derandomize=True, deadline=None, max_examples=40)
@given(references=st.lists(st.integers(0, 4), min_size=1, max_size=12), capacity=st.integers(1, 3))
def test_belady_is_the_best_of_all_choices(references, capacity):
    @memoize
    def best(position, cached):
        if position == len(references):
            return 0
        block = references[position]
        if block in cached:
            return 1 + best(position + 1, cached)
        if len(cached) < capacity:
            return best(position + 1, cached | {block})
        return max(best(position + 1, cached - {victim} | {block}) for victim in cached)

    trace = trace_of([[block] for block in references])
    assert replay(trace, capacity, "belady").hits == best(0, frozenset())


@settings(derandomize=True, deadline=None, max_examples=60)
@given(prompts=PROMPTS)
def test_a_larger_lru_never_hits_less(prompts):  # L7
    hits = [replay(trace_of(prompts), capacity, "lru").hits for capacity in (1, 2, 3, 4, 5, 6, 7, None)]
    assert hits == sorted(hits)


def test_a_larger_fifo_can_hit_less():
    # Belady's anomaly, the textbook sequence: 9 misses with 3 blocks, 10 with 4. LRU has no such trace.
    trace = trace_of([[block] for block in (1, 2, 3, 4, 1, 2, 5, 1, 2, 3, 4, 5)])
    assert [replay(trace, capacity, "fifo").hits for capacity in (3, 4)] == [12 - 9, 12 - 10]


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_agrees_when_nothing_is_evicted(policy):
    trace = trace_of([[1, 2, 3], [1, 2, 4], [5], [1, 2, 3]])
    # 10 references to 5 different blocks
    assert replay(trace, None, policy).hits == replay(trace, 5, policy).hits == 5
