"""Numbers to small integers and back: rows by their largest number, differences by a fixed bin.

All arithmetic is in float64 and element by element, so a chunk gives the same integers alone as in company.
Planes are the K or the V of one layer; arrays are ``[planes, tokens, channels]``.
"""

from dataclasses import dataclass

import numpy as np

from kvlib.cachegen.entropy import ALPHABET
from kvlib.cachegen.levels import Recipe
from kvlib.errors import ConfigError, DecodeError

# Symbols 0 … 254 stand for -127 … 127; 255 says that the number is too large and follows by itself.
ZERO = 127
ESCAPE = ALPHABET - 1
EXACT_BITS = 16
# An escaped number is stored as a signed 32-bit integer.
LARGEST_STEP = 2**31 - 1


@dataclass(frozen=True)
class Steps:
    """A chunk as integers.

    Parameters
    ----------
    exact, exact_scale : int16 [planes, exact tokens, channels], float32 [planes, exact tokens]
        The first tokens of a context at 16 bits: number = step · scale.
    anchors, anchor_scale : uint8 symbols [planes, anchors, channels], float32 [planes, anchors]
        Likewise at `Recipe.anchor_bits`.
    others : int32 [planes, others, channels]
        The other tokens: number = reference + step · bin.
    """

    exact: np.ndarray
    exact_scale: np.ndarray
    anchors: np.ndarray
    anchor_scale: np.ndarray
    others: np.ndarray


def quantize_rows(rows: np.ndarray, bits: int) -> tuple[np.ndarray, np.ndarray]:
    """Quantize each row to signed `bits`-bit steps of its largest absolute number.

    Parameters
    ----------
    rows : float64 array [..., channels]

    Returns
    -------
    steps : int64 array [..., channels]
        From -(2^(bits-1) - 1) to +(2^(bits-1) - 1).
    scale : float32 array [...]
        Size of a step; 0 for a row of zeros.

    Examples
    --------
    >>> steps, scale = quantize_rows(np.array([[0.5, -1.0, 0.0], [0.0, 0.0, 0.0]]), 8)
    >>> steps.tolist(), scale.round(4).tolist()
    ([[64, -127, 0], [0, 0, 0]], [0.007899999618530273, 0.0])
    """
    highest = 2 ** (bits - 1) - 1
    scale = (np.abs(rows).max(-1, initial=0.0) / highest).astype(np.float32)
    safe = np.where(scale > 0, scale, 1.0)[..., None].astype(np.float64)
    # Rounding the scale to float32 can push the largest number just past the last step.
    return np.clip(np.rint(rows / safe), -highest, highest).astype(np.int64), scale


