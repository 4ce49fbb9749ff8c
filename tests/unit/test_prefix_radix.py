"""The radix cache: conservation and law L7 under random use, against a plain model of single pages."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kvlib.errors import ConfigError, OutOfBlocks, UnknownSequence
from kvlib.prefix import RadixCache


class PlainModel:
    """A set of pages, each named by the whole prefix it ends, with its last use and its locks."""

    def __init__(self, capacity_tokens, page_size):
        self.capacity, self.page = capacity_tokens, page_size
        self.last_use, self.locks, self.clock = {}, {}, 0
        self.locked = []  # (tokens, locked pages), earliest first

    def pages(self, tokens):
        return [tokens[:end] for end in range(self.page, len(tokens) + 1, self.page)]

    def stored(self, tokens):
        pages = self.pages(tokens)
        return pages[: next((n for n, page in enumerate(pages) if page not in self.last_use), len(pages))]

    def use(self, pages):
        self.clock += 1
        self.last_use.update(dict.fromkeys(pages, self.clock))

    def match_prefix(self, tokens):
        self.use(self.stored(tokens))
        return len(self.stored(tokens)) * self.page

    def unlocked(self):
        return [page for page in self.last_use if not self.locks.get(page)]

    def evict_page(self):
        """Of the pages that are nobody's beginning, the one used longest ago."""
        leaves = [
            page
            for page in self.unlocked()
            if not any(
                len(other) == len(page) + self.page and other[: len(page)] == page for other in self.last_use
            )
        ]
        del self.last_use[min(leaves, key=lambda page: self.last_use[page])]

    def evict(self, num_tokens):
        num_evicted = 0
        while num_evicted < num_tokens and self.unlocked():
            self.evict_page()
            num_evicted += self.page
        return num_evicted

    def insert(self, tokens):
        path = self.stored(tokens)
        missing = [page for page in self.pages(tokens) if page not in path]
        num_evictable = len([page for page in self.unlocked() if page not in path])
        free = self.capacity - len(self.last_use) * self.page
        if len(missing) * self.page > free + num_evictable * self.page:
            return None
        self.use(path)
        self.evict(len(missing) * self.page - free)
        self.use(self.pages(tokens))
        return len(missing) * self.page

    def lock(self, tokens):
        path = self.stored(tokens)
        self.use(path)
        for page in path:
            self.locks[page] = self.locks.get(page, 0) + 1
        self.locked.append((tokens, path))
        return len(path) * self.page

    def unlock(self, tokens):
        entry = next(entry for entry in self.locked if self.pages(entry[0]) == self.pages(tokens))
        self.locked.remove(entry)
        for page in entry[1]:
            self.locks[page] -= 1
        self.use(entry[1])


PROMPTS = st.lists(st.integers(0, 1), max_size=8)


class AgainstPlainModel(RuleBasedStateMachine):
    """Every prompt token is repeated ``stretch`` times, so that large pages are shared too."""

    @initialize(sizes=st.sampled_from([(1, 1, 12), (4, 2, 30), (4, 4, 41), (64, 32, 400)]))
    def start(self, sizes):
        page_size, self.stretch, capacity = sizes
        self.cache, self.model = RadixCache(capacity, page_size), PlainModel(capacity, page_size)

    def tokens(self, prompt):
        return tuple(token for token in prompt for _ in range(self.stretch))

    @rule(prompt=PROMPTS)
    def match_prefix(self, prompt):
        tokens = self.tokens(prompt)
        assert self.cache.match_prefix(tokens) == self.model.match_prefix(tokens)

    @rule(prompt=PROMPTS)
    def insert(self, prompt):
        tokens, before = self.tokens(prompt), snapshot(self.cache)
        expected = self.model.insert(tokens)
        if expected is None:
            with pytest.raises(OutOfBlocks):
                self.cache.insert(tokens)
            assert snapshot(self.cache) == before
        else:
            assert self.cache.insert(tokens) == expected

    @rule(num_tokens=st.integers(0, 70))
    def evict(self, num_tokens):
        assert self.cache.evict(num_tokens) == self.model.evict(num_tokens)

    @rule(prompt=PROMPTS)
    def lock(self, prompt):
        tokens = self.tokens(prompt)
        assert self.cache.lock(tokens) == self.model.lock(tokens)

    @precondition(lambda self: self.model.locked)
    @rule(data=st.data())
    def unlock(self, data):
        tokens, _ = data.draw(st.sampled_from(self.model.locked))
        self.cache.unlock(tokens)
        self.model.unlock(tokens)

    @invariant()
    def nothing_is_lost_or_counted_twice(self):  # C20
        self.cache.check_integrity()
        cache, page = self.cache, self.model.page
        assert cache.num_free + cache.num_evictable + cache.num_protected == cache.capacity_tokens
        assert cache.num_evictable == len(self.model.unlocked()) * page
        assert stored_pages(cache.tree(), page) == set(self.model.last_use)

    def teardown(self):  # C22: when every lock is taken back, everything can be evicted
        for tokens, _ in self.model.locked:
            self.cache.unlock(tokens)
        assert self.cache.num_protected == 0
        assert self.cache.evict(10**6) == len(self.model.last_use) * self.model.page
        assert self.cache.tree().children == ()


