"""The block manager, verb by verb: the paper's figures, the oracles, the cases, and every refusal."""

import pickle

import pytest

from kvlib.blocks import BlockManager
from kvlib.errors import ConfigError, OutOfBlocks, UnknownSequence


def test_figure_6_of_the_paper():
    """Oracle L7.blocks.fig6: ceil(7/4), ceil(8/4), ceil(9/4) blocks."""
    manager = BlockManager(num_blocks=8, block_size=4)
    manager.allocate("a", 7)
    held = [len(manager.block_table("a"))]
    for _ in range(2):
        manager.append("a")
        held.append(len(manager.block_table("a")))
    assert held == [2, 2, 3]


def test_at_most_one_slot_less_than_a_block_is_wasted():
    """Oracle L7.blocks.maxwaste: block 16, all lengths 1..2048, at most 15 slots."""
    waste = []
    for num_tokens in range(1, 2049):
        manager = BlockManager(num_blocks=128, block_size=16)
        manager.allocate("a", num_tokens)
        waste.append(16 * len(manager.block_table("a")) - num_tokens)
    assert max(waste) == 15


@pytest.mark.parametrize("num_samples", range(2, 9))
@pytest.mark.parametrize("prompt, copies_per_sample", [(100, 1), (96, 0)])
def test_parallel_samples_copy_a_partial_last_block_n_minus_1_times(num_samples, prompt, copies_per_sample):
    """Oracle L7.cow.nminus1: n - 1 copies for a prompt of 100 at block 16; none for 96 = 6 whole blocks."""
    manager = BlockManager(num_blocks=100, block_size=16)
    manager.allocate(0, prompt)
    for sample in range(1, num_samples):
        manager.fork(0, sample)
    for sample in range(num_samples):
        manager.append(sample)
    assert len(manager.take_copies()) == (num_samples - 1) * copies_per_sample


@pytest.mark.parametrize("num_samples, blocks", [(2, 12), (4, 18), (8, 30)])
def test_blocks_of_parallel_samples(num_samples, blocks):
    """Oracle L7.par.blocks: prompt 100, 40 tokens each, block 16: 6 shared + 3 for each sample."""
    manager = BlockManager(num_blocks=100, block_size=16)
    manager.allocate(0, 100)
    for sample in range(1, num_samples):
        manager.fork(0, sample)
    for _ in range(40):
        for sample in range(num_samples):
            manager.append(sample)
        manager.take_copies()
    assert manager.num_blocks - manager.num_free == blocks


def test_C02_planner_and_allocator_agree_around_every_multiple():
    for block_size in (1, 4, 16):
        for num_tokens in range(1, 4 * block_size + 1):
            for more in range(1, 2 * block_size + 2):
                for is_shared in (False, True):
                    manager = BlockManager(20, block_size)
                    planned = manager.blocks_for(num_tokens)
                    manager.allocate("a", num_tokens)
                    assert manager.num_free == 20 - planned
                    if is_shared:
                        manager.fork("a", "b")
                    planned += manager.blocks_to_append("a", more)
                    manager.append("a", more)
                    assert manager.num_free == 20 - planned
                    # Independently: everyone's own blocks, and those still shared counted once.
                    held = {
                        block for seq in ("a", "b")[: 1 + is_shared] for block in manager.block_table(seq)
                    }
                    assert planned == len(held)


def test_C04_growing_adds_the_difference_and_a_known_sequence_is_refused():
    manager = BlockManager(num_blocks=50, block_size=16)
    manager.allocate("a", 100)
    assert manager.num_free == 50 - 7  # ceil(100/16)
    manager.append("a", 100)
    assert manager.num_free == 50 - 13  # ceil(200/16)
    with pytest.raises(ConfigError, match="known already"):
        manager.allocate("a", 10)
    assert manager.num_free == 50 - 13


@pytest.mark.parametrize("fail", [lambda m: m.allocate("b", 6 * 16), lambda m: m.append("a", 6 * 16)])
def test_C05_a_failure_half_way_leaks_nothing(fail):
    manager = BlockManager(num_blocks=5, block_size=16)
    manager.allocate("a", 16)  # 4 blocks are left, 6 are asked for
    before = pickle.dumps(manager)
    with pytest.raises(OutOfBlocks):
        fail(manager)
    assert pickle.dumps(manager) == before


def test_the_source_of_a_pending_copy_is_not_reused_before_take_copies():
    manager = BlockManager(num_blocks=3, block_size=4)
    manager.allocate("parent", 2)
    manager.fork("parent", "child")
    manager.append("child")
    [source], [destination] = manager.block_table("parent"), manager.block_table("child")
    manager.free("parent")
    assert manager.num_free == 1
    manager.allocate("other", 4)
    assert source not in manager.block_table("other")
    assert manager.take_copies() == [(source, destination)]
    assert manager.num_free == 1
    manager.allocate("last", 4)
    assert manager.block_table("last") == [source]


