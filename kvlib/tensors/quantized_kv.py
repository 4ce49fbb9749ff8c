"""Keys and values with fewer bits that stay a tensor: FP8, INT8, and integers in small groups on KIVI's axes.

Each format rounds an array ``[..., tokens, channels]`` to the numbers it can hold and gives those back as
floats, which is what attention sees. `bits_per_number` counts the scales that must be kept beside the codes.
"""

from dataclasses import dataclass

import numpy as np

from kvlib.errors import ConfigError
from kvlib.specs.checks import one_of, whole
from kvlib.tensors.smaller import GROUP_BITS

# "Per token": a group lies along the channels of one token. "Per channel": along the tokens of one channel.
PER_TOKEN, PER_CHANNEL = "per token", "per channel"
GROUP = 32
E4M3_LARGEST, E4M3_SMALLEST_EXPONENT, E4M3_MANTISSA_BITS = 448.0, -6, 3


@dataclass(frozen=True)
class Groups:
    """Integers in groups: ``low + step · code`` with ``2^bits`` codes (KIVI, Liu et al. 2024, section 3).

    Parameters
    ----------
    bits : int
    axis : {"per token", "per channel"}
    group : int
        Numbers that share one smallest number and one step; they must fill their axis.

    Examples
    --------
    >>> rows = np.array([[0.0, 1.0, 2.0, 3.2], [10.0, 20.0, 30.0, 40.0]])
    >>> Groups(2, PER_TOKEN, group=4).restore(rows).round(1).tolist()
    [[0.0, 1.1, 2.1, 3.2], [10.0, 20.0, 30.0, 40.0]]
    >>> Groups(2, PER_TOKEN).bits_per_number
    3.0
    """

    bits: int
    axis: str
    group: int = GROUP

    def __post_init__(self):
        whole("bits", self.bits)
        whole("group", self.group)
        one_of("axis", self.axis, (PER_TOKEN, PER_CHANNEL))

    @property
    def bits_per_number(self) -> float:
        return self.bits + GROUP_BITS / self.group

    def restore(self, rows: np.ndarray) -> np.ndarray:
        """`rows` after a round trip through the format."""
        along = rows if self.axis == PER_TOKEN else rows.swapaxes(-1, -2)
        if along.shape[-1] % self.group:
            size = along.shape[-1]
            raise ConfigError(f"group: got {self.group}, expected a divisor of the {size} numbers {self.axis}")
        parts = along.reshape(*along.shape[:-1], -1, self.group)
        low = _half(parts.min(-1, keepdims=True))
        step = _half((parts.max(-1, keepdims=True) - low) / (2**self.bits - 1))
        codes = np.rint((parts - low) / np.where(step > 0, step, 1.0)).clip(0, 2**self.bits - 1)
        restored = (low + codes * step).reshape(along.shape)
        return restored if self.axis == PER_TOKEN else restored.swapaxes(-1, -2)


@dataclass(frozen=True)
class OneScale:
    """Symmetric integers with one scale for the whole array, kept with the weights as engines do.

    Examples
    --------
    >>> OneScale(4).restore(np.array([[0.6, -7.0]])).tolist()
    [[1.0, -7.0]]
    """

    bits: int

    def __post_init__(self):
        whole("bits", self.bits, minimum=2)

    @property
    def bits_per_number(self) -> float:
        return float(self.bits)

    def restore(self, rows: np.ndarray) -> np.ndarray:
        """`rows` after a round trip through the format."""
        highest = 2 ** (self.bits - 1) - 1
        scale = float(np.abs(rows).max()) / highest or 1.0
        return np.rint(rows / scale) * scale


@dataclass(frozen=True)
class Float8:
    """8-bit floats, 4 bits of exponent and 3 of mantissa (E4M3 of Micikevicius et al. 2022), with one scale.

    The scale brings the largest number to 448, the largest one E4M3 can hold.

    Examples
    --------
    Eight steps between powers of two, so the error is relative:

    >>> Float8().restore(np.array([[448.0, 101.0, 1.03]])).tolist()
    [[448.0, 104.0, 1.0]]
    """

    @property
    def bits_per_number(self) -> float:
        return 8.0

    def restore(self, rows: np.ndarray) -> np.ndarray:
        """`rows` after a round trip through the format."""
        scale = float(np.abs(rows).max()) / E4M3_LARGEST or 1.0
        return to_e4m3(rows / scale) * scale


def to_e4m3(numbers: np.ndarray) -> np.ndarray:
    """The nearest E4M3 number to each, ties to even, saturating at ±448."""
    # frexp gives m · 2^e with m in [0.5, 1), so the exponent of the leading bit is e - 1.
    exponent = np.maximum(np.frexp(numbers)[1] - 1, E4M3_SMALLEST_EXPONENT)
    step = np.ldexp(1.0, exponent - E4M3_MANTISSA_BITS)
    return np.clip(np.rint(numbers / step) * step, -E4M3_LARGEST, E4M3_LARGEST)


def quantized(kv: np.ndarray, keys, values) -> np.ndarray:
    """A whole cache with its keys in one format and its values in another.

    Parameters
    ----------
    kv : array [layers, 2, tokens, channels]
    keys, values : Groups, OneScale or Float8
    """
    return np.array([[form.restore(part) for form, part in zip((keys, values), layer)] for layer in kv])


def bits_per_number(keys, values) -> float:
    """Mean bits of a cached number, scales included.

    Examples
    --------
    >>> bits_per_number(Groups(4, PER_CHANNEL), Groups(2, PER_TOKEN))
    4.0
    """
    return (keys.bits_per_number + values.bits_per_number) / 2


def relative_error(rows: np.ndarray, form) -> float:
    """Root mean square error of a format, divided by the standard deviation of `rows`."""
    return float(np.sqrt(np.mean((form.restore(rows) - rows) ** 2)) / rows.std())


def _half(numbers: np.ndarray) -> np.ndarray:
    """What is left of `numbers` after being kept in 16 bits."""
    return numbers.astype(np.float16).astype(numbers.dtype)