def stored_pages(view, page_size, before=()):
    path = before + view.tokens
    own = {path[:end] for end in range(len(before) + page_size, len(path) + 1, page_size)}
    return own.union(*(stored_pages(child, page_size, path) for child in view.children))


def snapshot(cache):
    return cache.tree(), cache.num_free, cache.num_evictable, cache.num_protected


TestAgainstPlainModel = AgainstPlainModel.TestCase
TestAgainstPlainModel.settings = settings(
    derandomize=True, deadline=None, max_examples=80, stateful_step_count=25
)


# --- the tree ---


def test_an_edge_is_split_where_two_sequences_diverge():
    cache = RadixCache(capacity_tokens=100)
    assert [cache.insert([1, 2, 3, 4]), cache.insert([1, 2, 9])] == [4, 1]
    (shared,) = cache.tree().children
    assert shared.tokens == (1, 2)
    assert [child.tokens for child in shared.children] == [(3, 4), (9,)]


@pytest.mark.parametrize("page_size, expected", [(16, 48), (1, 53)])
def test_53_shared_tokens_by_blocks_and_by_tokens(page_size, expected):  # pedagogy, chapter 7, exercise 3
    cache = RadixCache(capacity_tokens=1000, page_size=page_size)
    cache.insert(range(80))
    assert cache.match_prefix([*range(53), *range(500, 527)]) == expected


def test_the_least_recently_used_leaf_loses_its_tail_first():
    cache = RadixCache(capacity_tokens=6)
    cache.insert([1, 2, 3])
    cache.insert([7, 8, 9])
    cache.match_prefix([1, 2, 3])
    assert cache.evict(1) == 1
    assert (cache.match_prefix([7, 8, 9]), cache.match_prefix([1, 2, 3])) == (2, 3)


# --- cases ---


def test_the_tail_goes_first_every_time():  # C10
    for first in range(200):
        cache = RadixCache(capacity_tokens=3)
        cache.insert([first, 1001, 1002])
        cache.insert([999])
        assert cache.match_prefix([first, 1001, 1002]) == 2


def test_a_key_shorter_than_a_page_matches_nothing_and_changes_nothing():  # C20
    cache = RadixCache(capacity_tokens=128, page_size=64)
    cache.insert(range(64))
    before = snapshot(cache)
    assert cache.match_prefix(range(63)) == 0
    assert cache.insert(range(63)) == 0
    assert snapshot(cache) == before


def test_overlapping_inserts_store_shared_pages_once():  # C20: 96 tokens are one page of 64, 128 are two
    cache = RadixCache(capacity_tokens=256, page_size=64)
    assert [cache.insert(range(96)), cache.insert(range(128))] == [64, 64]
    assert (cache.num_stored, cache.num_free) == (128, 128)


def test_a_partial_match_locks_only_its_part():  # C22
    cache = RadixCache(capacity_tokens=20)
    cache.insert(range(10))
    other = [*range(6), 90, 91]
    assert cache.lock(other) == 6
    assert (cache.num_protected, cache.num_evictable) == (6, 4)
    cache.insert(other)
    cache.unlock(other)
    assert cache.num_protected == 0
    assert cache.evict(100) == 12


def test_two_locks_of_a_growing_prefix_protect_each_owner():
    cache = RadixCache(capacity_tokens=8)
    cache.insert([1, 2])
    assert cache.lock([1, 2, 3, 4]) == 2  # the first owner found two tokens
    cache.insert([1, 2, 3, 4])
    assert cache.lock([1, 2, 3, 4]) == 4  # the second found all four
    cache.unlock([1, 2, 3, 4])
    assert cache.num_protected == 4


def test_insert_that_cannot_fit_changes_nothing():
    cache = RadixCache(capacity_tokens=6)
    cache.insert([1, 2, 3, 4])
    cache.lock([1, 2, 3, 4])
    before = snapshot(cache)
    with pytest.raises(OutOfBlocks):
        cache.insert([1, 2, 7, 8, 9])
    assert snapshot(cache) == before


@pytest.mark.parametrize("bad", [0, -1, 1.5, "8", True])
def test_bad_sizes_are_refused(bad):
    with pytest.raises(ConfigError, match="capacity_tokens"):
        RadixCache(bad)
    with pytest.raises(ConfigError, match="page_size"):
        RadixCache(8, page_size=bad)


def test_misuse_is_refused():
    cache = RadixCache(8)
    for call in (cache.match_prefix, cache.insert, cache.lock):
        with pytest.raises(ConfigError, match="tokens"):
            call([1, "2"])
    with pytest.raises(ConfigError, match="num_tokens"):
        cache.evict(-1)
    cache.insert([1, 2])
    with pytest.raises(UnknownSequence):
        cache.unlock([1, 2])
