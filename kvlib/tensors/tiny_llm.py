"""A small decoder with random weights: it says nothing sensible, exactly and fast.

Enough for every proof that a way of storing keys and values changes no answer. What needs trained weights
(quantization, dropping tokens, quality) is done on :mod:`kvlib.tensors.smollm`.
"""

import random

from kvlib.specs.checks import whole
from kvlib.tensors.decoder import Decoder, DecoderShape, LayerWeights

TINY_SHAPE = DecoderShape(
    num_layers=8, hidden=64, heads=8, kv_heads=2, head_dim=8, mlp=128, vocabulary=101, max_tokens=1024
)


def tiny_llm(xp, seed: int = 0, shape: DecoderShape = TINY_SHAPE) -> Decoder:
    """A decoder whose weights are drawn uniformly, with the variance ``1 / inputs``.

    Drawn from `random.Random` in float64, so that every backend gets the same weights.

    Examples
    --------
    >>> from kvlib.tensors.backend import NumpyBackend
    >>> from kvlib.tensors.cache import ContiguousCache
    >>> xp = NumpyBackend()
    >>> logits = tiny_llm(xp).forward([[1, 2, 3]], ContiguousCache(xp))
    >>> logits.shape
    (1, 101)
    """
    rng = random.Random(whole("seed", seed, minimum=0))

    def matrix(rows: int, columns: int):
        half_width = (3 / rows) ** 0.5
        return xp.floats([[half_width * (2 * rng.random() - 1) for _ in range(columns)] for _ in range(rows)])

    def ones():
        return xp.floats([1.0] * shape.hidden)

    queries, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    embedding = matrix(shape.vocabulary, shape.hidden)
    layers = [
        LayerWeights(
            attention_norm=ones(), query=matrix(shape.hidden, queries), key=matrix(shape.hidden, kv),
            value=matrix(shape.hidden, kv), output=matrix(queries, shape.hidden), mlp_norm=ones(),
            gate=matrix(shape.hidden, shape.mlp), up=matrix(shape.hidden, shape.mlp),
            down=matrix(shape.mlp, shape.hidden),
        )
        for _ in range(shape.num_layers)
    ]
    return Decoder(xp, shape, embedding, layers, ones())
