"""Prompt and output lengths: a stated shape, scaled until its mean is the published one.

Only the mean lengths of ShareGPT and Alpaca are published (vLLM paper, section 6.1 and figure 11).
The shapes are our assumption: prompts are log-normal, many short and a few very long; outputs are
exponential. Both are stored as quantile tables and read with straight lines between the knots, so a
draw needs one uniform number and no library function that differs between machines.
"""

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from random import Random

from kvlib.errors import ConfigError
from kvlib.specs.checks import real, whole
from kvlib.workloads.request import Request

SOURCE = "Kwon et al., PagedAttention, SOSP 2023, section 6.1 (datasets) and figure 11"

PROBABILITIES = (0.0, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 1.0)
# Log-normal quantiles exp(sigma * z) relative to the median, sigma 1.2 and 0.5. The two ends stand at
# the 0.1 % and 99.9 % points, since the distribution itself has no ends.
WIDE = (0.025, 0.139, 0.215, 0.364, 0.533, 0.738, 1.0, 1.355, 1.876, 2.745, 4.655, 7.198, 16.307, 40.784)
NARROW = (0.213, 0.439, 0.527, 0.657, 0.769, 0.881, 1.0, 1.135, 1.3, 1.523, 1.898, 2.276, 3.2, 4.689)
# Exponential quantiles -log(1 - p) relative to the mean, ended at the 99.9 % point.
EXPONENTIAL = (0.0, 0.051, 0.105, 0.223, 0.357, 0.511, 0.693, 0.916, 1.204, 1.609, 2.303, 2.996, 4.605, 6.908)


@dataclass(frozen=True)
class LengthDistribution:
    """Lengths in tokens as an inverse CDF with linear steps between knots.

    Attributes
    ----------
    tokens : tuple of float
        Length at each probability of ``PROBABILITIES``, never falling.

    Examples
    --------
    >>> import random
    >>> LengthDistribution.fitted(EXPONENTIAL, mean_tokens=58.45, max_tokens=1024).draw(random.Random(0))
    110
    """

    tokens: tuple[float, ...]

    @classmethod
    def fitted(cls, shape: tuple[float, ...], *, mean_tokens: float, max_tokens: int) -> "LengthDistribution":
        """Scale ``shape`` so that, clipped to 1..max_tokens, its mean is ``mean_tokens``.

        Parameters
        ----------
        shape : tuple of float
            Relative length at each probability of ``PROBABILITIES``.
        mean_tokens : float
            The mean to reach, above 1 and below ``max_tokens``.
        max_tokens : int
            Longer lengths are clipped to this one.

        Raises
        ------
        ConfigError
            If the mean cannot be reached.
        """
        whole("max_tokens", max_tokens, minimum=2)
        real("mean_tokens", mean_tokens, above=True)
        # Every length above 0 is clipped at the end of this range, so no mean beyond it can be reached.
        low, high = 0.0, max_tokens / next(relative for relative in shape if relative > 0)
        if not 1 < mean_tokens < cls._scaled(shape, high, max_tokens).mean_tokens:
            raise ConfigError(
                f"mean_tokens: got {mean_tokens!r}, expected above 1 and well below {max_tokens}"
            )
        for _ in range(60):  # bisection: the clipped mean never falls as the scale grows
            middle = (low + high) / 2
            if cls._scaled(shape, middle, max_tokens).mean_tokens < mean_tokens:
                low = middle
            else:
                high = middle
        return cls._scaled(shape, high, max_tokens)

    @classmethod
    def always(cls, num_tokens: int) -> "LengthDistribution":
        """Return the distribution of which every draw is ``num_tokens``."""
        return cls((float(whole("num_tokens", num_tokens)),) * len(PROBABILITIES))

    @classmethod
    def _scaled(cls, shape, scale, max_tokens):
        return cls(tuple(min(max(relative * scale, 1.0), float(max_tokens)) for relative in shape))

    @property
    def mean_tokens(self) -> float:
        """Mean length in tokens: each linear step contributes its width times its middle height."""
        steps = zip(pairwise(PROBABILITIES), pairwise(self.tokens))
        return math.fsum((q - p) * (a + b) / 2 for (p, q), (a, b) in steps)

    def draw(self, rng: Random) -> int:
        """Draw one length in whole tokens, using exactly one number of ``rng``."""
        u = rng.random()
        right = bisect_right(PROBABILITIES, u)
        left = right - 1
        share = (u - PROBABILITIES[left]) / (PROBABILITIES[right] - PROBABILITIES[left])
        return round(self.tokens[left] + share * (self.tokens[right] - self.tokens[left]))


# 1,024 + 1,024 stays within OPT's 2,048 positions.
SHAREGPT_INPUT = LengthDistribution.fitted(WIDE, mean_tokens=161.31, max_tokens=1024)
SHAREGPT_OUTPUT = LengthDistribution.fitted(EXPONENTIAL, mean_tokens=337.99, max_tokens=1024)
ALPACA_INPUT = LengthDistribution.fitted(NARROW, mean_tokens=19.31, max_tokens=1024)
ALPACA_OUTPUT = LengthDistribution.fitted(EXPONENTIAL, mean_tokens=58.45, max_tokens=1024)


def mean_lengths(requests: Sequence[Request]) -> tuple[float, float]:
    """Return the realized ``(mean input tokens, mean output tokens)`` of a list of requests.

    Raises
    ------
    ConfigError
        If there are no requests.

    Examples
    --------
    >>> from kvlib.workloads.request import Request
    >>> mean_lengths([Request(0, 10, 4), Request(1, 20, 0)])
    (15.0, 2.0)
    """
    if not requests:
        raise ConfigError("requests: got none, expected at least 1")
    total_input = sum(request.num_input_tokens for request in requests)
    total_output = sum(request.num_output_tokens for request in requests)
    return total_input / len(requests), total_output / len(requests)
