"""A decoder-only language model of the Llama family: RMSNorm, rotary positions, grouped queries, SwiGLU.

The equations are those of Touvron et al., "LLaMA" (2023) with the grouped KV heads of Ainslie et al. (2023).
One class runs both models of this book: a tiny one with random weights and SmolLM2 with trained ones.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kvlib.errors import ConfigError
from kvlib.specs.checks import whole

SIZES = ("num_layers", "hidden", "heads", "kv_heads", "head_dim", "mlp", "vocabulary", "max_tokens")


@dataclass(frozen=True)
class DecoderShape:
    """Sizes of a decoder.

    Attributes
    ----------
    num_layers, hidden, heads, kv_heads, head_dim, mlp, vocabulary, max_tokens : int
    rope_base : float
        The ``θ`` of rotary positions.
    norm_epsilon : float
    """

    num_layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    mlp: int
    vocabulary: int
    max_tokens: int
    rope_base: float = 10_000.0
    norm_epsilon: float = 1e-5

    def __post_init__(self):
        for field in SIZES:
            whole(field, getattr(self, field))
        if self.heads % self.kv_heads or self.head_dim % 2:
            raise ConfigError(f"heads: got {self.heads} of {self.head_dim} on {self.kv_heads} KV heads, "
                              "expected a multiple of the KV heads and an even width")


@dataclass(frozen=True)
class LayerWeights:
    """Weights of one layer as arrays ``[in, out]``; the norms are vectors ``[hidden]``."""

    attention_norm: object
    query: object
    key: object
    value: object
    output: object
    mlp_norm: object
    gate: object
    up: object
    down: object


class Decoder:
    """The model; its keys and values go to the cache it is given.

    Parameters
    ----------
    xp : NumpyBackend or TorchBackend
    shape : DecoderShape
    embedding : array [vocabulary, hidden]
        Also the output matrix: both models tie the two.
    layers : sequence of LayerWeights
    final_norm : array [hidden]
    """

    def __init__(self, xp, shape: DecoderShape, embedding, layers: Sequence[LayerWeights], final_norm):
        self.xp, self.shape = xp, shape
        self._embedding, self._layers, self._final_norm = embedding, layers, final_norm
        frequencies = shape.rope_base ** (-np.arange(0, shape.head_dim, 2) / shape.head_dim)
        self._cosines, self._sines = xp.rope_tables(np.outer(np.arange(shape.max_tokens), frequencies))

    def forward(self, batch: Sequence[Sequence[int]], cache, all_positions: bool = False):
        """Run new tokens of several sequences, which follow those that `cache` holds.

        Linear layers see the tokens of all sequences at once; only attention knows who is who (the selective
        batching of Orca, Yu et al. 2022).

        Parameters
        ----------
        batch : new tokens of each sequence
        cache : anything with ``lengths``, ``extend``, ``write`` and ``read``
            See :mod:`kvlib.tensors.cache`.
        all_positions : bool
            Logits of all new tokens, not only of the last one of each sequence.

        Returns
        -------
        array [sequences, vocabulary], or with `all_positions` [new tokens of all sequences, vocabulary]

        Raises
        ------
        ConfigError
            For an empty batch or sequence, a token outside the vocabulary, or a sequence longer than the
            model's context; the cache has not grown then.
        """
        xp, counts = self.xp, [len(tokens) for tokens in batch]
        tokens = self._check(batch)
        positions = [start + i for start, count in zip(cache.lengths, counts) for i in range(count)]
        if max(positions) >= self.shape.max_tokens:
            raise ConfigError(f"batch: got a sequence of {max(positions) + 1} tokens, expected at most "
                              f"{self.shape.max_tokens}")
        cache.extend(counts)
        places = xp.ints(positions)
        rope = [table[places].reshape(len(tokens), 1, -1) for table in (self._cosines, self._sines)]
        hidden = self._embedding[xp.ints(tokens)]
        for index, layer in enumerate(self._layers):
            hidden = hidden + self._attend(index, layer, hidden, rope, cache)
            inner = xp.rms_norm(hidden, layer.mlp_norm, self.shape.norm_epsilon)
            hidden = hidden + (xp.silu(inner @ layer.gate) * (inner @ layer.up)) @ layer.down
        if not all_positions:
            hidden = hidden[xp.ints([sum(counts[:row + 1]) - 1 for row in range(len(counts))])]
        return xp.rms_norm(hidden, self._final_norm, self.shape.norm_epsilon) @ self._embedding.swapaxes(0, 1)

    def _attend(self, index: int, layer: LayerWeights, hidden, rope, cache):
        inner = self.xp.rms_norm(hidden, layer.attention_norm, self.shape.norm_epsilon)
        query, key, value = (
            (inner @ weights).reshape(inner.shape[0], -1, self.shape.head_dim)
            for weights in (layer.query, layer.key, layer.value)
        )
        cache.write(index, self._rotate(key, rope), value)
        answer = cache.read(index, self._rotate(query, rope))
        return answer.reshape(inner.shape[0], -1) @ layer.output

    def _rotate(self, x, rope):
        """Turn the pair (x[i], x[i + head_dim / 2]) by an angle that grows with the position (Su et al.,
        2021)."""
        cosines, sines = rope
        half = x.shape[-1] // 2
        first, second = x[..., :half], x[..., half:]
        return self.xp.concat([first * cosines - second * sines, second * cosines + first * sines], axis=-1)

    def _check(self, batch: Sequence[Sequence[int]]) -> list[int]:
        """All tokens laid end to end."""
        if not batch or not all(len(tokens) for tokens in batch):
            lengths = [len(tokens) for tokens in batch]
            raise ConfigError(f"batch: got {lengths} tokens, expected sequences of at least one token")
        tokens = [token for own in batch for token in own]
        for token in tokens:
            if whole("token", token, minimum=0) >= self.shape.vocabulary:
                raise ConfigError(f"token: got {token}, expected less than {self.shape.vocabulary}")
        return tokens
