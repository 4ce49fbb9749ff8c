"""Paged memory that recognizes prompts it has read before: a block cache under the serving engine.

Nobody announces a prefix. Every full block is kept under the hash of its content and its past for as long as
its place is not needed, and a prompt starts behind the longest run of blocks that is still there; see
:mod:`kvlib.prefix.block_cache`.
"""

from collections.abc import Hashable, Sequence

from kvlib.errors import ConfigError
from kvlib.prefix.block_cache import BlockCache
from kvlib.serving.groups import refuse_groups
from kvlib.serving.memory import BlockMemory, Growth, Room, number_of_blocks
from kvlib.specs.checks import whole


class CachedMemory(BlockMemory):
    """Blocks on demand from a :class:`~kvlib.prefix.block_cache.BlockCache`.

    A block that is free but still holds content counts as free: it can be had at once.

    Parameters
    ----------
    num_slots, block_size, watermark
        As for :class:`~kvlib.serving.memory.PagedMemory`. Nothing is swapped: a copy on the host would lose
        what it shares.
    trace_block_size : int
        Tokens for which one of a request's ``block_ids`` stands.

    Raises
    ------
    ConfigError
        If not even one block fits, or a setting is out of range.

    Examples
    --------
    The same prompt of 40 tokens again: two of its three blocks are there.

    >>> from kvlib.workloads import Request
    >>> memory = CachedMemory(num_slots=160, block_size=16, trace_block_size=16)
    >>> prompt = Request(0.0, 40, 8, block_ids=(7, 8, 9))
    >>> memory.admit(0, prompt, 40); memory.release(0); memory.held_slots
    Room(empty_slots=48, num_tails=1)
    0
    >>> memory.cached_tokens(1, prompt, 40), memory.admit(1, prompt, 40), memory.held_slots
    (32, Room(empty_slots=16, num_tails=1), 48)
    """

    def __init__(self, num_slots: int, block_size: int, trace_block_size: int, watermark: float = 0.0):
        cache = BlockCache(number_of_blocks(num_slots, block_size), block_size)
        super().__init__(cache, num_slots, watermark)
        self._content = Content(trace_block_size)
        self._requests: dict[Hashable, object] = {}  # of those who run
        self._prompt: tuple = (None, None, 0, ())  # who asked last, for how many tokens, and which these are

    def check(self, name: str, request) -> None:
        """See the contract of :mod:`kvlib.serving.memory`."""
        refuse_groups(name, request, "with prefix_caching")
        self._content.check(name, request)

    def fits_alone(self, request) -> bool:
        """See the contract of :mod:`kvlib.serving.memory`."""
        longest = request.num_input_tokens + max(0, request.num_output_tokens - 1)
        return self._blocks_for(longest) <= self.manager.num_blocks

    def cached_tokens(self, seq: Hashable, request, num_tokens: int) -> int:
        """See the contract of :mod:`kvlib.serving.memory`."""
        return self.manager.match_prefix(self._first_tokens(seq, request, num_tokens))

    def admit(self, seq: Hashable, request, num_tokens: int) -> Room | None:
        """See the contract of :mod:`kvlib.serving.memory`."""
        tokens = self._first_tokens(seq, request, num_tokens)
        if self.manager.blocks_needed(tokens) > self._open_blocks:
            return None
        hit_tokens = self.manager.allocate(seq, tokens)
        self._requests[seq] = request
        return Room(self._blocks_for(num_tokens) * self.unit_slots - hit_tokens)

    def select(self, seqs: Sequence[Hashable]) -> None:
        """See the contract of :mod:`kvlib.serving.memory`: there are no beams."""

    def grow(self, seqs: Sequence[Hashable], limit: int) -> Growth:
        """See the contract of :mod:`kvlib.serving.memory`."""
        lengths = [self.manager.num_tokens(seq) for seq in seqs]
        first_taken = [-length % self.unit_slots for length in lengths]
        steps = self._steps_with_room(first_taken, self.manager.num_free, limit)
        if not steps:
            return Growth(0, [], [])
        self.manager.append_each(
            {
                seq: self._content.tokens(seq, self._requests[seq], length, length + steps)
                for seq, length in zip(seqs, lengths)
            }
        )
        return Growth(steps, self._taken(first_taken, range(len(seqs)), steps), [])

    def release(self, seq: Hashable) -> None:
        """See the contract of :mod:`kvlib.serving.memory`. The content stays until its place is needed."""
        self.manager.free(seq)
        del self._requests[seq]

    def preempt(self, seq: Hashable, num_computed: int) -> None:
        """See the contract of :mod:`kvlib.serving.memory`."""
        self.manager.preempt(seq, num_computed)
        del self._requests[seq]

    def swap_out(self, seq: Hashable) -> int:
        """See the contract of :mod:`kvlib.serving.memory`: there is no host."""
        return 0

    def _first_tokens(self, seq: Hashable, request, num_tokens: int) -> tuple[int, ...]:
        """Made once for a request that asks again and again: the block cache hashes it once, too."""
        if self._prompt[0] is not request or self._prompt[1:3] != (seq, num_tokens):
            tokens = tuple(self._content.tokens(seq, request, 0, num_tokens))
            self._prompt = (request, seq, num_tokens, tokens)
        return self._prompt[3]


