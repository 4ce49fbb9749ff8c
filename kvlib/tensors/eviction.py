"""Which tokens of a long context to keep: a window, attention sinks, or what attention has looked at.

A policy answers with places ``[layers, kv_heads, budget]``, ascending. Kept tokens keep their positions.
"""

from dataclasses import dataclass

import numpy as np

from kvlib.errors import ConfigError
from kvlib.specs.checks import whole
from kvlib.tensors.attention import NO_SCORE
from kvlib.tensors.cache import ContiguousCache

# StreamingLLM keeps four first tokens (Xiao et al. 2024, section 3.2).
SINKS = 4
# SnapKV asks the last queries of the prompt, smooths over neighbors, and keeps those queries' tokens (Li et
# al. 2024).
OBSERVED = 32
SMOOTHED = 5


@dataclass(frozen=True)
class AttentionSums:
    """How much attention each token of a context has received.

    Attributes
    ----------
    from_all, from_last : float64 arrays [layers, kv_heads, tokens]
        Summed over all queries of the context, and over its last `OBSERVED` ones.
    """

    from_all: np.ndarray
    from_last: np.ndarray

    def over_heads(self) -> "AttentionSums":
        """The heads of a layer added up, as if there were one: for a choice that all heads must share.

        Examples
        --------
        >>> sums = AttentionSums(np.ones((1, 3, 5)), np.ones((1, 3, 5))).over_heads()
        >>> sums.from_all.tolist()
        [[[3.0, 3.0, 3.0, 3.0, 3.0]]]
        """
        return AttentionSums(*(sums.sum(axis=1, keepdims=True) for sums in (self.from_all, self.from_last)))


