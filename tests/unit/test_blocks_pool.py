"""The block pool: law L2 on its own, and the order in which free blocks are reused."""

import pickle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvlib.blocks import BlockPool
from kvlib.errors import ConfigError, OutOfBlocks

operations = st.lists(
    st.tuples(st.sampled_from(["take", "share", "release", "revive"]), st.integers(0, 7)), max_size=60
)


@settings(derandomize=True, deadline=None, max_examples=150)
@given(operations)
def test_L2_free_plus_held_is_total_and_nothing_is_freed_twice(calls):
    pool, model = BlockPool(6), dict.fromkeys(range(6), 0)  # block -> references we know we hold
    for verb, number in calls:
        before = pickle.dumps(pool)
        try:
            if verb == "take":
                for block in pool.take(number):
                    assert model[block] == 0
                    model[block] = 1
            elif verb == "share":
                pool.share(number)
                model[number] += 1
            elif verb == "revive":
                pool.revive(number)
                model[number] = 1
            else:
                pool.release([number])
                model[number] -= 1
        except (ConfigError, OutOfBlocks):
            assert pickle.dumps(pool) == before
        assert [pool.refcount(block) for block in range(6)] == list(model.values())
        assert pool.num_free == list(model.values()).count(0)
        pool.check_integrity()


def test_blocks_are_reused_least_recently_released_first():
    pool = BlockPool(4)
    pool.take(4)
    pool.release([2, 0])
    pool.release([3])
    assert pool.take(3) == [2, 0, 3]


def test_reuse_first_puts_blocks_in_front_of_the_queue():
    pool = BlockPool(4)
    pool.take(3)  # 3 stays free
    pool.release([1], reuse_first=True)
    pool.release([0])
    assert pool.free_blocks() == [1, 3, 0]


def test_revive_takes_a_block_out_of_the_middle_of_the_queue():
    pool = BlockPool(4)
    pool.revive(2)
    assert pool.free_blocks() == [0, 1, 3]
    assert pool.refcount(2) == 1


def test_grow_adds_free_blocks_at_the_back():
    pool = BlockPool(0)
    with pytest.raises(OutOfBlocks):
        pool.take(1)
    pool.grow(2)
    assert (pool.num_blocks, pool.take(2)) == (2, [0, 1])


@pytest.mark.parametrize(
    "call",
    [
        lambda pool: pool.take(4),
        lambda pool: pool.share(2),
        lambda pool: pool.revive(0),
        lambda pool: pool.release([2]),
        lambda pool: pool.release([0, 2]),
        lambda pool: pool.release([0, 0]),
        lambda pool: pool.release([-1]),
        lambda pool: pool.release([0, 3]),
        lambda pool: pool.refcount(3),
        lambda pool: pool.take(-1),
        lambda pool: pool.take(1.0),
        lambda pool: pool.grow(-1),
    ],
)
def test_a_failed_call_changes_nothing(call):
    pool = BlockPool(3)
    pool.take(2)  # 0 and 1 are held, 2 is free
    before = pickle.dumps(pool)
    with pytest.raises((ConfigError, OutOfBlocks)):
        call(pool)
    assert pickle.dumps(pool) == before


def test_check_integrity_notices_a_block_that_is_held_and_free():
    pool = BlockPool(2)
    pool._refcounts[0] = 1
    with pytest.raises(AssertionError, match="disagree"):
        pool.check_integrity()