class Content:
    """Token ids that stand for the content of a request: equal wherever the block ids say it is equal.

    Where they say nothing, in a prompt without ids and in most answers, the content is like no other.

    Parameters
    ----------
    trace_block_size : int
        Tokens for which one block id stands.

    Examples
    --------
    >>> from kvlib.workloads import Request
    >>> content = Content(trace_block_size=4)
    >>> content.tokens(3, Request(0.0, 6, 2, block_ids=(5, 8)), 0, 8)
    [0, 0, 0, 0, 2, 0, 7, 7]
    """

    def __init__(self, trace_block_size: int):
        self._block_size = whole("trace_block_size", trace_block_size)
        self._other_tokens = [0] * (trace_block_size - 1)
        self._numbers: dict[int, int] = {}  # ids may be hashes of any length; tokens have 64 bits

    def check(self, name: str, request) -> None:
        """Raise ``ConfigError`` if the ids of a request do not fit its length."""
        answered = request.num_input_tokens + request.num_output_tokens
        for field, num_tokens in (("block_ids", request.num_input_tokens), ("answered_block_ids", answered)):
            ids = getattr(request, field, None)
            if ids is None:
                continue
            if type(ids) is not tuple:
                raise ConfigError(f"{name}.{field}: got {ids!r}, expected a tuple of whole numbers")
            for place, block_id in enumerate(ids):
                whole(f"{name}.{field}[{place}]", block_id, minimum=0)
            expected = -(-num_tokens // self._block_size)
            if len(ids) != expected:
                raise ConfigError(
                    f"{name}.{field}: got {len(ids)} ids for {num_tokens} tokens, expected {expected} of "
                    f"prefix_caching={self._block_size} tokens each"
                )

    def tokens(self, seq: int, request, start: int, stop: int) -> list[int]:
        """The ids of tokens ``start`` to ``stop - 1`` of prompt and answer."""
        ids, known = getattr(request, "answered_block_ids", None), request.num_input_tokens
        if ids is None:
            ids = getattr(request, "block_ids", None)
        else:
            known += request.num_output_tokens
        known = 0 if ids is None else min(stop, known)
        return self._known_tokens(ids, start, known) + [2 * seq + 1] * (stop - max(start, known))

    def _known_tokens(self, ids: Sequence[int], start: int, stop: int) -> list[int]:
        tokens, first = [], start // self._block_size
        for block in range(first, -(-stop // self._block_size)):
            # Equal ids mean equal pasts, too, so one token of a block tells it apart.
            tokens.append(2 * self._numbers.setdefault(ids[block], len(self._numbers)))
            tokens.extend(self._other_tokens)
        skipped = first * self._block_size
        return tokens[start - skipped : max(start, stop) - skipped]
