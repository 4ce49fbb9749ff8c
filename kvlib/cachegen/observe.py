"""The paper's three observations as measures on an array of KV (CacheGen, section 5.1).

KV has the shape ``[layers, 2, tokens, channels]``; most measures look at one plane, ``[tokens, channels]``.
"""

import numpy as np

from kvlib.cachegen.levels import layer_group
from kvlib.errors import ConfigError

PREVIOUS, ANCHOR = "previous", "anchor"
GROUPINGS = ("global", "layer", "token", "channel", "layer_channel")


def shuffled(kv: np.ndarray, seed: int) -> np.ndarray:
    """`kv` with its tokens in another order: the control that destroys locality and nothing else."""
    return kv[:, :, np.random.default_rng(seed).permutation(kv.shape[2])]


def differences(plane: np.ndarray, to: str, group_tokens: int = 10) -> np.ndarray:
    """Each token minus the previous one, or minus the first of its group of `group_tokens`.

    Parameters
    ----------
    plane : array [tokens, channels]
    to : str
        ``"previous"`` or ``"anchor"``.

    Examples
    --------
    >>> differences(np.array([[1.0], [3.0], [6.0]]), "previous").ravel().tolist()
    [2.0, 3.0]
    >>> differences(np.array([[1.0], [3.0], [6.0]]), "anchor").ravel().tolist()
    [2.0, 5.0]
    """
    if to == PREVIOUS:
        return np.diff(plane, axis=0)
    if to != ANCHOR:
        raise ConfigError(f"to: got {to!r}, expected {PREVIOUS!r} or {ANCHOR!r}")
    place = np.arange(len(plane))
    others = place[place % group_tokens != 0]
    return plane[others] - plane[others - others % group_tokens]


def variance_gain(plane: np.ndarray, to: str, centred: bool) -> float:
    """Variance of the numbers over variance of the differences; above 1, differences are smaller.

    For independent tokens of equal variance it is 0.5 once each channel's mean is taken away (`centred`);
    without that, the spread between channel means counts as variance and differencing removes it for free.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> independent = rng.normal(size=(2000, 4)) + np.array([-5, 0, 0, 5])
    >>> round(variance_gain(independent, "previous", centred=True), 1)
    0.5
    >>> variance_gain(independent, "previous", centred=False) > 4
    True
    """
    numbers = plane - plane.mean(0) if centred else plane
    return float(numbers.var() / differences(plane, to).var())


def third_means(per_layer) -> tuple[float, float, float, float]:
    """Geometric means over the shallow, middle and deep third of the layers, and over all."""
    logs = np.log(np.asarray(per_layer))
    third = np.array([layer_group(layer, len(logs)) for layer in range(len(logs))])
    return tuple(
        float(np.exp(logs[where].mean())) for where in (third == 0, third == 1, third == 2, third >= 0)
    )


def grouped_bits(symbols: np.ndarray, grouping: str) -> float:
    """Bits per symbol when each group has a distribution of its own, fitted to these very symbols.

    Parameters
    ----------
    symbols : small non-negative integers [layers, tokens, channels]
        Of K or of V alone.
    grouping : str
        One of `GROUPINGS`. A group of few symbols looks better than it is; `held_out_bits` does not.

    Examples
    --------
    >>> symbols = np.zeros((2, 8, 3), np.int64)
    >>> symbols[1] = 1
    >>> grouped_bits(symbols, "global"), grouped_bits(symbols, "layer")
    (1.0, 0.0)
    """
    return held_out_bits(symbols, symbols, grouping)


def held_out_bits(symbols: np.ndarray, learned_on: np.ndarray, grouping: str) -> float:
    """Bits per symbol when the groups' distributions are fitted to other symbols.

    Half a count is added to each symbol, so that none is impossible. With `learned_on` the same
    array, nothing is added: that is the entropy.
    """
    alphabet = int(max(symbols.max(), learned_on.max())) + 1
    extra = 0.0 if learned_on is symbols else 0.5
    counts, learned = (_counts(s, grouping, alphabet) for s in (symbols, learned_on))
    shares = (learned + extra) / (learned + extra).sum(-1, keepdims=True)
    used = counts > 0
    return float((counts[used] * np.log2(1 / shares[used])).sum() / symbols.size)


def _counts(symbols: np.ndarray, grouping: str, alphabet: int) -> np.ndarray:
    layers, tokens, channels = symbols.shape
    group_of = {
        "global": (0, 0, 0),
        "layer": (1, 0, 0),
        "token": (0, 1, 0),
        "channel": (0, 0, 1),
        "layer_channel": (channels, 0, 1),
    }
    if grouping not in group_of:
        raise ConfigError(f"grouping: got {grouping!r}, expected one of {', '.join(GROUPINGS)}")
    by_layer, by_token, by_channel = group_of[grouping]
    group = (
        by_layer * np.arange(layers)[:, None, None]
        + by_token * np.arange(tokens)[:, None]
        + by_channel * np.arange(channels)
    )
    groups = int(group.max()) + 1
    cells = (group * alphabet + symbols).ravel()
    return np.bincount(cells, minlength=groups * alphabet).reshape(groups, alphabet)
