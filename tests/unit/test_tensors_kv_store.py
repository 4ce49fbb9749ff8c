"""The store follows the block manager: whatever is forked, copied, freed or swapped, every sequence reads its
own rows."""

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kvlib.blocks import BlockManager
from kvlib.errors import ConfigError, OutOfBlocks, UnknownSequence
from kvlib.tensors.backend import NumpyBackend, TorchBackend
from kvlib.tensors.cache import PagedCache
from kvlib.tensors.kv_store import KvStore

XP = NumpyBackend()


def store_of(xp=XP, num_blocks=12, block_size=3, num_layers=2):
    return KvStore(xp, num_layers=num_layers, num_blocks=num_blocks, block_size=block_size, kv_heads=2, head_dim=1)


class StoreMachine(RuleBasedStateMachine):
    """Each token is a number of its own; the model of a sequence is the plain list of its numbers."""

    def __init__(self):
        super().__init__()
        self.manager, self.store = BlockManager(12, 3), store_of()
        self.store.keys[...] = self.store.values[...] = np.nan
        self.numbers, self.swapped, self.next_number, self.next_seq = {}, {}, 1, 0

    def feed(self, new):
        """Append ``new[seq]`` tokens to each sequence of one batch, or show that nothing changed."""
        cache = PagedCache(self.manager, self.store, list(new))
        before = {seq: self.manager.num_tokens(seq) for seq in self.numbers}
        try:
            cache.extend(list(new.values()))
        except OutOfBlocks:
            assert {seq: self.manager.num_tokens(seq) for seq in self.numbers} == before
            return
        rows = []
        for seq, count in new.items():
            fresh = [self.next_number + i for i in range(count)]
            self.next_number += count
            self.numbers[seq] = self.numbers.get(seq, []) + fresh
            rows += fresh
        both_heads = XP.floats([[[n], [-n]] for n in rows])
        for layer in range(2):
            cache.write(layer, both_heads, both_heads + 0.5 + layer)

    @rule(count=st.integers(1, 7))
    def new_sequence(self, count):
        self.next_seq += 1
        self.feed({self.next_seq: count})

    @precondition(lambda self: self.numbers)
    @rule(data=st.data(), count=st.integers(1, 4))
    def grow_a_batch(self, data, count):
        seqs = data.draw(st.lists(st.sampled_from(sorted(self.numbers)), min_size=1, unique=True))
        self.feed(dict.fromkeys(seqs, count))

    @precondition(lambda self: self.numbers)
    @rule(data=st.data())
    def fork(self, data):
        parent = data.draw(st.sampled_from(sorted(self.numbers)))
        self.next_seq += 1
        self.manager.fork(parent, self.next_seq)
        self.numbers[self.next_seq] = list(self.numbers[parent])

    @precondition(lambda self: self.numbers)
    @rule(data=st.data())
    def free(self, data):
        seq = data.draw(st.sampled_from(sorted(self.numbers)))
        self.manager.free(seq)
        del self.numbers[seq]

    @precondition(lambda self: self.numbers)
    @rule(data=st.data())
    def swap_out(self, data):
        seq = data.draw(st.sampled_from(sorted(self.numbers)))
        self.store.swap_out(self.manager.swap_out(seq))
        self.swapped[seq] = self.numbers.pop(seq)

    @precondition(lambda self: self.swapped)
    @rule(data=st.data())
    def swap_in(self, data):
        seq = data.draw(st.sampled_from(sorted(self.swapped)))
        try:
            self.store.swap_in(self.manager.swap_in(seq))
        except OutOfBlocks:
            return
        self.numbers[seq] = self.swapped.pop(seq)

    @invariant()
    def every_sequence_reads_its_own_rows(self):
        self.manager.check_integrity()
        for seq, numbers in self.numbers.items():
            for layer in range(2):
                keys, values = self.store.gather(layer, self.manager.block_table(seq), len(numbers))
                assert keys[:, 0, 0].tolist() == numbers and keys[:, 1, 0].tolist() == [-n for n in numbers]
                assert values[:, 0, 0].tolist() == [n + 0.5 + layer for n in numbers]


StoreMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None, derandomize=True)
TestStore = StoreMachine.TestCase


def filled(xp):
    store = store_of(xp)
    rows = xp.floats(np.random.default_rng(0).standard_normal((36, 2, 1)))
    for layer in range(2):
        store.write(layer, range(36), rows + layer, rows - layer)
    return store


@pytest.mark.parametrize("xp", [NumpyBackend(), TorchBackend(), TorchBackend("bfloat16")], ids=["numpy", "torch", "bf16"])
def test_shuffling_memory_and_the_table_changes_nothing(xp):
    store, table = filled(xp), [7, 2, 5]
    before = [xp.to_list(rows) for rows in store.gather(1, table, 8)]
    new_place = [(block * 5 + 1) % 12 for block in range(12)]
    store.move_blocks(new_place)
    assert [xp.to_list(rows) for rows in store.gather(1, [new_place[block] for block in table], 8)] == before


