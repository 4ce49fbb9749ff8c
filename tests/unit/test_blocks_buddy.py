"""The buddy allocator never overlaps, merges exactly a block's buddy, and freeing all restores the start."""

import pickle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kvlib.blocks import BuddyAllocator, next_power_of_two, split_into_arenas
from kvlib.errors import ConfigError, OutOfBlocks


class BuddyMachine(RuleBasedStateMachine):
    """A plain model of the memory: one owner per slot, and blocks found by scanning."""

    @initialize(num_slots=st.integers(1, 70))
    def start(self, num_slots):
        self.memory = BuddyAllocator(num_slots)
        self.at_start = self.memory.free_blocks()
        self.owner = [None] * num_slots

    @rule(num_slots=st.integers(1, 40))
    def allocate(self, num_slots):
        size = next_power_of_two(num_slots)
        fits = any(free >= size for _, free in self.memory.free_blocks())
        before = pickle.dumps(self.memory)
        try:
            start = self.memory.allocate(num_slots)
        except OutOfBlocks:
            assert not fits and pickle.dumps(self.memory) == before
            return
        assert fits and start % size == 0 and self.memory.size_of(start) == size
        assert self.owner[start : start + size] == [None] * size, "overlaps a held block"
        self.owner[start : start + size] = [start] * size

    @precondition(lambda self: self.memory.held_blocks())
    @rule(choice=st.integers(0, 1000))
    def free(self, choice):
        held = self.memory.held_blocks()
        start, size = held[choice % len(held)]
        free_before = set(self.memory.free_blocks())
        self.memory.free(start)
        self.owner[start : start + size] = [None] * size
        # Exactly the buddy merges, then the buddy of the pair, and so on: nothing else changes.
        while (start ^ size, size) in free_before:
            free_before.remove((start ^ size, size))
            start, size = min(start, start ^ size), 2 * size
        assert set(self.memory.free_blocks()) == free_before | {(start, size)}

    @invariant()
    def the_books_are_right(self):
        if not hasattr(self, "memory"):
            return
        self.memory.check_integrity()
        assert self.memory.num_free == self.owner.count(None)

    def teardown(self):
        if hasattr(self, "memory"):
            for start, _ in self.memory.held_blocks():
                self.memory.free(start)
            assert self.memory.free_blocks() == self.at_start


BuddyMachine.TestCase.settings = settings(
    derandomize=True, deadline=None, max_examples=60, stateful_step_count=30
)
TestBuddyLaws = BuddyMachine.TestCase


@given(st.integers(1, 10**6))
@settings(derandomize=True, deadline=None)
def test_arenas_tile_the_memory_aligned_and_largest_first(num_slots):
    arenas, end = split_into_arenas(num_slots), 0
    for start, size in arenas:
        assert start == end and size & (size - 1) == 0 and start % size == 0
        end += size
    assert end == num_slots
    assert [size for _, size in arenas] == sorted({size for _, size in arenas}, reverse=True)


def test_the_paper_memory_is_split_by_its_binary_digits():
    """12,596 = 8192 + 4096 + 256 + 32 + 16 + 4."""
    assert [size for _, size in split_into_arenas(12596)] == [8192, 4096, 256, 32, 16, 4]


def test_the_smallest_sufficient_block_is_taken_lowest_address_first():
    memory = BuddyAllocator(28)  # arenas of 16, 8 and 4
    assert [memory.allocate(size) for size in (4, 8, 2, 2)] == [24, 16, 0, 2]
    for start in (24, 0, 2):
        memory.free(start)
    memory.allocate(16)
    assert memory.free_blocks() == [(24, 4)]
    equal = BuddyAllocator(16)
    for _ in range(4):
        equal.allocate(4)
    equal.free(8)
    equal.free(0)
    assert equal.allocate(4) == 0


def test_six_requests_of_maximum_length_fit():
    """Oracle L7.slots.max6: floor(12596 / 2048); four in the arena of 8,192 and two in that of 4,096."""
    memory = BuddyAllocator(12596)
    for _ in range(6):
        memory.allocate(2048)
    with pytest.raises(OutOfBlocks):
        memory.allocate(2048)


def test_sizes_and_waste_of_three_requests():
    """Oracles L7.buddy.ex2, ex2.frac: 512 + 1024 + 2048 = 3584, of which 212 + 424 + 948 = 1584 wasted."""
    memory, requests = BuddyAllocator(4096), (300, 600, 1100)
    sizes = [memory.size_of(memory.allocate(slots)) for slots in requests]
    waste = [size - slots for size, slots in zip(sizes, requests)]
    assert (sizes, waste) == ([512, 1024, 2048], [212, 424, 948])
    assert sum(waste) / sum(sizes) == pytest.approx(0.44, rel=0.006)


@pytest.mark.parametrize(
    "sizes, freed, free_blocks",
    [
        ((4, 2, 8), 0, [(0, 4), (6, 2)]),  # 4 + 2 apart
        ((2, 8), None, [(2, 2), (4, 4)]),  # slots 2..7: adjacent, and still no block of 8
    ],
)
def test_a_request_of_six_is_refused_although_six_slots_are_free(sizes, freed, free_blocks):
    """Oracle L7.buddy.demo1, with sequences of our own; a request of 6 needs an aligned block of 8."""
    memory = BuddyAllocator(16)
    for size in sizes:
        memory.allocate(size)
    if freed is not None:
        memory.free(freed)
    assert (memory.num_free, memory.free_blocks()) == (6, free_blocks)
    with pytest.raises(OutOfBlocks, match="6 slots are free, the largest block has 4"):
        memory.allocate(6)


@pytest.mark.parametrize("size", [0, -1, 1.5, "16", True, None])
def test_impossible_sizes_are_refused(size):
    with pytest.raises(ConfigError, match="num_slots"):
        BuddyAllocator(size)
    with pytest.raises(ConfigError, match="num_slots"):
        BuddyAllocator(16).allocate(size)


def test_freeing_twice_or_in_the_middle_is_refused_and_changes_nothing():
    memory = BuddyAllocator(16)
    start = memory.allocate(8)
    before = pickle.dumps(memory)
    with pytest.raises(ConfigError, match="start=4"):
        memory.free(start + 4)
    assert pickle.dumps(memory) == before
    memory.free(start)
    with pytest.raises(ConfigError, match="start=0"):
        memory.free(start)
