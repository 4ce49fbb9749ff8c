"""What a changed KV cache does to a model: score a known continuation with it and compare.

The context's KV is replaced, the continuation is run in one pass on top of it, and its next-token
distributions are compared with those on the untouched KV.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kvlib.cachegen.levels import layer_group
from kvlib.errors import ConfigError
from kvlib.tensors.cache import ContiguousCache


@dataclass(frozen=True)
class Quality:
    """How far the distributions moved, averaged over the predictions.

    Parameters
    ----------
    kl : float
        Kullback-Leibler divergence from the untouched distribution, in nats.
    top1 : float
        Share of predictions whose most likely token stayed the same.
    loss : float
        Mean negative log-likelihood of the continuation, in nats; perplexity is its exponential.
    predictions : int
    """

    kl: float
    top1: float
    loss: float
    predictions: int


def context_kv(model, tokens: Sequence[int]) -> np.ndarray:
    """Run `tokens` through `model` and take out its KV.

    Returns
    -------
    float32 array [layers, 2, tokens, channels]
        Keys as they are cached, rotated to their positions.
    """
    cache = ContiguousCache(model.xp)
    model.forward([list(tokens)], cache)
    pairs = [
        [model.xp.to_numpy(part[0][layer]).reshape(len(tokens), -1) for part in (cache.keys, cache.values)]
        for layer in range(model.shape.num_layers)
    ]
    return np.array(pairs, dtype=np.float32)


def rotated(kv: np.ndarray, head_dim: int, rope_base: float, back: bool = False) -> np.ndarray:
    """`kv` with its keys rotated to their positions, or (`back`) as they were before that.

    Parameters
    ----------
    kv : array [layers, 2, tokens, channels]
        Of a context that starts at position 0.
    head_dim : int
        Width of a KV head; the first half of a head turns with the second.
    rope_base : float
        The ``θ`` of rotary positions (Su et al. 2021).

    Examples
    --------
    >>> kv = np.random.default_rng(0).normal(size=(1, 2, 5, 8))
    >>> bool(np.allclose(rotated(rotated(kv, 4, 1e4), 4, 1e4, back=True), kv))
    True
    """
    layers, _, tokens, channels = kv.shape
    frequencies = rope_base ** (-np.arange(0, head_dim, 2) / head_dim)
    angles = np.outer(np.arange(tokens), frequencies)[:, None, :] * (-1 if back else 1)
    heads = kv[:, 0].reshape(layers, tokens, channels // head_dim, 2, -1)
    first, second = heads[..., 0, :], heads[..., 1, :]
    turned = np.stack(
        [first * np.cos(angles) - second * np.sin(angles), second * np.cos(angles) + first * np.sin(angles)],
        axis=-2,
    )
    out = kv.copy()
    out[:, 0] = turned.reshape(layers, tokens, channels)
    return out


def noised(kv: np.ndarray, width: float, third: int, exact_tokens: int, seed: int = 0) -> np.ndarray:
    """`kv` with the error of dithered bins in one third of its layers, in proportion to each tensor's spread.

    Parameters
    ----------
    width : float
        Bin width in standard deviations of the layer's K or V around its channels' means, the first four
        tokens aside.
    third : int
        0 shallow, 1 middle, 2 deep.
    exact_tokens : int
        So many tokens at the start get no error.
    """
    rng = np.random.default_rng(seed)
    out = kv.copy()
    for layer in range(len(kv)):
        if layer_group(layer, len(kv)) == third:
            for which in (0, 1):
                rows = out[layer, which, exact_tokens:]
                later = kv[layer, which, 4:]
                rows += width * (later - later.mean(0)).std() * (rng.random(rows.shape) - 0.5)
    return out


def continuation_log_probs(model, kv: np.ndarray, continuation: Sequence[int], position: int | None = None):
    """Log-probabilities of the next token after each token of `continuation`.

    Parameters
    ----------
    kv : array [layers, 2, tokens, channels]
    position : int, optional
        Where the continuation starts, when `kv` holds fewer tokens than the context had.

    Returns
    -------
    float64 numpy array [tokens, vocabulary]
    """
    cache = ContiguousCache(model.xp)
    layers, _, tokens, _ = kv.shape
    for layer in range(layers):
        for part, rows in ((cache.keys, kv[layer, 0]), (cache.values, kv[layer, 1])):
            part[0][layer] = model.xp.floats(rows.reshape(tokens, model.shape.kv_heads, model.shape.head_dim))
    cache.lengths = [tokens if position is None else position]
    logits = model.forward([list(continuation)], cache, all_positions=True)
    return model.xp.to_numpy(model.xp.log_softmax(logits))


def compare(log_probs: np.ndarray, untouched: np.ndarray, continuation: Sequence[int]) -> Quality:
    """Judge distributions against the untouched ones.

    Parameters
    ----------
    log_probs, untouched : arrays [tokens, vocabulary]
    continuation : token ids
        The token after position i is ``continuation[i + 1]``; the last position predicts nothing known.
    """
    if len(continuation) < 2 or log_probs.shape != untouched.shape or len(log_probs) != len(continuation):
        raise ConfigError(
            f"continuation: got {len(continuation)} tokens for {log_probs.shape}, {untouched.shape}"
        )
    ours, base = log_probs[:-1], untouched[:-1]
    wanted = np.asarray(continuation[1:])
    return Quality(
        kl=float((np.exp(base) * (base - ours)).sum(-1).mean()),
        top1=float((ours.argmax(-1) == base.argmax(-1)).mean()),
        loss=float(-ours[np.arange(len(wanted)), wanted].mean()),
        predictions=len(wanted),
    )