def test_a_pending_copy_is_dropped_when_its_destination_is_freed():
    manager = BlockManager(num_blocks=3, block_size=4)
    manager.allocate("parent", 2)
    manager.fork("parent", "child")
    manager.append("child")
    manager.free("parent")
    manager.free("child")
    assert manager.num_free == 3
    assert manager.take_copies() == []


def test_chained_copies_all_come_from_the_first_source():
    """So that one batch may run them in any order: b's block waits for its own copy when c copies it."""
    manager = BlockManager(num_blocks=4, block_size=4)
    manager.allocate("a", 1)
    manager.fork("a", "b")
    manager.append("b")
    manager.fork("b", "c")
    manager.append("c")
    [a], [b], [c] = (manager.block_table(seq) for seq in "abc")
    assert manager.take_copies() == [(a, b), (a, c)]


def test_swapping_out_a_shared_block_leaves_it_to_the_others():
    manager = BlockManager(num_blocks=4, block_size=4)
    manager.allocate("a", 8)
    manager.fork("a", "b")
    shared = manager.block_table("a")
    pairs = manager.swap_out("b")
    assert [gpu for gpu, _ in pairs] == shared == manager.block_table("a")
    assert manager.num_free == 2
    assert manager.num_tokens("b") == 8
    back = manager.swap_in("b")
    assert [host for host, _ in back] == [host for _, host in pairs]
    assert set(manager.block_table("b")).isdisjoint(shared)


def test_a_block_that_waits_for_its_copy_is_swapped_out_from_the_source():
    manager = BlockManager(num_blocks=4, block_size=4)
    manager.allocate("a", 2)
    manager.fork("a", "b")
    manager.append("b")
    [(gpu, _)] = manager.swap_out("b")
    assert [gpu] == manager.block_table("a")
    assert manager.take_copies() == []


def test_a_full_host_refuses_and_an_unlimited_one_grows():
    finite, unlimited = BlockManager(8, 4, num_host_blocks=1), BlockManager(8, 4)
    for manager in (finite, unlimited):
        manager.allocate("a", 8)
    before = pickle.dumps(finite)
    with pytest.raises(OutOfBlocks):
        finite.swap_out("a")
    assert pickle.dumps(finite) == before
    assert len(unlimited.swap_out("a")) == 2
    assert (finite.num_free_host, unlimited.num_free_host) == (1, None)


def test_a_full_gpu_refuses_to_swap_in_and_the_sequence_stays_on_the_host():
    manager = BlockManager(num_blocks=2, block_size=4)
    manager.allocate("a", 8)
    manager.swap_out("a")
    manager.allocate("b", 1)
    before = pickle.dumps(manager)
    with pytest.raises(OutOfBlocks):
        manager.swap_in("a")
    assert pickle.dumps(manager) == before
    manager.free("a")  # a swapped-out sequence can be given up, too
    manager.check_integrity()


@pytest.mark.parametrize(
    "arguments", [(0, 16), (8, 0), (-1, 16), (8, -1), (8.0, 16), (8, "16"), (True, 16), (8, 4, -1)]
)
def test_impossible_sizes_are_refused_by_name(arguments):
    with pytest.raises(ConfigError, match="num_blocks|block_size|num_host_blocks"):
        BlockManager(*arguments)


@pytest.mark.parametrize(
    "call",
    [
        lambda m: m.allocate("new", 0),
        lambda m: m.allocate("new", -5),
        lambda m: m.allocate("new", 2.0),
        lambda m: m.append("a", 0),
        lambda m: m.append("a", True),
        lambda m: m.append("nobody"),
        lambda m: m.append("swapped"),
        lambda m: m.fork("nobody", "child"),
        lambda m: m.fork("a", "swapped"),
        lambda m: m.fork("a", "a"),
        lambda m: m.free("nobody"),
        lambda m: m.swap_out("swapped"),
        lambda m: m.swap_in("a"),
        lambda m: m.block_table("swapped"),
        lambda m: m.num_tokens("nobody"),
        lambda m: m.allocate("swapped", 4),
    ],
)
def test_a_refused_call_changes_nothing(call):
    manager = BlockManager(num_blocks=8, block_size=4)
    manager.allocate("a", 4)
    manager.allocate("swapped", 4)
    manager.swap_out("swapped")
    before = pickle.dumps(manager)
    with pytest.raises((ConfigError, UnknownSequence)):
        call(manager)
    assert pickle.dumps(manager) == before


def test_freeing_twice_is_refused():
    manager = BlockManager(num_blocks=2, block_size=4)
    manager.allocate("a", 4)
    manager.free("a")
    with pytest.raises(UnknownSequence):
        manager.free("a")


def test_the_returned_table_is_a_copy():
    manager = BlockManager(num_blocks=2, block_size=4)
    manager.allocate("a", 4)
    manager.block_table("a").clear()
    manager.check_integrity()
