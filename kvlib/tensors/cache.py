"""Where a model's keys and values go during a forward pass over a batch of sequences of any lengths.

A model knows a cache by ``lengths``, the tokens each sequence holds, and three verbs. The tokens of all
sequences lie end to end, in the order of the batch:

- ``extend(counts)`` makes room for ``counts[i]`` new tokens of sequence ``i``;
- ``write(layer, keys, values)`` stores the new tokens' rows, ``[tokens, kv_heads, head_dim]``;
- ``read(layer, query)`` answers the new tokens' queries, ``[tokens, heads, head_dim]``, each from the tokens
  of its own sequence up to itself.
"""

from collections import Counter
from collections.abc import Hashable, Sequence

from kvlib.blocks import BlockManager
from kvlib.errors import ConfigError, OutOfBlocks, UnknownSequence
from kvlib.specs.checks import whole
from kvlib.tensors.attention import dense_attention, paged_attention
from kvlib.tensors.kv_store import KvStore


class ContiguousCache:
    """Each sequence in arrays of its own, which are made anew for every token: correct, simple and slow.

    Parameters
    ----------
    xp : NumpyBackend or TorchBackend
    num_sequences : int

    Attributes
    ----------
    keys, values : list of dict
        ``keys[i][layer]`` has the shape ``[tokens, kv_heads, head_dim]``.
    """

    def __init__(self, xp, num_sequences: int = 1):
        self.xp = xp
        self.keys: list[dict[int, object]] = [{} for _ in range(whole("num_sequences", num_sequences))]
        self.values: list[dict[int, object]] = [{} for _ in range(num_sequences)]
        self.lengths = [0] * num_sequences
        self._counts: list[int] = []

    def extend(self, counts: Sequence[int]) -> None:
        """Announce the new tokens (see the module's contract)."""
        _check_counts(counts, len(self.lengths))
        self._counts = list(counts)
        self.lengths = [length + count for length, count in zip(self.lengths, counts)]

    def write(self, layer: int, keys, values) -> None:
        """Append the new rows of one layer (see the module's contract)."""
        for arrays, rows in ((self.keys, keys), (self.values, values)):
            for own, new in zip(arrays, _split(rows, self._counts)):
                own[layer] = self.xp.concat([own[layer], new]) if layer in own else new

    def read(self, layer: int, query):
        """Attend with the whole softmax (see the module's contract)."""
        return self.xp.concat([
            dense_attention(self.xp, new, keys[layer], values[layer])
            for new, keys, values in zip(_split(query, self._counts), self.keys, self.values)
        ])

    def copy(self) -> "ContiguousCache":
        """A cache with copies of everything in it: what sharing saves."""
        twin = ContiguousCache(self.xp, len(self.lengths))
        twin.lengths = list(self.lengths)
        for mine, theirs in ((self.keys, twin.keys), (self.values, twin.values)):
            for own, other in zip(mine, theirs):
                other.update({layer: self.xp.concat([rows]) for layer, rows in own.items()})
        return twin


class PagedCache:
    """Some sequences of a block manager, with their rows in a store.

    Any choice of sequences may form a batch, and a sequence may be in many batches, one after another. The
    manager's verbs stay with the caller: fork, free and swap between passes as you like.

    Parameters
    ----------
    manager : BlockManager
    store : KvStore
        Of the same number of blocks and block size.
    seqs : sequence of names
        Those the manager does not know yet are allocated by the first `extend`.

    Attributes
    ----------
    copied_blocks : int
        Copies on write that this batch has needed so far.

    Raises
    ------
    ConfigError
        If the batch is empty, names a sequence twice, or manager and store do not match.
    """

    def __init__(self, manager: BlockManager, store: KvStore, seqs: Sequence[Hashable]):
        if not seqs or len(set(seqs)) != len(seqs):
            raise ConfigError(f"seqs: got {list(seqs)!r}, expected at least one sequence and each once")
        if (manager.num_blocks, manager.block_size) != (store.num_blocks, store.block_size):
            raise ConfigError(f"store: got {store.num_blocks} blocks of {store.block_size}, expected the "
                              f"manager's {manager.num_blocks} of {manager.block_size}")
        self.manager, self.store, self.seqs = manager, store, list(seqs)
        self.copied_blocks = 0
        self._slots: list[int] = []
        self._counts: list[int] = []
        self._tables: list[list[int]] = []

    @property
    def lengths(self) -> list[int]:
        """Tokens of each sequence; 0 for one the manager does not know yet."""
        return [self._num_tokens(seq) for seq in self.seqs]

    def extend(self, counts: Sequence[int]) -> None:
        """Take the blocks, run the pending copies (see the module's contract).

        Raises
        ------
        OutOfBlocks
            If the whole batch does not fit; no sequence has grown then.
        """
        _check_counts(counts, len(self.seqs))
        manager = self.manager
        before = self.lengths
        needed = self._blocks_needed(counts, before)
        if needed > manager.num_free:
            raise OutOfBlocks(f"batch of {len(counts)}: needs {needed} blocks, {manager.num_free} are free")
        for seq, count, length in zip(self.seqs, counts, before):
            (manager.append if length else manager.allocate)(seq, count)
        copies = manager.take_copies()
        self.store.copy_blocks(copies)
        self.copied_blocks += len(copies)
        self._tables = [manager.block_table(seq) for seq in self.seqs]
        self._counts = list(counts)
        self._slots = [
            slot for table, start, count in zip(self._tables, before, counts)
            for slot in self.store.slots(table, range(start, start + count))
        ]

    def write(self, layer: int, keys, values) -> None:
        """Put all new rows of one layer into their slots at once (see the module's contract)."""
        self.store.write(layer, self._slots, keys, values)

    def read(self, layer: int, query):
        """Attend through the block tables; sequences with equally many new tokens go together."""
        xp, answers, lengths = self.store.xp, {}, self.lengths
        parts = _split(query, self._counts)
        for count in sorted(set(self._counts)):
            rows = [row for row, own in enumerate(self._counts) if own == count]
            together = xp.concat([parts[row].reshape(1, *parts[row].shape) for row in rows])
            out = paged_attention(xp, together, self.store.keys[layer], self.store.values[layer],
                                  [self._tables[row] for row in rows], [lengths[row] for row in rows])
            answers.update(zip(rows, out))
        return xp.concat([answers[row] for row in range(len(parts))])

    def _num_tokens(self, seq: Hashable) -> int:
        try:
            return self.manager.num_tokens(seq)
        except UnknownSequence:
            return 0

    def _blocks_needed(self, counts: Sequence[int], before: Sequence[int]) -> int:
        """Blocks the whole batch takes. Of siblings that all write into one block, the last keeps it."""
        manager, needed, writers = self.manager, 0, Counter()
        for seq, count, length in zip(self.seqs, counts, before):
            needed += manager.blocks_to_append(seq, count) if length else manager.blocks_for(count)
            if length % manager.block_size:
                writers[manager.block_table(seq)[-1]] += 1
        return needed - sum(1 for block, count in writers.items() if manager.refcount(block) == count > 1)


def _check_counts(counts: Sequence[int], num_sequences: int) -> None:
    if len(counts) != num_sequences:
        raise ConfigError(f"counts: got {len(counts)}, expected one for each of {num_sequences} sequences")
    for row, count in enumerate(counts):
        whole(f"counts[{row}]", count)


def _split(rows, counts: Sequence[int]) -> list:
    """Cut rows of all sequences, laid end to end, into one array for each."""
    parts, start = [], 0
    for count in counts:
        parts.append(rows[start:start + count])
        start += count
    return parts
