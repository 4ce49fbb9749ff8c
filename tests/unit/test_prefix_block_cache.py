"""The block cache: laws L2, L3 and L7 under random use, a plain model step by step, and reported bugs."""

import os
import random
import subprocess
import sys

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kvlib.errors import ConfigError, OutOfBlocks, UnknownSequence
from kvlib.prefix import BlockCache, CacheStatistics, block_digests


class PlainModel:
    """The same semantics written with lists and whole prefixes in place of queues and hashes.

    ``content[b]`` is the whole prefix of tokens that block ``b`` ends, or ``None``; ``since[b]`` is when
    it got that content; ``free`` is the order of reuse.
    """

    def __init__(self, num_blocks, block_size):
        self.block_size = block_size
        self.content = [None] * num_blocks
        self.since = [0] * num_blocks
        self.clock = 0
        self.free = list(range(num_blocks))
        self.tables, self.tokens = {}, {}
        self.lost = []

    def hits(self, tokens):
        found = []
        for end in range(self.block_size, len(tokens), self.block_size):
            holders = [b for b, prefix in enumerate(self.content) if prefix == tokens[:end]]
            if not holders:
                break
            found.append(min(holders, key=lambda b: self.since[b]))
        return found

    def set_content(self, block, prefix):
        before, self.content[block] = self.content[block], prefix
        self.clock += 1
        self.since[block] = self.clock
        if before is not None and before not in self.content:
            self.lost.append(before)

    def take(self):
        block = self.free.pop(0)
        self.set_content(block, None)
        return block

    def allocate(self, seq, tokens):
        hits = self.hits(tokens)
        num_blocks = -(-len(tokens) // self.block_size)
        if num_blocks - len(hits) > len([b for b in self.free if b not in hits]):
            return None
        self.free = [block for block in self.free if block not in hits]
        fresh = [self.take() for _ in range(num_blocks - len(hits))]
        for number, block in enumerate(fresh, start=len(hits) + 1):
            if number * self.block_size <= len(tokens):
                self.set_content(block, tokens[: number * self.block_size])
        self.tables[seq], self.tokens[seq] = hits + fresh, tokens
        return len(hits) * self.block_size

    def append(self, seq, token):
        if len(self.tokens[seq]) % self.block_size == 0:
            if not self.free:
                return False
            self.tables[seq].append(self.take())
        self.tokens[seq] += (token,)
        if len(self.tokens[seq]) % self.block_size == 0:
            self.set_content(self.tables[seq][-1], self.tokens[seq])
        return True

    def release(self, seq):
        del self.tokens[seq]
        released = [
            b for b in reversed(self.tables.pop(seq)) if all(b not in t for t in self.tables.values())
        ]
        self.free = (
            [b for b in reversed(released) if self.content[b] is None]
            + self.free
            + [b for b in released if self.content[b] is not None]
        )


class AgainstPlainModel(RuleBasedStateMachine):
    """Random use of a small cache with few different tokens, so that prefixes and blocks are shared often."""

    def __init__(self):
        super().__init__()
        self.lost = []
        self.cache = BlockCache(num_blocks=9, block_size=2, on_evict=self.lost.append)
        self.model = PlainModel(num_blocks=9, block_size=2)
        self.next_seq = 0

    @rule(tokens=st.lists(st.integers(0, 1), min_size=1, max_size=12))
    def allocate(self, tokens):
        tokens, before = tuple(tokens), snapshot(self.cache)
        needed, expected_hits = self.cache.blocks_needed(tokens), self.cache.match_prefix(tokens)
        num_free = self.cache.num_free
        hits = self.model.allocate(self.next_seq, tokens)
        if hits is None:
            assert needed > num_free
            with pytest.raises(OutOfBlocks):
                self.cache.allocate(self.next_seq, tokens)
            assert snapshot(self.cache) == before
        else:
            assert self.cache.allocate(self.next_seq, tokens) == hits == expected_hits
            assert num_free - self.cache.num_free == needed
        self.next_seq += 1

    @precondition(lambda self: self.model.tables)
    @rule(data=st.data(), token=st.integers(0, 1))
    def append(self, data, token):
        seq, before = data.draw(st.sampled_from(sorted(self.model.tables))), snapshot(self.cache)
        if self.model.append(seq, token):
            self.cache.append(seq, token)
        else:
            with pytest.raises(OutOfBlocks):
                self.cache.append(seq, token)
            assert snapshot(self.cache) == before

    @precondition(lambda self: self.model.tables)
    @rule(data=st.data(), rows=st.lists(st.lists(st.integers(0, 1), min_size=3, max_size=3), min_size=1, max_size=6))
    def append_each(self, data, rows):
        """Step by step, and in each step sequence by sequence, unless there is no room for all."""
        seqs = data.draw(st.lists(st.sampled_from(sorted(self.model.tables)), min_size=1, max_size=3, unique=True))
        before, needed = snapshot(self.cache), 0
        for seq in seqs:
            length = len(self.model.tokens[seq])
            needed += -(-(length + len(rows)) // 2) - -(-length // 2)
        tokens_of = {seq: [row[column] for row in rows] for column, seq in enumerate(seqs)}
        if needed > self.cache.num_free:
            with pytest.raises(OutOfBlocks):
                self.cache.append_each(tokens_of)
            assert snapshot(self.cache) == before
            return
        for row in rows:
            for seq, token in zip(seqs, row):
                assert self.model.append(seq, token)
        self.cache.append_each(tokens_of)

    @precondition(lambda self: self.model.tables)
    @rule(data=st.data())
    def free(self, data):
        seq = data.draw(st.sampled_from(sorted(self.model.tables)))
        self.cache.free(seq)
        self.model.release(seq)

    @precondition(lambda self: self.model.tables)
    @rule(data=st.data())
    def preempt_and_resume(self, data):
        seq = data.draw(st.sampled_from(sorted(self.model.tables)))
        tokens, before = self.model.tokens[seq], self.cache.statistics
        self.cache.preempt(seq)
        self.model.release(seq)
        hits = self.model.allocate(seq, tokens)
        if hits is None:  # what it shared is held by others under content that was evicted
            with pytest.raises(OutOfBlocks):
                self.cache.allocate(seq, tokens)
            self.cache.free(seq)
        else:
            assert self.cache.allocate(seq, tokens) == hits
        assert self.cache.statistics == before

    @precondition(lambda self: any(prefix is not None for prefix in self.model.content))
    @rule(data=st.data())
    def evict(self, data):
        prefix = data.draw(st.sampled_from(sorted({p for p in self.model.content if p is not None})))
        self.cache.evict(block_digests(prefix, 2)[-1])
        for block in [b for b, other in enumerate(self.model.content) if other == prefix]:
            self.model.set_content(block, None)

    @invariant()
    def same_tables_and_same_losses(self):
        self.cache.check_integrity()
        for seq, table in self.model.tables.items():
            assert self.cache.block_table(seq) == table
            assert self.cache.num_tokens(seq) == len(self.model.tokens[seq])
        assert self.cache.num_free == len(self.model.free)
        assert self.lost == [block_digests(prefix, 2)[-1] for prefix in self.model.lost]

    @invariant()
    def hits_never_jump_a_hole(self):  # L7
        for tokens in ((0,) * 9, (1,) * 9, (0, 1) * 5):
            hit = self.cache.match_prefix(tokens)
            assert all(tokens[:end] in self.model.content for end in range(2, hit + 1, 2))
            assert hit + 2 >= len(tokens) or tokens[: hit + 2] not in self.model.content


def snapshot(cache):
    """Everything a caller can see of a small cache."""
    tables = {seq: cache.block_table(seq) for seq in range(100) if seq in cache._sequences}
    matches = [cache.match_prefix(tokens) for tokens in ((0,) * 12, (1,) * 12, (0, 1) * 6)]
    return tables, matches, cache.num_free, cache.statistics, cache._pool.free_blocks()


TestAgainstPlainModel = AgainstPlainModel.TestCase
TestAgainstPlainModel.settings = settings(
    derandomize=True, deadline=None, max_examples=60, stateful_step_count=25
)


# --- cases ---


@pytest.mark.parametrize("num_tokens", [1, 15, 16, 17, 31, 32, 33])
def test_at_least_one_token_is_computed(num_tokens):  # C01; L7: floor((n - 1) / 16) blocks at most
    cache = BlockCache(num_blocks=10, block_size=16)
    hits = []
    for seq in range(4):
        hits.append(cache.allocate(seq, range(num_tokens)))
        cache.free(seq)
    assert hits == [0] + [(num_tokens - 1) // 16 * 16] * 3
    cache.check_integrity()


def test_a_fully_cached_64_token_prompt_still_computes_16():  # pedagogy, chapter 7, exercise 2
    cache = BlockCache(num_blocks=8, block_size=16)
    cache.allocate("a", range(64))
    assert 64 - cache.allocate("b", range(64)) == 16


@pytest.mark.parametrize("num_tokens", range(1, 17))
def test_planned_blocks_are_the_blocks_taken(num_tokens):  # C02: every boundary, in a pool of just that size
    num_blocks = -(-num_tokens // 4)
    for num_cached in range(num_tokens // 4 + 1):
        cache = BlockCache(num_blocks, block_size=4)
        if num_cached:
            cache.allocate("old", range(num_cached * 4))
            cache.free("old")
        assert cache.blocks_needed(range(num_tokens)) == num_blocks
        assert cache.allocate("new", range(num_tokens)) == min(num_cached, (num_tokens - 1) // 4) * 4
        assert cache.num_free == 0
        # One more token at a boundary is one block too many.
        with pytest.raises(OutOfBlocks):
            cache.allocate("one more", [99])


def test_failed_allocation_changes_nothing():  # C05: 4 free blocks, 6 wanted
    cache = BlockCache(num_blocks=6, block_size=4)
    cache.allocate(0, range(8))
    before = snapshot(cache)
    with pytest.raises(OutOfBlocks):
        cache.allocate(1, range(100, 124))
    assert snapshot(cache) == before
    cache.check_integrity()


TAIL_FIRST = """
from kvlib.prefix import BlockCache
cache = BlockCache(num_blocks=3, block_size=1)
cache.allocate("first", [1, 2, 3]); cache.free("first")
cache.allocate("other", [9]); cache.free("other")
print(cache.allocate("again", [1, 2, 3]))
"""


@pytest.mark.parametrize("hash_seed", ["0", "1", "2"])
def test_the_tail_goes_first_whatever_the_hash_seed(hash_seed):  # C10
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    output = subprocess.run(
        [sys.executable, "-c", TAIL_FIRST], env=environment, capture_output=True, check=True
    )
    assert output.stdout == b"2\n"


def test_the_tail_goes_first_every_time():  # C10, 200 times with other tokens
    rng = random.Random(10)
    for _ in range(200):
        prompt = rng.sample(range(10**9), 4)
        cache = BlockCache(num_blocks=3, block_size=1)
        cache.allocate("first", prompt[:3])
        cache.free("first")
        cache.allocate("other", prompt[3:])
        cache.free("other")
        assert cache.allocate("again", prompt[:3]) == 2


def test_nothing_hits_behind_a_hole():  # C11
    cache = BlockCache(num_blocks=8, block_size=1)
    cache.allocate("first", [1, 2, 3, 4])
    cache.free("first")
    cache.evict(block_digests([1], 1)[0])
    assert cache.allocate("second", [1, 2, 3, 4]) == 0


def test_blocks_1_2_4_5_of_five_hit_two():  # pedagogy, chapter 7, exercise 1
    cache = BlockCache(num_blocks=12, block_size=16)
    cache.allocate("first", range(81))
    cache.free("first")
    cache.evict(block_digests(range(48), 16)[2])
    assert cache.match_prefix(range(81)) == 2 * 16


@pytest.mark.parametrize("one, other", [("lora", "salt"), ("salt", "model"), ("model", "lora")])
def test_equal_texts_under_other_tags_miss(one, other):  # C16
    cache = BlockCache(num_blocks=20, block_size=2)
    cache.allocate("a", range(9), extra_keys=[(one, "X")])
    assert cache.allocate("b", range(9), extra_keys=[(other, "X")]) == 0
    assert cache.allocate("c", range(9)) == 0
    assert cache.allocate("d", range(9), extra_keys=[(one, "X")]) == 8


def test_each_request_is_counted_once():  # C17: 8 equal prompts, room for one at a time, and retries
    cache = BlockCache(num_blocks=5, block_size=4)
    assert cache.statistics.hit_ratio == 0.0
    cache.allocate(0, range(17))
    for seq in range(1, 8):
        for _ in range(3):
            with pytest.raises(OutOfBlocks):
                cache.allocate("large", range(100, 130))
        cache.preempt(seq - 1)
        cache.allocate(seq - 1, range(17))
        cache.free(seq - 1)
        cache.allocate(seq, range(17))
    # 7 of 8 requests find 16 of their 17 tokens
    assert cache.statistics == CacheStatistics(num_requests=8, prompt_tokens=8 * 17, hit_tokens=7 * 16)
    assert cache.statistics.hit_ratio <= 7 / 8


def test_a_resumed_request_finds_its_prompt_and_its_generated_tokens():  # C19: 34 prompt tokens + 35 new
    cache = BlockCache(num_blocks=7, block_size=16)
    cache.allocate("request", range(34))
    for token in range(34, 50):
        cache.append("request", token)
    cache.preempt("request")
    assert cache.allocate("request", range(50)) == 48
    # Another request of 70 tokens takes 5 of the 7 blocks: the 3 unused ones, the partial tail and the third
    # full block. The first two survive.
    cache.preempt("request")
    cache.allocate("other", range(1000, 1070))
    cache.free("other")
    assert cache.allocate("request", range(50)) == 32


def test_what_was_never_computed_is_not_found():
    """Preempted after 40 of 64 prompt tokens: 2 whole blocks of 16 were written, 2 were not."""
    cache = BlockCache(num_blocks=8, block_size=16)
    cache.allocate("request", range(64))
    cache.preempt("request", num_computed=40)
    assert cache.match_prefix(range(64)) == 32
    assert cache.allocate("request", range(64)) == 32
    cache.check_integrity()


def test_append_each_needs_as_many_tokens_for_everyone():
    cache = BlockCache(num_blocks=8, block_size=4)
    cache.allocate("a", range(5))
    cache.allocate("b", range(5))
    for tokens_of in ({}, {"a": [1], "b": [1, 2]}):
        with pytest.raises(ConfigError, match="tokens_of"):
            cache.append_each(tokens_of)
    with pytest.raises(UnknownSequence, match="'c'"):
        cache.append_each({"a": [1], "c": [1]})
    with pytest.raises(ConfigError, match="tokens: got -1"):
        cache.append_each({"a": [-1]})
    assert cache.num_tokens("a") == cache.num_tokens("b") == 5


def test_equal_prompts_in_one_step_share_at_once():  # C25: the second hits what the first will compute
    cache = BlockCache(num_blocks=16, block_size=16)
    assert [cache.allocate("first", range(64)), cache.allocate("second", range(64))] == [0, 48]
    assert cache.block_table("first")[:3] == cache.block_table("second")[:3]
    # Their last blocks hold equal content and are not merged.
    assert cache.block_table("first")[3] != cache.block_table("second")[3]


def test_least_recently_freed_goes_first_after_touches():  # C26: the order, not the time
    lost = []
    cache = BlockCache(num_blocks=3, block_size=1, on_evict=lost.append)
    for token in (1, 2, 3):
        cache.allocate(token, [token])
        cache.free(token)
    cache.allocate("touch", [1, 4])  # shares the block of 1, and takes the block of 2 for the rest
    cache.free("touch")
    cache.allocate("next", [5])
    assert lost == [*block_digests([2], 1), *block_digests([3], 1)]


def test_blocks_without_content_are_reused_first():
    cache = BlockCache(num_blocks=4, block_size=4)
    cache.allocate("a", range(4))
    cache.allocate("b", range(10, 12))  # a partial block: nothing to find in it
    partial = cache.block_table("b")
    cache.free("a")
    cache.free("b")
    cache.allocate("c", range(20, 24))
    assert cache.block_table("c") == partial
    assert cache.match_prefix(range(5)) == 4


def test_few_shot_prompts_save_81_percent():  # L7.prefix.ex7: 341 shared + 20 own tokens, 8 requests
    cache = BlockCache(num_blocks=100, block_size=16)
    hits = [cache.allocate(n, [*range(341), *range(1000 * n + 1000, 1000 * n + 1020)]) for n in range(8)]
    # floor(341 / 16) = 21 full blocks; 361 + 7 * (361 - 336) = 536 of 2,888 tokens are computed
    assert hits == [0] + [21 * 16] * 7
    assert 8 * 361 - sum(hits) == 536
    assert round(1 - 536 / 2888, 2) == 0.81


def test_one_shot_prefix_of_80_tokens_has_no_remainder():  # L7.prefix.1shot: 80 / 16 = 5 full blocks
    cache = BlockCache(num_blocks=20, block_size=16)
    cache.allocate("a", [*range(80), 1000])
    assert cache.allocate("b", [*range(80), 2000]) == 80


def test_input_shorter_than_a_block_takes_one_block_and_caches_nothing():  # D12
    cache = BlockCache(num_blocks=4, block_size=4)
    cache.allocate("a", range(3))
    assert len(cache.block_table("a")) == 1
    assert cache.allocate("b", range(3)) == 0


# --- bad input ---


@pytest.mark.parametrize(
    "field, arguments",
    [("num_blocks", (0, 4)), ("num_blocks", (True, 4)), ("block_size", (4, 0)), ("block_size", (4, "4"))],
)
def test_bad_sizes_are_refused(field, arguments):
    with pytest.raises(ConfigError, match=f"{field}: "):
        BlockCache(*arguments)


def test_misuse_is_refused_and_changes_nothing():
    cache = BlockCache(num_blocks=4, block_size=2)
    cache.allocate("a", [1, 2, 3])
    before = snapshot(cache)
    for call in (
        lambda: cache.allocate("a", [1]),
        lambda: cache.allocate("b", []),
        lambda: cache.allocate("b", ["1"]),
        lambda: cache.allocate("b", [1], extra_keys=["lora"]),
        lambda: cache.append("a", True),
        lambda: cache.append("a", -1),
        lambda: cache.append("a", 2.0),
        lambda: cache.evict(b"unknown"),
    ):
        with pytest.raises(ConfigError):
            call()
    for call in (
        cache.free,
        cache.preempt,
        cache.block_table,
        cache.num_tokens,
        lambda seq: cache.append(seq, 1),
    ):
        with pytest.raises(UnknownSequence):
            call("nobody")
    cache.free("a")
    with pytest.raises(UnknownSequence):
        cache.free("a")
    cache.allocate("a", [1, 2, 3])
    assert snapshot(cache)[2] == before[2]


def test_a_preempted_request_can_be_given_up():
    cache = BlockCache(num_blocks=4, block_size=2)
    cache.allocate("a", [1, 2, 3])
    cache.preempt("a")
    cache.free("a")
    with pytest.raises(UnknownSequence):
        cache.free("a")
    assert cache.num_free == 4
