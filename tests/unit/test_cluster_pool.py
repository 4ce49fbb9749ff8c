"""Block pools: caches without holes, the directory, and the two tiers."""

from types import SimpleNamespace as Space

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from kvlib.cluster import BlockPool, TieredHits, TieredPool, mean_fetch_s, replay_tiers
from kvlib.errors import ConfigError
from kvlib.prefix import lru_hit_ratios, replay

QUICK = settings(derandomize=True, deadline=None, max_examples=60)


def prompt(seed_path):
    """Block ids that say their whole prefix, as real ones do: the path's beginnings, numbered."""
    ids, node = [], 1
    for branch in seed_path:
        node = node * 4 + branch
        ids.append(node)
    return tuple(ids)


PATHS = st.lists(st.integers(0, 2), min_size=1, max_size=6).map(prompt)


class PoolAgainstPlainLists(RuleBasedStateMachine):
    """The pool against one list per instance, searched the slow way: one look-up per block and instance."""

    INSTANCES, BLOCKS = 3, 5

    def __init__(self):
        super().__init__()
        self.pool = BlockPool(self.INSTANCES, self.BLOCKS)
        self.caches = [[] for _ in range(self.INSTANCES)]  # least recently used first
        self.offered = [set() for _ in range(self.INSTANCES)]

    @rule(instance=st.integers(0, 2), blocks=PATHS)
    def store(self, instance, blocks):
        self.pool.store(instance, blocks)
        cache = self.caches[instance]
        for block in reversed(blocks[: self.BLOCKS]):
            if block in cache:
                cache.remove(block)
            cache.append(block)
        del cache[: max(0, len(cache) - self.BLOCKS)]
        self.offered[instance] &= set(cache)

    @rule(instance=st.integers(0, 2), blocks=PATHS)
    def offer(self, instance, blocks):
        self.pool.offer(instance, blocks)
        self.offered[instance] |= set(blocks[: _leading(blocks, self.caches[instance])])

    @rule(blocks=PATHS)
    def match(self, blocks):
        matches = self.pool.match(blocks)
        assert matches.held == [_leading(blocks, cache) for cache in self.caches]
        assert matches.offered == [_leading(blocks, offered) for offered in self.offered]

    @invariant()
    def no_holes(self):  # L7: a tail is evicted before its head
        for index, cache in enumerate(self.caches):
            assert all(block // 4 in cache or block // 4 == 1 for block in cache), "a block without its prefix"
            assert self.pool.num_cached(index) == len(cache)
            assert self.pool.num_shared(index) == sum(sum(b in c for c in self.caches) > 1 for b in cache)

    @invariant()
    def integrity(self):
        self.pool.check_integrity()


def _leading(blocks, held):
    return next((depth for depth, block in enumerate(blocks) if block not in held), len(blocks))


TestPoolAgainstPlainLists = PoolAgainstPlainLists.TestCase
TestPoolAgainstPlainLists.settings = settings(QUICK, max_examples=40, stateful_step_count=25)


@QUICK
@given(paths=st.lists(PATHS, min_size=1, max_size=30), capacity=st.integers(6, 20))
def test_one_instance_is_the_prefix_librarys_lru(paths, capacity):
    """Fed each prompt as "what is here, then everything from the tail", that LRU finds the same blocks.

    Every reused block is then referenced, and found, twice.
    """
    pool, reused, references = BlockPool(1, capacity), 0, []
    for blocks in paths:
        here = pool.match(blocks).held[0]
        reused += here
        references.append(Space(block_ids=blocks[:here] + blocks[::-1]))
        pool.store(0, blocks)
    assert 2 * reused == replay(Space(requests=references), capacity).hits


def test_an_offer_ends_with_its_eviction():
    pool = BlockPool(2, 2)
    pool.store(0, (1, 2))
    pool.offer(0, (1, 2))
    pool.store(0, (3, 4))
    assert pool.match((1, 2)).offered == [0, 0]
    pool.store(0, (1, 2))
    assert (pool.match((1, 2)).held, pool.match((1, 2)).offered) == ([2, 0], [0, 0])


def test_of_a_prompt_longer_than_the_cache_the_head_is_kept():
    pool = BlockPool(1, 3)
    pool.store(0, (1, 2, 3, 4, 5))
    assert pool.match((1, 2, 3, 4, 5)).held == [3]


@pytest.mark.parametrize("bad", [0, -1, 1.0, True, "8", None])
def test_bad_sizes_are_refused_by_name(bad):
    with pytest.raises(ConfigError, match="instances"):
        BlockPool(bad, 10)
    with pytest.raises(ConfigError, match="cache_blocks"):
        BlockPool(8, bad)
    with pytest.raises(ConfigError, match="dram_blocks"):
        TieredPool(bad, 10)


# --- DRAM above SSD ---


@QUICK
@given(
    paths=st.lists(PATHS, min_size=1, max_size=30), dram=st.integers(1, 8), ssd=st.integers(0, 8)
)
def test_two_tiers_are_one_lru_with_a_line_across(paths, dram, ssd):
    trace = Space(requests=[Space(block_ids=blocks) for blocks in paths])
    hits = replay_tiers(trace, dram, ssd)
    assert [hits.dram_hits / hits.references, hits.hit_ratio] == lru_hit_ratios(trace, [dram, dram + ssd])


def test_every_block_that_leaves_dram_is_written_once():
    # Five different blocks through one slot of DRAM: four have sunk, two of them are still on the SSD.
    pool = TieredPool(1, 2)
    assert [pool.reference(block) for block in (1, 2, 3, 4, 5)] == ["miss"] * 5
    assert pool.ssd_writes == 4
    assert [pool.reference(block) for block in (4, 1)] == ["ssd", "miss"]


def test_without_an_ssd_nothing_is_written():
    pool = TieredPool(1, 0)
    assert [pool.reference(block) for block in (1, 2, 1)] == ["miss"] * 3
    assert pool.ssd_writes == 0


def test_mean_time_by_hand():
    # 10 references: 4 × 1 + 2 × 3 + 4 × 10 = 50 seconds
    assert mean_fetch_s(TieredHits(10, 4, 2, 0), 1.0, 3.0, 10.0) == 5.0
