"""A smaller cache in blocks: numbers rounded as they are written, and prefixes found and not computed again.

Nothing in the allocator or in attention changes: a block of small numbers is a block.
"""

from collections.abc import Hashable, Iterable, Sequence

from kvlib.errors import ConfigError
from kvlib.prefix import BlockCache
from kvlib.tensors.attention import paged_attention
from kvlib.tensors.decoder import Decoder
from kvlib.tensors.kv_store import KvStore
from kvlib.tensors.quantized_kv import PER_TOKEN, Groups


class RoundingStore(KvStore):
    """A block store that rounds each row to a format as it is written.

    It holds the numbers that the codes stand for, not the codes, so that any attention can read it.

    Parameters
    ----------
    form : Groups
        Along the channels of one token: what is written may not depend on who is written with it.
    sizes : as `KvStore`

    Raises
    ------
    ConfigError
        For any other format.
    """

    def __init__(self, xp, form: Groups, **sizes):
        super().__init__(xp, **sizes)
        if not isinstance(form, Groups) or form.axis != PER_TOKEN:
            raise ConfigError(f"form: got {form!r}, expected Groups {PER_TOKEN}")
        self._form = form

    def write(self, layer: int, slots: Sequence[int], keys, values) -> None:
        """Round, then store (see `KvStore.write`)."""
        super().write(layer, slots, self._rounded(keys), self._rounded(values))

    def _rounded(self, rows):
        exact = self.xp.to_numpy(rows)
        return self.xp.floats(self._form.restore(exact.reshape(len(exact), -1)).reshape(exact.shape))


class TableCache:
    """One sequence in given blocks, whose first `num_cached` tokens are there already.

    Understands ``lengths``, ``extend``, ``write`` and ``read`` as :mod:`kvlib.tensors.cache` describes them.
    """

    def __init__(self, store: KvStore, block_table: Sequence[int], num_cached: int):
        self.lengths = [num_cached]
        self._store, self._table = store, list(block_table)
        self._slots: list[int] = []

    def extend(self, counts: Sequence[int]) -> None:
        """Find the slots of the new tokens (see the contract)."""
        start, end = self.lengths[0], self.lengths[0] + counts[0]
        self._slots = self._store.slots(self._table, range(start, end))
        self.lengths = [end]

    def write(self, layer: int, keys, values) -> None:
        """Put one layer's rows into them (see the contract)."""
        self._store.write(layer, self._slots, keys, values)

    def read(self, layer: int, query):
        """Attend through the block table, cached tokens included (see the contract)."""
        keys, values = self._store.keys[layer], self._store.values[layer]
        batch = query.reshape(1, *query.shape)
        return paged_attention(self._store.xp, batch, keys, values, [self._table], self.lengths)[0]


def prefill(
    model: Decoder, cache: BlockCache, store: KvStore, seq: Hashable, tokens: Sequence[int],
    extra_keys: Iterable[tuple[str, str]] = (),
):
    """Compute a prompt, all but what the block cache holds already.

    Parameters
    ----------
    extra_keys : pairs of str
        Part of every block's hash. Name the KV format here: blocks of another format are other blocks.

    Returns
    -------
    logits : array [vocabulary]
        Of the last token.
    hit_tokens : int
        Tokens that were not computed.

    Raises
    ------
    ConfigError
        If cache and store are of different sizes.

    Examples
    --------
    >>> from kvlib.tensors.backend import NumpyBackend
    >>> from kvlib.tensors.tiny_llm import tiny_llm
    >>> model = tiny_llm(NumpyBackend())
    >>> store = store_for(model, num_blocks=8, block_size=4)
    >>> cache = BlockCache(num_blocks=8, block_size=4)
    >>> [prefill(model, cache, store, name, [1, 2, 3, 4, 5, last])[1] for name, last in (("a", 6), ("b", 7))]
    [0, 4]
    """
    if (cache.num_blocks, cache.block_size) != (store.num_blocks, store.block_size):
        raise ConfigError(f"store: got {store.num_blocks} blocks of {store.block_size}, expected the cache's "
                          f"{cache.num_blocks} of {cache.block_size}")
    hit_tokens = cache.allocate(seq, tokens, extra_keys)
    rows = model.forward([list(tokens[hit_tokens:])], TableCache(store, cache.block_table(seq), hit_tokens))
    return rows[0], hit_tokens


def store_for(model: Decoder, num_blocks: int, block_size: int, form: Groups | None = None) -> KvStore:
    """A store of the model's shape; with a format, one that rounds."""
    shape = model.shape
    sizes = {"num_layers": shape.num_layers, "kv_heads": shape.kv_heads, "head_dim": shape.head_dim,
             "num_blocks": num_blocks, "block_size": block_size}
    return RoundingStore(model.xp, form, **sizes) if form else KvStore(model.xp, **sizes)
