"""Paged memory with a prefix that all requests begin with, computed once and kept.

Section 4.4 of the PagedAttention paper: the provider computes the KV of a known prefix (instructions,
examples) beforehand and pins its blocks; the block table of every request starts with them. Sharing prefixes
that nobody announced is the subject of :mod:`kvlib.prefix`.
"""

from collections.abc import Hashable

from kvlib.errors import ConfigError
from kvlib.serving.memory import PagedMemory
from kvlib.specs.checks import whole

PREFIX = "the shared prefix"


class PrefixedMemory(PagedMemory):
    """Forks every request that is longer than the prefix from it; only whole blocks of the prefix are shared.

    Parameters
    ----------
    num_slots, block_size, watermark
        As for :class:`~kvlib.serving.memory.PagedMemory`. Nothing is swapped: a copy on the host would lose
        what it shares.
    shared_prefix_tokens : int
        Tokens at the start of every prompt.

    Raises
    ------
    ConfigError
        If not even one block is left beside the prefix, or a setting is out of range.

    Examples
    --------
    Five blocks of 16 hold one example of 80 tokens; a request of 100 takes only two more.

    >>> from types import SimpleNamespace
    >>> memory = PrefixedMemory(num_slots=160, block_size=16, shared_prefix_tokens=80)
    >>> request = SimpleNamespace(num_input_tokens=100)
    >>> memory.cached_tokens("a", request, 100), memory.admit("a", request, 100).empty_slots, memory.held_slots
    (80, 32, 112)
    """

    def __init__(
        self, num_slots: int, block_size: int, shared_prefix_tokens: int, watermark: float = 0.0
    ):
        super().__init__(num_slots, block_size, watermark)
        num_blocks = whole("shared_prefix_tokens", shared_prefix_tokens) // block_size
        if num_blocks >= self.manager.num_blocks:
            raise ConfigError(
                f"shared_prefix_tokens: got {shared_prefix_tokens}, expected less than the {num_slots} slots"
            )
        self.shared_prefix_tokens = shared_prefix_tokens
        self.pinned_tokens = num_blocks * block_size
        if num_blocks:
            self.manager.allocate(PREFIX, self.pinned_tokens)

    def _pinned_for(self, request) -> int:
        """The prefix, unless the prompt is no longer than it: at least one token must be computed."""
        return self.pinned_tokens if request.num_input_tokens > self.shared_prefix_tokens else 0

    def _start(self, seq: Hashable, num_tokens: int, cached: int) -> None:
        if not cached:
            super()._start(seq, num_tokens, cached)
            return
        self.manager.fork(PREFIX, seq)
        self.manager.append(seq, num_tokens - cached)
