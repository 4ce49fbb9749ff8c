"""Two ways to keep the sequences of a decoding method: sharing blocks, or copying everything.

Both understand ``feed``, ``fork`` and ``free`` as :mod:`kvlib.tensors.decoding` describes them, and must give
the same answers.
"""

from collections.abc import Hashable, Mapping, Sequence

from kvlib.blocks import BlockManager
from kvlib.errors import UnknownSequence
from kvlib.tensors.cache import ContiguousCache, PagedCache
from kvlib.tensors.decoder import Decoder
from kvlib.tensors.kv_store import KvStore
from kvlib.tensors.placement import scatter_free_blocks


class PagedSession:
    """Sequences share the blocks of one pool until they write into them.

    Parameters
    ----------
    model : Decoder
    num_blocks, block_size : int
        Of the pool.
    scatter_seed : int, optional
        Hand the blocks out in an order drawn from this seed, instead of by number.

    Attributes
    ----------
    copied_blocks : int
        Copy-on-writes so far.
    peak_blocks : int
        The most blocks that were held after a step.
    """

    def __init__(self, model: Decoder, num_blocks: int, block_size: int, scatter_seed: int | None = None):
        shape = model.shape
        self.model = model
        self.manager = BlockManager(num_blocks, block_size)
        self.store = KvStore(
            model.xp, num_layers=shape.num_layers, num_blocks=num_blocks, block_size=block_size,
            kv_heads=shape.kv_heads, head_dim=shape.head_dim,
        )
        self.copied_blocks = self.peak_blocks = 0
        if scatter_seed is not None:
            scatter_free_blocks(self.manager, scatter_seed)

    def feed(self, new_tokens: Mapping[Hashable, Sequence[int]]) -> dict[Hashable, list[float]]:
        """One forward pass over all sequences together."""
        cache = PagedCache(self.manager, self.store, list(new_tokens))
        rows = self.model.xp.log_softmax(self.model.forward(list(new_tokens.values()), cache))
        self.copied_blocks += cache.copied_blocks
        self.peak_blocks = max(self.peak_blocks, self.manager.num_blocks - self.manager.num_free)
        return dict(zip(new_tokens, self.model.xp.to_list(rows)))

    def fork(self, parent: Hashable, child: Hashable) -> None:
        """Let `child` share all blocks of `parent`."""
        self.manager.fork(parent, child)

    def free(self, seq: Hashable) -> None:
        """Drop the references of `seq`."""
        self.manager.free(seq)

    def swap_out(self, seq: Hashable) -> None:
        """Move a sequence to host memory."""
        self.store.swap_out(self.manager.swap_out(seq))

    def swap_in(self, seq: Hashable) -> None:
        """Bring it back, into whatever blocks are free."""
        self.store.swap_in(self.manager.swap_in(seq))


class CopyingSession:
    """Every sequence owns its keys and values; a fork copies all of them, as systems did before paging.

    Attributes
    ----------
    copied_tokens : int
        Tokens whose keys and values forks have copied so far.
    """

    def __init__(self, model: Decoder):
        self.model = model
        self.copied_tokens = 0
        self._caches: dict[Hashable, ContiguousCache] = {}

    def feed(self, new_tokens: Mapping[Hashable, Sequence[int]]) -> dict[Hashable, list[float]]:
        """One forward pass for each sequence."""
        xp, scores = self.model.xp, {}
        for seq, tokens in new_tokens.items():
            cache = self._caches.setdefault(seq, ContiguousCache(xp))
            scores[seq] = xp.to_list(xp.log_softmax(self.model.forward([tokens], cache)))[0]
        return scores

    def fork(self, parent: Hashable, child: Hashable) -> None:
        """Copy all of `parent`."""
        self._caches[child] = self._cache(parent).copy()
        self.copied_tokens += self._caches[child].lengths[0]

    def free(self, seq: Hashable) -> None:
        """Forget `seq` and its arrays."""
        self._cache(seq)
        del self._caches[seq]

    def _cache(self, seq: Hashable) -> ContiguousCache:
        if seq not in self._caches:
            raise UnknownSequence(f"seq={seq!r}: expected a sequence that was fed")
        return self._caches[seq]