class AttentionByHead(ContiguousCache):
    """A cache that adds up, for each KV head, how much attention every token of the context gets."""

    def __init__(self, xp):
        super().__init__(xp)
        self._all: dict[int, np.ndarray] = {}
        self._last: dict[int, np.ndarray] = {}

    def read(self, layer: int, query):
        """Attend as usual and note the weights (see the contract of `kvlib.tensors.cache`)."""
        xp, keys = self.xp, self.keys[0][layer]
        new, heads, head_dim = query.shape
        tokens, kv_heads, _ = keys.shape
        sharing = heads // kv_heads
        # The query heads that share a KV head lie next to each other, so a token's rows do as well.
        places = xp.ints([tokens - new + row // sharing for row in range(new * sharing)]).reshape(-1, 1)
        visible = places >= xp.ints(range(tokens))
        sums = np.zeros((2, kv_heads, tokens))
        for head in range(kv_heads):
            rows = query[:, head * sharing:(head + 1) * sharing].reshape(-1, head_dim) * head_dim**-0.5
            scores = xp.where(visible, xp.wide(rows @ keys[:, head].swapaxes(0, 1)), NO_SCORE)
            weights = xp.exp(scores - xp.max(scores))
            weights = weights / weights.sum(axis=-1, keepdims=True)
            by_last = weights[-OBSERVED * sharing:]
            sums[:, head] = [xp.to_numpy(part.sum(axis=0)) for part in (weights, by_last)]
        self._all[layer], self._last[layer] = sums
        return super().read(layer, query)

    def sums(self) -> AttentionSums:
        """What was noted."""
        layers = sorted(self._all)
        return AttentionSums(*(np.array([noted[i] for i in layers]) for noted in (self._all, self._last)))


def window(sums: AttentionSums, budget: int) -> np.ndarray:
    """The newest tokens."""
    return sinks_and_window(sums, budget, sinks=0)


def sinks_and_window(sums: AttentionSums, budget: int, sinks: int = SINKS) -> np.ndarray:
    """The first `sinks` tokens and the newest ones: StreamingLLM (Xiao et al. 2024).

    Examples
    --------
    >>> nothing = np.zeros((1, 1, 10))
    >>> sinks_and_window(AttentionSums(nothing, nothing), budget=6, sinks=2).tolist()
    [[[0, 1, 6, 7, 8, 9]]]
    """
    layers, kv_heads, tokens = sums.from_all.shape
    budget, sinks = _checked(budget, tokens), whole("sinks", sinks, minimum=0)
    if sinks > budget:
        raise ConfigError(f"sinks: got {sinks}, expected at most the budget of {budget}")
    kept = [*range(sinks), *range(tokens - budget + sinks, tokens)]
    return np.broadcast_to(np.array(kept), (layers, kv_heads, budget))


def heavy_hitters(sums: AttentionSums, budget: int) -> np.ndarray:
    """Half of the budget the newest tokens, half those with the most attention: H2O (Zhang et al. 2023).

    The paper evicts token by token while generating; here the choice is made once, after the context.

    Examples
    --------
    >>> mass = np.array([[[9.0, 1.0, 5.0, 0.1, 0.2]]])
    >>> heavy_hitters(AttentionSums(mass, mass), budget=4).tolist()
    [[[0, 2, 3, 4]]]
    """
    return _newest_and_heaviest(sums.from_all, budget, newest=budget // 2)


def snapkv(sums: AttentionSums, budget: int) -> np.ndarray:
    """The last `OBSERVED` tokens, and what they looked at, smoothed over neighbors (Li et al. 2024)."""
    reach = SMOOTHED // 2
    padded = np.pad(sums.from_last, ((0, 0), (0, 0), (reach, reach)), mode="edge")
    smooth = np.lib.stride_tricks.sliding_window_view(padded, SMOOTHED, axis=-1).mean(-1)
    return _newest_and_heaviest(smooth, budget, newest=min(OBSERVED, budget))


def at_random(sums: AttentionSums, budget: int, seed: int = 0) -> np.ndarray:
    """The same random tokens for all layers and heads: the control."""
    layers, kv_heads, tokens = sums.from_all.shape
    kept = np.sort(np.random.default_rng(seed).permutation(tokens)[: _checked(budget, tokens)])
    return np.broadcast_to(kept, (layers, kv_heads, budget))


POLICIES = {
    "window": window,
    "sinks + window": sinks_and_window,
    "H2O": heavy_hitters,
    "SnapKV": snapkv,
    "random": at_random,
}


def kept_kv(kv: np.ndarray, kept: np.ndarray) -> np.ndarray:
    """The cache that is left, packed: ``[layers, 2, budget, channels]``.

    Parameters
    ----------
    kv : array [layers, 2, tokens, channels]
    kept : int array [layers, kv_heads, budget]
    """
    layers, _, tokens, channels = kv.shape
    heads = kv.reshape(layers, 2, tokens, kept.shape[1], -1)
    places = kept.swapaxes(1, 2)[:, None, :, :, None]
    return np.take_along_axis(heads, places, axis=2).reshape(layers, 2, kept.shape[2], channels)


def kept_per_block(kept: np.ndarray, tokens: int, block_size: int) -> np.ndarray:
    """Slots still in use in each block of each layer and KV head: ``[layers, kv_heads, blocks]``."""
    blocks = -(-tokens // whole("block_size", block_size))
    return np.stack([(kept // block_size == block).sum(-1) for block in range(blocks)], axis=-1)


def freed_blocks(kept: np.ndarray, tokens: int, block_size: int) -> float:
    """Share of blocks that hold nothing any more, when one block table serves all layers and heads.

    Examples
    --------
    Two heads keep half of 4 tokens each, and yet every block of 2 is in use.

    >>> freed_blocks(np.array([[[0, 1], [2, 3]]]), tokens=4, block_size=2)
    0.0
    """
    return float((kept_per_block(kept, tokens, block_size) == 0).all(axis=(0, 1)).mean())


def _newest_and_heaviest(mass: np.ndarray, budget: int, newest: int) -> np.ndarray:
    tokens = mass.shape[-1]
    old = tokens - newest
    heaviest = np.argsort(-mass[..., :old], axis=-1, kind="stable")[..., : _checked(budget, tokens) - newest]
    latest = np.broadcast_to(np.arange(old, tokens), (*mass.shape[:2], newest))
    return np.sort(np.concatenate([heaviest, latest], axis=-1), axis=-1)


def _checked(budget: int, tokens: int) -> int:
    if whole("budget", budget) > tokens:
        raise ConfigError(f"budget: got {budget}, expected at most the {tokens} tokens of the context")
    return budget
