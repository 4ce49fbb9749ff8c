"""A pool of equal blocks: a free queue and one reference count per block.

The pool knows nothing of sequences, tokens or content. It answers one question, "who may use block
``b``?", and every chapter asks the same pool: the :class:`~kvlib.blocks.manager.BlockManager` keeps its
block tables on it, and the prefix cache keeps the content hashes of free blocks beside it.
"""

from collections import OrderedDict
from collections.abc import Iterable
from itertools import islice

from kvlib.errors import ConfigError, OutOfBlocks
from kvlib.specs.checks import whole


class BlockPool:
    """Blocks ``0 … num_blocks - 1``, each either free (in the queue) or held (refcount of one or more).

    The contract, verb by verb. A call that raises has changed nothing.

    - ``take(n)`` removes the ``n`` blocks at the front of the queue; each now has refcount 1. This is the
      only moment at which the former content of a block is lost, so a cache forgets the content of
      exactly the blocks that ``take`` returns. Raises ``OutOfBlocks``.
    - ``share(block)`` adds a reference to a *held* block. Raises ``ConfigError`` if the block is free.
    - ``revive(block)`` takes one particular *free* block out of the queue, wherever it stands, with
      refcount 1: a hit on cached content. Raises ``ConfigError`` if the block is held.
    - ``release(blocks)`` drops one reference of each. Those that reach zero join the back of the queue in
      the order given (so the queue is least recently released first), or with ``reuse_first=True`` its
      front. Raises ``ConfigError`` if one is free already or named twice.
    - ``grow(n)`` adds ``n`` free blocks to the back of the queue.

    Every verb takes constant time per block. ``check_integrity()`` verifies that a block is in the queue
    exactly when its refcount is zero.

    Parameters
    ----------
    num_blocks : int
        Blocks in the pool; 0 makes an empty pool that can only ``grow``.

    Examples
    --------
    >>> pool = BlockPool(4)
    >>> pool.take(2)
    [0, 1]
    >>> pool.share(0); pool.release([0, 1])
    >>> pool.refcount(0), pool.refcount(1), pool.num_free
    (1, 0, 3)
    >>> pool.revive(1); pool.take(2)
    [2, 3]
    """

    def __init__(self, num_blocks: int):
        self._refcounts = [0] * whole("num_blocks", num_blocks, minimum=0)
        # Of Python's ordered containers only OrderedDict removes both its first key and a given key in
        # constant time: a plain dict scans past all the keys deleted before the first one left.
        self._free = OrderedDict.fromkeys(range(num_blocks))
        self._num_shared = 0

    @property
    def num_blocks(self) -> int:
        """Blocks in the pool, free and held."""
        return len(self._refcounts)

    @property
    def num_free(self) -> int:
        """Blocks that ``take`` can hand out now."""
        return len(self._free)

    @property
    def num_shared(self) -> int:
        """Blocks with a refcount of two or more."""
        return self._num_shared

    def refcount(self, block: int) -> int:
        """References to ``block``; 0 means free. Raises ``ConfigError`` for a block that does not exist."""
        if type(block) is not int or not 0 <= block < len(self._refcounts):
            raise ConfigError(f"block={block!r}: expected a block id below {len(self._refcounts)}")
        return self._refcounts[block]

    def free_blocks(self) -> list[int]:
        """The free blocks in the order in which ``take`` will hand them out."""
        return list(self._free)

    def take(self, num_blocks: int) -> list[int]:
        """Take the first ``num_blocks`` free blocks (see the class contract)."""
        whole("num_blocks", num_blocks, minimum=0)
        free, refcounts = self._free, self._refcounts
        if num_blocks > len(free):
            raise OutOfBlocks(f"num_blocks={num_blocks}: only {len(free)} of {self.num_blocks} are free")
        taken = list(islice(free, num_blocks))
        for block in taken:
            del free[block]
            refcounts[block] = 1
        return taken

    def share(self, block: int) -> None:
        """Add a reference to a held block (see the class contract)."""
        if not self.refcount(block):
            raise ConfigError(f"block={block} is free: only a held block can be shared")
        self._refcounts[block] += 1
        self._num_shared += self._refcounts[block] == 2

    def revive(self, block: int) -> None:
        """Take this particular free block (see the class contract)."""
        if self.refcount(block):
            raise ConfigError(f"block={block} is held: only a free block can be revived")
        del self._free[block]
        self._refcounts[block] = 1

    def release(self, blocks: Iterable[int], reuse_first: bool = False) -> None:
        """Drop one reference of each block (see the class contract)."""
        blocks = list(blocks)
        free, refcounts = self._free, self._refcounts
        for block, count in zip(blocks, self._held_counts(blocks)):
            refcounts[block] = count - 1
            self._num_shared -= count == 2
            if count == 1:
                free[block] = None
                if reuse_first:
                    free.move_to_end(block, last=False)

    def grow(self, num_blocks: int) -> None:
        """Add ``num_blocks`` free blocks (see the class contract)."""
        first = len(self._refcounts)
        self._refcounts.extend([0] * whole("num_blocks", num_blocks, minimum=0))
        self._free.update(dict.fromkeys(range(first, len(self._refcounts))))

    def check_integrity(self) -> None:
        """Raise ``AssertionError`` unless the queue holds exactly the blocks with refcount zero."""
        assert all(count >= 0 for count in self._refcounts), "a refcount is negative"
        assert self._num_shared == sum(count > 1 for count in self._refcounts), "a shared block is not counted"
        unreferenced = {block for block, count in enumerate(self._refcounts) if count == 0}
        assert set(self._free) == unreferenced, "the free queue and the refcounts disagree"

    def _held_counts(self, blocks: list[int]) -> list[int]:
        """The refcounts of blocks that may be released together."""
        if len(set(blocks)) != len(blocks):
            raise ConfigError(f"blocks={blocks}: a block is named twice in one release")
        if blocks and not 0 <= min(blocks) <= max(blocks) < self.num_blocks:
            raise ConfigError(f"blocks={blocks}: expected block ids below {self.num_blocks}")
        counts = [self._refcounts[block] for block in blocks]
        if 0 in counts:
            block = blocks[counts.index(0)]
            raise ConfigError(f"block={block} is free already: only a held block can be released")
        return counts
