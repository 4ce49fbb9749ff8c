"""A KV with exactly the two properties in question: how alike neighbors are, and how far channels lie apart.

Each channel is a first-order autoregressive series of unit variance around an offset of its own. Everything
about its differences can be worked out by hand, which is what makes it a yardstick for real KV.
"""

import math
import random
from dataclasses import dataclass

from kvlib.specs.checks import one_of, real, whole

TARGETS = ("previous", "anchor")
# A sum of four uniform numbers is nearly normal and has variance 1 / 3; logarithms would differ by machine.
UNIFORMS = 4


@dataclass(frozen=True)
class Gains:
    """Variance of the numbers over variance of the differences; above 1 the differences are smaller.

    Parameters
    ----------
    raw : float
        With each channel's offset counted as part of the numbers.
    centred : float
        After each channel's mean was taken away.
    """

    raw: float
    centred: float


def synthetic_channels(
    correlation: float, offset: float, *, channels: int = 16, tokens: int = 200, seed: int = 0
) -> list[list[float]]:
    """Draw the numbers of each channel, token by token.

    Parameters
    ----------
    correlation : float
        Between neighboring tokens of a channel, 0 to 1.
    offset : float
        Spread of the channels' offsets in standard deviations of a channel: channels lie at -offset and
        +offset in turn, so the offsets' variance is exactly its square.
    """
    real("correlation", correlation)
    real("offset", offset)
    rng = random.Random(seed)
    # The innovation keeps the variance at 1 whatever the correlation.
    innovation = math.sqrt(max(0.0, 1 - correlation**2))
    drawn = []
    for channel in range(whole("channels", channels)):
        value, middle, numbers = _unit(rng), offset if channel % 2 else -offset, []
        for _ in range(whole("tokens", tokens)):
            numbers.append(middle + value)
            value = correlation * value + innovation * _unit(rng)
        drawn.append(numbers)
    return drawn


def _unit(rng: random.Random) -> float:
    return math.sqrt(12 / UNIFORMS) * (math.fsum(rng.random() for _ in range(UNIFORMS)) - UNIFORMS / 2)


def measured_gains(drawn: list[list[float]], to: str, group_tokens: int = 10) -> Gains:
    """Gains of differencing, measured on drawn numbers.

    Parameters
    ----------
    to : str
        ``"previous"`` token, or ``"anchor"``: the first token of each group of `group_tokens`.
    """
    one_of("to", to, TARGETS)
    flat = [number for numbers in drawn for number in numbers]
    centred = [number - _mean(numbers) for numbers in drawn for number in numbers]
    steps = []
    for numbers in drawn:
        for i in range(1, len(numbers)):
            base = i - 1 if to == "previous" else i - i % group_tokens
            if base != i:
                steps.append(numbers[i] - numbers[base])
    spread = _variance(steps)
    return Gains(_variance(flat) / spread, _variance(centred) / spread)


def expected_gains(correlation: float, offset: float, to: str, group_tokens: int = 10) -> Gains:
    """The same gains by arithmetic: two numbers of correlation r differ with variance 2 (1 - r).

    To an anchor, a token at distance d has correlation ρ^d; the variance averages over d = 1 … group - 1.

    Examples
    --------
    >>> expected_gains(0.5, 0.0, "previous").centred
    1.0
    >>> round(expected_gains(0.8, 0.0, "anchor").centred, 2)
    0.81
    >>> round(expected_gains(0.0, 2.0, "previous").raw, 2)
    2.5
    """
    one_of("to", to, TARGETS)
    distances = [1] if to == "previous" else range(1, whole("group_tokens", group_tokens, minimum=2))
    spread = math.fsum(2 * (1 - correlation**d) for d in distances) / len(distances)
    return Gains((1 + offset**2) / spread, 1 / spread)


def break_even_correlation(to: str, group_tokens: int = 10) -> float:
    """Correlation above which differences are smaller when there is no offset, to four digits.

    Examples
    --------
    >>> break_even_correlation("previous"), break_even_correlation("anchor")
    (0.5, 0.8571)
    """
    low, high = 0.0, 1.0 - 1e-9
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (
            (middle, high) if expected_gains(middle, 0.0, to, group_tokens).centred < 1 else (low, middle)
        )
    return round(high, 4)


def _mean(numbers: list[float]) -> float:
    return math.fsum(numbers) / len(numbers)


def _variance(numbers: list[float]) -> float:
    mean = _mean(numbers)
    return math.fsum((number - mean) ** 2 for number in numbers) / len(numbers)