@pytest.mark.parametrize("xp", [NumpyBackend("float32"), TorchBackend("float16")], ids=["numpy", "torch"])
def test_swap_restores_every_bit(xp):
    store = filled(xp)
    before = [xp.to_list(rows) for rows in store.gather(0, [3, 4], 6)]
    store.swap_out([(3, 0), (4, 9)])
    store.swap_in([(9, 1), (0, 8)])
    assert [xp.to_list(rows) for rows in store.gather(0, [8, 1], 6)] == before


def test_one_worker_of_two_holds_a_slice_under_the_same_table():
    store = filled(XP)
    keys, _ = store.gather(0, [7, 2], 5)
    worker = KvStore(XP, num_layers=2, num_blocks=12, block_size=3, kv_heads=1, head_dim=1)
    worker.keys, worker.values = store.keys[:, 1:], store.values[:, 1:]
    assert worker.gather(0, [7, 2], 5)[0].tolist() == keys[:, 1:].tolist()


def test_oracle_53_tokens_in_4_blocks():
    # L7 / PAGE-7: ceil(53 / 16) = 4; token 52 is the fifth (offset 4) of the fourth block: 9 · 16 + 4 = 148.
    manager, store = BlockManager(16, 16), store_of(num_blocks=16, block_size=16)
    manager.allocate("a", 53)
    assert len(manager.block_table("a")) == 4
    assert store.slots([3, 7, 1, 9], [0, 16, 52]) == [48, 112, 148]


@pytest.mark.parametrize(
    "attempt",
    [
        lambda s: s.write(0, [0], XP.floats(np.ones((1, 3, 1))), XP.floats(np.ones((1, 3, 1)))),
        lambda s: s.write(0, [0], np.ones((1, 2, 1), np.float32), np.ones((1, 2, 1), np.float32)),
        lambda s: s.write(0, [36], XP.floats(np.ones((1, 2, 1))), XP.floats(np.ones((1, 2, 1)))),
        lambda s: s.write(2, [0], XP.floats(np.ones((1, 2, 1))), XP.floats(np.ones((1, 2, 1)))),
        lambda s: s.copy_blocks([(0, 12)]),
        lambda s: s.swap_out([(12, 0)]),
        lambda s: s.swap_in([(5, 0)]),
        lambda s: s.slots([0], [3]),
        lambda s: s.move_blocks([0] * 12),
    ],
    ids=["heads", "dtype", "slot", "layer", "copy", "swap out", "swap in", "position", "shuffle"],
)
def test_bad_input_leaves_the_store_unchanged(attempt):
    store = filled(XP)
    before = store.keys.copy(), store.values.copy()
    with pytest.raises(ConfigError):
        attempt(store)
    assert (store.keys == before[0]).all() and (store.values == before[1]).all()


@pytest.mark.parametrize("size", ["num_layers", "num_blocks", "block_size", "kv_heads", "head_dim"])
@pytest.mark.parametrize("value", [0, -1, True, 1.0])
def test_sizes_must_be_positive_whole_numbers(size, value):
    sizes = dict(num_layers=1, num_blocks=2, block_size=2, kv_heads=1, head_dim=1) | {size: value}
    with pytest.raises(ConfigError, match=size):
        KvStore(XP, **sizes)


def test_misuse_of_a_batch():
    manager, store = BlockManager(12, 3), store_of()
    for seqs in ([], ["a", "a"]):
        with pytest.raises(ConfigError, match="seqs"):
            PagedCache(manager, store, seqs)
    with pytest.raises(ConfigError, match="store"):
        PagedCache(BlockManager(12, 4), store, ["a"])
    cache = PagedCache(manager, store, ["a", "b"])
    for counts in ([1], [1, 0], [1, True]):
        with pytest.raises(ConfigError, match="counts"):
            cache.extend(counts)
    with pytest.raises(OutOfBlocks):
        cache.extend([30, 9])
    assert manager.num_free == 12 and cache.lengths == [0, 0]
    cache.extend([1, 1])
    manager.free("a")
    for attempt in (lambda: manager.free("a"), lambda: manager.fork("a", "c")):
        with pytest.raises(UnknownSequence):
            attempt()
    manager.swap_out("b")
    with pytest.raises(UnknownSequence):
        cache.extend([1, 1])
    assert manager.num_free == 12


def test_exactly_enough_blocks_for_siblings_is_enough():
    # Two siblings in one half-full block: the first writer copies it, the last keeps it, so one free block is
    # enough.
    manager, store = BlockManager(2, 4), store_of(num_blocks=2, block_size=4)
    manager.allocate("a", 2)
    manager.fork("a", "b")
    cache = PagedCache(manager, store, ["a", "b"])
    cache.extend([1, 1])
    assert cache.copied_blocks == 1 and manager.num_free == 0
