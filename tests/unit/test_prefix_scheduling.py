"""Longest prefix first: its bound (law L5), first come first served as its special case, and its optimum."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvlib.errors import ConfigError, OutOfBlocks
from kvlib.prefix.scheduling import LongestPrefixFirst, Prompt, serve

BLOCK = 4
QUIET = settings(derandomize=True, deadline=None, max_examples=60)


def tokens_of(path):
    """Equal path beginnings give equal blocks; one more token lets the last block be a hit, too."""
    return tuple(10 * step + offset for step in path for offset in range(BLOCK)) + (9,)


paths = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=4), min_size=1, max_size=9)
queues = st.lists(
    st.tuples(st.lists(st.integers(0, 2), min_size=1, max_size=4), st.integers(0, 8)), min_size=1, max_size=10
)


def arriving(queue):
    ordered = sorted(queue, key=lambda entry: entry[1])
    return [Prompt(name, tokens_of(path), after) for name, (path, after) in enumerate(ordered)]


@QUIET
@given(queues, st.integers(0, 5), st.integers(6, 20))
def test_no_request_is_overtaken_more_often_than_the_bound(queue, bound, room):
    """Law L5, the ageing bound; and every request is served once (L1)."""
    prompts = arriving(queue)
    served = serve(prompts, room, BLOCK, bound)
    assert sorted(one.name for one in served) == list(range(len(prompts)))
    assert max(one.overtaken for one in served) <= bound


@QUIET
@given(queues, st.integers(0, 5))
def test_overtaken_counts_the_younger_ones_served_first(queue, bound):
    served = serve(arriving(queue), 20, BLOCK, bound)
    for place, one in enumerate(served):
        # Names grow with the order of arrival.
        assert one.overtaken == sum(other.name > one.name for other in served[:place])


@QUIET
@given(queues)
def test_a_bound_of_zero_is_first_come_first_served(queue):
    prompts = arriving(queue)
    assert [one.name for one in serve(prompts, 20, BLOCK, 0)] == list(range(len(prompts)))


@QUIET
@given(paths)
def test_without_bound_every_edge_is_computed_once_in_a_cache_as_large_as_the_longest_prompt(queue):
    """SGLang, theorem 3.1: depth first is optimal. Here every different block is computed exactly once."""
    prompts = [Prompt(name, tokens_of(path)) for name, path in enumerate(queue)]
    served = serve(prompts, max(len(path) for path in queue) + 1, BLOCK, None)
    different = {tuple(path[:depth]) for path in queue for depth in range(1, len(path) + 1)}
    total = sum(len(path) for path in queue)
    assert sum(one.hit_tokens for one in served) == BLOCK * (total - len(different))


def test_two_documents_that_take_turns():
    # Two documents of 2 blocks, a cache of 3 (a document and a question). In order of arrival each is
    # evicted before it returns: 0 hits. Grouped, the second question of each finds 8 tokens: 16.
    queue = [Prompt(i, tuple(range(100 * (i % 2), 100 * (i % 2) + 8)) + (500 + i,)) for i in range(4)]
    order, hits = zip(*((one.name, one.hit_tokens) for one in serve(queue, 3, BLOCK, None)))
    assert (order, hits) == ((0, 2, 1, 3), (0, 8, 0, 8))
    assert [one.hit_tokens for one in serve(queue, 3, BLOCK, 0)] == [0, 0, 0, 0]


def test_without_a_bound_a_request_that_shares_nothing_starves():
    """A demonstration: as long as questions about the cached document keep coming, the stranger waits."""
    stream = [Prompt("first", tokens_of((1, 1))), Prompt("stranger", tokens_of((2, 2)))]
    stream += [Prompt(number, tokens_of((1, 1)), arrives_after=number) for number in range(50)]
    assert serve(stream, 8, BLOCK, None)[-1].name == "stranger"
    assert serve(stream, 8, BLOCK, 7)[1 + 7].name == "stranger"


def test_an_empty_queue_takes_the_next_arrival():
    served = serve([Prompt("late", (1, 2, 3), arrives_after=99)], 2, BLOCK, 0)
    assert [one.name for one in served] == ["late"]


def test_the_bound_decides_without_looking_at_the_cache():
    def forbidden(name):
        raise AssertionError("asked")

    assert LongestPrefixFirst(0).pick(["old", "young"], forbidden) == 0


@pytest.mark.parametrize("bound", [-1, 1.0, "2", True, float("nan")])
def test_a_bad_bound_is_refused(bound):
    with pytest.raises(ConfigError, match="max_overtaken"):
        LongestPrefixFirst(bound)


def test_a_prompt_larger_than_the_cache_is_refused():
    with pytest.raises(OutOfBlocks, match="blocks"):
        serve([Prompt(0, tokens_of((1, 1, 1)))], 2, BLOCK, 0)
