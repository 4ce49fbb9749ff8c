"""The tensors behind the block tables: one pool of keys and one of values, addressed by block and slot.

The :class:`~kvlib.blocks.BlockManager` decides which block is whose; a `KvStore` only moves numbers. The
three moves that vLLM fuses into kernels of their own (PagedAttention, section 5.1) are `write`, the read
inside :func:`~kvlib.tensors.attention.paged_attention`, and `copy_blocks`.
"""

from collections.abc import Sequence

import numpy as np

from kvlib.errors import ConfigError
from kvlib.specs.checks import whole


class KvStore:
    """Keys and values of all layers, in blocks.

    `keys` and `values` each have the shape ``[num_layers, kv_heads, num_blocks, block_size, head_dim]``.
    Inside a block the tokens of a head lie side by side, so a block is read in runs of ``block_size ×
    head_dim`` numbers; between blocks anything may lie. Slot ``block × block_size + offset`` counts through
    all blocks. Heads come before blocks, so the slice ``[:, heads]`` is what one tensor-parallel worker
    holds, under the same block ids.

    Parameters
    ----------
    xp : NumpyBackend or TorchBackend
    num_layers, kv_heads, head_dim : int
        Shape of the model's cache.
    num_blocks, block_size : int
        As in the block manager that drives this store.

    Raises
    ------
    ConfigError
        If a size is not a positive ``int``.

    Examples
    --------
    >>> from kvlib.tensors.backend import NumpyBackend
    >>> xp = NumpyBackend()
    >>> store = KvStore(xp, num_layers=1, num_blocks=4, block_size=2, kv_heads=1, head_dim=1)
    >>> rows = xp.floats([[[1.0]], [[2.0]], [[3.0]]])
    >>> store.write(0, store.slots([3, 0], range(3)), rows, 10 * rows)
    >>> keys, values = store.gather(0, [3, 0], num_tokens=3)
    >>> keys.reshape(-1).tolist(), values.reshape(-1).tolist()
    ([1.0, 2.0, 3.0], [10.0, 20.0, 30.0])
    """

    def __init__(
        self, xp, *, num_layers: int, num_blocks: int, block_size: int, kv_heads: int, head_dim: int
    ):
        shape = (
            whole("num_layers", num_layers), whole("kv_heads", kv_heads), whole("num_blocks", num_blocks),
            whole("block_size", block_size), whole("head_dim", head_dim),
        )
        self.xp = xp
        self.block_size = block_size
        self.num_blocks = num_blocks
        self.keys = xp.zeros(*shape)
        self.values = xp.zeros(*shape)
        # Host block -> [2, num_layers, kv_heads, block_size, head_dim].
        self._host: dict[int, np.ndarray] = {}

    def slots(self, block_table: Sequence[int], positions: Sequence[int]) -> list[int]:
        """The slots of the tokens at `positions` of a sequence.

        Raises
        ------
        ConfigError
            If the table has no block for a position, or names a block outside the pool.
        """
        slots = []
        for position in positions:
            if not 0 <= position < len(block_table) * self.block_size:
                raise ConfigError(f"position: got {position}, expected less than {len(block_table)} "
                                  f"blocks of {self.block_size}")
            logical, offset = divmod(position, self.block_size)
            slots.append(block_table[logical] * self.block_size + offset)
        self._check_blocks(slot // self.block_size for slot in slots)
        return slots

    def write(self, layer: int, slots: Sequence[int], keys, values) -> None:
        """Put new rows of one layer into their slots, for tokens of any number of sequences at once.

        Parameters
        ----------
        slots : sequence of int
        keys, values : array [len(slots), kv_heads, head_dim]

        Raises
        ------
        ConfigError
            If shapes or dtypes differ from the store's; nothing is written then.
        """
        num_layers, kv_heads, _, _, head_dim = self.keys.shape
        if whole("layer", layer, minimum=0) >= num_layers:
            raise ConfigError(f"layer: got {layer}, expected less than {num_layers}")
        expected = (len(slots), kv_heads, head_dim)
        for field, rows in (("keys", keys), ("values", values)):
            if tuple(rows.shape) != expected or rows.dtype != self.keys.dtype:
                raise ConfigError(f"{field}: got {tuple(rows.shape)} of {rows.dtype}, expected {expected} of "
                                  f"{self.keys.dtype}")
        self._check_blocks(slot // self.block_size for slot in slots)
        places = self.xp.ints(slots)
        for pool, rows in ((self.keys, keys), (self.values, values)):
            pool[layer].reshape(kv_heads, -1, head_dim)[:, places] = rows.swapaxes(0, 1)

    def gather(self, layer: int, block_table: Sequence[int], num_tokens: int):
        """Keys and values of one sequence put side by side: two arrays ``[num_tokens, kv_heads, head_dim]``.

        What attention through the block table makes unnecessary; here to compare with, and to send elsewhere.
        """
        places = self.xp.ints(self.slots(block_table, range(num_tokens)))
        _, kv_heads, _, _, head_dim = self.keys.shape
        return tuple(
            self.xp.take(pool[layer].reshape(kv_heads, -1, head_dim), places).swapaxes(0, 1)
            for pool in (self.keys, self.values)
        )

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Carry out ``(source, destination)`` copies, all layers, keys and values, in one go.

        Expects what `BlockManager.take_copies` promises: no destination is a source.
        """
        if not pairs:
            return
        self._check_blocks(block for pair in pairs for block in pair)
        sources, destinations = (self.xp.ints(blocks) for blocks in zip(*pairs))
        for pool in (self.keys, self.values):
            pool[:, :, destinations] = pool[:, :, sources]

    def swap_out(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy ``(gpu, host)`` blocks to host memory, in one transfer."""
        self._check_blocks(block for block, _ in pairs)
        if pairs:
            blocks = self.xp.ints([block for block, _ in pairs])
            moved = [self.xp.to_numpy(pool[:, :, blocks]) for pool in (self.keys, self.values)]
            for column, (_, host) in enumerate(pairs):
                self._host[host] = np.stack([pool[:, :, column] for pool in moved])

    def swap_in(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy ``(host, gpu)`` blocks back, in one transfer, and drop them from the host.

        Raises
        ------
        ConfigError
            If a host block holds nothing; nothing is copied then.
        """
        self._check_blocks(block for _, block in pairs)
        for host, _ in pairs:
            if host not in self._host:
                raise ConfigError(f"host block: got {host!r}, expected one that was swapped out")
        if pairs:
            moved = self.xp.floats(np.stack([self._host.pop(host) for host, _ in pairs], axis=3))
            blocks = self.xp.ints([block for _, block in pairs])
            self.keys[:, :, blocks], self.values[:, :, blocks] = moved[0], moved[1]

    def move_blocks(self, new_place: Sequence[int]) -> None:
        """Shuffle memory: the content of block ``b`` goes to block ``new_place[b]``, for every block.

        Raises
        ------
        ConfigError
            If `new_place` is not a permutation of the block ids.
        """
        if sorted(new_place) != list(range(self.num_blocks)):
            raise ConfigError(f"new_place: expected each of the {self.num_blocks} block ids once")
        places = self.xp.ints(new_place)
        for pool in (self.keys, self.values):
            pool[:, :, places] = pool[:, :, self.xp.ints(range(self.num_blocks))]

    def _check_blocks(self, blocks) -> None:
        for block in blocks:
            if not 0 <= block < self.num_blocks:
                raise ConfigError(f"block: got {block}, expected a block id below {self.num_blocks}")
