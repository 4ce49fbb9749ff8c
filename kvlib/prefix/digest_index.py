"""Which blocks hold the content of a digest. Equal blocks are not merged, so there can be several."""

from collections import OrderedDict


class DigestIndex:
    """Content digests of blocks, in both directions.

    - ``add(block, digest)`` notes that ``block`` now holds this content.
    - ``find(digest)`` returns the block that has held it longest, or ``None``.
    - ``remove(block)`` forgets the content of ``block`` and returns its digest if no other block holds
      that content any more, else ``None``. A block without content is left alone.

    Every verb takes constant time. ``check_integrity()`` verifies that both directions agree.

    Examples
    --------
    >>> index = DigestIndex(num_blocks=4)
    >>> index.add(2, b"system prompt"); index.add(0, b"system prompt")
    >>> index.find(b"system prompt"), index.remove(2), index.find(b"system prompt")
    (2, None, 0)
    >>> index.remove(0), index.find(b"system prompt")
    (b'system prompt', None)
    """

    def __init__(self, num_blocks: int):
        self._digest_of: list[bytes | None] = [None] * num_blocks
        self._block_of: dict[bytes, int] = {}
        # Only content that several blocks hold has an entry here: the further blocks, oldest first.
        self._further_blocks: dict[bytes, OrderedDict[int, None]] = {}

    def add(self, block: int, digest: bytes) -> None:
        """Note that ``block`` holds the content of ``digest``."""
        self._digest_of[block] = digest
        if self._block_of.setdefault(digest, block) != block:
            self._further_blocks.setdefault(digest, OrderedDict())[block] = None

    def find(self, digest: bytes) -> int | None:
        """Return the block that has held this content longest, or ``None``."""
        return self._block_of.get(digest)

    def digest_of(self, block: int) -> bytes | None:
        """Return the digest of the content of ``block``, or ``None``."""
        return self._digest_of[block]

    def remove(self, block: int) -> bytes | None:
        """Forget the content of ``block``; return its digest if that was the last block holding it."""
        digest = self._digest_of[block]
        if digest is None:
            return None
        self._digest_of[block] = None
        further = self._further_blocks.get(digest)
        if further is None:
            del self._block_of[digest]
            return digest
        if self._block_of[digest] == block:
            self._block_of[digest] = further.popitem(last=False)[0]
        else:
            del further[block]
        if not further:
            del self._further_blocks[digest]
        return None

    def check_integrity(self) -> None:
        """Raise ``AssertionError`` unless both directions name the same blocks."""
        pairs = {(block, digest) for digest, block in self._block_of.items()}
        for digest, blocks in self._further_blocks.items():
            assert blocks, "an empty list of further blocks"
            pairs.update((block, digest) for block in blocks)
        expected = {(block, digest) for block, digest in enumerate(self._digest_of) if digest is not None}
        assert pairs == expected, "blocks and digests disagree"
