"""What the codec is measured against: formats a GPU can read as they are, with a fixed number of bits.

Each function returns the numbers as they come back and the bits per number it takes, scales included.
"""

import numpy as np

from kvlib.cachegen.quantize import quantize_rows, restore_rows

SCALE_BITS = 32


def uniform(kv: np.ndarray, bits: int) -> tuple[np.ndarray, float]:
    """Each token of each layer's K and V by its largest number: the paper's quantization baseline.

    Examples
    --------
    >>> kv = np.random.default_rng(0).normal(size=(2, 2, 5, 64))
    >>> back, bits = uniform(kv, 8)
    >>> float(np.abs(back - kv).max()) < 0.02, bits
    (True, 8.5)
    """
    return restore_rows(*quantize_rows(kv.astype(np.float64), bits)), bits + SCALE_BITS / kv.shape[3]


def kivi(kv: np.ndarray, bits: int, group: int = 32) -> tuple[np.ndarray, float]:
    """Keys along each channel, values along each token, in groups with a 16-bit minimum and scale.

    Source: KIVI (Liu et al. 2024). The tokens must fill whole groups, and so must the channels.

    Examples
    --------
    >>> kv = np.random.default_rng(0).normal(size=(2, 2, 64, 32))
    >>> kivi(kv, 4)[1]
    5.0
    """
    back = np.empty(kv.shape)
    back[:, 0] = _asymmetric(kv[:, 0].swapaxes(1, 2), bits, group).swapaxes(1, 2)
    back[:, 1] = _asymmetric(kv[:, 1], bits, group)
    return back, bits + 2 * 16 / group


def _asymmetric(rows: np.ndarray, bits: int, group: int) -> np.ndarray:
    """Quantize groups along the last axis between their smallest and largest number."""
    parts = rows.reshape(*rows.shape[:-1], -1, group)
    low = parts.min(-1, keepdims=True).astype(np.float16).astype(np.float64)
    scale = ((parts.max(-1, keepdims=True) - low) / (2**bits - 1)).astype(np.float16).astype(np.float64)
    steps = np.rint((parts - low) / np.where(scale > 0, scale, 1.0)).clip(0, 2**bits - 1)
    return (low + steps * scale).reshape(rows.shape)
