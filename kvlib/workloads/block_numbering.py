"""From the pieces of a prompt to block ids: equal ids mean equal tokens from the start of the prompt on."""

from collections.abc import Hashable, Iterable

from kvlib.specs.checks import whole


class BlockNumbering:
    """Numbers blocks in the order in which their content first appears, as Mooncake's trace does.

    A prompt is a sequence of segments, ``(name, number of tokens)``: a system prompt, a document, a turn.
    Segments of equal name hold equal tokens. A block is told apart by its segments *and* by the block
    before it, so the same document behind another system prompt has other ids.

    Parameters
    ----------
    block_size : int
        Tokens per block; the last block of a prompt may be partial.

    Examples
    --------
    >>> numbering = BlockNumbering(block_size=4)
    >>> numbering.block_ids([("system", 4), ("document", 6)])
    (0, 1, 2)
    >>> numbering.block_ids([("system", 4), ("document", 6), ("question", 3)])
    (0, 1, 3, 4)
    """

    def __init__(self, block_size: int):
        self._block_size = whole("block_size", block_size)
        self._ids = {}

    def block_ids(self, segments: Iterable[tuple[Hashable, int]]) -> tuple[int, ...]:
        """Return the ids of the blocks of one prompt, in order."""
        ids, parent, content, room = [], None, [], self._block_size
        for name, num_tokens in segments:
            start = 0
            while start < num_tokens:
                end = min(start + room, num_tokens)
                content.append((name, start, end))
                room -= end - start
                start = end
                if not room:
                    parent = self._id(parent, content)
                    ids.append(parent)
                    content, room = [], self._block_size
        if content:
            ids.append(self._id(parent, content))
        return tuple(ids)

    def _id(self, parent, content):
        return self._ids.setdefault((parent, tuple(content)), len(self._ids))
