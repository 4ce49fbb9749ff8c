"""A decoder small enough to count: it generates with a cache, or without one by forgetting the cache."""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

from kvlib.errors import ConfigError
from kvlib.primers.attention import KvCache, Matrix, Tally, Vector, attend, times
from kvlib.specs.checks import whole

LAYERS = 2
QUERY_HEADS = 4
HEAD_DIM = 2
HIDDEN = QUERY_HEADS * HEAD_DIM
MLP = 2 * HIDDEN
VOCABULARY = 16
MAX_TOKENS = 32


@dataclass(frozen=True)
class Step:
    """One forward pass.

    Attributes
    ----------
    position : int
        Tokens of the sequence once this pass is done; its last one is the token that asks.
    rows_computed, rows_read : int
        Key rows computed, and key rows found in the cache, in each layer and KV head. Values are as many.
    multiply_adds : int
    logits : tuple of float
        Scores of the next token, one for each word of the vocabulary.
    token : int
        The word with the highest score.
    """

    position: int
    rows_computed: int
    rows_read: int
    multiply_adds: int
    logits: tuple[float, ...]
    token: int


@dataclass(frozen=True)
class _Layer:
    query: Matrix
    key: Matrix
    value: Matrix
    output: Matrix
    up: Matrix
    down: Matrix


class TinyDecoder:
    """Two layers of attention and a feed-forward block, with random weights; norms and biases are left out.

    Parameters
    ----------
    kv_heads : int
        4 (each query head has its own, MHA), 2 (pairs share one, GQA) or 1 (all share one, MQA).
    seed : int
        Of the weights.

    Raises
    ------
    ConfigError
        When `kv_heads` does not divide the query heads, or a size is not a positive ``int``.

    Examples
    --------
    >>> decoder = TinyDecoder()
    >>> cache = decoder.new_cache()
    >>> decoder.forward([3, 1, 4], cache).rows_computed, cache.num_tokens
    (3, 3)
    """

    def __init__(self, kv_heads: int = QUERY_HEADS, seed: int = 7):
        if QUERY_HEADS % whole("kv_heads", kv_heads):
            raise ConfigError(f"kv_heads: got {kv_heads}, expected a divisor of {QUERY_HEADS}")
        rng = random.Random(whole("seed", seed, minimum=0))
        kv_width = kv_heads * HEAD_DIM
        self.kv_heads = kv_heads
        self._words = _weights(rng, VOCABULARY, HIDDEN)
        self._positions = _weights(rng, MAX_TOKENS, HIDDEN)
        self._layers = [
            _Layer(
                query=_weights(rng, HIDDEN, HIDDEN), key=_weights(rng, kv_width, HIDDEN),
                value=_weights(rng, kv_width, HIDDEN), output=_weights(rng, HIDDEN, HIDDEN),
                up=_weights(rng, MLP, HIDDEN), down=_weights(rng, HIDDEN, MLP),
            )
            for _ in range(LAYERS)
        ]
        self._lm_head = _weights(rng, VOCABULARY, HIDDEN)

    def new_cache(self) -> KvCache:
        """An empty cache of this decoder's shape."""
        return KvCache(LAYERS, self.kv_heads)

    def forward(self, new_tokens: Sequence[int], cache: KvCache) -> Step:
        """Run `new_tokens`, which follow those in `cache`, and leave their key and value rows there.

        Raises
        ------
        ConfigError
            For no tokens, a token outside the vocabulary, or more than `MAX_TOKENS` positions.
        """
        already = cache.num_tokens
        self._check(new_tokens, already)
        tally = Tally()
        for position, token in enumerate(new_tokens, start=already):
            hidden = _plus(self._words[token], self._positions[position])
            for index, layer in enumerate(self._layers):
                hidden = _plus(hidden, self._attention(index, layer, hidden, cache, tally))
                inner = [max(0.0, x) for x in times(layer.up, hidden, tally)]
                hidden = _plus(hidden, times(layer.down, inner, tally))
        # Only the last token's scores are wanted: they choose the next token.
        logits = times(self._lm_head, hidden, tally)
        best = max(range(VOCABULARY), key=logits.__getitem__)
        return Step(cache.num_tokens, len(new_tokens), already, tally.multiply_adds, tuple(logits), best)

    def _attention(self, index: int, layer: _Layer, hidden: Vector, cache: KvCache, tally: Tally) -> Vector:
        """Store this token's key and value rows, then let every query head read all rows of its KV head."""
        keys, values = cache.keys[index], cache.values[index]
        for head, (k, v) in enumerate(zip(_heads(times(layer.key, hidden, tally)),
                                          _heads(times(layer.value, hidden, tally)))):
            keys[head].append(k)
            values[head].append(v)
        sharing = QUERY_HEADS // self.kv_heads
        answers: Vector = []
        for head, query in enumerate(_heads(times(layer.query, hidden, tally))):
            answers += attend(query, keys[head // sharing], values[head // sharing], tally)
        return times(layer.output, answers, tally)

    def _check(self, new_tokens: Sequence[int], already: int) -> None:
        if not new_tokens or already + len(new_tokens) > MAX_TOKENS:
            raise ConfigError(
                f"new_tokens: got {len(new_tokens)} after {already}, "
                f"expected at least 1 and at most {MAX_TOKENS} in all"
            )
        for token in new_tokens:
            if whole("token", token, minimum=0) >= VOCABULARY:
                raise ConfigError(f"token: got {token}, expected less than {VOCABULARY}")


def generate(
    decoder: TinyDecoder, prompt: Sequence[int], steps: int, *, keep_cache: bool
) -> tuple[Step, ...]:
    """Generate `steps` tokens greedily: the first from the prompt (prefill), then one from the one before.

    Without a cache the same pass runs over the whole sequence each time; the rows it made are thrown away.

    Examples
    --------
    >>> runs = [generate(TinyDecoder(), [3, 1, 4], 4, keep_cache=kept) for kept in (True, False)]
    >>> [[step.rows_computed for step in run] for run in runs]
    [[3, 1, 1, 1], [3, 4, 5, 6]]
    >>> worst_difference(*runs) <= 1e-12
    True
    """
    whole("steps", steps)
    sequence, cache, made = list(prompt), decoder.new_cache(), []
    for _ in range(steps):
        if not keep_cache:
            cache = decoder.new_cache()
        step = decoder.forward(sequence[cache.num_tokens:], cache)
        made.append(step)
        sequence.append(step.token)
    return tuple(made)


def worst_difference(one: Sequence[Step], other: Sequence[Step]) -> float:
    """The largest difference between the logits of two runs, over all steps and words."""
    return max(
        abs(a - b)
        for left, right in zip(one, other, strict=True)
        for a, b in zip(left.logits, right.logits, strict=True)
    )


def _weights(rng: random.Random, rows: int, columns: int) -> Matrix:
    """Uniform in ±1/sqrt(columns), which keeps the sizes of activations level without norms."""
    bound = 1 / math.sqrt(columns)
    return [[(2 * rng.random() - 1) * bound for _ in range(columns)] for _ in range(rows)]


def _heads(row: Vector) -> Matrix:
    return [row[start:start + HEAD_DIM] for start in range(0, len(row), HEAD_DIM)]


def _plus(a: Vector, b: Vector) -> Vector:
    return [x + y for x, y in zip(a, b, strict=True)]
