"""Where every block of KV lives: one cache per instance, and the directory Conductor reads.

The directory holds two bits per block and instance. *Held*: the block is there, or will be once the requests
that wait there have been prefilled; enough for a later request of the same instance, which comes behind
them. *Offered*: it has been computed, so other instances may pull it.

A prompt is touched from its tail to its head, so that its head is used last and evicted last. The blocks an
instance holds therefore never have a hole in front of them, and one look-up per block answers for all
instances at once: follow the prompt and see which bits survive.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from kvlib.specs.checks import whole


@dataclass(frozen=True)
class Matches:
    """How many leading blocks of one prompt each instance has.

    Attributes
    ----------
    held, offered : list of int
        Blocks per instance, for its own use and for others.
    """

    held: list[int]
    offered: list[int]


class BlockPool:
    """One LRU cache per instance, with a directory over all of them.

    Parameters
    ----------
    instances : int
    cache_blocks : int
        Blocks each instance's cache holds; of a longer prompt only the head is kept.

    Examples
    --------
    >>> pool = BlockPool(instances=2, cache_blocks=3)
    >>> pool.store(0, (7, 8, 9))
    >>> pool.match((7, 8, 5)).held, pool.match((7, 8, 5)).offered
    ([2, 0], [0, 0])
    >>> pool.offer(0, (7, 8, 9))
    >>> pool.match((7, 8, 5)).offered
    [2, 0]
    """

    def __init__(self, instances: int, cache_blocks: int):
        self.instances = whole("instances", instances)
        self.cache_blocks = whole("cache_blocks", cache_blocks)
        self._caches = [OrderedDict() for _ in range(instances)]  # least recently used first
        self._directory: dict[int, int] = {}
        self._everyone = (1 << 2 * instances) - 1

    def match(self, block_ids: Sequence[int]) -> Matches:
        """Follow a prompt from its head and note where each instance drops out."""
        alive, lengths = self._everyone, [len(block_ids)] * (2 * self.instances)
        for depth, block in enumerate(block_ids):
            still = alive & self._directory.get(block, 0)
            if still != alive:
                dropped = alive ^ still
                while dropped:
                    lowest = dropped & -dropped
                    lengths[lowest.bit_length() - 1] = depth
                    dropped ^= lowest
                alive = still
                if not alive:
                    break
        return Matches(lengths[: self.instances], lengths[self.instances :])

    def store(self, instance: int, block_ids: Sequence[int]) -> None:
        """Keep the KV of a prompt here, and give up the blocks used longest ago if there is no room."""
        cache, directory, held = self._caches[instance], self._directory, 1 << instance
        for block in reversed(block_ids[: self.cache_blocks]):
            if block in cache:
                cache.move_to_end(block)
            else:
                cache[block] = None
                directory[block] = directory.get(block, 0) | held
        gone = ~(held | held << self.instances)
        while len(cache) > self.cache_blocks:
            block, _ = cache.popitem(last=False)
            left = directory[block] & gone
            if left:
                directory[block] = left
            else:
                del directory[block]

    def offer(self, instance: int, block_ids: Sequence[int]) -> None:
        """Let others pull this prompt's blocks, as far as they are still here."""
        held, directory = 1 << instance, self._directory
        for block in block_ids:
            if not directory.get(block, 0) & held:
                return
            directory[block] |= held << self.instances

    def num_cached(self, instance: int) -> int:
        """Blocks in this instance's cache."""
        return len(self._caches[instance])

    def num_copies(self, block: int) -> int:
        """Instances that hold this block."""
        return (self._directory.get(block, 0) & ((1 << self.instances) - 1)).bit_count()

    def num_shared(self, instance: int) -> int:
        """Blocks in this instance's cache that another instance holds too."""
        return sum(self.num_copies(block) > 1 for block in self._caches[instance])

    def check_integrity(self) -> None:
        """Compare the directory with the caches; for tests.

        Raises
        ------
        AssertionError
            If they disagree, a cache is too full, or a block is offered that is not held.
        """
        for instance, cache in enumerate(self._caches):
            bit = 1 << instance
            assert len(cache) <= self.cache_blocks, f"instance {instance} holds {len(cache)} blocks"
            listed = {block for block, bits in self._directory.items() if bits & bit}
            assert set(cache) == listed, f"instance {instance}: directory and cache differ"
        for block, bits in self._directory.items():
            assert bits and not bits >> self.instances & ~bits, f"block {block} is offered but not held"