def restore_rows(steps: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """Undo `quantize_rows`, to within half a step."""
    return steps * scale[..., None].astype(np.float64)


def anchor_places(tokens: int, recipe: Recipe) -> tuple[np.ndarray, np.ndarray]:
    """Which of `tokens` tokens are anchors, and which are not.

    Examples
    --------
    >>> anchors, others = anchor_places(7, Recipe(group_tokens=3))
    >>> anchors.tolist(), others.tolist()
    ([0, 3, 6], [1, 2, 4, 5])
    """
    place = np.arange(tokens)
    is_anchor = place % recipe.group_tokens == 0 if recipe.group_tokens else np.zeros(tokens, bool)
    return place[is_anchor], place[~is_anchor]


def reference(anchors: np.ndarray, others: np.ndarray, means: np.ndarray, recipe: Recipe) -> np.ndarray:
    """What the other tokens are predicted to be: their group's decoded anchor, or the channel's mean.

    Parameters
    ----------
    anchors : float64 array [planes, anchors, channels]
        Decoded anchors, since the decoder has no others.
    others : integer array
        Places of the tokens to predict.
    means : float array [planes, channels]
    """
    if recipe.group_tokens:
        return anchors[:, others // recipe.group_tokens]
    return means[:, None, :].astype(np.float64)


def to_steps(
    chunk: np.ndarray, exact_tokens: int, means: np.ndarray, bins: np.ndarray, recipe: Recipe
) -> Steps:
    """Turn a chunk into integers.

    Parameters
    ----------
    chunk : float64 array [planes, tokens, channels]
    exact_tokens : int
        How many of its first tokens are kept at 16 bits.
    means : array [planes, channels]
        Channel means, used when the recipe has no anchors.
    bins : array [planes]
        Bin width of the differences.

    Raises
    ------
    ConfigError
        When a difference is more than 2^31 bins: the profile does not fit this KV.
    """
    exact, exact_scale = quantize_rows(chunk[:, :exact_tokens], EXACT_BITS)
    rest = chunk[:, exact_tokens:]
    anchor_at, other_at = anchor_places(rest.shape[1], recipe)
    anchors, anchor_scale = quantize_rows(rest[:, anchor_at], recipe.anchor_bits)
    predicted = reference(restore_rows(anchors, anchor_scale), other_at, means, recipe)
    others = np.rint((rest[:, other_at] - predicted) / bins[:, None, None])
    if np.abs(others).max(initial=0) > LARGEST_STEP:
        plane = int(np.abs(others).max((1, 2)).argmax())
        raise ConfigError(
            f"kv: a number in layer {plane // 2} is over 2^31 bins from its prediction, "
            "expected KV of the model whose profile this is"
        )
    return Steps(
        exact.astype(np.int16),
        exact_scale,
        (anchors + ZERO).astype(np.uint8),
        anchor_scale,
        others.astype(np.int32),
    )


def from_steps(steps: Steps, means: np.ndarray, bins: np.ndarray, recipe: Recipe) -> np.ndarray:
    """Undo `to_steps`: float64 [planes, tokens, channels], each number within half a step of what it was."""
    anchor_at, other_at = anchor_places(steps.anchors.shape[1] + steps.others.shape[1], recipe)
    anchors = restore_rows(steps.anchors.astype(np.int64) - ZERO, steps.anchor_scale)
    exact = restore_rows(steps.exact.astype(np.int64), steps.exact_scale)
    rest = np.empty((len(bins), len(anchor_at) + len(other_at), means.shape[1]))
    rest[:, anchor_at] = anchors
    rest[:, other_at] = reference(anchors, other_at, means, recipe) + steps.others * bins[:, None, None]
    return np.concatenate([exact, rest], axis=1)


def to_symbols(others: np.ndarray, slots: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Spell steps as symbols; what has no symbol, or none with a slot in its table, becomes an escape.

    Parameters
    ----------
    others : int32 array [planes, tokens, channels]
    slots : array [channels, planes, alphabet], optional
        The tables that will code the symbols.

    Returns
    -------
    symbols : uint8 array [planes, tokens, channels]
    escapes : int32 array
        The steps themselves, in the order in which `symbols` says `ESCAPE`.

    Examples
    --------
    >>> symbols, escapes = to_symbols(np.array([[[0, -3, 1000]]], np.int32))
    >>> symbols.tolist(), escapes.tolist()
    ([[[127, 124, 255]]], [1000])
    """
    symbols = np.where(np.abs(others) <= ZERO, others + ZERO, ESCAPE).astype(np.uint8)
    if slots is not None:
        planes, _, channels = others.shape
        table = np.arange(planes)[:, None, None] + np.arange(channels) * planes
        has_slot = slots.reshape(-1)[table * ALPHABET + symbols] > 0
        symbols[~has_slot] = ESCAPE
    return symbols, others[symbols == ESCAPE]


def from_symbols(symbols: np.ndarray, escapes: np.ndarray) -> np.ndarray:
    """Undo `to_symbols`.

    Raises
    ------
    DecodeError
        When there are more or fewer escapes than symbols that ask for one.
    """
    others = symbols.astype(np.int32) - ZERO
    escaped = symbols == ESCAPE
    if np.count_nonzero(escaped) != len(escapes):
        raise DecodeError(f"escapes: got {len(escapes)}, expected {np.count_nonzero(escaped)}")
    others[escaped] = escapes
    return others
