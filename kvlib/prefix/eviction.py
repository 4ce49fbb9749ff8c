"""Which block to give up: eviction policies of an abstract cache of block references.

Every policy has one verb: ``reference(block, depth)`` says whether ``block`` is cached, and on a miss
inserts it, giving up another one if the cache is full. ``depth`` is the block's position in its prompt;
a capacity of ``math.inf`` never gives anything up.
Mooncake (section 4.2, table 1) compares LRU, LFU and LengthAware; FIFO and Belady's offline optimum are
the floor and the ceiling beside them.
"""

import heapq
from collections import OrderedDict
from collections.abc import Hashable, Sequence


class Lru:
    """Give up the block whose last reference is longest ago.

    Examples
    --------
    >>> cache = Lru(capacity_blocks=2)
    >>> [cache.reference(block, depth=0) for block in (1, 2, 1, 3, 1, 2)]
    [False, False, True, False, True, False]
    """

    def __init__(self, capacity_blocks: float):
        self._capacity = capacity_blocks
        self._blocks = OrderedDict()  # least recently used first

    def reference(self, block: Hashable, depth: int) -> bool:
        """Return whether ``block`` was cached; it is now."""
        if block in self._blocks:
            self._blocks.move_to_end(block)
            return True
        if len(self._blocks) == self._capacity:
            self._blocks.popitem(last=False)
        self._blocks[block] = None
        return False


class Fifo:
    """Give up the block that came in first, however often it was used since.

    Examples
    --------
    >>> cache = Fifo(capacity_blocks=2)
    >>> [cache.reference(block, depth=0) for block in (1, 2, 1, 3, 1, 2)]
    [False, False, True, False, False, False]
    """

    def __init__(self, capacity_blocks: float):
        self._capacity = capacity_blocks
        self._blocks = OrderedDict()  # first in, first out

    def reference(self, block: Hashable, depth: int) -> bool:
        """Return whether ``block`` was cached; it is now."""
        if block in self._blocks:
            return True
        if len(self._blocks) == self._capacity:
            self._blocks.popitem(last=False)
        self._blocks[block] = None
        return False


class _LowestFirst:
    """Give up the block of the lowest priority, which changes only when the block is referenced.

    A heap cannot change an entry, so each reference pushes a new one; entries that are no longer a
    block's latest are recognized by their clock and thrown away when they surface.
    """

    def __init__(self, capacity_blocks: float):
        self._capacity = capacity_blocks
        self._clock = 0
        self._last_reference = {}  # cached block -> clock of its latest reference
        self._heap = []  # (priority, clock, block): ties go to the least recently used

    def reference(self, block: Hashable, depth: int) -> bool:
        """Return whether ``block`` was cached; it is now."""
        is_hit = block in self._last_reference
        if not is_hit and len(self._last_reference) == self._capacity:
            self._evict()
        heapq.heappush(self._heap, (self._priority(block, depth), self._clock, block))
        self._last_reference[block] = self._clock
        self._clock += 1
        return is_hit

    def _evict(self):
        while True:
            _, clock, block = heapq.heappop(self._heap)
            if self._last_reference.get(block) == clock:
                del self._last_reference[block]
                self._forget(block)
                return

    def _priority(self, block, depth):
        raise NotImplementedError

    def _forget(self, block):
        """Nothing to forget unless a policy counts."""


class LfuKept(_LowestFirst):
    """Give up the block with the fewest references; ties go to the least recently used.

    A block that was evicted keeps its count, as if the cache remembered every block it ever saw.

    Examples
    --------
    >>> cache = LfuKept(capacity_blocks=2)
    >>> [cache.reference(block, depth=0) for block in (1, 1, 2, 3, 1, 2)]
    [False, True, False, False, True, False]
    """

    def __init__(self, capacity_blocks: float):
        super().__init__(capacity_blocks)
        self._counts = {}

    def _priority(self, block, depth):
        self._counts[block] = self._counts.get(block, 0) + 1
        return self._counts[block]


class Lfu(LfuKept):
    """As :class:`LfuKept`, but an evicted block loses its count.

    Examples
    --------
    >>> cache = Lfu(capacity_blocks=2)
    >>> [cache.reference(block, depth=0) for block in (1, 1, 2, 3, 1, 2)]
    [False, True, False, False, True, False]
    """

    def _forget(self, block):
        del self._counts[block]


class LengthAware(Lfu):
    """Among the blocks with the fewest references give up the one deepest in its prompt.

    Examples
    --------
    >>> cache = LengthAware(capacity_blocks=2)
    >>> [cache.reference(block, depth) for block, depth in ((1, 0), (2, 1), (3, 2), (1, 0))]
    [False, False, False, True]
    """

    def _priority(self, block, depth):
        return super()._priority(block, depth), -depth


class Belady(_LowestFirst):
    """Give up the block whose next reference is farthest away; no cache that inserts on a miss does better.

    It knows the future, so it is a ceiling and not a policy that a server could run.

    Parameters
    ----------
    capacity_blocks : int
        Blocks the cache can hold.
    references : sequence of int
        All the blocks that ``reference`` will be called with, in that order.

    Examples
    --------
    >>> blocks = (1, 2, 3, 1, 2)
    >>> cache = Belady(2, blocks)
    >>> [cache.reference(block, depth=0) for block in blocks]
    [False, False, False, True, False]
    """

    def __init__(self, capacity_blocks: float, references: Sequence[Hashable]):
        super().__init__(capacity_blocks)
        never = len(references)
        following, self._next_reference = {}, [never] * len(references)
        for position in range(len(references) - 1, -1, -1):
            self._next_reference[position] = following.get(references[position], never)
            following[references[position]] = position

    def _priority(self, block, depth):
        return -self._next_reference[self._clock]


POLICIES = {
    "lru": Lru,
    "lfu": Lfu,
    "lfu_kept": LfuKept,
    "length_aware": LengthAware,
    "fifo": Fifo,
    "belady": Belady,
}
