"""Automatic prefix caching on whole blocks: a freed block keeps its content until it is reused.

The semantics are those of vLLM's block manager (v1 ``BlockPool`` and ``KVCacheManager``), so that the two
can be compared step by step.
"""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from kvlib.blocks.pool import BlockPool
from kvlib.errors import ConfigError, OutOfBlocks, UnknownSequence
from kvlib.prefix.cache_statistics import CacheStatistics
from kvlib.prefix.digest_index import DigestIndex
from kvlib.prefix.hashing import MAX_TOKEN, block_digest, block_digests, checked_tokens, root_digest
from kvlib.specs.checks import whole

ExtraKeys = Iterable[tuple[str, str]]


class BlockCache:
    """Block tables over one :class:`~kvlib.blocks.pool.BlockPool`, with reuse of equal prefixes.

    The contract, verb by verb. A call that raises has changed nothing.

    - ``allocate(seq, tokens, extra_keys=())`` finds the longest run of cached blocks from the start of the
      sequence, at most ``(n - 1) // block_size`` of them, so that at least one token is computed and has
      logits. It shares these and takes fresh blocks for the rest. Full blocks can be found at once, also
      by a sequence that starts in the same step. Returns the number of tokens that need no prefill.
      ``OutOfBlocks`` if the pool cannot supply them, ``ConfigError`` for an empty prompt, a bad token or a
      sequence that is known already.
    - ``append(seq, token)`` adds one token, taking a block when the last one is full. A block that becomes
      full can be found from then on: generated tokens are cached like prompts.
    - ``append_each(tokens_of)`` does this for several sequences, ``{seq: tokens}``, all with as many tokens: one
      token of each, in this order, then the next one of each. It works block by block, so it is fast.
    - ``free(seq)`` gives up the blocks. Their content stays until they are taken for something else. Blocks
      of no known content are reused first, then the least recently freed; of one sequence the tail first,
      because a head is worth more than a tail and a tail without its head is worth nothing.
    - ``preempt(seq, num_computed=None)`` frees a sequence that will come back: its next ``allocate`` (with the
      generated tokens) finds what is left of its own blocks, and is not counted as a request again. If only
      its first ``num_computed`` tokens have been computed, the blocks behind them are forgotten.
    - ``evict(digest)`` forgets this content in every block that holds it. Sequences keep their blocks.

    Equal blocks are not merged: two sequences that compute the same content at the same time hold it
    twice. ``on_evict(digest)`` is called whenever the last block that holds some content is lost.

    ``check_integrity()`` verifies laws L2 and L3.

    Parameters
    ----------
    num_blocks : int
        Blocks in the pool.
    block_size : int
        Tokens per block.
    on_evict : callable, optional
        Called with the 32-byte digest of content that is no longer cached.

    Examples
    --------
    A prompt of 32 tokens, sent twice: the last block is computed again, for the sake of one logit.

    >>> cache = BlockCache(num_blocks=8, block_size=16)
    >>> cache.allocate("first", range(32)); cache.free("first")
    0
    >>> cache.allocate("second", range(32))
    16
    >>> cache.statistics.hit_ratio
    0.25
    """

    def __init__(self, num_blocks: int, block_size: int, on_evict: Callable[[bytes], None] | None = None):
        self.block_size = whole("block_size", block_size)
        self._pool = BlockPool(whole("num_blocks", num_blocks))
        self._index = DigestIndex(num_blocks)
        if on_evict is not None and not callable(on_evict):
            raise ConfigError(f"on_evict: got {on_evict!r}, expected a function of one digest, or None")
        self._on_evict = on_evict
        self._sequences: dict[Hashable, _Sequence] = {}
        self._preempted: set[Hashable] = set()
        self._statistics = CacheStatistics()
        self._hashed = ((), (), [])  # the prompt that was hashed last, its keys and its digests

    # Questions

    @property
    def num_blocks(self) -> int:
        """Blocks in the pool, free and held."""
        return self._pool.num_blocks

    @property
    def num_free(self) -> int:
        """Blocks that can be taken now, those with cached content included."""
        return self._pool.num_free

    @property
    def statistics(self) -> CacheStatistics:
        """Requests, prompt tokens and hit tokens so far, each request counted once."""
        return self._statistics

    def block_table(self, seq: Hashable) -> list[int]:
        """Return the blocks of ``seq`` in token order (a copy)."""
        return list(self._sequence(seq).table)

    def num_tokens(self, seq: Hashable) -> int:
        """Return the number of tokens of ``seq``."""
        return self._sequence(seq).num_tokens(self.block_size)

    def refcount(self, block: int) -> int:
        """Return the number of block tables that point at ``block``."""
        return self._pool.refcount(block)

    def match_prefix(self, tokens: Iterable[int], extra_keys: ExtraKeys = ()) -> int:
        """Return the hit tokens that ``allocate`` would return now, changing nothing."""
        return len(self._plan(tokens, extra_keys).hits) * self.block_size

    def blocks_needed(self, tokens: Iterable[int], extra_keys: ExtraKeys = ()) -> int:
        """Return by how much ``allocate`` would lower ``num_free``: fresh blocks and revived free ones."""
        return self._plan(tokens, extra_keys).num_needed

    # Verbs

    def allocate(self, seq: Hashable, tokens: Iterable[int], extra_keys: ExtraKeys = ()) -> int:
        """Give a new sequence its blocks and return its hit tokens (see the class contract)."""
        if seq in self._sequences:
            raise ConfigError(
                f"seq: got {seq!r}, which is known already; expected a new one, or free it first"
            )
        plan = self._plan(tokens, extra_keys)
        if plan.num_needed > self.num_free:
            raise OutOfBlocks(
                f"tokens: {plan.num_needed} blocks needed, only {self.num_free} of {self.num_blocks} free"
            )
        # Hits first: a block in use cannot be taken for the rest of the same sequence.
        for block in plan.hits:
            if self._pool.refcount(block):
                self._pool.share(block)
            else:
                self._pool.revive(block)
        table = plan.hits + self._take(plan.num_fresh)
        for block, digest in zip(table[len(plan.hits) :], plan.digests[len(plan.hits) :]):
            self._index.add(block, digest)
        self._sequences[seq] = _Sequence(table, plan.last_digest, plan.tail)
        num_hit_tokens = len(plan.hits) * self.block_size
        if seq in self._preempted:
            self._preempted.remove(seq)
        else:
            self._statistics = self._statistics.after(plan.num_tokens, num_hit_tokens)
        return num_hit_tokens

    def append(self, seq: Hashable, token: int) -> None:
        """Add one token to ``seq`` (see the class contract)."""
        sequence = self._sequence(seq)
        if type(token) is not int or not 0 <= token <= MAX_TOKEN:
            raise ConfigError(f"token: got {token!r}, expected a token id from 0 to {MAX_TOKEN}")
        tail = sequence.tail
        if not tail:
            sequence.table += self._take(1)
        tail.append(token)
        if len(tail) == self.block_size:
            sequence.last_digest = block_digest(sequence.last_digest, tail)
            self._index.add(sequence.table[-1], sequence.last_digest)
            tail.clear()

    def append_each(self, tokens_of: Mapping[Hashable, Sequence[int]]) -> None:
        """Add as many tokens to each of several sequences, in turn (see the class contract)."""
        growths = [
            _Growth(self._sequence(seq), checked_tokens(tokens)) for seq, tokens in tokens_of.items()
        ]
        lengths = {len(growth.tokens) for growth in growths}
        if len(lengths) != 1:
            raise ConfigError(f"tokens_of: got {sorted(lengths)} tokens, expected as many for each sequence")
        visits = sorted(
            (step, order) for order, growth in enumerate(growths) for step in growth.visits(self.block_size)
        )
        num_taken = sum(growths[order].is_at_start(step, self.block_size) for step, order in visits)
        if num_taken > self.num_free:
            raise OutOfBlocks(
                f"tokens_of: {num_taken} blocks needed, only {self.num_free} of {self.num_blocks} free"
            )
        for step, order in visits:
            self._visit(growths[order], step)
        for growth in growths:
            growth.sequence.tail = growth.content[len(growth.content) // self.block_size * self.block_size :]

    def free(self, seq: Hashable) -> None:
        """Give up the blocks of ``seq``, the tail first (see the class contract)."""
        if seq in self._preempted:
            self._preempted.remove(seq)
            return
        tail_first = self._sequence(seq).table[::-1]
        self._pool.release(
            [block for block in tail_first if self._index.digest_of(block) is None], reuse_first=True
        )
        self._pool.release([block for block in tail_first if self._index.digest_of(block) is not None])
        del self._sequences[seq]

    def preempt(self, seq: Hashable, num_computed: int | None = None) -> None:
        """Free a sequence that will be allocated again (see the class contract)."""
        table = self._sequence(seq).table
        if num_computed is not None:
            for block in table[whole("num_computed", num_computed, minimum=0) // self.block_size :]:
                self._forget(block)
        self.free(seq)
        self._preempted.add(seq)

    def evict(self, digest: bytes) -> None:
        """Forget the content of ``digest`` (see the class contract); ``ConfigError`` if it is not cached."""
        block = self._index.find(digest)
        if block is None:
            raise ConfigError(f"digest: got {digest!r}, expected the digest of cached content")
        while block is not None:
            self._forget(block)
            block = self._index.find(digest)

    def check_integrity(self) -> None:
        """Raise ``AssertionError`` unless the laws of the class contract hold."""
        self._pool.check_integrity()
        self._index.check_integrity()
        references = [0] * self.num_blocks
        for seq, sequence in self._sequences.items():
            num_blocks = -(-sequence.num_tokens(self.block_size) // self.block_size)
            assert len(set(sequence.table)) == len(sequence.table) == num_blocks, f"L3: blocks of {seq!r}"
            for block in sequence.table:
                references[block] += 1
        for block, count in enumerate(references):
            assert self._pool.refcount(block) == count, f"L2: refcount of block {block}"
        assert self.num_free == references.count(0), "L2: free + held = total"
        assert self._preempted.isdisjoint(self._sequences), "a sequence is both running and preempted"

    # Steps

    def _sequence(self, seq):
        try:
            return self._sequences[seq]
        except KeyError:
            raise UnknownSequence(f"seq: got {seq!r}, expected a sequence that holds blocks") from None

    def _plan(self, tokens, extra_keys):
        if tokens is not self._hashed[0]:
            tokens = checked_tokens(tokens)
        if not tokens:
            raise ConfigError("tokens: got none, expected at least 1")
        extra_keys = tuple(extra_keys) if isinstance(extra_keys, Iterable) else extra_keys
        digests = self._digests(tokens, extra_keys)
        hits = []
        for digest in digests[: (len(tokens) - 1) // self.block_size]:
            block = self._index.find(digest)
            if block is None:
                break
            hits.append(block)
        num_fresh = -(-len(tokens) // self.block_size) - len(hits)
        num_revived = [self._pool.refcount(block) for block in hits].count(0)
        return _Plan(
            num_tokens=len(tokens),
            digests=digests,
            hits=hits,
            num_fresh=num_fresh,
            num_needed=num_fresh + num_revived,
            last_digest=digests[-1] if digests else root_digest(extra_keys),
            tail=list(tokens[len(digests) * self.block_size :]),
        )

    def _digests(self, tokens, extra_keys):
        """The digests of a prompt, hashed once if it is asked about several times in a row."""
        if tokens is not self._hashed[0] or extra_keys != self._hashed[1]:
            self._hashed = (tokens, extra_keys, block_digests(tokens, self.block_size, extra_keys))
        return self._hashed[2]

    def _visit(self, growth, step):
        """Write the token of this step, which begins a block or fills one, or both."""
        sequence, end = growth.sequence, growth.position(step) + 1
        if growth.is_at_start(step, self.block_size):
            sequence.table += self._take(1)
        if end % self.block_size == 0:
            filled = growth.content[end - self.block_size : end]
            sequence.last_digest = block_digest(sequence.last_digest, filled)
            self._index.add(sequence.table[-1], sequence.last_digest)

    def _take(self, num_blocks):
        blocks = self._pool.take(num_blocks)
        for block in blocks:
            self._forget(block)
        return blocks

    def _forget(self, block):
        lost_digest = self._index.remove(block)
        if lost_digest is not None and self._on_evict is not None:
            self._on_evict(lost_digest)


@dataclass(slots=True)
class _Sequence:
    """The blocks of one sequence and what hashing its next block will need."""

    table: list[int]
    last_digest: bytes  # of its last full block
    tail: list[int]  # tokens after its last full block

    def num_tokens(self, block_size):
        return (len(self.table) - bool(self.tail)) * block_size + len(self.tail)


class _Growth:
    """Tokens that are about to be added to a sequence, after those in its last block."""

    def __init__(self, sequence, tokens):
        self.sequence = sequence
        self.tokens = tokens
        self.content = [*sequence.tail, *tokens]
        self._filled = len(sequence.tail)

    def position(self, step):
        """Where in ``content`` the token of this step stands."""
        return self._filled + step

    def is_at_start(self, step, block_size):
        """Whether the token of this step begins a block."""
        return self.position(step) % block_size == 0

    def visits(self, block_size):
        """The steps whose token begins or fills a block."""
        first = -self._filled % block_size
        starts = range(first, len(self.tokens), block_size)
        ends = range((first - 1) % block_size, len(self.tokens), block_size)
        return set(starts) | set(ends)


@dataclass(frozen=True, slots=True)
class _Plan:
    """What one ``allocate`` will do, found out before anything changes."""

    num_tokens: int
    digests: list[bytes]
    hits: list[int]
    num_fresh: int
    num_needed: int
    last_digest: bytes
    tail: list[int]
