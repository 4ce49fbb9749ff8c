"""The block manager: which blocks hold which sequence's tokens.

The paged memory of Kwon et al., "Efficient Memory Management for Large Language Model Serving with
PagedAttention" (SOSP 2023), sections 4.1 to 4.5: a block table per sequence, blocks taken on demand,
shared by reference count, copied when a shared one is written to, and swapped to host memory.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from itertools import islice

from kvlib.blocks.pool import BlockPool
from kvlib.errors import ConfigError, UnknownSequence
from kvlib.specs.checks import whole


class BlockManager:
    """Block tables over one :class:`~kvlib.blocks.pool.BlockPool` on the GPU and one on the host.

    The contract, verb by verb. A call that raises has changed nothing. ``UnknownSequence`` is raised for
    a sequence that holds no GPU blocks, ``OutOfBlocks`` when a pool cannot supply what is needed, and
    ``ConfigError`` for a size that is not a positive ``int`` or a name that is already in use.

    - ``allocate(seq, num_tokens)`` makes a table of ``ceil(num_tokens / block_size)`` fresh blocks. A
      sequence that is known, on the GPU or swapped out, cannot be allocated again.
    - ``append(seq, num_tokens=1)`` makes room for more tokens. Free slots of the last block are used first.
      If that block has free slots and other tables point at it too, it is replaced by a fresh block and
      the copy ``(source, destination)`` becomes *pending* (copy-on-write). Then blocks are added as needed.
    - ``append_each(seqs, num_tokens=1)`` appends to several sequences, in this order, or to none: a step of a
      batch, without the price of a call for each.
    - ``fork(parent, child)`` gives ``child`` the same table; every block gains one reference. Needs no
      block. Write the parent's last tokens first, or the child's copy of the last block may lack them.
    - ``free(seq)`` drops the references of ``seq``, or its host blocks if it is swapped out, and forgets it.
    - ``swap_out(*seqs)`` moves sequences to the host together: what they share stays shared and is copied
      once. It moves the *sequences*: a block that others share stays where it is, for them. Returns the
      ``(gpu, host)`` pairs to copy, which must be done before the next verb.
    - ``swap_in(*seqs)`` is the way back, into fresh blocks that are shared with nobody else, and returns the
      ``(host, gpu)`` pairs.
    - ``take_copies()`` returns the pending copies and forgets them. No destination is the source of another
      pair, so they may run in any order, or all at once; run them before writing the appended tokens. Until
      then a source block is not reused, even when no table points at it any more. A copy whose destination
      is given up first is dropped.

    ``check_integrity()`` verifies laws L2 and L3: free and held blocks add up, each refcount is the number
    of tables that point at the block (plus one for a source block that only a pending copy keeps), and
    ``n`` tokens hold exactly ``ceil(n / block_size)`` blocks; on the host likewise.

    Parameters
    ----------
    num_blocks : int
        Blocks on the GPU.
    block_size : int
        Tokens per block.
    num_host_blocks : int, optional
        Blocks on the host; ``None`` means as many as are ever needed.

    Examples
    --------
    A prompt of 7 tokens fills two blocks of 4 (figure 6 of the paper); the second token that is generated
    needs a third. The child then writes into a block that it shares, and gets its own copy.

    >>> manager = BlockManager(num_blocks=8, block_size=4)
    >>> manager.allocate("prompt", 7); manager.block_table("prompt")
    [0, 1]
    >>> manager.append("prompt", 2); manager.block_table("prompt")
    [0, 1, 2]
    >>> manager.fork("prompt", "child"); manager.append("child"); manager.block_table("child")
    [0, 1, 3]
    >>> manager.take_copies(), manager.num_free
    ([(2, 3)], 4)
    """

    def __init__(self, num_blocks: int, block_size: int, num_host_blocks: int | None = None):
        self.block_size = whole("block_size", block_size)
        self._pool = BlockPool(whole("num_blocks", num_blocks))
        self._host_grows = num_host_blocks is None
        self._host = BlockPool(
            0 if self._host_grows else whole("num_host_blocks", num_host_blocks, minimum=0)
        )
        self._tables: dict[Hashable, list[int]] = {}
        self._host_tables: dict[Hashable, list[int]] = {}
        self._num_tokens: dict[Hashable, int] = {}
        self._copies: dict[int, int] = {}  # destination block -> source block, pending
        self._kept: set[int] = set()  # source blocks whose last reference passed to a pending copy

    # Questions

    @property
    def num_blocks(self) -> int:
        """Blocks on the GPU, free and held."""
        return self._pool.num_blocks

    @property
    def num_free(self) -> int:
        """GPU blocks that can be handed out now."""
        return self._pool.num_free

    @property
    def num_free_host(self) -> int | None:
        """Host blocks that can be handed out now; ``None`` if the host never runs out."""
        return None if self._host_grows else self._host.num_free

    def block_table(self, seq: Hashable) -> list[int]:
        """The blocks of ``seq`` in token order (a copy)."""
        return list(self._table(seq))

    def host_block_table(self, seq: Hashable) -> list[int]:
        """The host blocks of a ``seq`` that is swapped out, in token order (a copy)."""
        try:
            return list(self._host_tables[seq])
        except KeyError:
            raise UnknownSequence(f"seq={seq!r}: expected a sequence that is swapped out") from None

    def num_tokens(self, seq: Hashable) -> int:
        """Tokens of ``seq``, wherever they are."""
        try:
            return self._num_tokens[seq]
        except KeyError:
            raise UnknownSequence(f"seq={seq!r}: expected a sequence that is allocated") from None

    def refcount(self, block: int) -> int:
        """Number of references to ``block`` (see the class contract)."""
        return self._pool.refcount(block)

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that ``allocate`` takes for ``num_tokens`` tokens."""
        return -(-whole("num_tokens", num_tokens) // self.block_size)

    def blocks_to_append(self, seq: Hashable, num_tokens: int = 1) -> int:
        """Blocks that ``append`` takes for ``num_tokens`` more tokens, a copy-on-write included."""
        table = self._table(seq)
        # Only a last block with free slots is written to, and only a shared one must be copied first.
        free_slots = len(table) * self.block_size - self._num_tokens[seq]
        is_copied = free_slots > 0 and self._pool.refcount(table[-1]) > 1
        return -((free_slots - whole("num_tokens", num_tokens)) // self.block_size) + is_copied

    def free_slots_each(self, seqs: Sequence[Hashable]) -> list[int]:
        """Free slots in the last block of each of ``seqs``: the tokens it can take without another block."""
        block_size, counts = self.block_size, self._num_tokens
        try:
            return [-counts[seq] % block_size for seq in seqs]
        except KeyError as error:
            raise UnknownSequence(f"seq={error.args[0]!r}: expected a sequence that is allocated") from None

    def blocks_to_append_each(self, seqs: Sequence[Hashable], num_tokens: int = 1) -> int:
        """Blocks that ``append_each`` takes: of those who share a last block, the last to write keeps it."""
        self._check_known(set(seqs))
        return self._num_copies(seqs) + sum(self._more_blocks(seqs, whole("num_tokens", num_tokens)))

    # Verbs

    def allocate(self, seq: Hashable, num_tokens: int) -> None:
        """Give a new sequence its blocks (see the class contract)."""
        self._check_new(seq)
        self._tables[seq] = self._pool.take(self.blocks_for(num_tokens))
        self._num_tokens[seq] = num_tokens

    def append(self, seq: Hashable, num_tokens: int = 1) -> None:
        """Make room for ``num_tokens`` more tokens (see the class contract)."""
        needed = self.blocks_to_append(seq, num_tokens)
        if needed:
            table, fresh = self._tables[seq], self._pool.take(needed)
            if len(table) + needed > self.blocks_for(self._num_tokens[seq] + num_tokens):
                self._copy_on_write(table, fresh.pop(0))
            table.extend(fresh)
        self._num_tokens[seq] += num_tokens

    def append_each(self, seqs: Sequence[Hashable], num_tokens: int = 1) -> None:
        """Append to several sequences at once (see the class contract)."""
        whole("num_tokens", num_tokens)
        names = set(seqs)
        self._check_known(names)
        if len(names) != len(seqs):
            raise ConfigError(f"seqs={seqs!r}: expected each sequence once")
        more = self._more_blocks(seqs, num_tokens)
        num_copies = self._num_copies(seqs)
        fresh = iter(self._pool.take(num_copies + sum(more)))
        tables, counts = self._tables, self._num_tokens
        for seq in seqs if num_copies else ():
            if counts[seq] % self.block_size and self._pool.refcount(tables[seq][-1]) > 1:
                self._copy_on_write(tables[seq], next(fresh))
        for seq, num_blocks in zip(seqs, more):
            if num_blocks:
                tables[seq].extend(islice(fresh, num_blocks))
            counts[seq] += num_tokens

    def fork(self, parent: Hashable, child: Hashable) -> None:
        """Let ``child`` share all blocks of ``parent`` (see the class contract)."""
        table = self._table(parent)
        self._check_new(child)
        for block in table:
            self._pool.share(block)
        self._tables[child] = list(table)
        self._num_tokens[child] = self._num_tokens[parent]

    def free(self, seq: Hashable) -> None:
        """Forget a sequence and drop its references (see the class contract)."""
        self.num_tokens(seq)  # raises for a sequence that is not known
        if seq in self._host_tables:
            self._host.release(self._host_tables.pop(seq))
        else:
            self._release(self._tables.pop(seq))
        del self._num_tokens[seq]

    def swap_out(self, *seqs: Hashable) -> list[tuple[int, int]]:
        """Move sequences to the host together (see the class contract)."""
        tables = self._together(seqs, self._table)
        blocks = list(dict.fromkeys(block for table in tables for block in table))
        if self._host_grows:
            self._host.grow(max(0, len(blocks) - self._host.num_free))
        host_of = dict(zip(blocks, self._host.take(len(blocks))))
        # A block that still waits for its copy holds nothing yet: its content lies in the copy's source.
        pairs = [(self._copies.get(block, block), host) for block, host in host_of.items()]
        for seq, host_table in zip(seqs, _moved(tables, host_of, self._host)):
            self._release(self._tables.pop(seq))
            self._host_tables[seq] = host_table
        return pairs

    def swap_in(self, *seqs: Hashable) -> list[tuple[int, int]]:
        """Move sequences back to the GPU together (see the class contract)."""
        host_tables = self._together(seqs, self.host_block_table)
        blocks = list(dict.fromkeys(block for table in host_tables for block in table))
        gpu_of = dict(zip(blocks, self._pool.take(len(blocks))))
        for seq, table in zip(seqs, _moved(host_tables, gpu_of, self._pool)):
            self._host.release(self._host_tables.pop(seq))
            self._tables[seq] = table
        return list(gpu_of.items())

    def take_copies(self) -> list[tuple[int, int]]:
        """Hand over the pending ``(source, destination)`` copies (see the class contract)."""
        copies = [(source, destination) for destination, source in self._copies.items()]
        self._copies.clear()
        self._pool.release(sorted(self._kept))
        self._kept.clear()
        return copies

    def check_integrity(self) -> None:
        """Raise ``AssertionError`` unless the laws of the class contract hold."""
        self._pool.check_integrity()
        self._host.check_integrity()
        references = Counter(block for table in self._tables.values() for block in table)
        references.update(self._kept)
        for block in range(self.num_blocks):
            assert self._pool.refcount(block) == references[block], f"L2: refcount of block {block}"
        assert self.num_free + len(references) == self.num_blocks, "L2: free + held = total"
        host_references = Counter(block for table in self._host_tables.values() for block in table)
        for block in range(self._host.num_blocks):
            assert self._host.refcount(block) == host_references[block], f"L2: refcount of host block {block}"
        assert self._num_tokens.keys() == self._tables.keys() | self._host_tables.keys()
        for seq, table in [*self._tables.items(), *self._host_tables.items()]:
            assert len(table) == self.blocks_for(self._num_tokens[seq]), f"L3: blocks of {seq!r}"
        sources = set(self._copies.values())
        assert self._kept <= sources, "a block is kept for a copy that is not pending"
        assert sources.isdisjoint(self._copies), "the destination of a pending copy is a source"

    # Steps

    def _table(self, seq: Hashable) -> list[int]:
        try:
            return self._tables[seq]
        except KeyError:
            raise UnknownSequence(f"seq={seq!r}: expected a sequence that holds GPU blocks") from None

    def _together(self, seqs: tuple[Hashable, ...], table_of: Callable) -> list[list[int]]:
        """The tables of sequences that move together, each named once."""
        if not seqs or len(set(seqs)) != len(seqs):
            raise ConfigError(f"seqs={seqs!r}: expected one sequence or several different ones")
        return [table_of(seq) for seq in seqs]

    def _check_known(self, names: set[Hashable]) -> None:
        if not self._tables.keys() >= names:
            self._table(next(name for name in names if name not in self._tables))

    def _more_blocks(self, seqs: Sequence[Hashable], num_tokens: int) -> list[int]:
        """Blocks by which each table becomes longer."""
        block_size = self.block_size
        return [-((free_slots - num_tokens) // block_size) for free_slots in self.free_slots_each(seqs)]

    def _num_copies(self, seqs: Sequence[Hashable]) -> int:
        """Blocks that are copied when each of ``seqs`` writes: of all who share one, the last keeps it."""
        if not self._pool.num_shared:
            return 0
        writers = Counter(self._tables[seq][-1] for seq in seqs if self._num_tokens[seq] % self.block_size)
        return sum(min(count, self._pool.refcount(block) - 1) for block, count in writers.items())

    def _check_new(self, seq: Hashable) -> None:
        if seq in self._num_tokens:
            raise ConfigError(f"seq={seq!r} is known already: free it first, or append to it")

    def _copy_on_write(self, table: list[int], destination: int) -> None:
        # Copying from the first source of a chain of pending copies lets them all run at once.
        source = self._copies.get(table[-1], table[-1])
        self._pool.release([table[-1]])
        table[-1] = destination
        self._copies[destination] = source

    def _release(self, blocks: list[int]) -> None:
        if self._copies:
            blocks = [block for block in blocks if not self._settle(block)]
        self._pool.release(blocks)

    def _settle(self, block: int) -> bool:
        """Whether a pending copy takes over the reference to ``block`` that its table gives up."""
        if self._pool.refcount(block) > 1:
            return False
        source = self._copies.pop(block, None)
        if source in self._kept and source not in self._copies.values():
            self._kept.remove(source)
            self._pool.release([source])
        if block not in self._copies.values():
            return False
        self._kept.add(block)
        return True


def _moved(tables: list[list[int]], new_block_of: dict[int, int], pool: BlockPool) -> list[list[int]]:
    """The same tables over other blocks of ``pool``, each of which was taken once."""
    moved = [[new_block_of[block] for block in table] for table in tables]
    for block, count in Counter(block for table in moved[1:] for block in table).items():
        for _ in range(count if block in moved[0] else count - 1):
            pool.share(block)
    return moved
